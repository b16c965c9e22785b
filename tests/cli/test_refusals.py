"""What the commands refuse: a user's mistake is one line that names it; a fault has a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import HFValidationError

from st_matryoshka2d import GridResult
from st_matryoshka2d.errors import UsageError
from tests.support.command_line import Shell, told
from tests.support.hub import serving
from tests.support.loader import another_hub

# The line, the exit code, and what the text names.
BEFORE_IMPORTS = [
    ("cut {tiny}", 2, "cut"),
    ("grid {tiny}", 1, "--labelled-pairs"),
    ("grid {tiny} --task T --out grid.txt", 1, "grid.txt"),
    ("grid {tiny} --task T --plot grid", 1, ".svg"),
    ("grid {tiny} --task T --plot {files}/empty.csv/grid.png", 1, "empty.csv/grid.png"),
    ("grid {tiny} --task T --cache {files}/empty.csv/cache", 1, "empty.csv/cache"),
    ("grid {tiny} --task T --size 6-128", 2, "6L-128d"),
    ("grid {tiny} --pairs {files}/none.csv", 2, "none.csv"),
    ("grid {tiny} --pairs {files}/second.json", 1, ".jsonl"),
    ("grid {tiny} --pairs {files}/empty.csv", 1, "empty.csv"),
    ("grid {tiny} --pairs {files}/pairs.csv --text-column a", 1, "--text-column"),
    ("grid {tiny} --pairs {files}/pairs.csv --value-column b", 1, "--value-column"),
    ("grid {tiny} --labelled-pairs {files}/pairs.csv", 1, "pairs.csv has no column 'label'"),
    ("grid {tiny} --search {files}/pairs.csv {files}/pairs.csv", 2, "--search"),
    ("grid {tiny} --search {files}/no {files}/no {files}/no", 2, "not exist"),
    ("grid ./nowhere --task T", 1, "./nowhere"),
    ("info {files}", 1, "modules.json"),
    ("grid {tiny} --search {files}/two.txt {files}/two.txt {files}/two.txt", 1, "two.txt"),
    ("align {tiny} --out {out}/new", 2, "--texts"),
    ("align {tiny} --texts {files}/pairs.csv --out {out}/new", 1, "--text-column"),
    ("align {tiny} --texts {files}/pairs.parquet --text-column score --out {out}/new", 1, "4.5"),
    ("align {tiny} --texts {files}/chinese.txt --out {out}/new", 1, "chinese.txt is not in UTF-8"),
    ("align {tiny} --texts {files}/commas.csv --out {out}/new", 1, "commas.csv cannot be read: rows have more cells"),
    ("fit-queries {tiny} --documents {files}/two.txt --queries {files}/pairs.csv --out {out}/new", 1, "--query-column"),
    ("align {tiny} --texts {files}/second.json --out {out}/new", 1, ".jsonl"),
    ("truncate {tiny} --size 2L-8d", 2, "--out"),
    ("truncate {tiny} --size 2L-8d --out {files}", 1, "--out"),
    ("truncate {tiny} --size 2L-8d --out {files}/empty.csv/new", 1, "empty.csv/new"),
    ("truncate {tiny} --size 2L-8d --layers last --out {out}/new", 2, "1,5,6"),
    ("recommend grid.parquet", 1, "grid.parquet"),
    ("recommend ./nowhere", 1, "./nowhere"),
    ("recommend none.csv", 1, "no file none.csv"),
    ("recommend {files}/pairs.csv", 1, "--out grid.parquet"),
    ("recommend {files}/pairs.parquet", 1, "GridResult.save"),
    ("recommend {files}/first.parquet --best --min-score 0.9", 1, "--min-score"),
    ("recommend {files}/first.parquet --min-score 97", 1, "0.97"),
    ("recommend {files}/first.parquet --task STS", 1, "'STS'"),
    ("recommend {files}/second.json --max-ms 1", 1, "grid --times"),
    ("recommend {files}/first.parquet --reference {files}/other.json", 1, "C"),
    ("report {files}/first.parquet --out page.pdf", 1, ".html"),
]
BY_THE_LIBRARY = [
    ("grid {tiny} --pairs {files}/header.csv", "header.csv"),
    ("grid {tiny} --labelled-pairs {files}/pairs.csv --value-column score", "pairs.csv"),
    ("grid {tiny} --pairs {files}/pairs.csv --value-column sentence1", "pairs.csv: the columns must differ"),
    ("grid {tiny} --search {files}/pairs.csv {files}/queries.csv {files}/judged.csv", "pairs.csv has no column 'id'"),
    ("grid {tiny} --search {files}/documents.tsv {files}/pairs.csv {files}/judged.csv", "pairs.csv has no column 'id'"),
    ("grid {tiny} --search {files}/documents.tsv {files}/queries.csv {files}/half.csv", "half.csv, (query"),
    ("grid {tiny} --search {files}/queries.csv {files}/queries.csv {files}/judged.csv", "not in {files}/queries.csv"),
    ("grid {tiny} --pairs {files}/pairs.csv --size 2L-33d", "2L-33d"),
    ("truncate {tiny} --size 9L-8d --out {out}/new", "4 layers"),
    ("truncate {tiny} --out {out}/new", "Pass --size, --vocabulary or both"),
    ("truncate {tiny} --size 2L-8d --max-tokens 9 --out {out}/new", "pass --vocabulary too"),
    ("truncate {tiny} --vocabulary {files}/two.txt --max-tokens 2 --out {out}/new", "max_tokens=2 is too few"),
    ("align {tiny} --texts {files}/two.txt --out {out}/new", "3 different texts"),
    ("heal {tiny} --size 2L-8d --layers 1,2,4 --texts {files}/lines.txt --out {out}/new", "lists 3 layers"),
    ("asymmetric {tiny} --query-size 1L-8d --out {out}/new", "`align`"),
    ("asymmetric {tiny} --out {out}/new", "--query-size or --query"),
    ("recommend {tiny}", "`align`"),
]


@pytest.mark.parametrize(("line", "code", "names"), BEFORE_IMPORTS)
def test_refused_before_anything_slow_is_imported(
    line: str, code: int, names: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.split(".")[0] in ("mteb", "sentence_transformers", "torch", "transformers"):
            monkeypatch.setitem(sys.modules, name, None)
    result = shell(line)
    assert result.exit_code == code, result.output
    assert names in told(result)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("line", "names"), BY_THE_LIBRARY)
def test_refused_in_one_line(line: str, names: str, shell: Shell, files: Path, tmp_path: Path) -> None:
    result = shell(line)
    assert result.exit_code == 1, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert names.replace("{files}", str(files)) in last
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["org/nowhere", "org/gated", "org/tiny --revision nowhere"])
def test_the_hub_refuses_in_one_line(name: str, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        result = shell(f"info {name}")
    assert result.exit_code == 1
    assert name.split()[0] in result.stderr.splitlines()[-1]


MISTAKES = [UsageError("5 layers"), OSError(28, "No space left", "new"), HFValidationError("a/b/c")]
FAULTS = [AttributeError("a"), KeyError("b"), OSError("c"), TypeError("d"), ValueError("e")]


@pytest.mark.parametrize("error", [*MISTAKES, *FAULTS])
def test_a_fault_keeps_its_traceback(error: Exception, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an error about a value, if the package did not raise it."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(GridResult, "recommend", fail)
    result = shell("recommend {files}/first.parquet")
    assert (result.exception is error) == (error in FAULTS)
    assert (result.stderr == f"Error: {error}\n") == (error in MISTAKES)
