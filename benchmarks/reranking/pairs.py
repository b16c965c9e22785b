"""Pairs of a question and a passage to train a reranker on: hard negatives, mined with the model that it will follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows, unit
from public.words import keywords

__all__ = ["answered", "judged"]

_FIRST, _OTHERS = 3, 5  # candidates of a question: the best ones, and some of those below
_LISTED = 50  # candidates of a question
_STEEP = 2.0  # of labels: a pair that is one standard deviation above the mean gets 0.88
_WORDS = {"scifact"}  # sets whose questions repeat words of their documents, so that BM25 judges in place of the teachers
_NEGATIVES = 2  # of a question with an answer
_SKIPPED = 3  # best documents beside the answer, which may answer too


def answered(data: Path, model: Remembering) -> pd.DataFrame:
    """Questions with their answers, and with hard negatives among the other answers: 1 and 0."""
    files = [data / "pairs" / f"{name}_train.parquet" for name in ("wikiqa", "trecqa")]
    pairs = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True).drop_duplicates()
    answers = pairs["positive"].drop_duplicates().tolist()
    right = pairs.groupby("anchor", sort=False)["positive"].agg(set)
    scores = unit(model.encode_query(list(right.index))) @ unit(model.encode_document(answers)).T
    rows = []
    for (question, own), row in zip(right.items(), scores, strict=True):
        others = [answers[place] for place in np.argsort(-row)[:_LISTED] if answers[place] not in own]
        rows += [(question, text, 1.0) for text in sorted(own)]
        rows += [(question, text, 0.0) for text in others[_SKIPPED : _SKIPPED + _NEGATIVES]]
    return pd.DataFrame(rows, columns=["query", "document", "label"])


def judged(data: Path, model: Remembering, teachers: Sequence[Remembering], questions: int) -> pd.DataFrame:
    """Questions that have no answer, with the first documents that a model finds, as other models judge them: 0 to 1."""
    found = []
    for name in TASKS:
        of, draw = PublicSet(data, name), np.random.default_rng(0)
        documents, asked = of.some(0.5), of.questions[:questions]
        best = np.argsort(-_scores(model, asked, documents), axis=1)[:, :_LISTED]
        below = [draw.permutation(row[_FIRST:])[:_OTHERS] for row in best]
        places = np.concatenate([best[:, :_FIRST], below], axis=1)
        judges = [_scores(judge, asked, documents) for judge in ([model] if name in _WORDS else [model, *teachers])]
        if name in _WORDS:
            judges.append(keywords(documents, asked))
        # on one scale: of the best document of a question
        told = [np.take_along_axis(scores / scores.max(1, keepdims=True), places, axis=1) for scores in judges]
        mean = np.mean([(scores - scores.mean()) / scores.std() for scores in told], axis=0)
        labels = 1 / (1 + np.exp(-_STEEP * mean / mean.std()))
        rows = zip(np.repeat(asked, places.shape[1]), places.ravel(), labels.ravel(), strict=True)
        found += [(str(question), documents[place], float(label)) for question, place, label in rows]
    return pd.DataFrame(found, columns=["query", "document", "label"])


def _scores(model: Remembering, queries: Sequence[str], documents: Sequence[str]) -> Rows:
    return np.asarray(unit(model.encode_query(queries)) @ unit(model.encode_document(documents)).T)
