"""Six ways to n layers of a model agree for every family and depth."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d import Size, TruncatedTransformer, encode_sizes, load, truncate
from st_matryoshka2d.losses import MultiSizeLoss
from st_matryoshka2d.model.backbone import find_backbone, shallow_view
from st_matryoshka2d.model.exactness import check_depths
from st_matryoshka2d.model.layers import Layers
from tests.support import families
from tests.support.families import TEXTS
from tests.support.quick import quick

LARGEST_DIFFERENCE = 1e-6


class Recorder(nn.Module):
    """A wrapped loss that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> Tensor:
        self.seen.append(embeddings[0].detach().numpy())
        return embeddings[0].square().sum()


def seen_by_losses(model: SentenceTransformer, sizes: list[Size], layers: str | None = None) -> dict[Size, Any]:
    recorder = Recorder()
    MultiSizeLoss(model, recorder, sizes, layers=layers)([model.preprocess(TEXTS)])
    return dict(zip(sizes, recorder.seen, strict=True))


@pytest.mark.parametrize("name", quick([*families.CONFIGS, *families.UNNAMED], "bert", "modernbert", "gpt2"))
@pytest.mark.filterwarnings("ignore:.* does not train the full size")
def test_six_ways_to_a_size(name: str, family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """With CLS, mean and last-token pooling at once, padding, a Dense layer and Normalize."""
    model = families.pipeline((families.CONFIGS | families.UNNAMED)[name](), tmp_path / "weights")
    full = family_folder(name)
    model.save_pretrained(str(full))
    sizes = [Size(num_layers, 16) for num_layers in range(1, 5)]
    encoded = encode_sizes(model, TEXTS, sizes)
    elastic = SentenceTransformer(modules=[TruncatedTransformer(str(tmp_path / "weights")), *list(model)[1:]], device="cpu")
    assert np.array_equal(elastic.encode(TEXTS), model.encode(TEXTS))
    trained = seen_by_losses(model, sizes)
    for size in sizes:
        cut = truncate(model, num_layers=size.num_layers, dim=size.dim)
        ways = {"losses": trained[size], "truncate": cut.encode(TEXTS)}
        ways["at call time"] = elastic.encode(TEXTS, num_layers=size.num_layers, truncate_dim=size.dim)
        if size.num_layers in (1, 3):  # files take longest
            cut.save_pretrained(str(tmp_path / str(size)))
            ways["saved and reloaded"] = SentenceTransformer(str(tmp_path / str(size)), device="cpu").encode(TEXTS)
            ways["load"] = load(str(full), num_layers=size.num_layers, dim=size.dim, device="cpu").encode(TEXTS)
        for way, embeddings in ways.items():
            assert embeddings.shape == (len(TEXTS), 16), way
            assert np.abs(embeddings - encoded[size]).max() <= LARGEST_DIFFERENCE, f"{way} at {size}"
    depths = [encoded[size] for size in sizes]
    assert all(np.abs(low - high).max() > 1e-3 for low, high in pairwise(depths)), "layers must differ"
    whole = model.encode(TEXTS)[:, :16]
    assert np.abs(whole - encoded[sizes[-1]]).max() <= LARGEST_DIFFERENCE
    for size, embeddings in seen_by_losses(model, sizes, layers="first").items():
        cut = truncate(model, size, layers="first")
        assert "layers" not in cut.config.matryoshka_cut
        assert np.abs(cut.encode(TEXTS) - embeddings).max() <= LARGEST_DIFFERENCE, size


# ALBERT runs one block N times: it has no list of blocks to shorten.
@pytest.mark.parametrize("layers", ["first", "ends"])
@pytest.mark.parametrize("name", [name for name in families.CONFIGS if name != "albert"])
def test_the_cut_is_the_full_model_with_blocks_taken_out_by_hand(name: str, layers: str) -> None:
    """The oracle shares no code: the full model, with every block that the cut lacks replaced by the identity."""
    model = families.build(families.CONFIGS[name]())
    inputs = {
        "input_ids": torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    }
    backbone = find_backbone(model, Layers(4, layers))
    assert backbone.blocks is not None
    for num_layers in (1, 3):
        kept = families.ENDS[num_layers] if layers == "ends" else range(num_layers)
        by_hand = copy.deepcopy(model)
        for layer, block in enumerate(by_hand.get_submodule(backbone.blocks).children()):
            if layer not in kept:
                block.register_forward_hook(_hand_on)
        cut = shallow_view(model, backbone, num_layers)
        assert torch.equal(cut(**inputs).last_hidden_state, by_hand(**inputs).last_hidden_state)


def _hand_on(block: nn.Module, args: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]


@pytest.mark.parametrize("name", families.REFUSED)
def test_refuses_family_without_exact_cut(name: str) -> None:
    model = families.build(families.REFUSED[name]())
    with pytest.raises(ValueError, match=rf"{type(model).__name__} cannot be cut in depth exactly"):
        check_depths(model, find_backbone(model), [1, 2, 3])


def test_layers_that_are_one_module_are_refused(tiny: SentenceTransformer) -> None:
    first, second, *_ = tiny[0].model.encoder.layer
    tiny[0].model.encoder.layer = nn.ModuleList([first, second, first, second])
    with pytest.raises(ValueError, match=r"encoder.layer holds the same module more than once.*copy.deepcopy"):
        truncate(tiny, num_layers=3)


def test_check_leaves_model_unchanged() -> None:
    model = families.build(families.CONFIGS["modernbert"]()).train()
    model.layers[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    config = model.config.to_dict()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    check_depths(model, find_backbone(model), [1, 2, 3, 4])
    assert torch.equal(torch.rand(4), expected), "random numbers were used up"
    assert [module.training for module in model.modules()] == modes
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    inputs = {"input_ids": torch.tensor([[2, 5, 3]])}
    states = model.eval()(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 5, "views must not leave hooks on the model"
