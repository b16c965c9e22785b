"""The command line: results equal those of the library."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import transformers
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import (
    GridResult,
    Size,
    align,
    asymmetric,
    evaluate,
    load,
    pair_task,
    retrieval_task,
    sizes_ladder,
    sts_task,
    truncate,
)
from st_matryoshka2d.model.declared_agreement import declare_agreement
from tests.support import families
from tests.support.command_line import PAIRS, answer, run
from tests.support.grids import random_grid, random_times, with_scores
from tests.support.quick import quick


@pytest.mark.parametrize("pairs", quick(["pairs.csv", "pairs.parquet"], "pairs.parquet"))
def test_grid_matches_evaluate(pairs: str, tiny_folder: Path, files: Path) -> None:
    given = [
        "--num-layers",
        "2",
        "--num-layers",
        "4",
        "--dims",
        "8",
        "--dims",
        "32",
        "--precisions",
        "float32",
        "--precisions",
        "int8",
    ]
    out, plot = files / "new" / "grid.parquet", files / "new" / "grid.png"
    found = answer("grid", tiny_folder, "--pairs", files / pairs, *given, "--out", out, "--plot", plot, "--device", "cpu")
    expected = evaluate(
        SentenceTransformer(str(tiny_folder), device="cpu"),
        sts_task(PAIRS, name="pairs"),
        num_layers=[2, 4],
        dims=[8, 32],
        precisions=["float32", "int8"],
        show_progress_bar=False,
    ).to_frame()
    main = expected[expected["is_main"]].drop(columns="is_main").reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.DataFrame(found["scores"])[list(main)], main, check_dtype=False)
    pd.testing.assert_frame_equal(GridResult.load(out).to_frame(), expected)
    assert found["written"] == [str(out), str(plot)]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_grid_scores_documents_of_another_size(tiny_folder: Path, files: Path) -> None:
    given = ["--sizes", "1L-8d", "--sizes", "3L-16d", "--documents", "4L-32d"]
    result = run("grid", tiny_folder, "--pairs", files / "pairs.csv", *given, "--out", files / "g.json")
    assert result.exit_code == 0, result.output
    assert "documents at 4L-32d, pairs: cosine_spearman, percent" in result.stdout
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    sizes = ["1L-8d", "3L-16d"]
    expected = evaluate(
        model, sts_task(PAIRS, name="pairs"), sizes=sizes, documents="4L-32d", show_progress_bar=False
    ).to_frame()
    pd.testing.assert_frame_equal(GridResult.load(files / "g.json").to_frame(), expected)


def test_grid_takes_columns_by_name(tiny_folder: Path, files: Path) -> None:
    """Equals the scores with default column names; texts are read as strings."""
    given = ["--sizes", "1L-8d", "--sizes", "4L-32d"]
    renamed = answer("grid", tiny_folder, "--pairs", files / "renamed.csv", "--columns", "text a, text_b, label", *given)
    usual = answer("grid", tiny_folder, "--pairs", files / "pairs.csv", *given)
    assert [row["score"] for row in renamed["scores"]] == [row["score"] for row in usual["scores"]]


def test_grid_takes_labelled_pairs(tiny_folder: Path, files: Path) -> None:
    labelled = PAIRS.drop(columns="score").assign(label=[1, 0, 1, 1, 0])
    labelled.to_csv(files / "labelled.csv", index=False)
    labelled.set_axis(["a", "b", "same"], axis=1).to_parquet(files / "others.parquet")
    given = ["--sizes", "1L-8d", "--metric", "cosine_accuracy"]
    found = answer("grid", tiny_folder, "--labelled-pairs", files / "labelled.csv", *given)
    (row,) = found["scores"]
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    expected = evaluate(model, pair_task(labelled), sizes=["1L-8d"], show_progress_bar=False)
    assert (row["task"], row["metric"]) == ("labelled", "cosine_accuracy")
    assert row["score"] == pytest.approx(expected.score("1L-8d", metric="cosine_accuracy"))
    renamed = ["--labelled-pairs", files / "others.parquet", "--columns", "a,b,same"]
    assert answer("grid", tiny_folder, *renamed, *given)["scores"][0]["score"] == row["score"]


@pytest.mark.parametrize("suffix", quick(["csv", "tsv", "jsonl", "parquet"], "tsv"))
def test_grid_takes_a_search_collection(suffix: str, tiny_folder: Path, files: Path) -> None:
    texts = [*PAIRS["sentence1"], *PAIRS["sentence2"]]
    tables = {
        "notes": pd.DataFrame({"id": [f"{place:03}" for place in range(10)], "text": texts, "title": ["NA", *[""] * 9]}),
        "queries": pd.DataFrame({"id": ["NA", "02"], "text": ["a cat", "NA"]}),
        "judgments": pd.DataFrame({"query_id": ["NA", "02"], "corpus_id": ["000", "003"], "score": [1, 2]}),
    }
    for name, table in tables.items():
        to = {"csv": table.to_csv, "tsv": partial(table.to_csv, sep="\t"), "parquet": table.to_parquet}
        if suffix == "jsonl":
            table.to_json(files / f"{name}.jsonl", orient="records", lines=True)
        else:
            to[suffix](files / f"{name}.{suffix}", index=False)
    given = ["--search", *(files / f"{name}.{suffix}" for name in tables), "--sizes", "2L-8d", "--documents", "4L-32d"]
    found = pd.DataFrame(answer("grid", tiny_folder, *given, "--device", "cpu")["scores"])
    expected = evaluate(
        SentenceTransformer(str(tiny_folder), device="cpu"),
        retrieval_task(*tables.values(), name="notes"),
        sizes=["2L-8d"],
        documents="4L-32d",
        show_progress_bar=False,
    ).to_frame()
    main = expected[expected["is_main"]].drop(columns="is_main").reset_index(drop=True)
    pd.testing.assert_frame_equal(found[list(main)], main, check_dtype=False)


@pytest.mark.filterwarnings("default:Pairs that are repeated")
def test_a_warning_is_a_sentence_on_standard_error(tiny_folder: Path, files: Path) -> None:
    pd.concat([PAIRS, PAIRS[:2].assign(score=[70, 80])]).to_csv(files / "twice.csv", index=False)
    result = run("grid", tiny_folder, "--pairs", files / "twice.csv", "--sizes", "1L-8d", "--json")
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if "Pairs" in line]
    assert told == ["Warning: Pairs that are repeated with different scores: 2. They are left out."]
    assert "UserWarning" not in result.output
    json.loads(result.stdout)


def test_grid_leaves_out_pairs_with_empty_cells_and_keeps_words(tiny_folder: Path, files: Path) -> None:
    messy = pd.DataFrame(
        {"sentence1": ["a", "NULL", "", "N/A"], "sentence2": ["b", "nan", "c", "d"], "score": ["1", "2.5", "3", ""]}
    )
    messy.to_csv(files / "messy.csv", index=False)
    result = run("grid", tiny_folder, "--pairs", files / "messy.csv", "--sizes", "4L-32d")
    assert result.exit_code == 0, result.output
    assert "Warning: pairs: 2 of 4 rows have an empty cell and are left out: 2, 3" in result.stderr


def test_grid_prints_and_writes_every_task_and_precision(tiny_folder: Path, files: Path) -> None:
    PAIRS.assign(score=range(5)).to_csv(files / "others.csv", index=False)
    given = ["--sizes", "1L-8d", "--sizes", "4L-32d", "--cache", files / "cache"]
    tables = ["--pairs", files / "pairs.csv", "--pairs", files / "others.csv"]
    both = run("grid", tiny_folder, *tables, *given, "--precisions", "float32", "--precisions", "binary")
    assert both.exit_code == 0, both.output
    titles = [f"{stored}, {of}" for stored in ("float32", "binary") for of in ("pairs", "others", "mean of 2 tasks")]
    assert [line.rpartition(": ")[0] for line in both.stdout.splitlines() if "percent" in line] == titles

    again = run("grid", tiny_folder, *tables, *given, "--out", files / "g.csv")
    assert again.exit_code == 0, again.output
    grid = GridResult(pd.read_csv(files / "g.csv"))
    shown = [line.split() for line in again.stdout.splitlines() if line.strip().startswith(("1 ", "4 "))]
    expected = [f"{grid.score(size, task) * 100:.2f}" for task in ("pairs", "others", None) for size in ("1L-8d", "4L-32d")]
    assert [score for _, score in shown] == expected


def test_truncate_saves_the_cut(tiny_folder: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("cut").mkdir()  # an empty folder is accepted
    found = answer("truncate", tiny_folder, "--size", "2l-8D", "--out", tmp_path / "cut", "--device", "cpu")
    cut = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    full = SentenceTransformer(str(tiny_folder), device="cpu")
    assert np.array_equal(cut.encode(families.TEXTS), truncate(full, 2, 8).encode(families.TEXTS))
    weights = sum(weight.numel() for weight in cut.parameters())
    assert found == {"size": "2L-8d", "num_layers": 2, "dim": 8, "parameters": weights, "saved": str(tmp_path / "cut")}
    assert len({path.stat().st_mode for path in (tmp_path / "cut").iterdir() if path.is_file()}) == 1
    card = (tmp_path / "cut" / "README.md").read_text(encoding="utf-8")
    assert "the first 2 of 4 layers and the first 8 of 32 dimensions" in card


@pytest.mark.parametrize("name", quick(["times.csv", "times.json"], "times.json"))
def test_recommend_reads_times_of_latency(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    random_grid(0).save(tmp_path / "grid.parquet")
    given = ["--num-layers", 1, "--num-layers", 2, "--rounds", 1, "--batch-size", 2, "--plot", tmp_path / "speed.svg"]
    times = answer("latency", tiny_folder, *given, "--out", tmp_path / name)["times"]
    assert [row["num_layers"] for row in times] == [1, 2, 4]
    assert "<svg" in (tmp_path / "speed.svg").read_text()
    found = answer("recommend", tmp_path / "grid.parquet", "--latency", tmp_path / name, "--best", "--max-ms", 1e6)
    costs = {row["num_layers"]: row["milliseconds_per_text"] for row in found["sizes"]}
    assert costs == pytest.approx({row["num_layers"]: row["milliseconds_per_text"] for row in times})


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine.txt"])
def test_latency_times_the_texts_of_a_file(name: str, tiny_folder: Path, files: Path) -> None:
    """All texts are timed for any batch size; duplicates count, empty texts do not."""
    texts = [*PAIRS["sentence1"], "", *PAIRS["sentence2"], "NA"]
    (files / "mine.txt").write_text("\n".join(texts), encoding="utf-8")
    pd.DataFrame({"text": texts}).to_csv(files / "mine.csv", index=False)
    pd.DataFrame({"text": [*texts, None]}).to_parquet(files / "mine.parquet")
    given = ["latency", tiny_folder, "--texts", files / name, "--num-layers", 2, "--rounds", 1, "--device", "cpu"]
    found = answer(*given, "--batch-size", 3)
    assert found["texts"] == 11
    assert [row["milliseconds"] / row["milliseconds_per_text"] for row in found["times"]] == pytest.approx([11, 11])
    fewer = run(*given, "--max-texts", 4, "--out", files / "fewer.csv")
    assert fewer.stdout.splitlines()[0] == f"Timed: 4 of the texts in {files / name}, in batches of 32"
    at_fault = "" if name == "mine.txt" else ", column 'text'"
    assert f"Warning: {files / name}{at_fault}: {'2 of 13' if name == 'mine.parquet' else '1 of 12'} rows" in fewer.stderr
    times = pd.read_csv(files / "fewer.csv")
    assert list(times["milliseconds"] / times["milliseconds_per_text"]) == pytest.approx([4, 4])


def test_latency_encodes_given_texts(tiny_folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[list[str]] = []
    encode = SentenceTransformer.encode

    def listening(model: SentenceTransformer, texts: Any, *rest: Any, **settings: Any) -> Any:
        encoded.append(list(texts))
        return encode(model, texts, *rest, **settings)

    monkeypatch.setattr(SentenceTransformer, "encode", listening)
    columns = ["--columns", "sentence2", "--columns", "sentence1"]
    answer("latency", tiny_folder, "--texts", files / "pairs.csv", *columns, "--rounds", 1, "--device", "cpu")
    assert encoded[-1] == [*PAIRS["sentence2"], *PAIRS["sentence1"]]


def test_latency_names_default_texts(tiny_folder: Path) -> None:
    result = run("latency", tiny_folder, "--num-layers", 4, "--rounds", 1, "--batch-size", 1, "--device", "cpu")
    assert result.stdout.splitlines()[0] == "Timed: one batch of 1 built-in English texts"
    assert "built-in English" in run("latency", "--help").stdout


def test_recommend_matches_grid(files: Path) -> None:
    grid = random_grid(0).with_latency(random_times(0))
    given = ["recommend", files / "first.parquet"]
    assert answer(*given)["size"] == str(grid.recommend().size)
    assert answer(*given, "--best", "--max-bytes", 100)["size"] == str(grid.recommend(None, max_bytes=100).size)
    limits = ["--min-score", 0.5, "--max-ms", 3, "--task", "A", "--latency", files / "times.csv"]
    choice = grid.recommend(0.5, max_ms=3, task="A")
    assert answer(*given, *limits)["summary"] == str(choice)
    shown = run(*given, *limits).stdout.splitlines()
    assert shown[0] == str(choice)
    assert len([line for line in shown if " float32 " in line]) == len(choice.to_frame())
    own = GridResult.load(files / "own.parquet")  # of documents at the query's size, and at another
    assert answer("recommend", files / "own.parquet", "--min-score", 0.5)["size"] == str(own.recommend(0.5).size)


def test_recommend_chooses_for_an_aligned_model_as_for_a_grid(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_agreement(tiny.config, {Size(1, 8): 0.7, Size(2, 8): 0.95, Size(2, 16): 0.96, Size(4, 32): 1.0})
    tiny.save_pretrained(str(tmp_path / "aligned"))
    grid = GridResult.from_agreement(tiny)
    grid.save(tmp_path / "grid.json")
    limits = ["--min-score", 0.95, "--max-bytes", 100]
    found = answer("recommend", tmp_path / "aligned", *limits, "--device", "cpu")
    assert found == answer("recommend", tmp_path / "grid.json", *limits)
    assert (found["size"], found["measure"]) == ("2L-16d", "agreement")
    lines = run("recommend", tmp_path / "aligned", *limits).stdout.splitlines()
    assert lines[:2] == str(grid.recommend(0.95, max_bytes=100)).splitlines()
    assert lines[2].split()[:4] == ["layers", "dim", "precision", "agreement"]
    assert lines[4].split()[:4] == ["2", "16", "float32", "96.00"]


def test_recommend_takes_reference_model(tmp_path: Path) -> None:
    """Training raised the full size by half, so sizes may meet the limit only relative to the earlier model."""
    before = random_grid(0)
    full = before.score("4L-64d")
    after = with_scores(before, lambda frame: frame["score"].where(frame["dim"] < 64, frame["score"] * 1.5))
    before.save(tmp_path / "before.json")
    after.save(tmp_path / "after.parquet")
    given = ["recommend", tmp_path / "after.parquet", "--min-score", 0.5]
    own, of_before = answer(*given), answer(*given, "--reference", tmp_path / "before.json")
    for found, whole in ((own, after.score("4L-64d")), (of_before, full)):
        for row in found["sizes"]:
            share = after.score(f"{row['num_layers']}L-{row['dim']}d") / whole
            assert row["relative"] == pytest.approx(share)
            assert (row["refused"] == "") == (share >= 0.5)
    limits = ["recommend", tmp_path / "after.parquet", "--best", "--max-bytes", 80]
    best = run(*limits, "--reference", tmp_path / "before.json").stdout.splitlines()
    assert best[0].startswith(run(*limits).stdout.split(":")[0])  # the best size does not depend on the reference
    assert "of reference" in best[1]
    assert "of 4L-64d" in run(*limits).stdout


def test_compare_matches_library(files: Path) -> None:
    grids = [files / "first.parquet", files / "second.json"]
    comparison = GridResult.load(grids[0]).compare(GridResult.load(grids[1]), alpha=0.01)
    found = pd.DataFrame(answer("compare", *grids, "--alpha", 0.01, "--plot", files / "delta.png")["differences"])
    pd.testing.assert_series_equal(found["delta"], comparison.to_frame()["delta"])
    assert (files / "delta.png").is_file()
    lines = run("compare", *grids).stdout.splitlines()
    shown = [[word.rstrip("*?") for word in line.split()] for line in lines]  # without significance marks
    cells = comparison.pivot().map(lambda delta: f"{delta * 100:+.2f}")
    assert [row for row in cells.reset_index().astype(str).to_numpy().tolist() if row not in shown] == []
    assert "first minus second" in lines[0]  # grids without a name are called as their files


def test_grids_side_by_side_are_named_by_models_or_files(files: Path, tmp_path: Path) -> None:
    first, second = files / "first.parquet", files / "second.json"
    given = ["report", first, "--beside", second, "--out", tmp_path / "page.html"]
    assert answer(*given)["models"] == ["first", "second"]
    GridResult.load(first).named("org/before").save(first)
    GridResult.load(second).named("org/after").save(second)
    assert answer(*given)["models"] == ["org/before", "org/after"]
    assert "before minus after" in run("compare", first, second).stdout


def test_metric_is_chosen_as_in_the_library(files: Path, tiny_folder: Path) -> None:
    ours, theirs = random_grid(3), random_grid(4)
    ours.save(files / "one.parquet")
    theirs.save(files / "two.json")
    found = answer("compare", files / "one.parquet", files / "two.json", "--metric", "pearson")
    expected = ours.compare(theirs, metric="pearson").to_frame()["delta"]
    assert [row["delta"] for row in found["differences"]] == pytest.approx(expected.tolist())
    with pytest.warns(UserWarning, match="No interval is known for the shares of the pearson"):
        choice = ours.recommend(0.9, metric="pearson")
    found = answer("recommend", files / "one.parquet", "--min-score", "0.9", "--metric", "pearson")
    assert (found["size"], found["measure"], found["summary"]) == (str(choice.size), "pearson", str(choice))
    wrong = run("recommend", files / "one.parquet", "--metric", "mrr_at_10")
    assert (wrong.exit_code, "no metric 'mrr_at_10' in this grid, only pearson, spearman" in wrong.stderr) == (1, True)
    given = ["--pairs", files / "pairs.csv", "--sizes", "1L-8d", "--metric", "cosine_pearson"]
    (row,) = answer("grid", tiny_folder, *given)["scores"]
    assert row["metric"] == "cosine_pearson"
    assert "pairs: cosine_pearson, percent" in run("grid", tiny_folder, *given).stdout


def test_info_shows_depth_width_and_ladder(tiny_folder: Path, tmp_path: Path) -> None:
    full = SentenceTransformer(str(tiny_folder), device="cpu")
    found = answer("info", tiny_folder)
    assert (found["architecture"], found["num_layers"], found["dim"], found["can_be_cut"]) == ("bert", 4, 32, True)
    assert (found["similarity"], found["max_seq_length"]) == (full.similarity_fn_name, full.max_seq_length)
    assert [rung["size"] for rung in found["ladder"]] == list(map(str, sizes_ladder(full)))
    for rung in found["ladder"]:
        config = families.CONFIGS["bert"]()
        config.num_hidden_layers = rung["num_layers"]
        assert rung["parameters"] == transformers.BertModel(config).num_parameters()
    assert found["trained_sizes"] == []
    assert found["rotated"] is None
    cut = tmp_path / "[red] :cat:"  # must not be parsed as markup
    full.config.matryoshka_sizes = ["1L-8d", "2L-8d", "4L-32d"]
    full.config.matryoshka_agreement = {"2L-4d": 0.8, "2L-8d": 0.8767, "4L-32d": 1.0}
    truncate(full, 2, 8).save_pretrained(str(cut))
    told = answer("info", cut)
    assert (told["trained_dims"], told["trained_sizes"]) == ([8], ["1L-8d", "2L-8d"])
    assert (told["agreement"], found["agreement"]) == ({"2L-4d": 0.8, "2L-8d": 0.8767}, {})
    lines = run("info", cut).stdout.splitlines()
    assert lines[0] == f"{cut}: bert, 2 layers x 8 dimensions"
    assert "Trained sizes (matryoshka_sizes)" in lines
    assert ["1,", "2", "8"] in [line.split() for line in lines]
    assert lines[-1].split() == ["2", "0.800", "0.877"]


def test_info_explains_why_model_cannot_be_cut(tmp_path: Path) -> None:
    families.pipeline(families.REFUSED["albert with two groups"](), tmp_path / "weights").save_pretrained(
        str(tmp_path / "model")
    )
    found = answer("info", tmp_path / "model")
    assert (found["can_be_cut"], found["ladder"]) == (False, [])
    assert "cannot be cut" in found["refusal"]
    assert f"Can be cut in depth: no. {found['refusal']}" in run("info", tmp_path / "model").stdout


def test_asymmetric_joins_two_sizes(tiny_folder: Path, files: Path) -> None:
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    aligned = align(model, [f"the {one} {other}" for one in families.WORDS for other in families.WORDS[:3]], steps=0)
    aligned.save_pretrained(str(files / "aligned"))
    out = files / "joined"
    found = answer("asymmetric", files / "aligned", "--query", "1L-8d", "--out", out, "--device", "cpu")
    expected = asymmetric(load(files / "aligned", device="cpu"), "1L-8d")
    made = SentenceTransformer(str(out), device="cpu")
    assert np.array_equal(made.encode_query("a cat"), expected.encode_query("a cat"))
    assert np.array_equal(made.encode_document("a cat"), expected.encode_document("a cat"))
    assert {name: found[name] for name in ("query", "document", "saved")} == {
        "query": "1L-8d",
        "document": "4L-8d",
        "saved": str(out),
    }
    assert "## Queries and documents" in (out / "README.md").read_text(encoding="utf-8")
    sides = answer("info", out, "--device", "cpu")["sides"]
    assert {name: side["size"] for name, side in sides.items()} == {"query": "1L-8d", "document": "4L-8d"}
    assert {name: side["parameters"] for name, side in sides.items()} == found["parameters"]
    assert "1 layer for a query and 4 layers for a document x 8 dimensions" in run("info", out).stdout
    refused = run("asymmetric", files / "aligned", "--query", "5L-8d", "--out", files / "no")
    assert refused.exit_code == 1
    assert "--query: 5L-8d has 5 layers, but the model has 4." in refused.stderr


def test_recommend_takes_times_of_documents(files: Path) -> None:
    grid = random_grid(0)
    pair = GridResult(pd.concat([grid.to_frame(), grid.to_frame().assign(documents="4L-64d")]))
    pair.save(files / "pairs-of-sizes.parquet")
    of_documents = random_times(0).assign(milliseconds_per_text=[50.0, 60.0, 90.0])
    of_documents.to_csv(files / "documents.csv", index=False)
    given = ["--min-score", 0.5, "--queries-per-document", 3, "--latency", files / "times.csv"]
    found = answer("recommend", files / "pairs-of-sizes.parquet", *given, "--document-latency", files / "documents.csv")
    timed = pair.with_latency(random_times(0), documents=of_documents)
    expected = timed.recommend(0.5, queries_per_document=3)
    assert (found["size"], found["documents"]) == (str(expected.size), str(expected.documents))
    assert found["summary"] == str(expected)
    shown = run("recommend", files / "pairs-of-sizes.parquet", *given).stdout
    assert "documents" in shown
    assert "ms in all" in shown
    refused = run("recommend", files / "first.parquet", "--document-latency", files / "documents.csv")
    assert refused.exit_code == 2
    assert "--document-latency needs --latency" in refused.stderr


def test_report_writes_the_page_of_the_library(files: Path) -> None:
    given = ["--names", "before", "--names", "after", "--latency", files / "times.csv", "--latency", files / "times.json"]
    found = answer("report", files / "first.parquet", "--beside", files / "second.json", *given, "--out", files / "cli.html")
    assert found == {"models": ["before", "after"], "tasks": ["A", "B"], "written": [str(files / "cli.html")]}
    before, after = (
        random_grid(seed).with_latency(random_times(0)).named(name) for seed, name in enumerate(found["models"])
    )
    before.report(files / "library.html", beside=[after])
    assert (files / "cli.html").read_text("utf-8") == (files / "library.html").read_text("utf-8")
    refused = run("report", files / "first.parquet", "--latency", files / "lacking.csv", "--out", files / "no.html")
    assert "lacking.csv has no time for [2, 4] layers" in refused.stderr
    assert not (files / "no.html").exists()
