"""`align` measures how well each size agrees with the whole model, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, encode_sizes
from st_matryoshka2d.model.declared_agreement import agreement_text, declare_agreement, declared_agreement
from tests.support.pipelines import TEXTS, routed

DIFFERENT = list(dict.fromkeys(TEXTS))
SIZES = sorted({Size(1, 4), *(Size(depth, dim) for depth in (1, 2, 3, 4) for dim in (8, 16, 32))})


def correlation(small: Any, whole: Any) -> float:
    """For each text, correlate its cosines to the others by both sizes; return the mean over texts."""
    found = []
    for row in range(len(small)):
        others = [place for place in range(len(small)) if place != row]
        cosines = [
            [rows[row] @ rows[place] / np.linalg.norm(rows[row]) / np.linalg.norm(rows[place]) for place in others]
            for rows in (small, whole)
        ]
        found.append(np.corrcoef(cosines)[0, 1])
    return float(np.mean(found))


def test_agreement_is_the_mean_correlation_of_each_texts_similarities(tiny: SentenceTransformer) -> None:
    aligned = align(tiny, TEXTS, steps=5)
    by_size = encode_sizes(aligned, DIFFERENT, SIZES)
    expected = {size: correlation(by_size[size], by_size[Size(4, 32)]) for size in SIZES}
    assert declared_agreement(aligned.config) == pytest.approx(expected, abs=1e-4)


def test_routes_have_their_mean_in_each_config(tiny: SentenceTransformer) -> None:
    aligned = align(routed(tiny, shared=False), TEXTS, steps=0)
    by_route = [encode_sizes(aligned, DIFFERENT, SIZES, task=task) for task in ("query", "document")]
    configs = [way[0].model.config for way in aligned[0].sub_modules.values()]
    for size in (Size(1, 8), Size(3, 16)):
        mean = np.mean([correlation(route[size], route[Size(4, 32)]) for route in by_route])
        assert [declared_agreement(config)[size] for config in configs] == pytest.approx([mean, mean], abs=1e-4)


def test_aligning_again_measures_again(tiny: SentenceTransformer) -> None:
    aligned = align(tiny, TEXTS, steps=0)
    false = {size: 0.0 for size in declared_agreement(aligned.config)}
    declare_agreement(aligned.config, false)
    again = align(aligned, TEXTS, layers="ends", steps=0)
    assert declared_agreement(again.config).keys() == false.keys()
    assert all(value > 0 for value in declared_agreement(again.config).values())
    assert declared_agreement(aligned.config) == false, "the first model is as it was"


def test_prints_it_with_the_progress_bars(tiny: SentenceTransformer, capsys: pytest.CaptureFixture[str]) -> None:
    aligned = align(tiny, TEXTS, steps=0, show_progress_bar=True)
    assert capsys.readouterr().out == f"{agreement_text(declared_agreement(aligned.config))}\n"
    align(tiny, TEXTS, steps=0)
    assert capsys.readouterr().out == ""
