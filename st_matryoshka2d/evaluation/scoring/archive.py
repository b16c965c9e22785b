"""Finished cells on disk, so that a killed evaluation goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mteb import ResultCache
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.results import TaskResult

from st_matryoshka2d.evaluation.grid.files import naming_the_file, replace_file
from st_matryoshka2d.evaluation.grid.result import GridResult
from st_matryoshka2d.evaluation.views.precision import RANGED
from st_matryoshka2d.evaluation.views.views import View

if TYPE_CHECKING:
    from mteb.models import ModelMeta

__all__ = ["Archive", "cache_in"]

T = TypeVar("T")


class Archive:
    """The results of one model in a folder: mteb's own, by size, and what else a grid has.

    Args:
        cache: mteb's cache of results. Beside its folder `results`, where one file has all splits and subsets that were ever
            scored, lies one of ours, with each cell as it was asked for and, while a task is scored, with its embeddings.
        meta: The model, without a size.
        corpus_chunk_size: Documents that are searched at a time, which integers depend on.
    """

    def __init__(self, cache: ResultCache, meta: ModelMeta, corpus_chunk_size: int) -> None:
        self._corpus_chunk_size = corpus_chunk_size
        self._began = time.time()
        self._cache = cache
        self._folder = Path(cache.cache_path) / "st_matryoshka2d" / str(meta.name).replace("/", "__") / str(meta.revision)

    def folder(self, task: AbsTask) -> Path:
        """Where everything of one task is: another folder where anything but the model differs.

        Args:
            task: The task.
        """
        told = [
            task.metadata.revision,
            list(task.eval_splits),
            list(task.hf_subsets),
            task.seed,
            version("mteb"),
            version("st_matryoshka2d"),
            type(task).__qualname__,
        ]
        return self._folder / f"{task.metadata.name}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]}"

    def load(self, task: AbsTask, view: View, meta: ModelMeta) -> tuple[TaskResult, GridResult] | None:
        """What was found, if all of it is there.

        Args:
            task: The task.
            view: The view.
            meta: The model at this view.

        Raises:
            ValueError: A file cannot be read.
        """
        path = self._path(task, view)
        result = path.with_suffix(".json")
        if not (path.exists() and result.exists() and self._cache.get_task_result_path(task.metadata.name, meta).exists()):
            return None
        return _read(result, TaskResult.from_disk), _read(path, GridResult.load)

    def save(self, task: AbsTask, view: View, meta: ModelMeta, result: TaskResult, grid: GridResult) -> None:
        """Write mteb's result and the cell, each whole or not at all; the cell comes last, and says that both are there.

        Args:
            task: The task.
            view: The view.
            meta: The model at this view.
            result: What mteb found.
            grid: The cell.
        """
        path = self._path(task, view)
        kept = self._cache.get_task_result_path(task.metadata.name, meta)
        with naming_the_file(kept):
            path.parent.mkdir(parents=True, exist_ok=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder(task), prefix="new-") as name:
                new = ResultCache(name)
                made = new.get_task_result_path(task.metadata.name, meta).parent
                made.mkdir(parents=True)
                if (settings := kept.parent / "run_settings.jsonl").exists():
                    shutil.copy(settings, made)  # mteb adds to these
                new.save_to_cache(_with_what_is_there(result, kept), meta)
                for file in made.iterdir():
                    file.replace(kept.parent / file.name)
        replace_file(path.with_suffix(".json"), result.to_disk)
        grid.save(path)

    def clear(self, task: AbsTask) -> None:
        """Delete what only a run that goes on needs, and what one before this had begun to write when it was killed.

        Args:
            task: A task that is finished.
        """
        folder = self.folder(task)
        left = [path for pattern in ("texts-*", "search-*") for path in folder.glob(pattern)]
        for path in (path for pattern in ("new-*", ".*", "cells/.*") for path in folder.glob(pattern)):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < self._began:  # or another run may be writing it
                    left.append(path)
        for path in left:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _path(self, task: AbsTask, view: View) -> Path:
        name = str(view).replace(" ", "-")
        if view.precision in RANGED and isinstance(task, AbsTaskRetrieval):
            name += f"-of-{self._corpus_chunk_size}"
        return self.folder(task) / "cells" / f"{name}.parquet"


def cache_in(given: ResultCache | str | os.PathLike[str]) -> ResultCache:
    """Mteb's cache of results.

    Args:
        given: One, or the folder where it is to be.

    Raises:
        ValueError: There is a file of that name.
    """
    if isinstance(given, ResultCache):
        return given
    if Path(given).is_file():
        raise ValueError(f"cache is a folder for results, and {os.fspath(given)!r} is a file; give another name.")
    return ResultCache(Path(given))


def _with_what_is_there(result: TaskResult, path: Path) -> TaskResult:
    """What other splits and subsets scored before stays in the one file that mteb has for a task at a size."""
    before = _read(path, TaskResult.from_disk) if path.exists() else None
    return before.merge(result) if before is not None and before.is_mergeable(result) else result


def _read(path: Path, reader: Callable[[Path], T]) -> T:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is broken; delete it, and this size is scored again. {error}") from error
