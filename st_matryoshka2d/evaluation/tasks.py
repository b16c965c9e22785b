"""Choose mteb tasks, and load their data."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches

import mteb
import pandas as pd
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.benchmarks.benchmark import Benchmark

from st_matryoshka2d._hosts.mteb import random_states_kept, task_of_mteb
from st_matryoshka2d.errors import UsageError, UsageTypeError

Tasks = AbsTask | str | Benchmark | Iterable[AbsTask | str | Benchmark]

_OWN_DATA = "sts_task, pair_task, retrieval_task and classification_task make a task from your own data."


def chosen_tasks(tasks: Tasks) -> list[AbsTask]:
    """Resolve names and benchmarks to task objects; refuse repeated tasks."""
    if isinstance(tasks, (pd.DataFrame, Dataset, DatasetDict)):
        raise UsageTypeError(f"A {type(tasks).__name__} is not a task. {_OWN_DATA}")
    given = tasks if isinstance(tasks, Iterable) and not isinstance(tasks, str) else [tasks]
    named = (_named(entry) if isinstance(entry, str) else entry for entry in given)
    flat = [task for entry in named for task in (entry if isinstance(entry, Benchmark) else [entry])]
    chosen: list[AbsTask] = []
    for task in flat:
        if not isinstance(task, AbsTask):
            raise UsageTypeError(
                f"A task must be an mteb task, its name or a benchmark, got {task!r} ({type(task).__name__})."
            )
        name, modalities = task.metadata.name, task.metadata.modalities
        if list(modalities) != ["text"]:
            raise UsageError(f"{name} is a task of {', '.join(modalities)}; only text tasks are supported.")
        if name in [other.metadata.name for other in chosen]:
            raise UsageError(
                f"{name} is given more than once. Give each task once, and tasks of your own different names: name='...'."
            )
        chosen.append(task)
    if not chosen:
        raise UsageError(f"tasks is empty; give at least one task, for example 'STSBenchmark'. {_OWN_DATA}")
    return chosen


def parts_of(task: AbsTask) -> list[AbsTask]:
    """Return the tasks that an aggregate averages, or the task itself."""
    return list(task.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def fresh(task: AbsTask) -> AbsTask:
    """Copy a task with its initial random state, so that each size is scored on the same samples."""
    again = copy.copy(task)
    again.rng_state, again.np_rng = copy.deepcopy((task.rng_state, task.np_rng))
    return again


@contextmanager
def data_of(task: AbsTask) -> Iterator[None]:
    """Load a task's data once for all sizes; unload it afterwards unless it was loaded before."""
    with ExitStack() as after:
        if not task.data_loaded:
            task.load_data()
            after.callback(task.unload_data)
        if isinstance(task, AbsTaskRetrieval):
            task.convert_v1_dataset_format_to_v2(num_proc=None)
        yield


def _named(name: str) -> AbsTask | Benchmark:
    if (task := task_of_mteb(name)) is not None:
        return task
    with random_states_kept(), suppress(KeyError):
        return mteb.get_benchmark(name)
    known = {task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)}
    known |= {benchmark.name for benchmark in mteb.get_benchmarks()}
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Similar names: {', '.join(near)}." if near else "`mteb.get_tasks()` lists all tasks."
    raise UsageError(f"mteb has no task or benchmark named {name!r}. {hint}")
