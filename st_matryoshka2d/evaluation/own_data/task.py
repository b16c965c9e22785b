"""What the tasks have in common: data that is there from the start and cannot be taken for another one's."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, ClassVar

import mteb
from datasets import Dataset
from mteb.abstasks.task_metadata import TaskCategory, TaskMetadata, TaskType

from st_matryoshka2d.evaluation.random_states import random_states_kept

__all__ = ["OwnData", "check_name"]

# Rows that are in memory at a time.
_BATCH = 1000


class OwnData:
    """Put before one of mteb's task classes: the data comes from memory instead of the Hub.

    Args:
        name: What the user calls the task.
        data: What `dataset` is to hold.
        description: What the data is.
        **settings: Attributes of mteb's class that are not to have its defaults.

    Attributes:
        kind: mteb's type of the task.
        category: mteb's category.
        main_score: The metric that stands for the task.
    """

    kind: ClassVar[TaskType]
    category: ClassVar[TaskCategory]
    main_score: ClassVar[str]
    abstask_prompt: str
    metadata: TaskMetadata
    dataset: Any
    data_loaded: bool

    def __init__(self, name: str, data: dict[str, Any], *, description: str, **settings: Any) -> None:
        digest = hashlib.sha256()
        _feed(digest, [self.kind, name, settings])
        _feed(digest, data)
        self.metadata = TaskMetadata(
            name=name,
            type=self.kind,
            category=self.category,
            main_score=self.main_score,
            prompt=self.abstask_prompt,  # mteb finds the instruction of a type by the names of its own tasks only
            description=description,
            dataset={"path": f"own-data/{name}", "revision": digest.hexdigest()[:16]},
            eval_splits=["test"],
            eval_langs=["und-Zyyy"],  # ISO's codes of a language and a script that nobody has said
        )
        self._own = (self.metadata, data)
        for setting, value in settings.items():
            setattr(self, setting, value)
        with random_states_kept():
            super().__init__()
        self.load_data()

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Set `dataset`; nothing is read from anywhere."""
        self.dataset = _containers(self._own[1])
        self.data_loaded = True

    def unload_data(self) -> None:
        """Let go of `dataset`. mteb's own method would also delete the metadata, which here belong to the object."""
        self.metadata = self._own[0]
        self.dataset = None
        self.data_loaded = False


def check_name(name: object) -> None:
    """Refuse a name under which results would be lost or mistaken.

    Args:
        name: What the user calls the task.

    Raises:
        TypeError: Not a `str`.
        ValueError: Not fit for a file name, or that of one of mteb's own tasks.

    Example:
        >>> check_name("STSBenchmark")
        Traceback (most recent call last):
        ...
        ValueError: name='STSBenchmark' is a task of mteb, whose results these would be taken for; use another name.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r} ({type(name).__name__}).")
    if not re.fullmatch(r"\w[\w .+-]*", name):
        raise ValueError(
            f"name={name!r}: a file with results is called so; use letters, digits, '_', '-', '+', '.' and spaces."
        )
    try:
        with random_states_kept():
            mteb.get_task(name)
    except KeyError:
        return
    raise ValueError(f"name={name!r} is a task of mteb, whose results these would be taken for; use another name.")


def _containers(data: Any) -> Any:
    """The same rows in new dicts: mteb replaces what is in them."""
    return type(data)({key: _containers(value) for key, value in data.items()}) if isinstance(data, dict) else data


def _feed(digest: Any, data: Any) -> None:
    """Add everything in nested dicts of data to a digest, data sets in batches of rows."""
    if isinstance(data, dict):
        for key in sorted(data):
            _feed(digest, key)
            _feed(digest, data[key])
    elif isinstance(data, Dataset):
        _feed(digest, [data.column_names, len(data)])
        for batch in data.with_format(None).iter(_BATCH):
            _feed(digest, list(batch.values()))
    else:
        digest.update(json.dumps(data).encode())
