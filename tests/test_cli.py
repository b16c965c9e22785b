"""The command line: what it takes, what it refuses, and that it says what the library says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import transformers
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner, Result

import st_matryoshka2d
from st_matryoshka2d import GridResult, evaluate, sizes_ladder, sts_task, truncate
from st_matryoshka2d.cli.app import app
from tests import families
from tests.choice_support import random_grid, random_times

Run = Callable[..., Result]
COMMANDS = ["info", "grid", "latency", "recommend", "compare", "truncate"]
# Of the tiny model's words, and two texts that a reader of CSV may take for something else.
PAIRS = pd.DataFrame(
    [
        ("the cat sat on the mat", "a cat sat", 4.5),
        ("the old bird flew slowly", "the river ran", 0.5),
        ("a dog ran on the road", "the dog ran quickly", 4.0),
        ("NA", "42", 1.0),
        ("a red house", "a blue house under the tree", 2.5),
    ],
    columns=["sentence1", "sentence2", "score"],
)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> Any:
    """What a command prints as JSON, which knows no NaN."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def told(result: Result) -> str:
    """Standard error without frames and folds."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 4 layers x 32."""
    folder = tmp_path_factory.mktemp("model")
    made = families.pipeline(families.CONFIGS["bert"](), folder / "weights", "mean", dense=None, normalize=False)
    made.save_pretrained(str(folder / "tiny"))
    return folder / "tiny"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with everything that a command can read."""
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    PAIRS.to_parquet(tmp_path / "pairs.parquet")
    PAIRS.drop(columns="score").to_csv(tmp_path / "unscored.csv", index=False)
    PAIRS.set_axis(["text a", "text_b", "label"], axis=1).to_csv(tmp_path / "renamed.csv", index=False)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    random_grid(0).save(tmp_path / "first.parquet")
    random_grid(1).save(tmp_path / "second.json")
    random_grid(1, tasks=["C"]).save(tmp_path / "other.json")
    random_times(0).to_csv(tmp_path / "times.csv", index=False)
    random_times(0).to_json(tmp_path / "times.json", orient="records")
    random_times(0, layers=[1]).to_csv(tmp_path / "lacking.csv", index=False)
    return tmp_path


USAGE = [
    ("grid {empty}", "--tasks STSBenchmark, or --pairs"),
    ("grid {empty} --tasks T --out grid.txt", ".parquet, .json, .csv or .md; got 'grid.txt'"),
    ("grid {empty} --tasks T --plot grid", ".png, .svg or .pdf; got 'grid'"),
    ("grid {empty} --tasks T --sizes 6-128", "A size is written like '6L-128d'"),
    ("grid {empty} --tasks T --sizes 6L-128d --layers 6", "Give --sizes, or --layers and --dims"),
    ("grid {empty} --tasks T --layers 0", "Invalid value for '--layers'"),
    ("grid {empty} --pairs {empty}/pairs.csv", "does not exist"),
    ("grid {empty} --pairs {files}/first.json", "--pairs"),
    ("grid {empty} --pairs {files}/pairs.csv --columns a,b", "two columns of texts and one of scores, as in sentence1"),
    ("grid {empty} --pairs {files}/pairs.csv --columns a,a,b", "got 'a,a,b'"),
    ("grid {empty} --tasks T --columns a,b,c", "--columns is about the file of --pairs"),
    ("grid ./nowhere --tasks T", "There is no folder ./nowhere"),
    ("truncate {empty} --size 6L-128d", "--out FOLDER, --push ORG/NAME or both"),
    ("truncate {empty} --out new", "Missing option '--size'"),
    ("truncate {empty} --size 6L-128d --out new --private", "--private is about the repository of --push"),
    ("truncate {empty} --size 6L-128d --out {files}/full", "is not empty; name a new folder"),
    ("truncate {empty} --size 6L-128d --push me/small/model", "A repository is called ORG/NAME, or NAME for"),
    ("truncate {empty} --size 6L-128d --push me/small.git", "cannot end by '.git'"),
    ("latency {empty} --rounds 0", "Invalid value for '--rounds'"),
    ("latency {empty} --out times.parquet", ".csv or .json"),
    ("recommend {empty}/grid.json", "does not exist"),
    ("recommend {files}/first.parquet --best --min-score 0.9", "both were given"),
    ("recommend {files}/first.parquet --best", "within --max-ms, --max-bytes or both; neither was given"),
    ("compare {files}/first.parquet", "Missing argument"),
    ("compare {files}/first.parquet {files}/second.json --test t", "'t'"),
    ("cut {empty}", "No such command 'cut'"),
]


@pytest.mark.parametrize(("line", "words"), USAGE, ids=[line for line, _ in USAGE])
def test_a_wrong_call_is_refused_before_any_work(line: str, words: str, files: Path) -> None:
    """The model is an empty folder: looking into it would be another error."""
    (files / "empty").mkdir()
    result = run(*line.format(empty=files / "empty", files=files).split())
    assert result.exit_code == 2
    assert words.replace(" ", "") in told(result).replace(" ", "")
    assert not result.stdout


ERRORS = [
    ("truncate {model} --size 9L-8d --out {files}/new", "num_layers=9: the model has 4 layers."),
    ("truncate {model} --size 2L-33d --out {files}/new", "dim=33: the model has 32 dimensions."),
    ("grid {model} --tasks STSBenchmrk", "mteb has no task named 'STSBenchmrk'. Near names: STSBenchmark"),
    ("grid {model} --pairs {files}/unscored.csv", "unscored.csv has no column 'score'; it has 'sentence1', 'sen"),
    ("grid {model} --pairs {files}/pairs.csv --columns sentence1,b,label", "no column 'b' and no 'label'; it has 'sent"),
    ("grid {model} --pairs {files}/empty.csv", "empty.csv cannot be read as CSV: No columns to parse from file"),
    ("grid {model} --pairs {files}/pairs.csv --precision int3", "precision must be one of float32"),
    ("grid {model} --pairs {files}/pairs.csv --dims 33", "the model has 32 dimensions"),
    ("grid {model} --pairs {files}/pairs.csv --out {files}/empty.csv/grid.json", "empty.csv"),
    ("latency {model} --layers 5", "the model has 4 layers"),
    ("info {files}/full", "full"),
    ("recommend {files}/times.csv", "A grid is saved as .parquet or .json"),
    ("recommend {files}/times.json", "not one that GridResult.save wrote"),
    ("recommend {files}/first.parquet --min-score 97", "for 97 % give 0.97"),
    ("recommend {files}/first.parquet --task STS", "There is no task 'STS' here"),
    ("recommend {files}/first.parquet --max-ms 1", "--max-ms needs the times of the model: give --latency a file"),
    ("recommend {files}/first.parquet --latency {files}/lacking.csv", "lacking.csv has no time for [2, 4] layers"),
    ("recommend {files}/first.parquet --latency {files}/pairs.csv", "`st-matryoshka2d latency MODEL --out times.csv`"),
    ("compare {files}/first.parquet {files}/other.json", "A"),
    ("compare {files}/first.parquet {files}/second.json --alpha 5", "alpha is between 0 and 1"),
]


@pytest.mark.parametrize(("line", "words"), ERRORS, ids=[line for line, _ in ERRORS])
def test_an_error_of_the_library_is_one_line_of_words(line: str, words: str, model: Path, files: Path) -> None:
    result = run(*line.format(model=model, files=files).split())
    assert result.exit_code == 1
    assert not result.stdout
    *before, last = result.stderr.splitlines()
    assert last.startswith("Error: ")
    assert words in last
    assert not [line for line in before if line.startswith(("Error", "Traceback"))]


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.delattr(GridResult, "recommend")
    result = run("recommend", files / "first.parquet")
    assert isinstance(result.exception, AttributeError)
    assert result.exc_info is not None
    assert result.exc_info[2].tb_next is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_version() -> None:
    assert run("--version").stdout == f"st-matryoshka2d {st_matryoshka2d.__version__}\n"


@pytest.mark.parametrize("pairs", ["pairs.csv", "pairs.parquet"])
def test_grid_is_that_of_evaluate(pairs: str, model: Path, files: Path) -> None:
    given = ["--layers", 2, "--layers", 4, "--dims", 8, "--dims", 32, "--precision", "float32", "--precision", "int8"]
    out, plot = files / "new" / "grid.parquet", files / "new" / "grid.png"
    found = answer("grid", model, "--pairs", files / pairs, *given, "--out", out, "--plot", plot, "--device", "cpu")
    expected = evaluate(
        SentenceTransformer(str(model), device="cpu"),
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


def test_grid_takes_columns_by_name(model: Path, files: Path) -> None:
    """The same scores as under the names that are asked for otherwise, texts read as texts."""
    given = ["--sizes", "1L-8d", "--sizes", "4L-32d"]
    renamed = answer("grid", model, "--pairs", files / "renamed.csv", "--columns", "text a, text_b, label", *given)
    usual = answer("grid", model, "--pairs", files / "pairs.csv", *given)
    assert [row["score"] for row in renamed["scores"]] == [row["score"] for row in usual["scores"]]


@pytest.mark.filterwarnings("default:Pairs that are there")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_warning_is_a_sentence(as_json: bool, model: Path, files: Path) -> None:
    pd.concat([PAIRS, PAIRS.assign(score=range(5))]).to_csv(files / "twice.csv", index=False)
    line = ["grid", model, "--pairs", files / "twice.csv", "--sizes", "1L-8d"]
    result = run(*line, *(["--json"] if as_json else []))
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if "Pairs" in line]
    assert told == ["Warning: Pairs that are there several times with different scores: 5; all are kept."]
    assert "UserWarning" not in result.output
    assert "Warning" not in result.stdout
    if as_json:
        json.loads(result.stdout)


def test_grid_prints_and_writes_every_task_and_precision(model: Path, files: Path) -> None:
    PAIRS.assign(score=range(5)).to_csv(files / "others.csv", index=False)
    given = ["--sizes", "1L-8d", "--sizes", "4L-32d", "--cache", files / "cache"]
    tables = ["--pairs", files / "pairs.csv", "--pairs", files / "others.csv"]
    markdown = run(
        "grid", model, *tables, *given, "--precision", "float32", "--precision", "binary", "--out", files / "g.md"
    )
    assert markdown.exit_code == 0, markdown.output
    titles = [f"{stored}, {of}" for stored in ("float32", "binary") for of in ("pairs", "others", "mean of 2 tasks")]
    assert [line.rpartition(": ")[0] for line in markdown.stdout.splitlines() if "percent" in line] == titles
    text = (files / "g.md").read_text()
    assert [block.rpartition(": ")[0] for block in text.split("\n\n")[::2]] == titles
    assert all(block.startswith("| layers / dim |") for block in text.split("\n\n")[1::2])

    again = run("grid", model, *tables, *given, "--out", files / "g.csv")
    assert again.exit_code == 0, again.output
    grid = GridResult(pd.read_csv(files / "g.csv"))
    shown = [line.split() for line in again.stdout.splitlines() if line.strip().startswith(("1 ", "4 "))]
    expected = [f"{grid.score(size, task) * 100:.2f}" for task in ("pairs", "others", None) for size in ("1L-8d", "4L-32d")]
    assert [score for _, score in shown] == expected


def test_truncate_saves_the_cut(model: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("cut").mkdir()  # empty, which is as good as new
    found = answer("truncate", model, "--size", "2l-8D", "--out", tmp_path / "cut", "--device", "cpu")
    cut = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    full = SentenceTransformer(str(model), device="cpu")
    assert np.array_equal(cut.encode(families.TEXTS), truncate(full, 2, 8).encode(families.TEXTS))
    weights = sum(weight.numel() for weight in cut.parameters())
    assert found == {"size": "2L-8d", "num_layers": 2, "dim": 8, "parameters": weights, "saved": str(tmp_path / "cut")}
    card = (tmp_path / "cut" / "README.md").read_text(encoding="utf-8")
    assert "the first 2 of 4 layers and the first 8 of 32 dimensions" in card


def test_truncate_to_the_full_size_is_no_cut(model: Path, tmp_path: Path) -> None:
    answer("truncate", model, "--size", "4L-32d", "--out", tmp_path / "whole", "--device", "cpu")
    assert "was cut from" not in (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["times.csv", "times.json"])
def test_times_go_from_latency_to_recommend(name: str, model: Path, tmp_path: Path) -> None:
    random_grid(0).save(tmp_path / "grid.parquet")
    given = ["--layers", 1, "--layers", 2, "--rounds", 1, "--batch-size", 2, "--plot", tmp_path / "speed.svg"]
    times = answer("latency", model, *given, "--out", tmp_path / name)["times"]
    assert [row["num_layers"] for row in times] == [1, 2, 4]
    assert "<svg" in (tmp_path / "speed.svg").read_text()
    found = answer("recommend", tmp_path / "grid.parquet", "--latency", tmp_path / name, "--best", "--max-ms", 1e6)
    costs = {row["num_layers"]: row["milliseconds_per_text"] for row in found["sizes"]}
    assert costs == pytest.approx({row["num_layers"]: row["milliseconds_per_text"] for row in times})


def test_recommend_is_that_of_the_grid(files: Path) -> None:
    grid = random_grid(0).with_latency(random_times(0))
    given = ["recommend", files / "first.parquet"]
    assert answer(*given)["size"] == str(grid.recommend().size)
    assert answer(*given, "--best", "--max-bytes", 100)["size"] == str(grid.recommend(None, max_bytes=100).size)
    limits = ["--min-score", 0.5, "--max-ms", 3, "--task", "A", "--latency", files / "times.csv"]
    choice = grid.recommend(0.5, max_ms=3, task="A")
    assert answer(*given, *limits)["told"] == str(choice)
    shown = run(*given, *limits).stdout.splitlines()
    assert shown[0] == str(choice)
    assert len([line for line in shown if " float32 " in line]) == len(choice.to_frame())


def test_compare_is_that_of_the_grids(files: Path) -> None:
    grids = [files / "first.parquet", files / "second.json"]
    comparison = GridResult.load(grids[0]).compare(GridResult.load(grids[1]), alpha=0.01)
    found = pd.DataFrame(answer("compare", *grids, "--alpha", 0.01, "--plot", files / "delta.png")["differences"])
    pd.testing.assert_series_equal(found["delta"], comparison.to_frame()["delta"])
    assert (files / "delta.png").is_file()
    lines = run("compare", *grids).stdout.splitlines()
    shown = [[word.rstrip("*?") for word in line.split()] for line in lines]  # without the marks of what was tested
    cells = comparison.pivot().map(lambda delta: f"{delta * 100:+.2f}")
    assert [row for row in cells.reset_index().astype(str).to_numpy().tolist() if row not in shown] == []


def test_info_tells_depth_width_and_ladder(model: Path, tmp_path: Path) -> None:
    full = SentenceTransformer(str(model), device="cpu")
    found = answer("info", model)
    assert (found["architecture"], found["num_layers"], found["dim"], found["can_be_cut"]) == ("bert", 4, 32, True)
    assert (found["similarity"], found["max_seq_length"]) == (full.similarity_fn_name, full.max_seq_length)
    assert [rung["size"] for rung in found["ladder"]] == list(map(str, sizes_ladder(full)))
    for rung in found["ladder"]:
        config = families.CONFIGS["bert"]()
        config.num_hidden_layers = rung["num_layers"]
        assert rung["parameters"] == transformers.BertModel(config).num_parameters()
    assert found["trained_sizes"] == []
    cut = tmp_path / "[red] :cat:"  # no markup
    full.config.matryoshka_sizes = ["1L-8d", "2L-8d", "4L-32d"]
    truncate(full, 2, 8).save_pretrained(str(cut))
    told = answer("info", cut)
    assert (told["trained_dims"], told["trained_sizes"]) == ([8], ["1L-8d", "2L-8d"])
    lines = run("info", cut).stdout.splitlines()
    assert lines[0] == f"{cut}: bert, 2 layers x 8 dimensions"
    assert "Trained sizes (matryoshka_sizes): 1L-8d, 2L-8d" in lines


def test_info_tells_why_a_model_cannot_be_cut(tmp_path: Path) -> None:
    families.pipeline(families.REFUSED["albert with two groups"](), tmp_path / "weights").save_pretrained(
        str(tmp_path / "model")
    )
    found = answer("info", tmp_path / "model")
    assert (found["can_be_cut"], found["ladder"]) == (False, [])
    assert "cannot be cut" in found["refusal"]
    assert f"Can be cut in depth: no. {found['refusal']}" in run("info", tmp_path / "model").stdout
