"""Task names are looked up in mteb's files, without importing it."""

from __future__ import annotations

import subprocess
import sys

import mteb
import pytest

from st_matryoshka2d.evaluation.task_names import check_task_names
from st_matryoshka2d.evaluation.tasks import chosen_tasks


@pytest.mark.slow
def test_every_task_of_mteb_is_known() -> None:
    names = [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)]
    assert len(names) > 1000
    check_task_names(names)


def test_old_names_are_known() -> None:
    check_task_names(["PersianTextTone", "STSBenchmark"])


def test_every_benchmark_is_known_and_gives_its_tasks() -> None:
    check_task_names(benchmark.name for benchmark in mteb.get_benchmarks())
    tasks = chosen_tasks("NanoBEIR")
    assert len(tasks) == 13
    assert tasks == list(mteb.get_benchmark("NanoBEIR").tasks)
    with pytest.raises(ValueError, match="NanoArguAnaRetrieval is given more than once"):
        chosen_tasks(["NanoBEIR", "NanoArguAnaRetrieval"])


def test_an_unknown_name_is_refused_with_similar_ones() -> None:
    with pytest.raises(ValueError, match=r"no task or benchmark named 'STSBenchmrak'\. Similar names: .*STSBenchmark"):
        check_task_names(["STSBenchmark", "STSBenchmrak"])


def test_nothing_is_imported() -> None:
    code = "import sys; from st_matryoshka2d.evaluation.task_names import check_task_names as check; check(['STS12'])"
    heavy = "{'mteb', 'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{code}; assert not {heavy}, {heavy}"], check=True)
