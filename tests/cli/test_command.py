"""The command line: errors and messages."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from typer.main import get_group

import st_matryoshka2d
from st_matryoshka2d import GridResult
from st_matryoshka2d.cli.app import app
from tests.support.command_line import run, told

COMMANDS = [command.name for command in get_group(app).commands.values()]

USAGE = [
    ("grid {empty}", "--tasks STSBenchmark, or --pairs, --labelled-pairs or --search"),
    ("grid {empty} --search {files}/pairs.csv {files}/pairs.csv {files}/times.json", "must end with .csv, .tsv, .jsonl or"),
    ("grid {empty} --search {files}/pairs.csv {files}/pairs.csv", "Option '--search' requires 3 arguments"),
    ("grid {empty} --tasks T --out grid.txt", ".parquet, .json, .csv or .md, got 'grid.txt'"),
    ("grid {empty} --tasks T --plot grid", ".png, .svg or .pdf, got 'grid'"),
    ("grid {empty} --tasks T --sizes 6-128", "A size must look like '6L-128d'"),
    ("grid {empty} --tasks T --sizes 6L-128d --num-layers 6", "Give --sizes, or --num-layers and --dims"),
    ("grid {empty} --tasks T --num-layers -1", "Invalid value for '--num-layers'"),
    ("grid {empty} --pairs {empty}/pairs.csv", "does not exist"),
    ("grid {empty} --pairs {files}/second.json", "must end with .csv or .parquet"),
    ("grid {empty} --pairs {files}/pairs.csv --columns a,b", "two columns of texts and one of scores or labels, as in sen"),
    ("grid {empty} --pairs {files}/pairs.csv --columns a,a,b", "got 'a,a,b'"),
    ("grid {empty} --tasks T --columns a,b,c", "--columns needs --pairs or --labelled-pairs"),
    ("grid {empty} --labelled-pairs {files}/second.json", "must end with .csv or .parquet"),
    ("grid ./nowhere --tasks T", "There is no folder ./nowhere"),
    ("truncate {empty} --size 6L-128d", "--out FOLDER, --push ORG/NAME or both"),
    ("truncate {empty} --out new", "Missing option '--size'"),
    ("truncate {empty} --size 6L-128d --out new --private", "--private needs --push"),
    ("truncate {empty} --size 6L-128d --out {files}/full", "is not empty; name a new folder"),
    ("truncate {empty} --size 6L-128d --push me/small/model", "A repository name is ORG/NAME, or NAME alone"),
    ("truncate {empty} --size 6L-128d --push me/small.git", "cannot end by '.git'"),
    ("align {empty} --out new", "Missing option '--texts'"),
    ("align {empty} --texts {files}/pairs.csv", "--out FOLDER, --push ORG/NAME or both"),
    ("align {empty} --texts {files}/second.json --out new", ".csv, .jsonl, .parquet or .txt, got"),
    ("align {empty} --texts {files}/lines.txt --columns a --out new", "a .txt file has one text per line"),
    ("latency {empty} --rounds 0", "Invalid value for '--rounds'"),
    ("latency {empty} --out times.parquet", ".csv or .json"),
    ("latency {empty} --columns a", "--columns and --max-texts need --texts"),
    ("latency {empty} --max-texts 5", "--columns and --max-texts need --texts"),
    ("latency {empty} --texts {files}/lines.txt --columns a", "a .txt file has one text per line"),
    ("latency {empty} --texts {files}/second.json", ".csv, .jsonl, .parquet or .txt, got"),
    ("recommend {empty}/grid.json", "does not exist"),
    ("recommend grid.parquet", "The file grid.parquet does not exist"),
    ("recommend ./nowhere", "There is no folder ./nowhere"),
    (
        "recommend {files}/times.csv",
        "times.csv is not a grid, which is a .parquet or .json file: `st-matryoshka2d grid MODEL",
    ),
    ("recommend {files}/across.parquet", "several document sizes, 2L-64d, 4L-64d: --queries-per-document chooses"),
    ("recommend {files}/first.parquet --best --min-score 0.9", "Give --best or --min-score, not both"),
    ("recommend {files}/first.parquet --reference {empty}/grid.json", "does not exist"),
    ("recommend {files}/first.parquet --best", "--best needs --max-ms, --max-bytes or both"),
    ("report {files}/first.parquet", "Missing option '--out'"),
    ("report {files}/first.parquet --out report.pdf", ".html or .htm, got 'report.pdf'"),
    ("report {files}/first.parquet --out r.html --beside {empty}/grid.json", "does not exist"),
    (
        "report {files}/first.parquet --out r.html --beside {files}/second.json --latency {files}/times.csv",
        "--latency must be given once for each of the 2 grids, in order; got 1",
    ),
    ("compare {files}/first.parquet", "Missing argument"),
    ("compare {files}/first.parquet {files}/second.json --test t", "'t'"),
    ("encode {empty} {files}/second.json out", ".csv, .jsonl, .parquet or .txt, got"),
    ("encode {empty} {files}/lines.txt", "Missing argument 'out'"),
    ("encode {empty} {files}/lines.txt out --size 6-128", "A size must look like '6L-128d'"),
    ("cut {empty}", "No such command 'cut'"),
]


@pytest.mark.parametrize(("line", "words"), USAGE, ids=[line for line, _ in USAGE])
def test_a_wrong_call_is_refused_before_any_work(line: str, words: str, files: Path) -> None:
    """The model is an empty folder: reading it would raise another error."""
    (files / "empty").mkdir()
    result = run(*line.format(empty=files / "empty", files=files).split())
    assert result.exit_code == 2
    assert words.replace(" ", "") in told(result).replace(" ", "")
    assert not result.stdout


ERRORS = [
    ("grid {model} --pairs {files}/unscored.csv", "unscored.csv has no column 'score'; it has 'sentence1', 'sen"),
    ("grid {model} --pairs {files}/pairs.csv --columns sentence1,b,label", "no column 'b' and no 'label'; it has 'sent"),
    ("grid {model} --labelled-pairs {files}/pairs.csv", "pairs.csv has no column 'label'; it has 'sentence1', 'sen"),
    (
        "grid {model} --labelled-pairs {files}/pairs.csv --columns sentence1,sentence2,score",
        "pairs.csv: pairs, row 0, score: a label must be 1",
    ),
    ("grid {model} --pairs {files}/header.csv", "header.csv has no rows below its header; at least one is needed"),
    ("grid {model} --search {files}/header.csv {files}/pairs.csv {files}/pairs.csv", "header.csv has no rows below its"),
    (
        "grid {model} --search {files}/documents.csv {files}/documents.csv {files}/judgments.csv",
        "qrels, row 1, query '2', document '2': relevance must be a whole number",
    ),
    ("grid {model} --search {files}/pairs.csv {files}/pairs.csv {files}/pairs.csv", "corpus needs the columns id and text"),
    ("grid {model} --pairs {files}/empty.csv", "empty.csv cannot be read as CSV: No columns to parse from file"),
    ("grid {model} --pairs {files}/pairs.csv --precisions int3", "precision must be one of float32"),
    ("align {model} --texts {files}/pairs.csv --out {files}/new", "has no column 'text'; it has 'sentence1', 'sentence2'"),
    (
        "align {model} --texts {files}/pairs.parquet --columns score --out {files}/new",
        "{files}/pairs.parquet, column 'score': expected texts, but 5 of its values",
    ),
    ("align {model} --texts {files}/two.txt --out {files}/new", "at least 3 different texts, and works best with thousands"),
    ("latency {model} --texts {files}/pairs.csv", "no column 'text'; it has 'sentence1', 'sentence2', 'score'. Name the"),
    ("latency {model} --texts {files}/pairs.parquet --columns score", "5 of its values are not texts, such as 4.5 (float)"),
    ("latency {model} --texts {files}/blank.txt", "blank.txt has no text, or only empty ones; at least one is needed"),
    ("encode {model} {files}/pairs.csv {files}/new", "has no column 'text'; it has 'sentence1', 'sentence2', 'score'. Name"),
    ("encode {model} {files}/pairs.parquet {files}/new --column score", "5 of its values are not texts, such as 4.5"),
    ("encode {model} {files}/blank.txt {files}/new", "blank.txt has no text, or only empty ones; at least one is needed"),
    ("encode {model} {files}/empty.csv {files}/new", "empty.csv cannot be read as CSV: No columns to parse from file"),
    ("info {files}/full", "{files}/full is not a model folder: it has neither modules.json nor config.json."),
    ("recommend {model}", "Nothing says how well the sizes of this model agree with the whole model: it was not aligned, "),
    ("recommend {files}/full", "{files}/full is not a model folder: it has neither modules.json nor config.json."),
    ("recommend {files}/times.json", "not one that GridResult.save wrote"),
    ("recommend {files}/first.parquet --min-score 97", "such as 0.97 for 97 %; got 97.0"),
    ("recommend {files}/first.parquet --task STS", "There is no task 'STS' in this grid"),
    ("recommend {files}/first.parquet --max-ms 1", "--max-ms needs the times of the model: give --latency a file"),
    ("recommend {files}/first.parquet --latency {files}/lacking.csv", "lacking.csv has no time for [2, 4] layers"),
    ("recommend {files}/first.parquet --reference {files}/times.csv", "A GridResult is saved as .parquet or .json"),
    ("recommend {files}/first.parquet --reference {files}/other.json", "The reference was scored on C, the grid on A, B"),
    ("recommend {files}/first.parquet --latency {files}/pairs.csv", "`st-matryoshka2d latency MODEL --out times.csv`"),
    ("compare {files}/first.parquet {files}/other.json", "only the first has task A. Compare the tasks of both"),
    ("compare {files}/first.parquet {files}/second.json --alpha 5", "alpha must be between 0 and 1"),
]


@pytest.mark.parametrize(("line", "words"), ERRORS, ids=[line for line, _ in ERRORS])
def test_library_error_is_one_line(line: str, words: str, tiny_folder: Path, files: Path) -> None:
    result = run(*line.format(model=tiny_folder, files=files).split())
    assert result.exit_code == 1
    assert not result.stdout
    *before, last = result.stderr.splitlines()
    assert last.startswith("Error: ")
    assert words.format(files=files) in last
    assert not [line for line in before if line.startswith(("Error", "Traceback"))]
    assert not (files / "new").exists()


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("truncate {model} --size 9L-8d --out {files}/new", 1, "num_layers=9: the model has 4 layers."),
        ("grid {model}", 2, "--search with files of your own"),
        ("recommend {files}/first.parquet --bset", 2, "No such option: --bset"),
        ("truncate {model} --out {files}/new", 2, "Missing option '--size'"),
    ],
)
def test_an_error_is_json_for_programs_and_words_for_people(
    line: str, code: int, words: str, tiny_folder: Path, files: Path
) -> None:
    result = run(*line.format(model=tiny_folder, files=files).split(), "--json")
    assert result.exit_code == code
    found = json.loads(result.stdout)
    assert list(found) == ["error"]
    assert words in found["error"]
    assert words.replace(" ", "") in told(result).replace(" ", "")


def heavy_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make slow imports fail."""
    slow = ("mteb", "sentence_transformers", "torch", "transformers")
    for name in [name for name in sys.modules if name.split(".")[0] in slow]:
        monkeypatch.setitem(sys.modules, name, None)


UNWRITABLE = [
    "grid {model} --pairs {files}/pairs.csv --out {files}/empty.csv/new/grid.json",
    "grid {model} --pairs {files}/pairs.csv --plot {files}/empty.csv/grid.png",
    "grid {model} --pairs {files}/pairs.csv --cache {files}/empty.csv/cache",
    "latency {model} --out {files}/empty.csv/times.csv",
    "latency {model} --plot {files}/empty.csv/times.png",
    "align {model} --texts {files}/lines.txt --out {files}/empty.csv/new",
    "truncate {model} --size 2L-8d --out {files}/empty.csv/new",
    "compare {files}/first.parquet {files}/second.json --plot {files}/empty.csv/delta.png",
    "encode {model} {files}/lines.txt {files}/empty.csv/new",
]
BEFORE_IMPORTS = [
    ("grid {model} --pairs {files}/pairs.csv --columns a,b,c", "has no column 'a' and no 'b' and no 'c'"),
    ("grid {files} --tasks STSBenchmark", "is not a model folder: it has neither modules.json nor config.json"),
    ("grid who/knows --tasks STSBenchmark", "There is no model who/knows on the Hub"),
    ("info knows", "There is no model knows on the Hub, and no folder knows"),
    ("recommend who/knows", "There is no model who/knows on the Hub"),
    ("latency who/knows", "There is no model who/knows on the Hub"),
    ("align who/knows --texts {files}/lines.txt --out {files}/new", "There is no model who/knows on the Hub"),
    ("truncate who/knows --size 1L-8d --out {files}/new", "There is no model who/knows on the Hub"),
    ("encode who/knows {files}/lines.txt {files}/new", "There is no model who/knows on the Hub"),
    ("encode {model} {files}/lines.txt {files}/new --size 2L-33d", "2L-33d has 33 dimensions"),
    ("truncate {model} --size 5L-8d --out {files}/new", "num_layers=5: the model has 4 layers."),
    ("truncate {model} --size 2L-33d --out {files}/new", "dim=33: the model has 32 dimensions."),
    ("align {model} --texts {files}/lines.txt --out {files}/new --sizes 2L-33d", "2L-33d has 33 dimensions"),
    ("latency {model} --num-layers 5", "num_layers=5: the model has 4 layers."),
    ("grid {model} --pairs {files}/pairs.csv --num-layers 5", "num_layers=5: the model has 4 layers."),
    ("grid {model} --pairs {files}/pairs.csv --dims 33", "dims=33: the model has 32 dimensions."),
    ("grid {model} --pairs {files}/pairs.csv --sizes 5L-8d", "5L-8d has 5 layers, but the model has 4"),
    ("grid {model} --pairs {files}/pairs.csv --documents 2L-33d", "2L-33d has 33 dimensions, but the model has 32"),
    *((line, "could not write: '{files}/empty.csv") for line in UNWRITABLE),
]


@pytest.mark.parametrize(("line", "words"), BEFORE_IMPORTS, ids=[line for line, _ in BEFORE_IMPORTS])
def test_what_needs_no_weights_is_refused_before_imports(
    line: str, words: str, tiny_folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str, **asked: object) -> None:
        response = httpx.Response(404, request=httpx.Request("HEAD", f"https://huggingface.co/{name}"))
        raise RepositoryNotFoundError(name, response=response)

    heavy_imports(monkeypatch)
    monkeypatch.setattr("huggingface_hub.resolve_revision", unknown)
    result = run(*line.format(model=tiny_folder, files=files).split())
    assert (result.exit_code, words.format(files=files) in told(result)) == (1, True), result.output


def test_reports_file_with_other_encoding(tiny_folder: Path, files: Path) -> None:
    (files / "latin.txt").write_text("café", encoding="latin-1")
    result = run("latency", tiny_folder, "--texts", files / "latin.txt")
    assert f"{files / 'latin.txt'} is not text in UTF-8" in result.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.delattr(GridResult, "recommend")
    result = run("recommend", files / "first.parquet")
    assert isinstance(result.exception, AttributeError)
    assert result.exc_info is not None
    assert result.exc_info[2].tb_next is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"For example:\s+st-matryoshka2d {command} \S", result.stdout)
    [flag] = re.findall("--json.*", result.stdout)
    assert re.fullmatch(r"--json +Print JSON instead of text\. +│", flag)  # a flag takes no value
    assert not re.findall("<bool>|<list|range>|Path", result.stdout)


def test_options_of_a_model_stand_apart_with_their_defaults() -> None:
    own, shared = run("align", "--help").stdout.split("Loading the model")
    assert [
        word for word in ("--device", "--revision", "--trust-remote-code", "--token") if word in shared and word not in own
    ]
    assert "[default: (main)]" in shared
    assert "[default: (ends, or what an aligned" in own


def test_version() -> None:
    assert run("--version").stdout == f"st-matryoshka2d {st_matryoshka2d.__version__}\n"
