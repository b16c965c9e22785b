"""A training of the reproduction that was interrupted ends with the weights of one that was not."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from _demo import data as demo_data
from reproduction import training
from reproduction.methods import METHODS, SEPARATE
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

STEPS = 5


@pytest.fixture
def options(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Five steps of four triplets, with a checkpoint after every second step."""
    monkeypatch.setattr(training, "SAVE_STEPS", 2 / STEPS)
    (tmp_path / "nli").mkdir()
    demo_data.triplets(40).to_parquet(str(tmp_path / "nli" / "triplets_train.parquet"))
    return argparse.Namespace(
        model=str(tiny_folder), data=tmp_path, steps=STEPS, batch_size=4, learning_rate=1e-3, bf16=False, device="cpu"
    )


def weights(options: argparse.Namespace, method: str, out: Path) -> dict[str, dict[str, Tensor]]:
    """Return the weights of all trained models of a method."""
    made, _ = training.trained(method, 0, argparse.Namespace(**vars(options), out=out))
    return {size: model.state_dict() for size, model in made.items()}


@pytest.mark.parametrize("method", ["MIPIC", *(pytest.param(name, marks=pytest.mark.slow) for name in ("2DMSE", SEPARATE))])
def test_an_interrupted_training_continues(
    options: argparse.Namespace, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setitem(METHODS, method, counted)
    whole = weights(options, method, tmp_path / "whole")
    calls, stop = 0, calls - 1  # separate models: in the training of the last
    with pytest.raises(KeyboardInterrupt):
        weights(options, method, tmp_path / "stopped")
    calls, stop = 0, 0
    resumed = weights(options, method, tmp_path / "stopped")
    assert calls == STEPS - 2  # the last checkpoint is that of step 2; finished models need no step
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
