"""Finished cells on disk, so that a killed evaluation goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mteb import ResultCache
from mteb.abstasks import AbsTask
from mteb.results import TaskResult

from st_matryoshka2d.evaluation.result import GridResult
from st_matryoshka2d.evaluation.views import View

if TYPE_CHECKING:
    from mteb.models import ModelMeta

__all__ = ["Archive"]


class Archive:
    """The results of one model in a folder: mteb's own, by size, and what else a grid has.

    Args:
        cache: mteb's cache of results. Beside its folder `results` lies one of ours, with the items of each cell and, while
            a task is scored, with its embeddings.
        meta: The model, without a size.
    """

    def __init__(self, cache: ResultCache, meta: ModelMeta) -> None:
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
            version("mteb"),
            type(task).__qualname__,
        ]
        return self._folder / f"{task.metadata.name}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]}"

    def load(self, task: AbsTask, view: View, meta: ModelMeta) -> tuple[TaskResult, GridResult] | None:
        """What was found, if all of it is there.

        Args:
            task: The task.
            view: The view.
            meta: The model at this view.
        """
        path = self._path(task, view)
        result = self._cache.load_task_result(task.metadata.name, meta) if path.exists() else None
        return (result, GridResult.load(path)) if result is not None else None

    def save(self, task: AbsTask, view: View, meta: ModelMeta, result: TaskResult, grid: GridResult) -> None:
        """Write mteb's result and the cell, each whole or not at all; the cell comes last, and says that both are there.

        Args:
            task: The task.
            view: The view.
            meta: The model at this view.
            result: What mteb found.
            grid: The cell.
        """
        kept = self._cache.get_task_result_path(task.metadata.name, meta).parent
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".") as name:
            new = ResultCache(name)
            made = new.get_task_result_path(task.metadata.name, meta).parent
            made.mkdir(parents=True)
            if (settings := kept / "run_settings.jsonl").exists():
                shutil.copy(settings, made)  # mteb adds to these
            new.save_to_cache(result, meta)
            for path in made.iterdir():
                path.replace(kept / path.name)
        grid.save(self._path(task, view))

    def clear(self, task: AbsTask) -> None:
        """Delete what only a run that goes on needs: the embeddings, and how far a search had come.

        Args:
            task: A task that is finished.
        """
        for pattern in ("texts-*", "search-*"):
            for path in self.folder(task).glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _path(self, task: AbsTask, view: View) -> Path:
        return self.folder(task) / "cells" / f"{str(view).replace(' ', '-')}.parquet"
