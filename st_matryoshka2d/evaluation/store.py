"""Finished results on disk, so that a killed evaluation goes on where it stopped."""

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

from st_matryoshka2d.files import naming_the_file, replace_file
from st_matryoshka2d.table_files import SavedTable

Cache = ResultCache | str | os.PathLike[str] | None

T = TypeVar("T", bound=SavedTable)
R = TypeVar("R")


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A result of ours and, where it is one of mteb's too, that."""

    result: T
    of_mteb: TaskResult | None = None


@dataclass(frozen=True)
class Job(Generic[T]):
    """What is scored of a task in one go, and kept under one name; `meta` is what mteb keeps its own result under."""

    name: str
    kind: type[T]
    score: Callable[..., Kept[T]]
    meta: ModelMeta | None = None


class Store:
    """The results of one model in a folder.

    In mteb's folder `results` one file has all splits and subsets that were ever scored. Beside it lies one of ours, with
    each result as it was asked for and, while a task is scored, with its embeddings.
    """

    def __init__(self, cache: Cache, meta: ModelMeta) -> None:
        if not isinstance(cache, ResultCache | str | os.PathLike):
            raise TypeError(f"cache must be a folder or an mteb ResultCache, got {cache!r} ({type(cache).__name__}).")
        if not isinstance(cache, ResultCache) and Path(cache).is_file():
            raise ValueError(f"cache is a folder for results, and {os.fspath(cache)!r} is a file; give another name.")
        self._began = time.time()
        self._cache = cache if isinstance(cache, ResultCache) else ResultCache(Path(cache))
        self._folder = (
            Path(self._cache.cache_path) / "st_matryoshka2d" / str(meta.name).replace("/", "__") / str(meta.revision)
        )

    def folder(self, task: AbsTask) -> Path:
        """Where everything of one task is: another folder where anything but the model differs."""
        told = [task.metadata.revision, list(task.eval_splits), list(task.hf_subsets), task.seed]
        told += [version("mteb"), version("st_matryoshka2d"), type(task).__qualname__]
        return self._folder / f"{task.metadata.name}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]}"

    def load(self, task: AbsTask, job: Job[T]) -> Kept[T] | None:
        """What was found, if all of it is there."""
        path = self._path(task, job)
        of_mteb = path.with_suffix(".json")
        needed = [path]
        if job.meta is not None:
            needed += [of_mteb, self._cache.get_task_result_path(task.metadata.name, job.meta)]
        if not all(file.exists() for file in needed):
            return None
        return Kept(_read(path, job.kind.load), _read(of_mteb, TaskResult.from_disk) if job.meta is not None else None)

    def save(self, task: AbsTask, job: Job[T], kept: Kept[T]) -> None:
        """Write mteb's result and ours, each whole or not at all; ours comes last, and says that both are there."""
        path = self._path(task, job)
        if job.meta is not None and kept.of_mteb is not None:
            self._save_for_mteb(task, job.meta, kept.of_mteb)
            replace_file(path.with_suffix(".json"), kept.of_mteb.to_disk)
        kept.result.save(path)

    def clear(self, task: AbsTask) -> None:
        """Delete what only a run that goes on needs, and what one before this had begun to write when it was killed."""
        folder = self.folder(task)
        left = [path for pattern in ("texts-*", "search-*") for path in folder.glob(pattern)]
        for path in (path for pattern in ("new-*", ".*", "cells/.*") for path in folder.glob(pattern)):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < self._began:  # or another run may be writing it
                    left.append(path)
        for path in left:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _path(self, task: AbsTask, job: Job[T]) -> Path:
        return self.folder(task) / "cells" / f"{job.name}.parquet"

    def _save_for_mteb(self, task: AbsTask, meta: ModelMeta, result: TaskResult) -> None:
        """What other splits and subsets scored before stays in the one file that mteb has for a task at a size."""
        kept = self._cache.get_task_result_path(task.metadata.name, meta)
        before = _read(kept, TaskResult.from_disk) if kept.exists() else None
        whole = before.merge(result) if before is not None and before.is_mergeable(result) else result
        with naming_the_file(kept):
            self.folder(task).mkdir(parents=True, exist_ok=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder(task), prefix="new-") as name:
                new = ResultCache(name)
                made = new.get_task_result_path(task.metadata.name, meta).parent
                made.mkdir(parents=True)
                if (settings := kept.parent / "run_settings.jsonl").exists():
                    shutil.copy(settings, made)  # mteb adds to these
                new.save_to_cache(whole, meta)
                for file in made.iterdir():
                    file.replace(kept.parent / file.name)


def _read(path: Path, reader: Callable[[Path], R]) -> R:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is broken; delete it, and this is scored again. {error}") from error
