"""Too few texts for an alignment are seen on texts that were left out of the fit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d import DataWarning, align
from st_matryoshka2d.aligning import agreement as module
from st_matryoshka2d.aligning.agreement import agreement, held_out_agreement, too_few
from st_matryoshka2d.aligning.gather import Gathered
from tests.support.pipelines import TEXTS

LAYERS, DIM = 3, 32


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embedded(texts: int, shares: tuple[float, float] = (0.4, 0.6)) -> Tensor:
    """Embeddings whose depths come closer to the whole model and to its coordinates, (texts, layers, dim)."""
    whole = drawn(0, texts, DIM)
    turned = whole @ torch.linalg.qr(drawn(1, DIM, DIM))[0]
    depths = [
        share * whole + (1 - share) * turned + 0.3 * drawn(2 + layer, texts, DIM) for layer, share in enumerate(shares)
    ]
    return torch.stack([*depths, whole], dim=1)


def gathered(embeddings: Tensor) -> dict[str, Gathered]:
    made = Gathered(LAYERS, DIM)
    made.add(embeddings, True, torch.Generator().manual_seed(0))
    return {"": made}


def test_agreement_is_a_correlation_of_similarities() -> None:
    states, whole, held = drawn(0, 7, 5), drawn(1, 7, 5), [1, 4, 6]
    expected = []
    for row in held:
        rows = [
            [float(torch.dot(left / left.norm(), right / right.norm())) for place, right in enumerate(whole) if place != row]
            for left in (states[row], whole[row])
        ]
        expected.append(np.corrcoef(rows)[0, 1])
    found = agreement(states[held], whole, torch.tensor(held))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_each_text_is_left_out_of_its_own_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pure noise, a readout that had seen a text would know it."""
    regression, fits = module._regression, []
    monkeypatch.setattr(module, "_regression", lambda states, whole: fits.append(states) or regression(states, whole))
    states, whole = drawn(0, 60, 8), drawn(1, 60, 8)
    before, after = held_out_agreement(states, whole)
    assert abs(before) < 0.15
    assert abs(after) < 0.15
    rows = [{int((states == row).all(1).nonzero()) for row in fitted} for fitted in fits]
    left_out = [set(range(60)) - seen for seen in rows]
    assert sorted(place for part in left_out for place in part) == list(range(60))


@pytest.mark.parametrize(("texts", "shares", "worse"), [(60, (0.4, 0.6), True), (60, (0.1, 0.2), False)])
def test_texts_are_too_few_if_a_depth_gets_worse(
    texts: int, shares: tuple[float, float], worse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = embedded(texts, shares)
    (one, better), (two, best) = (held_out_agreement(embeddings[:, n], normalize(embeddings[:, 2])) for n in (0, 1))
    assert (better < one or best < two) == worse
    told = f"{texts} texts are too few to align this model well. On texts left out of the fit, "
    changes = f": 1L {one:.2f} to {better:.2f}, 2L {two:.2f} to {best:.2f}. Pass some 10,000 texts"
    few = too_few(gathered(embeddings), unit=True)
    assert few is not None, "fewer than a hundred are always few"
    assert few.startswith(told)
    assert changes in few
    monkeypatch.setattr(module, "_FEW", 50)
    assert too_few(gathered(embeddings), unit=True) == (few if worse else None)


def test_near_copies_do_not_count() -> None:
    copies = embedded(16).repeat(70, 1, 1)
    copies += 0.02 * drawn(9, *copies.shape)
    told = too_few(gathered(copies), unit=True)
    assert told is not None
    assert told.startswith("1,120 texts, of which about 16 are not near copies, are too few to align this model well.")


def test_nothing_is_measured_for_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "held_out_agreement", lambda *_: pytest.fail("measured"))
    assert too_few(gathered(embedded(2 * DIM)), unit=True) is None


def test_align_warns_once(tiny: SentenceTransformer) -> None:
    with pytest.warns(DataWarning) as told:
        align(tiny, TEXTS[:8], steps=1)
    assert [str(one.message).partition(".")[0] for one in told] == [
        "8 texts are too few to align a model well, or to measure what it does; sizes usually get worse"
    ]
    assert told[0].filename == __file__


def test_align_can_be_silenced(tiny: SentenceTransformer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)
        align(tiny, TEXTS[:8], steps=1)


def test_a_model_of_one_layer_has_nothing_to_measure() -> None:
    assert too_few({"": _one_layer()}, unit=True) is None


def _one_layer() -> Gathered:
    made = Gathered(1, DIM)
    made.add(drawn(0, 5, 1, DIM), True, torch.Generator().manual_seed(0))
    return made


@pytest.mark.slow
def test_forty_sentences_are_too_few_for_a_real_model_and_four_hundred_are_not(minilm: SentenceTransformer) -> None:
    """On NLI sentences, 40 made searches of the whole model's index far worse, 400 better (docs/alignment.md)."""
    demo_data = pytest.importorskip("_demo.data")
    texts = list(demo_data.triplets(400)["anchor"])
    with pytest.warns(DataWarning, match=r"^40 texts are too few to align this model well\. "):
        align(minilm, texts[:40], steps=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        align(minilm, texts, steps=0)


def test_near_copies_at_the_start_of_a_sorted_file_are_no_sign_of_too_few_texts() -> None:
    texts = embedded(2000)
    assert too_few(gathered(torch.cat([texts[:8].repeat_interleave(20, 0), texts])), unit=True) is None
