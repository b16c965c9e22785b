"""One evaluation of funnels: task by task, from the cache or anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import mteb
from mteb.abstasks import AbsTask
from mteb.types import EncodeKwargs

from st_matryoshka2d.evaluation.encoding.encoder import EncodeOnce
from st_matryoshka2d.evaluation.funnel.funnel_search import FunnelSearch
from st_matryoshka2d.evaluation.funnel.judged import judged
from st_matryoshka2d.evaluation.funnel.measures import Funnel, measured
from st_matryoshka2d.evaluation.funnel.stages import stage_costs
from st_matryoshka2d.evaluation.grid.files import replace_file
from st_matryoshka2d.evaluation.scoring.archive import Archive
from st_matryoshka2d.evaluation.scoring.tasks import data_of, fresh, parts_of
from st_matryoshka2d.evaluation.search.found import Found
from st_matryoshka2d.texts import naming_a_broken_text

__all__ = ["Run"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One evaluation.

    Args:
        shared: Encodes, and knows the views.
        archive: Knows where a task's files are; None keeps nothing.
        pairs: Which view makes shortlists for which.
        lengths: Of the shortlists, ascending.
        k: How many documents come out.
        encode_kwargs: What mteb passes on to `encode`.
    """

    shared: EncodeOnce
    archive: Archive | None
    pairs: Sequence[tuple[int, int]]
    lengths: Sequence[int]
    k: int
    encode_kwargs: EncodeKwargs

    def rows(self, task: AbsTask) -> list[Row]:
        """A row for each split, subset, pair and length; the tasks that an aggregate is made of are its subsets.

        Args:
            task: A task of retrieval, or an aggregate of such.
        """
        parts = parts_of(task)
        name = task.metadata.name
        return [
            {"task": name, **row, **({} if part is task else {"subset": f"{part.metadata.name}/{row['subset']}"})}
            for part in parts
            for row in self._kept(part)
        ]

    def _kept(self, task: AbsTask) -> list[Row]:
        """From the cache if it is there; the first process decides for all."""
        processes = self.shared.processes
        if self.archive is None:
            return self._scored(task, None)
        folder = self.archive.folder(task) / f"funnel-{self._asked}"
        file, unfinished = folder / "rows.json", folder / "unfinished"
        rows: list[Row] | None = processes.everyones(_read(file) if processes.rank == 0 else None)[0]
        if rows is None:
            rows = self._scored(task, unfinished)
            if processes.rank == 0:
                replace_file(file, lambda part: part.write_text(json.dumps(rows), encoding="utf-8"))
        if processes.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        return rows

    @property
    def _asked(self) -> str:
        told = [[str(view) for view in self.shared.views], list(self.lengths), self.k, self.shared.corpus_chunk_size]
        return blake2b(json.dumps(told).encode(), digest_size=6).hexdigest()

    def _scored(self, task: AbsTask, folder: Path | None) -> list[Row]:
        search = FunnelSearch(self.shared)
        with naming_a_broken_text(task.metadata.name), data_of(task):
            again = fresh(task)
            self.shared.begin(folder)
            mteb.evaluate(
                search,
                again,
                cache=None,
                co2_tracker=False,
                show_progress_bar=False,
                encode_kwargs=self.encode_kwargs.copy(),
            )
            self.shared.begin(None)
            return [
                {"split": split, "subset": subset, **row}
                for (split, subset), (found, documents) in search.found.items()
                for row in self._of_subset(again, split, subset, found, documents)
            ]

    def _of_subset(self, task: Any, split: str, subset: str, found: Found, documents: int) -> list[Row]:
        relevance = task.dataset[subset][split]["relevant_docs"]
        blocks = judged(found, relevance, self.k, ignore_identical_ids=task.ignore_identical_ids)
        funnels = [Funnel(first, second, k1) for first, second in self.pairs for k1 in self.lengths]
        # Alone, a view ranks its own longest shortlist.
        alone = [Funnel(second, second, self.lengths[-1]) for second in sorted({second for _, second in self.pairs})]
        measures = dict(zip([*funnels, *alone], measured(blocks, [*funnels, *alone], self.k), strict=True))
        of_alone = {funnel.second: measures[funnel] for funnel in alone}
        views = self.shared.views
        return [
            {
                "first": str(views[funnel.first]),
                "second": str(views[funnel.second]),
                "k1": funnel.k1,
                "k": self.k,
                "queries": len(found.query_ids),
                "documents": documents,
                **asdict(measures[funnel]),
                "ndcg_alone": of_alone[funnel.second].ndcg,
                "recall_alone": of_alone[funnel.second].recall,
                **stage_costs(views[funnel.first], views[funnel.second], funnel.k1, documents),
            }
            for funnel in funnels
        ]


def _read(file: Path) -> list[Row] | None:
    if not file.exists():
        return None
    try:
        rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is broken; delete it, and the task is scored again. {error}") from error
    return rows
