"""The examples for engines: workers match one process, two-stage search matches search with all dims, and servers match
the cut.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest
from _demo import data as demo_data

from tests import ROOT
from tests.support.launch import finished

pytestmark = pytest.mark.slow

SIZES = ["2L-32d", "4L-128d", "6L-384d"]


def run(example: str, tmp_path: Path, *options: object) -> str:
    # Ray 2.64 drops them
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "error:`ray_remote_args"}
    return finished(
        sys.executable, ROOT / "examples" / example, *(options or ["--smoke"]), cwd=tmp_path, timeout=900, **settings
    )


@pytest.mark.parametrize(("engine", "ways"), [("ray", 1), ("pyspark", 2), ("daft", 1)])
def test_workers_match_one_process(engine: str, ways: int, tmp_path: Path) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed: pip install 'st_matryoshka2d[engines]'")
    if engine == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java 17, and there is no java")
    name = {"pyspark": "spark"}.get(engine, engine)
    printed = run(f"{name}_encode.py", tmp_path)
    differences = re.findall(r"^\|.* (\dL-\d+d) \| 400 \|.* (\S+) \|$", printed, re.MULTILINE)
    assert [size for size, _ in differences] == SIZES * ways
    assert all(float(difference) < 1e-6 for _, difference in differences)
    table = pyarrow.dataset.dataset(tmp_path / "runs" / f"{name}_encode", exclude_invalid_files=True).to_table()
    assert sorted(table["id"].to_pylist()) == list(range(400))
    if engine == "ray":
        nodes = re.findall(r"^\| (\d) \| (\d+) \|$", printed, re.MULTILINE)
        assert [node for node, _ in nodes] == ["1", "2"], "both nodes took part"


def test_ray_workers_match_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'st_matryoshka2d[engines]'")
    printed = run("ray_grid.py", tmp_path)
    scores = re.findall(r"^\dL-\d+d  (0\.\d{4})$", printed, re.MULTILINE)
    assert len(scores) == 9
    assert len(set(scores)) > 5  # scores differ, so sizes were not mixed up
    found = re.search(r"Largest difference from evaluate: (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-5  # mteb rounds to five digits


def test_a_longer_shortlist_finds_more(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'st_matryoshka2d[engines]'")
    shares = [float(share) for share in re.findall(r"rank them: ([\d.]+)%", run("funnel.py", tmp_path))]
    assert len(shares) == 4
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]
    assert shares[-1] > 95


@pytest.mark.parametrize("engine", ["faiss", "lancedb", "milvus", "sqlite_vec"])
def test_two_stages_match_search_with_all_dims(engine: str, tmp_path: Path) -> None:
    library = {"milvus": "pymilvus"}.get(engine, engine)
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'st_matryoshka2d[engines]'")
    data = demo_data.demo_search(200).dataset["default"]["test"]
    judged = [(query, document, grade) for query, of in data["relevant_docs"].items() for document, grade in of.items()]
    tables = {
        "corpus": data["corpus"].to_pandas(),
        "queries": data["queries"].to_pandas(),
        "qrels": pd.DataFrame(judged, columns=["query_id", "corpus_id", "score"]),
    }
    for name, table in tables.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
    printed = run(f"{engine}_search.py", tmp_path, "--data", tmp_path)
    rows = re.findall(r"^\| (.+) \| ([\d,]+) \| [\d.]+ \| ([\d. /]+) \| ([\d. /]+) \|$", printed, re.MULTILINE)
    (whole, few, *ranked) = [[[float(one) for one in cell.split("/")] for cell in cells] for _, _, *cells in rows]
    assert [name for name, *_ in rows[:3]] == ["all 384 dims", "64 dims", "64 dims, then all"]
    assert min(whole[0]) > 99.9, "exact search but for ties"
    assert max(few[0]) < 95, "few dims alone find other documents"
    for recall, ndcg in ranked:
        assert min(recall) > 98
        np.testing.assert_allclose(ndcg, whole[1], atol=2)
    sizes = [int(size.replace(",", "")) for _, size, *_ in rows]
    assert sizes[1] < sizes[0] / 3


def test_generated_sentences_rank_no_sizes(tmp_path: Path) -> None:
    """On them, one layer may beat six: nothing is printed that compares depths, or scores."""
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'st_matryoshka2d[engines]'")
    printed = run("faiss_search.py", tmp_path)
    assert "How well a size searches, only real texts tell: pass --data." in printed
    assert "| search | bytes | ms per query | recall@10 |" in printed
    assert len(re.findall(r"^\| .* \| [\d,]+ \| [\d.]+ \| [\d.]+ \|$", printed, re.MULTILINE)) == 4
    assert "nDCG" not in printed


def test_onnx_graph_matches_cut(tmp_path: Path) -> None:
    printed = run("onnx_export.py", tmp_path)
    rows = re.findall(r"^\| (\dL-\d+d)( int8)? \| ([\d.]+) \|.* (\S+) \|$", printed, re.MULTILINE)
    sizes = ["1L-64d", "3L-64d", "3L-384d", "6L-384d"]
    assert [row[:2] for row in rows] == [(size, kind) for size in sizes for kind in ("", " int8")]
    assert all(float(difference) < (0.1 if int8 else 1e-5) for _, int8, _, difference in rows)
    megabytes = [float(row[2]) for row in rows]
    assert megabytes[0] < megabytes[-2], "fewer layers are in the file"
    assert all(4 * quarter < 1.1 * whole for whole, quarter in zip(megabytes[::2], megabytes[1::2], strict=True))


def test_infinity_matches_cut(tmp_path: Path) -> None:
    if not (ROOT / ".venv-infinity" / ".ready").exists():
        pytest.skip("infinity is not installed: make example-serve_infinity")
    printed = run("serve_infinity.py", tmp_path)
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\d+) \| ([\d.]+) \| (\S+) \|$", printed, re.MULTILINE)
    dims = [("none", "384"), ("64", "64"), ("32", "32")]
    assert [row[:3] for row in rows] == [(cut, *asked) for cut in ("plain", "aligned") for asked in dims]
    assert all(float(difference) < 1e-5 for *_, difference in rows)
    assert [length == "1.00" for *_, length, _ in rows] == [True, False, False] * 2, "it cuts, and leaves the length"


def test_clients_run_the_small_encoder_for_queries(tmp_path: Path) -> None:
    python = ROOT / ".venv-clients" / "bin" / "python"
    if not (ROOT / ".venv-clients" / ".ready").exists():
        pytest.skip("the clients are not installed: make example-clients_asymmetric")
    printed = finished(python, ROOT / "examples" / "clients_asymmetric.py", "--smoke", cwd=tmp_path, timeout=900)
    rows = re.findall(r"^\| ([\w-]+) [\d.]+ \| ([\w, ]+) \| ([\w, ]+) \| ([\w, ]+) \|$", printed, re.MULTILINE)
    assert len(rows) == 8
    for client, given, query, document in rows:
        told = "tasks" in given or "side" in given
        assert (query == "encode_query") is told, client
        assert (document == "encode_document") is (told or client.startswith("llama")), client
