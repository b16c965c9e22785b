"""Tasks of mteb whose data comes from memory."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, ClassVar

from datasets import Dataset
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskCategory, TaskMetadata, TaskType

from st_matryoshka2d._hosts.mteb import random_states_kept, task_of_mteb
from st_matryoshka2d.errors import UsageError, UsageTypeError


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
    if task_of_mteb(name) is not None:
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
