"""A step of training does not wait for the device: on the CPU, the calls that would wait for a GPU are counted."""

from __future__ import annotations

from traceback import walk_stack
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from st_matryoshka2d.losses import multi_size
from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support.losses import batch
from tests.support.smae import batch as masked_batch
from tests.support.smae import masked_lm
from tests.support.training import RECIPES

READS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "tensor", "as_tensor"}
OPERATORS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}


def in_network() -> bool:
    """Tell whether transformers is calling, which asks whether a mask has padding."""
    return any("/transformers/" in frame.f_code.co_filename for frame, _ in walk_stack(None))


class Operators(TorchDispatchMode):
    """Lists operators whose result the host must read, such as the places where a mask is true."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "_index_put_impl_") else ()
        masks = [index for index in indices if isinstance(index, Tensor) and index.dtype == torch.bool]
        if (masks or name in OPERATORS) and not in_network():
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Lists calls that read a tensor of the device, or copy numbers of the host to it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in READS and not in_network():
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def waits(loss: nn.Module, columns: list[dict[str, Any]]) -> list[str]:
    """Return the calls that would wait in the second step of a training."""
    for modes in ((Operators(), Reads()), (Operators(), Reads())):
        with modes[0], modes[1]:
            value: Any = loss([dict(column) for column in columns], None)
            sum(value.values() if isinstance(value, dict) else [value]).backward()
    return [*modes[0].names, *modes[1].names]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_does_not_wait(tiny: SentenceTransformer, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = RECIPES[recipe](tiny)
    drawn = loss.sampler.draw()  # from a generator of the CPU
    monkeypatch.setattr(loss.sampler, "draw", lambda: drawn)
    assert waits(MultipleNegativesRankingLoss(tiny), batch(tiny, 3)) == []
    assert waits(loss, batch(tiny, 3)) == []


@pytest.mark.parametrize("recipe", ["Starbucks", "MIPIC"])
def test_gradient_caching_waits_as_it_does_in_sentence_transformers(tiny: SentenceTransformer, recipe: str) -> None:
    theirs = waits(CachedMultipleNegativesRankingLoss(tiny, mini_batch_size=2), batch(tiny, 3))
    assert sorted(waits(RECIPES[recipe](tiny, mini_batch_size=2), batch(tiny, 3))) == sorted(theirs)


def test_pre_training_waits_once_for_the_masked_tokens_of_each_side() -> None:
    model = SMAEForPreTraining(masked_lm())
    with Operators() as operators, Reads() as reads:
        model(**masked_batch()).loss.backward()
    assert [*operators.names, *reads.names] == ["nonzero", "nonzero"]


def test_weights_that_break_later_are_found(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_size, "CHECKED_EVERY", 3)
    loss = RECIPES["Starbucks"](tiny)
    loss(batch(tiny, 2))
    with torch.no_grad():
        tiny[0].model.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    loss(batch(tiny, 2)), loss(batch(tiny, 2))
    with pytest.raises(ValueError, match="NaN or infinite"):
        loss(batch(tiny, 2))
