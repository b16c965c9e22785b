"""Score real tasks at the full size and at another: `python -m tests.evaluation.real_tasks_script {"model": ..., ...}`.

mteb reads the address of the Hub on import, so this runs in a separate process. The last line of
the output is JSON: for each task the main score of the full size, and the other size's metrics from
the grid and from mteb.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import mteb
import pandas as pd
from datasets import Dataset
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, evaluate
from tests.support.task_types import found, oracle, task_metadata


class FromParquet(AbsTaskRetrieval):
    """A collection from a folder, limited to a number of documents, judged documents first."""

    folder: str
    documents: int

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        tables = (pd.read_parquet(f"{self.folder}/{name}.parquet") for name in ("corpus", "queries", "qrels"))
        corpus, queries, qrels = (table.astype(str) for table in tables)
        judged = corpus["id"].isin(qrels["corpus_id"])
        corpus = pd.concat([corpus[judged], corpus[~judged]]).head(self.documents)
        judgments: dict[str, dict[str, int]] = {}
        for row in qrels[qrels["corpus_id"].isin(corpus["id"])].itertuples():
            judgments.setdefault(row.query_id, {})[row.corpus_id] = int(row.score)
        documents, questions = (Dataset.from_pandas(table, preserve_index=False) for table in (corpus, queries))
        split = RetrievalSplitData(corpus=documents, queries=questions, relevant_docs=judgments, top_ranked=None)
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


def from_parquet(name: str, folder: str, documents: int) -> type[AbsTaskRetrieval]:
    fields = {"metadata": task_metadata(name, "Retrieval", "ndcg_at_10"), "folder": folder, "documents": documents}
    return type(name, (FromParquet,), fields)


def from_hub(name: str) -> type[AbsTaskRetrieval]:
    where = {"path": f"local/{name}", "revision": "0" * 40}
    return type(name, (AbsTaskRetrieval,), {"metadata": task_metadata(name, "Retrieval", "ndcg_at_10", dataset=where)})


def maker(name: str, options: dict[str, Any]) -> Callable[[], AbsTask]:
    if "folder" in options:
        return from_parquet(name, options["folder"], options["documents"])
    return from_hub(name) if options.get("local") else lambda: mteb.get_task(name)


def scored(model: SentenceTransformer, make_task: Callable[[], AbsTask], size: Size, with_cell: bool) -> dict[str, Any]:
    full = Size(6, 384)
    sizes = [size, full] if with_cell else [full]
    grid = evaluate(model, make_task(), sizes=sizes, corpus_chunk_size=500, show_progress_bar=False)
    sides = (found(grid, size), oracle(model, make_task(), size)) if with_cell else ({}, {})
    cell, expected = ({"/".join(key[1:]): score for key, score in side.items()} for side in sides)
    return {"full": grid.score(full), "cell": cell, "mteb": expected}


def main(wanted: dict[str, Any]) -> None:
    model = SentenceTransformer(wanted["model"], device="cpu")
    size = Size.parse(wanted["size"])
    scores = {
        name: scored(model, maker(name, options), size, options.get("cell", True))
        for name, options in wanted["tasks"].items()
    }
    sys.stdout.write("\n" + json.dumps(scores))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
