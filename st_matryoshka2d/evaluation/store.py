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
from typing import TypeVar

from mteb import ResultCache
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.models import ModelMeta
from mteb.results import TaskResult

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.evaluation.mteb_adapter import meta_of
from st_matryoshka2d.evaluation.variants import RANGED, Variant
from st_matryoshka2d.files.atomic import check_writable_folder, naming_the_file, replace_file
from st_matryoshka2d.grid.grid_result import GridResult

Cache = ResultCache | str | os.PathLike[str] | None

R = TypeVar("R")


@dataclass(frozen=True)
class Scored:
    """The scores of one variant on one task, and mteb's own result."""

    grid: GridResult
    of_mteb: TaskResult


class Store:
    """The results of one model in a folder.

    `results/` has mteb's layout: one file per task and size, with all splits and subsets that were
    ever scored. `st_matryoshka2d/` has the results of this package and, while a task is being
    scored, its embeddings.
    """

    def __init__(self, cache: ResultCache | str | os.PathLike[str], meta: ModelMeta, corpus_chunk_size: int) -> None:
        if not isinstance(cache, ResultCache | str | os.PathLike):
            raise UsageTypeError(f"cache must be a folder or an mteb ResultCache, got {cache!r} ({type(cache).__name__}).")
        if not isinstance(cache, ResultCache) and Path(cache).is_file():
            raise UsageError(f"cache must be a folder, but {os.fspath(cache)!r} is a file. Choose another name.")
        self._began = time.time()
        self._meta, self._corpus_chunk_size = meta, corpus_chunk_size
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

    def load(self, task: AbsTask, variant: Variant) -> Scored | None:
        """Load the scores of a variant, or None unless all of their files exist."""
        path, meta = self._path(task, variant), meta_of(self._meta, variant)
        of_mteb = path.with_suffix(".json")
        if not all(file.exists() for file in (path, of_mteb, self._cache.get_task_result_path(task.metadata.name, meta))):
            return None
        return Scored(_read(path, GridResult.load), _read(of_mteb, TaskResult.from_disk))

    def keep(self, task: AbsTask, variant: Variant, scored: Scored) -> Scored:
        """Save scores and read them back, so that fresh and resumed runs return identical values."""
        path = self._path(task, variant)
        self._save_for_mteb(task, meta_of(self._meta, variant), scored.of_mteb)
        replace_file(path.with_suffix(".json"), scored.of_mteb.to_disk)
        scored.grid.save(path)  # last: it marks the others as complete
        return self.load(task, variant) or scored

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

    def _path(self, task: AbsTask, variant: Variant) -> Path:
        name = str(variant).replace(" ", "-")
        if variant.precision in RANGED and isinstance(task, AbsTaskRetrieval):
            # integers are scaled to the range of the first chunk
            name += f"-of-{self._corpus_chunk_size}"
        return self.folder(task) / "cells" / f"{name}.parquet"

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
                written = new.get_task_result_path(task.metadata.name, meta).parent
                written.mkdir(parents=True)
                if (settings := target.parent / "run_settings.jsonl").exists():
                    shutil.copy(settings, written)  # mteb appends to this file
                new.save_to_cache(result, meta)
                for file in written.iterdir():
                    file.replace(target.parent / file.name)


def _read(path: Path, reader: Callable[[Path], R]) -> R:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read. Delete it to have it scored again. {error}") from error
