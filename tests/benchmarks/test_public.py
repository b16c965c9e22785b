"""The public tasks: scored as mteb scores them, with embeddings that are made once, on parts of the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pytest
from layer_splits import splits as splits_of_layers
from layer_splits import swaps
from leaderboard import AsMteb
from public.fit import Fit
from public.remembering import Remembering
from public.sets import TASKS, PublicSet
from public.verbs import verbs
from unseen import measured, splits

from st_matryoshka2d.sizes import full_size
from tests.support import families

DOCUMENTS, QUERIES = 130, 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two search sets with documents that occur twice, of which one is relevant."""
    draw, words = np.random.default_rng(0), families.WORDS

    def texts(count: int, length: int) -> list[str]:
        return [" ".join(draw.choice(words, length)) for _ in range(count)]

    for name in TASKS:
        folder = tmp_path / "data" / "retrieval" / name
        folder.mkdir(parents=True)
        ids, asked = ([str(place) for place in range(count)] for count in (DOCUMENTS, QUERIES))
        corpus = pd.DataFrame({"id": ids, "title": "", "text": [*texts(70, 9), *texts(60, 9)]})
        corpus.loc[70:, "text"] = corpus["text"][:60].to_numpy()
        relevant = [7 * place % DOCUMENTS for place in range(QUERIES)]
        judged = pd.DataFrame({"query_id": asked, "corpus_id": list(map(str, relevant)), "score": 1})
        corpus.to_parquet(folder / "corpus.parquet")
        queries = [f"{corpus['text'][place]} {text}" for place, text in zip(relevant, texts(QUERIES, 2), strict=True)]
        pd.DataFrame({"id": asked, "text": queries}).to_parquet(folder / "queries.parquet")
        judged.to_parquet(folder / "qrels.parquet")
        pd.DataFrame({"text": [f"{text}, {place}" for place, text in enumerate(texts(9, 3))]}).to_parquet(
            folder / "questions.parquet"
        )
    return tmp_path / "data"


def test_scores_are_those_of_mteb_where_documents_are_equal(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    of, model = PublicSet(data, "mlquestions"), Remembering(str(tiny_folder), tmp_path / "cache")
    found = mteb.evaluate(AsMteb(model), of.task, cache=None, show_progress_bar=False)[0].get_score()
    scores = of.search(model.encode_query(of.queries), model.encode_document(of.documents))
    assert scores.shape == (QUERIES,)
    assert scores.mean() == pytest.approx(100 * found, abs=1e-3)
    assert 0 < found < 1


def test_no_text_is_embedded_twice(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a cat", "rain in town", "a cat"]
    model = Remembering(str(tiny_folder), tmp_path)
    first = model.encode_query(texts)
    assert np.array_equal(first[0], first[2])

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Remembering, "encode", refuse)
    again = Remembering(str(tiny_folder), tmp_path)
    assert np.array_equal(again.encode_query(texts[::-1], convert_to_tensor=True).numpy(), first[::-1])
    with pytest.raises(AssertionError):
        again.encode_document(texts)  # which may have another prompt


def test_queries_are_told_apart_by_whether_their_documents_were_read(data: Path) -> None:
    of = PublicSet(data, "scifact")
    half, tenth = of.some(0.5), of.some(0.1)
    assert half[: len(tenth)] == tenth
    assert len(half) == len(set(half)) == 35
    seen, unseen = of.seen(half)
    relevant = [of.documents[places[0]] for places in of.relevant]
    assert seen.tolist() == [text in half for text in relevant]
    assert (seen ^ unseen).all()


def test_query_sides_are_fitted_on_parts(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    of, model = PublicSet(data, "scifact"), Remembering(str(tiny_folder), tmp_path / "cache")
    ((share, fit),) = splits(of, data, [0.5], [40])
    assert (share, len(fit.documents), len(fit.questions)) == (0.5, 35, 9)
    with pytest.warns(UserWarning, match="35 documents"):
        rows = measured(model, of, verbs(0, (0, 0))["fit_queries"], share, fit)
    assert [row["part"] for row in rows] == ["seen", "unseen"]
    assert sum(int(str(row["asked"])) for row in rows) == QUERIES


def test_choices_of_layers() -> None:
    assert splits_of_layers(2, 4) == [(1, 2), (1, 4), (3, 4)]
    assert swaps(3, 5) == [(2, 4, 5), (3, 4, 5), (1, 2, 5), (1, 3, 5)]  # beside 1, 4, 5


def test_half_of_the_layers_is_aligned(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    of, model = PublicSet(data, "scifact"), Remembering(str(tiny_folder), tmp_path / "cache")
    with pytest.warns(UserWarning, match="texts"):
        cuts = verbs(0, (8, 9))["align"](model, Fit(of.documents, of.questions))
    assert {name: full_size(cut).num_layers for name, cut in cuts.items()} == {"align": 2}  # of 4


def test_half_of_the_layers_is_healed(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    of, model = PublicSet(data, "scifact"), Remembering(str(tiny_folder), tmp_path / "cache")
    for name in ("heal", "heal, 200 steps"):
        with pytest.warns(UserWarning, match="texts"):
            cuts = verbs(0, (8, 9))[name](model, Fit(of.documents, of.questions))
        assert full_size(cuts[name]).num_layers == 2  # of 4
        assert set(cuts) <= {name, f"{name}, no map"}
