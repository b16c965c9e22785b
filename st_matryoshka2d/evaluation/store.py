"""Finished results on disk, so that a killed evaluation can resume."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Generic, TypeVar

from mteb import ResultCache
from mteb.abstasks import AbsTask
from mteb.models import ModelMeta
from mteb.results import TaskResult

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.files.atomic import check_writable_folder, naming_the_file, replace_file
from st_matryoshka2d.files.tables import SavedTable

Cache = ResultCache | str | os.PathLike[str] | None

T = TypeVar("T", bound=SavedTable)
R = TypeVar("R")


@dataclass(frozen=True)
class Scored(Generic[T]):
    """The result of a job, and mteb's own result if the job is one of mteb's evaluations."""

    result: T
    mteb_result: TaskResult | None = None


@dataclass(frozen=True)
class Job(Generic[T]):
    """A unit of work on one task, stored under `name`; mteb's own result is stored under `meta`."""

    name: str
    kind: type[T]
    score: Callable[..., Scored[T]]
    meta: ModelMeta | None = None


class Store:
    """The results of one model in a folder.

    `results/` has mteb's layout: one file per task and size, with all splits and subsets that were
    ever scored. `st_matryoshka2d/` has the results of this package and, while a task is being
    scored, its embeddings.
    """

    def __init__(self, cache: Cache, meta: ModelMeta) -> None:
        if not isinstance(cache, ResultCache | str | os.PathLike):
            raise UsageTypeError(f"cache must be a folder or an mteb ResultCache, got {cache!r} ({type(cache).__name__}).")
        if not isinstance(cache, ResultCache) and Path(cache).is_file():
            raise UsageError(f"cache must be a folder, but {os.fspath(cache)!r} is a file. Choose another name.")
        self._began = time.time()
        self._cache = cache if isinstance(cache, ResultCache) else ResultCache(Path(cache))
        name = str(meta.name).replace("/", "__")
        self._folder = Path(self._cache.cache_path) / "st_matryoshka2d" / name / str(meta.revision)

    def folder(self, task: AbsTask) -> Path:
        """The folder of one task; its name has a hash of the data, splits, subsets, seed and library versions."""
        identity = [task.metadata.revision, list(task.eval_splits), list(task.hf_subsets), task.seed]
        identity += [version("mteb"), version("st_matryoshka2d"), type(task).__qualname__]
        return self._folder / f"{task.metadata.name}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"

    def check_writable(self) -> None:
        """Refuse a cache in which the results could not be saved."""
        check_writable_folder(self._folder)
        check_writable_folder(self._cache.cache_path)

    def load(self, task: AbsTask, job: Job[T]) -> Scored[T] | None:
        """Load a result, or None unless all of its files exist."""
        path = self._path(task, job)
        of_mteb, needed = path.with_suffix(".json"), [path]
        if job.meta is not None:
            needed += [of_mteb, self._cache.get_task_result_path(task.metadata.name, job.meta)]
        if not all(file.exists() for file in needed):
            return None
        return Scored(_read(path, job.kind.load), None if job.meta is None else _read(of_mteb, TaskResult.from_disk))

    def save(self, task: AbsTask, job: Job[T], kept: Scored[T]) -> None:
        """Write mteb's result and ours atomically; ours comes last and marks both as complete."""
        path = self._path(task, job)
        if job.meta is not None and kept.mteb_result is not None:
            self._save_for_mteb(task, job.meta, kept.mteb_result)
            replace_file(path.with_suffix(".json"), kept.mteb_result.to_disk)
        kept.result.save(path)

    def clear(self, task: AbsTask) -> None:
        """Delete files that are only needed to resume, and partial files of a run that was killed earlier."""
        folder = self.folder(task)
        for path in (
            path for pattern in ("texts-*", "search-*", "new-*", ".*", "cells/.*") for path in folder.glob(pattern)
        ):
            # another running evaluation may delete it, and may own the newer files
            with suppress(FileNotFoundError):
                if path.name.startswith(("texts-", "search-")) or path.stat().st_mtime < self._began:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def _path(self, task: AbsTask, job: Job[T]) -> Path:
        return self.folder(task) / "cells" / f"{job.name}.parquet"

    def _save_for_mteb(self, task: AbsTask, meta: ModelMeta, result: TaskResult) -> None:
        """Merge a result into mteb's file for the task and size, which may already have other splits and subsets."""
        target = self._cache.get_task_result_path(task.metadata.name, meta)
        if target.exists() and (before := _read(target, TaskResult.from_disk)).is_mergeable(result):
            result = before.merge(result)
        with naming_the_file(target):
            self.folder(task).mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder(task), prefix="new-") as name:
                new = ResultCache(name)
                made = new.get_task_result_path(task.metadata.name, meta).parent
                made.mkdir(parents=True)
                if (settings := target.parent / "run_settings.jsonl").exists():
                    shutil.copy(settings, made)  # mteb appends to this file
                new.save_to_cache(result, meta)
                for file in made.iterdir():
                    file.replace(target.parent / file.name)


def _read(path: Path, reader: Callable[[Path], R]) -> R:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read. Delete it to have it scored again. {error}") from error
