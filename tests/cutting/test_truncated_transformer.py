"""Depth as a call-time argument."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling

from st_matryoshka2d import Size, TruncatedTransformer, encode_sizes, load, sizes_ladder, truncate
from st_matryoshka2d.losses import StarbucksLoss
from tests.support.families import TEXTS
from tests.support.quick import quick
from tests.support.training import train


@pytest.fixture
def elastic(tiny: SentenceTransformer) -> SentenceTransformer:
    return SentenceTransformer(modules=[TruncatedTransformer.from_transformer(tiny[0]), tiny[1]], device="cpu")


def blocks_run(model: SentenceTransformer, **kwargs: int) -> int:
    """Count the blocks that a call computes."""
    calls: list[int] = []
    blocks = model[0].model.encoder.layer
    hooks = [
        block.output.dense.register_forward_hook(lambda *_, index=index: calls.append(index))
        for index, block in enumerate(blocks)
    ]
    model.encode(TEXTS[:1], **kwargs)
    for hook in hooks:
        hook.remove()
    return len(calls)


def test_computes_only_requested_layers(elastic: SentenceTransformer) -> None:
    assert [blocks_run(elastic, num_layers=n) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert blocks_run(elastic) == 4
    elastic[0].num_layers = 2
    assert blocks_run(elastic) == 2
    assert blocks_run(elastic, num_layers=3) == 3


def test_it_is_made_of_a_folder(tiny_folder: Path) -> None:
    model = SentenceTransformer(modules=[TruncatedTransformer(str(tiny_folder)), Pooling(32, "mean")], device="cpu")
    assert np.array_equal(model.encode(TEXTS), SentenceTransformer(str(tiny_folder), device="cpu").encode(TEXTS))


def test_default_depth_is_saved_and_only_load_needs_no_trust(tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = SentenceTransformer(
        modules=[TruncatedTransformer.from_transformer(tiny[0], num_layers=3), tiny[1]], device="cpu"
    )
    model.save_pretrained(str(tmp_path))
    assert '"st_matryoshka2d.TruncatedTransformer"' in (tmp_path / "modules.json").read_text()
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path), device="cpu")
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert isinstance(again[0], TruncatedTransformer)
    assert np.array_equal(again.encode(TEXTS), truncate(tiny, num_layers=3).encode(TEXTS))
    assert np.array_equal(again.encode(TEXTS, num_layers=4), tiny.encode(TEXTS))
    (tmp_path / "st_matryoshka2d.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\nTruncatedTransformer = int")
    whole = load(tmp_path, device="cpu")
    assert isinstance(whole[0], TruncatedTransformer)
    assert np.array_equal(whole.encode(TEXTS), again.encode(TEXTS))
    small = load(tmp_path, "2L-8d", device="cpu")
    assert not (tmp_path / "trace").exists(), "code in the folder was run"
    assert type(small[0]) is Transformer
    assert np.array_equal(small.encode(TEXTS), truncate(tiny, num_layers=2, dim=8).encode(TEXTS))


def test_conversion_both_ways_shares_weights(
    elastic: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    plain = elastic[0].to_transformer(2)
    assert type(plain) is Transformer
    shared = {parameter.data_ptr() for parameter in tiny.parameters()}
    assert all(parameter.data_ptr() in shared for parameter in plain.parameters())
    model = SentenceTransformer(modules=[plain, Pooling(32, pooling_mode="mean")], device="cpu")
    assert np.array_equal(model.encode(TEXTS), elastic.encode(TEXTS, num_layers=2))
    model.save_pretrained(str(tmp_path))
    assert "st_matryoshka2d" not in (tmp_path / "modules.json").read_text()
    assert type(truncate(elastic, num_layers=2)[0]) is Transformer
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), model.encode(TEXTS))


def test_it_trains_at_the_depth_asked_for(elastic: SentenceTransformer) -> None:
    """Gradients reach the model's weights, but none above the depth."""
    features = elastic.preprocess(TEXTS)
    elastic(features, num_layers=2)["sentence_embedding"].square().sum().backward()
    blocks = elastic[0].model.encoder.layer
    touched = [any(parameter.grad is not None for parameter in block.parameters()) for block in blocks]
    assert touched == [True, False, False, True]


@pytest.mark.parametrize("default", quick([None, 3], 3))
def test_it_trains_in_the_trainer(elastic: SentenceTransformer, default: int | None, tmp_path: Path) -> None:
    elastic[0].num_layers = default
    before = {name: value.clone() for name, value in elastic.state_dict().items()}
    loss = StarbucksLoss(elastic, MultipleNegativesRankingLoss(elastic))
    assert sizes_ladder(elastic)[-1] == Size(4, 32), "a default depth limits nothing"
    train(elastic, loss, tmp_path, max_steps=2, learning_rate=1e-2)
    moved = {name for name, value in elastic.state_dict().items() if not torch.equal(value, before[name])}
    depths = {int(name.split(".layer.")[1].split(".")[0]) for name in moved if ".layer." in name}
    assert depths == {0, 1, 2, 3}
    for size, embeddings in encode_sizes(elastic, TEXTS, sizes_ladder(elastic)).items():
        assert np.abs(elastic.encode(TEXTS, num_layers=size.num_layers, truncate_dim=size.dim) - embeddings).max() < 1e-6


def test_states_of_all_layers_stay_right_call_after_call(elastic: SentenceTransformer) -> None:
    elastic[0].model.config.output_hidden_states = True
    for _ in range(3):
        for num_layers in (2, 3, 4):
            features = elastic[0](elastic.preprocess(TEXTS), num_layers=num_layers)
            assert len(features["all_layer_embeddings"]) == num_layers + 1
