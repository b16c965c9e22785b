"""Every recipe with optional features of the Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import IterableDataset
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from st_matryoshka2d.losses import MultiSizeLoss
from tests.support.training import RECIPES, Watch, pairs, train

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")

Features = list[dict[str, Any]]


def stream() -> IterableDataset:
    return pairs().to_iterable_dataset()


@dataclass
class Setup:
    """A feature to enable, and a check that it is active in a step."""

    arguments: dict[str, Any] = field(default_factory=dict)
    mini_batch_size: int | None = None
    prepare: Callable[[SentenceTransformer], Any] = lambda model: None
    dataset: Callable[[], Any] = pairs
    prompt: str | None = None
    is_on: Callable[[MultiSizeLoss, Features], bool] = lambda loss, features: True


def is_compiled(loss: MultiSizeLoss, features: Features) -> bool:
    """Return whether the loss has a compiled model and, from the second step on, calls it."""
    if not isinstance(loss.model, torch._dynamo.OptimizedModule):
        return False
    if hasattr(loss, "calls"):
        return len(loss.calls) > 0
    loss.calls = []
    loss.model.register_forward_pre_hook(lambda module, args: loss.calls.append(1))
    return True


def is_checkpointed(loss: MultiSizeLoss, features: Features) -> bool:
    return all(block.gradient_checkpointing and block.training for block in loss.model[0].model.encoder.layer)


def knows_its_prompt(loss: MultiSizeLoss, features: Features) -> bool:
    return "prompt_length" in features[0] and "prompt_length" not in features[1]


ADAPTER = LoraConfig(r=4, target_modules=["query", "value", "dense"])
PARTS = {"task", "kl", "compress", "mrl", "sia_attention", "sia_cka", "pic", "distill"}
ONLY_TEXT = {"prompt": "red ", "prepare": lambda model: model.set_pooling_include_prompt(False)}
SETUPS = {
    "gradient checkpointing, cached": Setup({"activation_checkpointing": True}, 3, is_on=is_checkpointed),
    "bfloat16, cached": Setup({"bf16": True, "use_cpu": True}, 3),
    "compiled": Setup({"torch_compile": True, "torch_compile_backend": "eager"}, is_on=is_compiled),
    "adapter": Setup({"learning_rate": 1e-2}, prepare=lambda model: model.add_adapter(ADAPTER)),
    "Normalize, cached": Setup(mini_batch_size=3, prepare=lambda model: model.append(Normalize())),
    "prompts that are not pooled": Setup({"prompts": {"anchor": "red "}}, is_on=knows_its_prompt, **ONLY_TEXT),
    "stream with prompts, cached": Setup({"prompts": {"anchor": "red "}}, 3, dataset=stream, **ONLY_TEXT),
}


def cases() -> list[Any]:
    """Return every setup with every recipe; the quick recipe alternates. Compilation takes longest, so it is never quick."""
    return [
        pytest.param(name, recipe, marks=[] if number == turn % len(RECIPES) and name != "compiled" else [pytest.mark.slow])
        for turn, name in enumerate(SETUPS)
        for number, recipe in enumerate(RECIPES)
    ]


@pytest.mark.parametrize(("name", "recipe"), cases())
def test_the_physically_cut_model_learns(tiny: SentenceTransformer, recipe: str, name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    setup.prepare(tiny)
    loss = RECIPES[recipe](tiny, mini_batch_size=setup.mini_batch_size)
    watch = Watch(tiny, recipe, setup.prompt)
    trainable = {name: p.detach().clone() for name, p in loss.named_parameters() if p.requires_grad}
    frozen = {name: p.detach().clone() for name, p in loss.named_parameters() if not p.requires_grad}
    steps: list[bool] = []
    loss.register_forward_pre_hook(lambda module, args: steps.append(setup.is_on(module, args[0])))
    dtypes = set()
    computing = tiny[0].model.encoder.layer[0].attention.self.query
    computing.register_forward_hook(lambda module, args, output: dtypes.add(output.dtype))
    trainer = train(tiny, loss, tmp_path, setup.dataset(), **setup.arguments)
    assert steps
    assert all(steps)
    assert (torch.bfloat16 in dtypes) == ("bf16" in setup.arguments)
    watch.assert_learned()
    parameters = {key.replace("_orig_mod.", ""): value for key, value in loss.named_parameters()}
    moved = {key for key, value in trainable.items() if not torch.equal(parameters[key], value)}
    assert set(loss.own) <= moved, "what the loss trains besides the model"
    assert any(".layer.0." in key for key in moved)
    assert all(torch.equal(parameters[key], value) for key, value in frozen.items())
    logged = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    parts = [sum(entry[part] for part in entry.keys() & PARTS) for entry in logged]
    assert [entry["loss"] for entry in logged] == pytest.approx(parts, rel=1e-3, abs=1e-3)
