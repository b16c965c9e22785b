"""What the methods of the reproduction train, where, and from which checkpoint they continue."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from _demo import data as demo_data
from reproduce import check_settings
from reproduction import training
from reproduction.budget import labelled
from reproduction.methods import ALL_DIMS, LABELLED, METHODS, PRETRAINED, SEPARATE
from reproduction.training import started, trained
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from st_matryoshka2d import truncate
from st_matryoshka2d.sizes import full_size

TRIPLETS = {
    "anchor": ["a cat sat on the mat", "it rains"],
    "positive": ["a cat sits", "it is raining"],
    "negative": ["a dog", "the sun is out"],
}


@pytest.mark.parametrize(("method", "dim"), [(SEPARATE, 8), (ALL_DIMS, 32)])
def test_a_separate_model_is_trained_at_its_dims(tiny: SentenceTransformer, method: str, dim: int) -> None:
    cut = truncate(tiny, num_layers=2, dim=8).eval()
    make_loss = METHODS[method]
    assert make_loss is not None
    columns = [cut.preprocess(texts) for texts in TRIPLETS.values()]
    value: object = make_loss(cut)(columns, None)
    found = sum(value.values()) if isinstance(value, dict) else value
    anchors, *others = (cut.encode(texts, truncate_dim=dim, convert_to_tensor=True) for texts in TRIPLETS.values())
    cosines = cosine_similarity(anchors[:, None], torch.cat(others)[None], dim=-1)
    torch.testing.assert_close(found, cross_entropy(20 * cosines, torch.arange(2)))


@pytest.fixture
def options(tmp_path: Path, tiny_folder: Path) -> Callable[..., argparse.Namespace]:
    """Return a function that makes the options of a short run."""
    (tmp_path / "nli").mkdir()
    demo_data.triplets(40).to_parquet(str(tmp_path / "nli" / "triplets_train.parquet"))
    folders = {name: tmp_path / name for name in ("out", "report")}
    budget = {"steps": 2, "batch_size": 4, "learning_rate": 1e-3, "bf16": False, "device": "cpu", "layers": "first"}
    return lambda **others: argparse.Namespace(
        **{"model": str(tiny_folder), "data": tmp_path, **folders, **budget, **others}
    )


def test_seeds_pretrain_encoders_of_their_own(options: Callable[..., argparse.Namespace]) -> None:
    (first, _), (second, _) = (started(PRETRAINED, seed, options()) for seed in (0, 1))
    texts = TRIPLETS["anchor"]
    for model in (first, second):  # both folders still hold the encoder that was trained
        saved = Transformer(model[0].model.name_or_path)
        again = SentenceTransformer(modules=[saved, *list(model)[1:]], device="cpu")
        assert np.array_equal(again.encode(texts), model.encode(texts))
    assert not np.allclose(first.encode(texts), second.encode(texts))


def test_angle_trains_on_labelled_pairs(options: Callable[..., argparse.Namespace], tmp_path: Path) -> None:
    kinds = ["entailment", "neutral", "contradiction", "not_entailment"]
    rows = {"premise": [f"a {row}" for row in range(24)], "hypothesis": [f"b {row}" for row in range(24)]}
    pd.DataFrame({**rows, "label": kinds * 6, "source": "x"}).to_parquet(tmp_path / "nli" / "pairs_train.parquet")
    data = labelled(options())
    assert data[:2] == {"premise": ["a 0", "a 2"], "hypothesis": ["b 0", "b 2"], "label": [1.0, 0.0]}
    assert len(data) == 12
    before = SentenceTransformer(options().model, device="cpu").encode(TRIPLETS["anchor"])
    (model,) = trained(LABELLED, 0, options())[0].values()
    assert not np.allclose(before, model.encode(TRIPLETS["anchor"]))


def test_separate_models_with_all_dims_keep_them(options: Callable[..., argparse.Namespace]) -> None:
    for method, widths in [(ALL_DIMS, [32, 32, 32, 32]), (SEPARATE, [4, 8, 16, 32])]:
        made, _ = trained(method, 0, options())
        assert [full_size(model).dim for model in made.values()] == widths
        assert [full_size(model).num_layers for model in made.values()] == [1, 2, 3, 4]


@pytest.mark.parametrize("shared", ["out", "report"])
def test_budgets_share_no_folder(options: Callable[..., argparse.Namespace], shared: str, tmp_path: Path) -> None:
    other = "report" if shared == "out" else "out"
    check_settings(options())
    check_settings(options())
    with pytest.raises(SystemExit, match=f"{shared} holds results of .*'steps': 2,.* Choose another --{shared}"):
        check_settings(options(steps=3, **{other: tmp_path / "another"}))


@pytest.mark.parametrize("method", ["MIPIC", *(pytest.param(name, marks=pytest.mark.slow) for name in ("2DMSE", SEPARATE))])
def test_an_interrupted_training_continues(
    options: Callable[..., argparse.Namespace], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the weights of one that was not; five steps, with a checkpoint after every second one."""
    steps = 5
    monkeypatch.setattr(training, "SAVE_STEPS", 2 / steps)
    make_loss = METHODS[method]
    assert make_loss is not None
    calls, stop = 0, 0

    def counted(model: SentenceTransformer) -> nn.Module:
        def count(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt

        loss = make_loss(model)
        loss.register_forward_pre_hook(count)
        return loss

    def weights(folder: str) -> dict[str, dict[str, Tensor]]:
        """Return the weights of all trained models of the method."""
        models, _ = trained(method, 0, options(steps=steps, out=tmp_path / folder))
        return {size: model.state_dict() for size, model in models.items()}

    monkeypatch.setitem(METHODS, method, counted)
    whole = weights("whole")
    calls, stop = 0, calls - 1  # separate models: in the training of the last
    with pytest.raises(KeyboardInterrupt):
        weights("stopped")
    calls, stop = 0, 0
    resumed = weights("stopped")
    assert calls == steps - 2  # the last checkpoint is that of step 2; finished models need no step
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
