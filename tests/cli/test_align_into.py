"""`st-matryoshka2d align --into`: results equal those of the library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, encode_to_parquet, load
from st_matryoshka2d.model.declared_agreement import declared_agreement
from tests.support import families
from tests.support.command_line import answer, run, told
from tests.support.pipelines import OTHERS, TEXTS, equal


@pytest.mark.parametrize("embedded", [False, True])
def test_align_into_matches_library(embedded: bool, tiny_folder: Path, tmp_path: Path) -> None:
    other = families.pipeline(families.CONFIGS["bert"](), tmp_path / "weights", "mean", dense=24, normalize=True)
    into, texts, out = tmp_path / "other", tmp_path / "texts.txt", tmp_path / "mapped"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    if embedded:
        encode_to_parquet(other, TEXTS, into, ["4L-24d"], show_progress_bar=False)
    else:
        other.save_pretrained(str(into))
    given = ["--texts", texts, "--into", into, "--out", out, "--device", "cpu"]
    found = answer("align", tiny_folder, *given)
    expected = align(SentenceTransformer(str(tiny_folder), device="cpu"), TEXTS, into=other)
    loaded = load(out, device="cpu")
    if embedded:
        np.testing.assert_allclose(loaded.encode(OTHERS), expected.encode(OTHERS), atol=1e-5)
    else:
        assert equal(loaded, expected)
        agreement = {str(size): value for size, value in declared_agreement(expected.config).items()}
        assert found["agreement"] == agreement
    other_name = "other embeddings" if embedded else "other"
    assert f"Agreement with {other_name}," in run("info", out).output
    assert f"How well each size agrees with {other_name}, on texts" in (out / "README.md").read_text(encoding="utf-8")


def test_too_many_embeddings_are_refused_in_words(tiny_folder: Path, tmp_path: Path) -> None:
    other = SentenceTransformer(str(tiny_folder), device="cpu")
    encode_to_parquet(other, TEXTS, tmp_path / "index", ["4L-32d"], show_progress_bar=False)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:30]), encoding="utf-8")
    given = ["--texts", tmp_path / "texts.txt", "--into", tmp_path / "index", "--out", tmp_path / "out"]
    result = run("align", tiny_folder, *given)
    assert result.exit_code != 0
    assert "has more rows than the 30 texts" in told(result)


def test_trust_in_the_model_is_none_in_the_other(tiny_folder: Path, tmp_path: Path) -> None:
    """The other folder has a module of its own, which leaves a trace when it is imported."""
    other, trace = tmp_path / "other", tmp_path / "trace"
    shutil.copytree(tiny_folder, other)
    modules = json.loads((other / "modules.json").read_text(encoding="utf-8"))
    modules[1]["type"] = "custom.Pooling"
    (other / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    code = (
        f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
        "from sentence_transformers.sentence_transformer.modules import Pooling\n"
    )
    (other / "custom.py").write_text(code, encoding="utf-8")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    given = ["--texts", tmp_path / "texts.txt", "--into", other, "--out", tmp_path / "out"]
    result = run("align", tiny_folder, "--trust-remote-code", *given)
    assert result.exit_code != 0
    assert not trace.exists()
    SentenceTransformer(str(other), device="cpu", trust_remote_code=True)
    assert trace.exists(), "with trust it runs"
