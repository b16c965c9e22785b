"""The presets of MIPIC, and the defaults of models of the same shapes, are those of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d.losses import PIC, SIA, MIPICLoss, multi_size
from tests.support import families
from tests.support.quick import quick

DIMS = [16, 32, 64, 128, 256, 512]
GAMMAS = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]  # A.5, for the dims above
# A.5: the layers and the checkpoints as (dim, layer); Table 7: alpha and tau.
PAPER: dict[str, tuple[list[int], list[tuple[int, int]], float, float]] = {
    "tinybert-6l": ([1, 2, 3, 4, 5, 6], [(16, 1), (32, 2), (64, 3), (256, 4), (512, 5), (768, 6)], 0.4, 0.05),
    "bert-base": (
        [2, 4, 6, 8, 9, 10, 12],
        [(16, 2), (32, 4), (64, 6), (128, 8), (256, 9), (512, 10), (768, 12)],
        0.4,
        0.05,
    ),
    "bge-m3": (
        [1, 4, 7, 11, 15, 19, 24],
        [(16, 1), (32, 4), (64, 7), (128, 11), (256, 15), (512, 19), (1024, 24)],
        0.5,
        0.05,
    ),
    "qwen3-0.6b": (
        [2, 6, 12, 16, 20, 24, 28],
        [(16, 2), (32, 6), (64, 12), (128, 16), (256, 20), (512, 24), (1024, 28)],
        0.5,
        0.05,
    ),
}


def built(name: str, folder: Path, **settings: Any) -> MIPICLoss:
    """Build the loss on a model of the preset's depth and width; all layers of an ALBERT are one block."""
    config = families.CONFIGS["albert"]()
    full, config.num_hidden_layers = PAPER[name][1][-1]
    config.hidden_size = full
    model = families.pipeline(config, folder, pooling="cls", dense=None, normalize=False)
    return MIPICLoss(model, MultipleNegativesRankingLoss(model), **settings)


@pytest.mark.parametrize("name", PAPER)
def test_preset_is_that_of_the_paper(name: str) -> None:
    layers, checkpoints, alpha, temperature = PAPER[name]
    preset = MIPICLoss.preset(name)
    found = [(size.dim, size.num_layers) for size in preset.pop("checkpoints")]
    assert found == checkpoints
    assert preset == {
        "layers": layers,
        "dims": [*DIMS, checkpoints[-1][0]],
        "gammas": GAMMAS,
        "alpha": alpha,
        "temperature": temperature,
    }


@pytest.mark.parametrize("name", quick(PAPER, "tinybert-6l"))
def test_model_of_the_papers_shape_gets_the_whole_preset(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_size, "check_depths", lambda *_: None)  # slow, and tested elsewhere
    layers, checkpoints, alpha, temperature = PAPER[name]
    loss = built(name, tmp_path)
    sia, pic = loss.terms
    assert isinstance(sia, SIA)
    assert isinstance(pic, PIC)
    full, depth = checkpoints[-1]
    drawn = {str(size): weight for size, weight in loss.sampler.draw().items()}
    assert drawn == {f"{depth}L-{dim}d": alpha for dim in (*DIMS, full)}
    assert (sia.layers, sia.dims, sia.gammas, sia.weight) == (layers, [*DIMS, full], GAMMAS, pytest.approx(1 - alpha))
    assert [(size.dim, size.num_layers) for size in pic.checkpoints] == checkpoints
    assert (pic.weight, pic.temperature) == (pytest.approx(1 - alpha), temperature)
    given = MIPICLoss(loss.model, loss.loss, alpha=0.3, sia=False, pic=False)
    assert set(given.sampler.draw().values()) == {0.3}
