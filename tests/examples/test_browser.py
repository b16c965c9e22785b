"""The help desk in a browser: vectors of token table and graph, and the answers found, are those of Python."""

# ruff: noqa: RUF001  signs and letters as people type them
from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from st_matryoshka2d import OnnxEmbedder, TokenTable
from tests import ROOT
from tests.support.browser import Page, browser
from tests.support.launch import finished

pytestmark = pytest.mark.slow

PAGE = ROOT / "examples" / "browser"
DESK = pd.read_csv(ROOT / "examples" / "help_desk.csv", keep_default_na=False)
ODD = [
    "",
    " ",
    "\t\n\u00a0\u3000",
    "Wie entkalke ich den Wasserkocher? Größe, Öl, Übermaß, ẞ",
    "gro\u0308ße, A\u030angstro\u0308m",  # accents apart
    "\u0300",
    "🙂",
    "hot 🔥 kettle 👩\u200d👩\u200d👧 and 🇩🇪 flag",
    "hello😀world",
    "洗衣机 does not 开",
    "日本 の やかん",
    "한국어 주전자",
    "क्षि नमस्ते",
    "مرحبا بالعالم",
    "שלום",
    "Привет, чайник",
    "οδός",
    "½ l, 25 °C, 3×4 = 12, 5€, #7 & 8%",
    "“quoted” – ‘dash’ … «angle»",
    "don't, it's; e.g. (a/b) [c] {d} <b>e</b>",
    "[UNK] [CLS] [SEP] [PAD]",
    "ｆｕｌｌ width",
    "soft\u00adhyphen, zero\u200bwidth, byte\ufeffmark, null\0, bell\a",
    "ÉCLAIR À LA CARTE",
    "x" * 101,
    "İstanbul ǆ ﬁre",
    "kettle\r\nkettle",
    "!?!?!?...",
    "the kettle " * 3000,
    " ".join(DESK["answer"]),
]
GOLDEN = [*ODD, *DESK["question"][: 50 - len(ODD)]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The example as its README says, and the address of a server of it."""
    if not (PAGE / "node_modules").is_dir():
        pytest.skip("the packages of the page are not installed: make test-browser")
    folder = tmp_path_factory.mktemp("site")
    finished(sys.executable, PAGE / "prepare.py", cwd=folder, timeout=900)
    made = folder / "runs" / "browser"
    subprocess.run(["npm", "run", "build", "--", f"--outdir={made}"], cwd=PAGE, check=True, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(made))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page(site: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.open(site[1])
        yield opened


def embedded(page: Page, module: str, name: str, folder: str, method: str = "encode") -> list[list[float]]:
    """Return what a class of the page makes of the golden texts."""
    script = f"""(async () => {{
      const {{ {name} }} = await import(new URL("{module}", location.href));
      const encoder = await {name}.load("{folder}");
      const made = [];
      for (const text of {json.dumps(GOLDEN)}) made.push([...await encoder.{method}(text)]);
      return made;
    }})()"""
    return list(page.run(script))


def test_golden_texts_are_fifty_and_have_tokens_of_every_kind(site: tuple[Path, str]) -> None:
    assert len(set(GOLDEN)) == 50
    table = TokenTable.load(site[0] / "table")
    counts = [len(table.tokenizer.encode(text, add_special_tokens=False).ids) for text in GOLDEN]
    assert min(counts) == 0
    assert max(counts) == 6000


def test_vectors_of_the_table(site: tuple[Path, str], page: Page) -> None:
    table = TokenTable.load(site[0] / "table")
    assert table.rows.dtype == np.float16
    assert (site[0] / "table" / "model.safetensors").stat().st_size < 5e6
    found = np.array(embedded(page, "token_table.js", "TokenTable", "table"))
    np.testing.assert_allclose(found, table.encode_query(GOLDEN), rtol=0, atol=1e-5)


def test_vectors_of_the_graph(site: tuple[Path, str], page: Page) -> None:
    """Activations are put into 8 bits too, and one that falls between two numbers may be rounded otherwise."""
    graph = OnnxEmbedder.load(site[0] / "graph", num_threads=1)
    of_graph = partial(embedded, page, "onnx_embedder.js", "OnnxEmbedder", "graph")
    tokens = [graph.tokenizer.encode(text).ids for text in GOLDEN]
    assert max(map(len, tokens)) == 256, "a text is cut"
    assert of_graph("tokens") == tokens
    found, expected = np.array(of_graph()), np.array([graph.encode_query(text) for text in GOLDEN])
    assert (found * expected).sum(1).min() > 0.995
    assert np.median(np.abs(found - expected).max(1)) < 1e-3


@pytest.mark.parametrize(("way", "folder"), [("table", TokenTable), ("graph", OnnxEmbedder)])
def test_answers_are_those_of_python(way: str, folder: Any, site: tuple[Path, str], page: Page) -> None:
    page.run(f"document.querySelector('[value={way}]').click()")
    index = load_file(site[0] / "index.safetensors")["embeddings"].astype(np.float32)
    encoder = folder.load(site[0] / way)
    for question in DESK["question"][::20]:
        page.run("document.getElementById('query').select()")
        page.write(question)
        best = (-(index @ encoder.encode_query(question))).argsort()[:5]
        answers = [DESK["answer"][place] for place in best]
        page.wait("document.querySelectorAll('#answers li').length === 5")
        page.wait(f"document.querySelector('#answers li').textContent === {json.dumps(answers[0])}")
        assert page.run("[...document.querySelectorAll('#answers li')].map((item) => item.textContent)") == answers
        assert "Embedded in" in page.run("document.getElementById('said').textContent")
    page.run("document.getElementById('query').select()")
    page.write(" ")
    page.wait("!document.querySelector('#answers li')")


def test_nothing_is_asked_of_others_and_nothing_fails(site: tuple[Path, str], page: Page) -> None:
    assert {address.split("/")[2] for address in page.asked if not address.startswith("data:")} == {site[1].split("/")[2]}
    assert page.errors == []


def test_reader_is_short() -> None:
    lines = [line for name in ("rows.js", "token_table.js") for line in (PAGE / name).read_text().splitlines()]
    assert len(lines) <= 100


def test_refuses_a_folder_that_is_no_table(site: tuple[Path, str], page: Page) -> None:
    modules = [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}]
    (site[0] / "other").mkdir()
    for name, content in (("modules", modules), ("config_sentence_transformers", {}), ("tokenizer", {})):
        (site[0] / "other" / f"{name}.json").write_text(json.dumps(content))
    (site[0] / "other" / "model.safetensors").write_bytes((site[0] / "index.safetensors").read_bytes())
    load = "import(new URL('token_table.js', location.href)).then(({ TokenTable }) => TokenTable.load('other'))"
    said = page.run(f"{load}.catch(String)")
    assert said == "Error: other is no saved token table: it embeds by Transformer,Pooling."
