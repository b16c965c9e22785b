"""Which tasks are scored, and their data."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import mteb
import pandas as pd
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.benchmarks.benchmark import Benchmark

from st_matryoshka2d.evaluation.own_data.task import OwnData
from st_matryoshka2d.evaluation.random_states import random_states_kept

__all__ = ["Tasks", "chosen_tasks", "data_of", "fresh", "parts_of"]

Tasks = AbsTask | str | Benchmark | Iterable[AbsTask | str | Benchmark]

_OWN_DATA = "sts_task, retrieval_task and classification_task make tasks of data of your own."


def chosen_tasks(tasks: Tasks) -> list[AbsTask]:
    """Task objects, each once.

    Args:
        tasks: One or several mteb tasks, task names or benchmarks.

    Raises:
        TypeError: Something is none of these.
        ValueError: There is no task, one is unknown, not of texts alone, or given twice.
    """
    if isinstance(tasks, (pd.DataFrame, Dataset, DatasetDict)):
        raise TypeError(f"A {type(tasks).__name__} is not a task. {_OWN_DATA}")
    given = list(tasks) if isinstance(tasks, Iterable) and not isinstance(tasks, str) else [tasks]
    flat = [task for entry in given for task in (entry if isinstance(entry, Benchmark) else [entry])]
    chosen: list[AbsTask] = []
    for entry in flat:
        task = _task_named(entry) if isinstance(entry, str) else entry
        if not isinstance(task, AbsTask):
            raise TypeError(f"A task is an mteb task object, its name or a benchmark, got {task!r} ({type(task).__name__}).")
        name, modalities = task.metadata.name, task.metadata.modalities
        if list(modalities) != ["text"]:
            raise ValueError(f"{name} is a task of {', '.join(modalities)}; only tasks of text alone are scored.")
        if name in [other.metadata.name for other in chosen]:
            hint = "; name='...' tells tasks of your own apart" if isinstance(task, OwnData) and task not in chosen else ""
            raise ValueError(f"{name} is given more than once; give each task once{hint}.")
        chosen.append(task)
    if not chosen:
        raise ValueError(f"tasks is empty; give at least one task, for example 'STSBenchmark'. {_OWN_DATA}")
    return chosen


def parts_of(task: AbsTask) -> list[AbsTask]:
    """The tasks that an aggregate is the mean of; the task itself, otherwise.

    Args:
        task: Any task.
    """
    return list(task.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def fresh(task: AbsTask) -> AbsTask:
    """The task, with the same data, as it was before it drew any random number.

    A task that samples goes on where it stopped; the second size would be scored on another sample than the first.

    Args:
        task: A task that was not evaluated itself.
    """
    again = copy.copy(task)
    again.rng_state, again.np_rng = copy.deepcopy((task.rng_state, task.np_rng))
    return again


@contextmanager
def data_of(task: AbsTask) -> Iterator[None]:
    """Load a task's data once for all sizes; data that was there before stays there.

    Args:
        task: A task that is no aggregate.
    """
    with ExitStack() as after:
        if not task.data_loaded:
            task.load_data()
            after.callback(task.unload_data)
        if isinstance(task, AbsTaskRetrieval):
            task.convert_v1_dataset_format_to_v2(num_proc=None)
        yield


def _task_named(name: str) -> AbsTask:
    try:
        with random_states_kept():  # mteb seeds the generators when it makes a task
            return mteb.get_task(name)
    except KeyError as error:
        known = [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Near names: {', '.join(near)}." if near else "`mteb.get_tasks()` lists what there is."
        raise ValueError(f"mteb has no task named {name!r}. {hint}") from error
