"""A cut warns when a loss trains dims that it does not return."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn

from st_matryoshka2d import Size, load, truncate
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss, StarbucksLoss
from tests.support.families import TEXTS
from tests.support.training import train

REMEDY = (
    r'trains 32 dims of this cut, but `encode` returns 8.*MultiSizeLoss\(cut, loss, \["2L-8d"\]\).*MatryoshkaLoss\(cut, loss'
)


def gradients(model: SentenceTransformer, make_loss: Callable[[SentenceTransformer], nn.Module]) -> dict[str, Tensor]:
    """Return the gradients of one step with two columns of texts."""
    model.zero_grad()
    value = make_loss(model)([model.preprocess(TEXTS), model.preprocess(TEXTS[::-1])], None)
    (sum(value.values()) if isinstance(value, dict) else value).backward()
    return {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


@pytest.mark.parametrize(
    ("loss", "derive"),
    [
        (CachedMultipleNegativesRankingLoss, lambda cut, _: cut),
        (MultipleNegativesRankingLoss, lambda cut, _: copy.deepcopy(cut)),
        (MultipleNegativesRankingLoss, lambda cut, _: pickle.loads(pickle.dumps(cut))),
        (CachedMultipleNegativesRankingLoss, lambda _, folder: load(str(folder), "2L-8d", device="cpu")),
    ],
    ids=["cut", "copied", "pickled", "loaded"],
)
def test_a_loss_that_trains_all_dims_warns(
    tiny: SentenceTransformer,
    tiny_folder: Path,
    derive: Callable[[SentenceTransformer, Path], SentenceTransformer],
    loss: Callable[[SentenceTransformer], nn.Module],
) -> None:
    cut = derive(truncate(tiny, "2L-8d"), tiny_folder)
    with pytest.warns(UserWarning, match=REMEDY):
        gradients(cut, loss)


@pytest.mark.parametrize(
    "make_loss",
    [
        lambda cut: MultiSizeLoss(cut, MultipleNegativesRankingLoss(cut), [Size(2, 8)]),
        lambda cut: MultiSizeLoss(cut, MultipleNegativesRankingLoss(cut), [Size(2, 8)], mini_batch_size=2),
        lambda cut: StarbucksLoss(cut, MultipleNegativesRankingLoss(cut)),
        RelationalDistillLoss,
        lambda cut: MatryoshkaLoss(cut, MultipleNegativesRankingLoss(cut), [8, 4]),
        lambda cut: MatryoshkaLoss(cut, CachedMultipleNegativesRankingLoss(cut), [8, 4]),
    ],
    ids=["MultiSizeLoss", "its cache", "Starbucks", "distillation", "MatryoshkaLoss", "its cache of ST"],
)
def test_a_loss_that_trains_the_dims_of_the_cut_does_not_warn(
    tiny: SentenceTransformer, make_loss: Callable[[SentenceTransformer], nn.Module]
) -> None:
    cut = truncate(tiny, "2L-8d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradients(cut, make_loss)


def test_a_cut_of_the_full_width_does_not_warn(tiny: SentenceTransformer) -> None:
    wide, narrow = truncate(tiny, num_layers=2), truncate(tiny, "2L-8d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(wide, MultipleNegativesRankingLoss)
        narrow.encode(TEXTS)
        narrow.train()(tiny.preprocess(TEXTS))


def test_a_cut_is_trained_as_its_saved_copy(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """The copy is plain sentence-transformers: watching a gradient does not change it."""
    cut = truncate(tiny, "2L-8d").eval()
    cut.save_pretrained(str(tmp_path))
    plain = SentenceTransformer(str(tmp_path), device="cpu").eval()
    with pytest.warns(UserWarning, match=REMEDY):
        found = gradients(cut, MultipleNegativesRankingLoss)
    torch.testing.assert_close(found, gradients(plain, MultipleNegativesRankingLoss), rtol=0, atol=0)


def test_both_remedies_train_the_same(tiny: SentenceTransformer) -> None:
    cut = truncate(tiny, "2L-8d").eval()
    ours = gradients(cut, lambda model: MultiSizeLoss(model, MultipleNegativesRankingLoss(model), ["2L-8d"]))
    theirs = gradients(cut, lambda model: MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [8]))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_a_compiled_cut_runs(tiny: SentenceTransformer) -> None:
    cut = truncate(tiny, "2L-8d").eval()
    features = cut.preprocess(TEXTS)
    wanted = cut(dict(features))["sentence_embedding"]
    compiled = torch.compile(cut, backend="eager")
    torch.testing.assert_close(compiled(dict(features))["sentence_embedding"], wanted)
    cut.compile(backend="eager", dynamic=True)
    torch.testing.assert_close(cut(dict(features))["sentence_embedding"], wanted)


def test_the_trainer_shows_the_warning(tiny: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(tiny, "2L-8d")
    with pytest.warns(UserWarning, match=REMEDY):
        train(cut, MultipleNegativesRankingLoss(cut), tmp_path, max_steps=1)
