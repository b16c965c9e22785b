"""The presets of MIPIC, and the defaults of models of the same shapes, are those of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size
from st_matryoshka2d.losses import PIC, SIA, MIPICLoss, multi_size
from tests.support import families
from tests.support.quick import quick

DIMS = [16, 32, 64, 128, 256, 512]
GAMMAS = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]  # A.5, for the dims above
# A.5: the layers, which are also those of the checkpoints, and the checkpoints' dims; Table 7: alpha. Tau is always 0.05.
PAPER: dict[str, tuple[list[int], list[int], float]] = {
    "tinybert-6l": ([1, 2, 3, 4, 5, 6], [16, 32, 64, 256, 512, 768], 0.4),
    "bert-base": ([2, 4, 6, 8, 9, 10, 12], [*DIMS, 768], 0.4),
    "bge-m3": ([1, 4, 7, 11, 15, 19, 24], [*DIMS, 1024], 0.5),
    "qwen3-0.6b": ([2, 6, 12, 16, 20, 24, 28], [*DIMS, 1024], 0.5),
}


def of_the_paper(name: str) -> dict[str, Any]:
    layers, dims, alpha = PAPER[name]
    checkpoints = [Size(layer, dim) for layer, dim in zip(layers, dims, strict=True)]
    settings = {"layers": layers, "dims": [*DIMS, dims[-1]], "gammas": GAMMAS, "checkpoints": checkpoints}
    return {**settings, "alpha": alpha, "temperature": 0.05}


@pytest.mark.parametrize("name", PAPER)
def test_preset_is_that_of_the_paper(name: str) -> None:
    assert MIPICLoss.preset(name) == of_the_paper(name)


@pytest.mark.parametrize("name", quick(PAPER, "tinybert-6l"))
def test_model_of_the_papers_shape_gets_the_whole_preset(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_size, "check_routes", lambda *_: None)  # slow, and tested elsewhere
    paper = of_the_paper(name)
    full, alpha = paper["checkpoints"][-1], paper["alpha"]
    config = families.CONFIGS["albert"]()  # all layers are one block
    config.num_hidden_layers, config.hidden_size = full.num_layers, full.dim
    model = families.pipeline(config, tmp_path, pooling="cls", dense=None, normalize=False)
    loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
    sia, pic = loss.terms
    assert isinstance(sia, SIA)
    assert isinstance(pic, PIC)
    assert loss.sampler.draw() == {Size(full.num_layers, dim): alpha for dim in paper["dims"]}
    assert [sia.layers, sia.dims, sia.gammas] == [paper[name] for name in ("layers", "dims", "gammas")]
    assert [pic.checkpoints, pic.temperature] == [paper[name] for name in ("checkpoints", "temperature")]
    assert sia.weight == pic.weight == pytest.approx(1 - alpha)
