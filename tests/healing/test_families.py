"""Healing by family: states come nearer to the whole model's, and what one map can do is repaired exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d import UsageError, heal, truncate
from st_matryoshka2d.healing.blocks import find_blocks
from st_matryoshka2d.model.backbone import find_backbone
from tests.support import families
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore:.*different texts or pairs are few")

REFUSED = {"albert": "runs one block 4 times", "gemma3-text": "nothing in layer 1 is a linear map"}
HEALED = [name for name in families.CONFIGS if name not in REFUSED]
QUICK = ("bert", "deberta-v2", "modernbert", "t5-encoder", "qwen3")

TEXTS = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(120)]
OTHERS = [" ".join(random.Random(n).choices(families.WORDS, k=3 + n % 7)) for n in range(500, 530)]


def made(name: str, folder: Path) -> SentenceTransformer:
    return families.pipeline(families.CONFIGS[name](), folder / name, "mean", dense=None, normalize=True)


def states(model: SentenceTransformer, texts: list[str] = OTHERS) -> Tensor:
    """Return the states of all tokens after the last layer."""
    rows: Any = model.encode(texts, output_value="token_embeddings")
    return torch.cat([*rows])


@pytest.mark.parametrize("name", quick(HEALED, *QUICK))
def test_states_of_other_texts_come_nearer(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    healed, cut = heal(model, TEXTS, num_layers=2), truncate(model, num_layers=2)
    assert all(torch.equal(tensor, before[path]) for path, tensor in model.state_dict().items())
    whole = states(model)
    lost, left = (float((states(each) - whole).square().mean()) for each in (cut, healed))
    assert left < 0.8 * lost
    told = healed.config.matryoshka_healed
    assert told["texts"] == len(set(TEXTS))
    assert told["before"] <= told["after"] <= 1


def does_nothing(model: SentenceTransformer, number: int) -> None:
    """Let a block, counted from 0, only shift the state, or scale it by coordinate: what another block can do as well."""
    network: Any = model[0].model
    backbone = find_backbone(network)
    blocks, known = backbone.blocks_of(network), find_blocks(network, backbone)
    for branch in known[number].branches:
        linear: Any = blocks[number].get_submodule(branch.linear)
        linear.weight.zero_()
        if linear.bias is not None and not known[number].is_post_norm:
            linear.bias.uniform_(-1, 1)
        elif linear.bias is not None:
            linear.bias.zero_()
    if known[number].is_post_norm:  # of its norms, only the last one changes the state
        norms: list[Any] = [blocks[number].get_submodule(branch.norm) for branch in known[number].branches[:-1]]
        norms.append(blocks[number - 1].get_submodule(known[number - 1].last.norm))
        for norm in norms:
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)


@pytest.mark.parametrize("name", quick(HEALED, *QUICK))
def test_layers_that_one_map_can_replace_are_repaired_exactly(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    with torch.no_grad():
        does_nothing(model, 2)
    healed = heal(model, TEXTS, layers=[1, 2, 4])
    assert torch.allclose(states(healed), states(model), atol=1e-4)
    assert [type(module).__name__ for module in healed] == ["Transformer", "Pooling", "Normalize"], "it needs no map"


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_a_family_is_refused_in_words(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot be healed: .*{words}.*`align` it instead"):
        heal(made(name, tmp_path), TEXTS, num_layers=2)
