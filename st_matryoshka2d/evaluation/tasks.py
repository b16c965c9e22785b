"""Choose mteb tasks, load their data, and contain mteb's side effects."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from typing import Any, ClassVar

import mteb
import numpy as np
import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskCategory, TaskMetadata, TaskType
from mteb.benchmarks.benchmark import Benchmark

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
            hint = "; name='...' renames your own tasks" if isinstance(task, OwnData) and task not in chosen else ""
            raise UsageError(f"{name} is given more than once; give each task once{hint}.")
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


def _task_of_mteb(name: str) -> AbsTask | None:
    """Return mteb's task of this name; creating it would reseed the random generators."""
    with random_states_kept(), suppress(KeyError):
        return mteb.get_task(name)
    return None


def _named(name: str) -> AbsTask | Benchmark:
    if (task := _task_of_mteb(name)) is not None:
        return task
    with random_states_kept(), suppress(KeyError):
        return mteb.get_benchmark(name)
    known = {task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)}
    known |= {benchmark.name for benchmark in mteb.get_benchmarks()}
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Similar names: {', '.join(near)}." if near else "`mteb.get_tasks()` lists all tasks."
    raise UsageError(f"mteb has no task or benchmark named {name!r}. {hint}")


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore all random states: mteb seeds them whenever a task is created or scored."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # Reading the random state of an unused GPU would allocate memory on it.
    used = torch.cuda.is_initialized()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if used else ()):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if not used:
            # takes effect when a GPU is first used
            torch.cuda.manual_seed_all(torch.initial_seed())


class OwnData(AbsTask):
    """Mixin for mteb's task classes: the data comes from memory instead of the Hub."""

    kind: ClassVar[TaskType]
    category: ClassVar[TaskCategory]
    main_score: ClassVar[str]

    def __init__(self, name: str, data: dict[str, Any], *, description: str, **settings: Any) -> None:
        digest = hashlib.sha256()
        _feed(digest, [self.kind, name, settings])
        _feed(digest, data)
        self.metadata = TaskMetadata(
            name=name,
            type=self.kind,
            category=self.category,
            main_score=self.main_score,
            # mteb only looks up the prompt of a task type for its own tasks
            prompt=self.abstask_prompt,
            description=description,
            dataset={"path": f"own-data/{name}", "revision": digest.hexdigest()[:16]},
            eval_splits=["test"],
            eval_langs=["und-Zyyy"],  # ISO codes of an undetermined language and script
        )
        self._own = (self.metadata, data)
        self.__dict__.update(settings)
        with random_states_kept():
            super().__init__()
        self.load_data()

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Set `dataset` from memory."""
        self.dataset = _containers(self._own[1])
        self.data_loaded = True

    def unload_data(self) -> None:
        """Drop `dataset`. mteb's own method would also delete the metadata, which belong to this object."""
        self.metadata = self._own[0]
        self.dataset = None
        self.data_loaded = False


def check_name(name: object) -> None:
    """Refuse a task name that is no file name or belongs to a task of mteb."""
    if not isinstance(name, str):
        raise UsageTypeError(f"name must be a str, got {name!r} ({type(name).__name__}).")
    if not re.fullmatch(r"\w[\w .+-]*", name):
        raise UsageError(f"name={name!r} must work as a file name: use letters, digits, '_', '-', '+', '.' and spaces.")
    if _task_of_mteb(name) is not None:
        raise UsageError(f"name={name!r} is a task of mteb, and results would be confused. Choose another name.")


def _containers(data: Any) -> Any:
    """Copy nested dicts, because mteb modifies them; rows are shared."""
    return type(data)({key: _containers(value) for key, value in data.items()}) if isinstance(data, dict) else data


def _feed(digest: Any, data: Any) -> None:
    """Update a digest with nested dicts of data; data sets in batches of rows."""
    if isinstance(data, dict):
        for key in sorted(data):
            _feed(digest, key)
            _feed(digest, data[key])
    elif isinstance(data, Dataset):
        _feed(digest, [data.column_names, len(data)])
        for batch in data.with_format(None).iter(1000):
            _feed(digest, list(batch.values()))
    else:
        digest.update(json.dumps(data).encode())
