"""A model with PEFT adapters is scored, cut and aligned as the same model with the adapters in its weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size, TruncatedTransformer, align, encode_sizes, sizes_ladder, truncate
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import model_revision
from tests.support.adapters import adapted, by_hand, expected, lora
from tests.support.families import TEXTS
from tests.support.pipelines import TEXTS as MANY
from tests.support.pipelines import turned
from tests.support.quick import quick
from tests.support.training import train

ROUNDING = 1e-5
FULL = Size(4, 32)

KINDS: dict[str, Callable[[], Any]] = {
    "some layers": lambda: lora(layers_to_transform=[1, 3]),
    "embeddings": lambda: lora(target_modules=["word_embeddings", "query"]),
    "rslora": lambda: lora(use_rslora=True),
    "dora": lambda: lora(use_dora=True),
    "whole modules": lambda: lora(modules_to_save=["LayerNorm"]),
    "biases": lambda: lora(bias="all"),
    "tokens": lambda: lora(trainable_token_indices={"word_embeddings": [6, 7]}),
    "IA3": lambda: peft.IA3Config(target_modules=["key", "dense"], feedforward_modules=["dense"]),
    "LoHa": lambda: peft.LoHaConfig(r=2, alpha=32, target_modules=["query", "dense"], init_weights=False),
    "norms": lambda: peft.LNTuningConfig(target_modules=["LayerNorm"]),
}


@pytest.fixture
def model(tiny: SentenceTransformer) -> SentenceTransformer:
    return adapted(copy.deepcopy(tiny))


def weights(model: SentenceTransformer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def require_plain(cut: SentenceTransformer) -> None:
    assert not [module for module in cut.modules() if type(module).__module__.startswith("peft")]
    assert not hasattr(cut[0].model, "peft_config")


def test_a_cut_has_merged_weights_of_its_own(model: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path) -> None:
    """`tests/cutting/test_every_way.py` compares the embeddings with adapters merged by hand."""
    before, cut = weights(model), truncate(model, Size(1, 8))
    embedded = cut.encode(TEXTS)
    require_plain(cut)
    cut.save_pretrained(str(tmp_path))
    assert not list(tmp_path.glob("adapter*"))
    saved, usual = load_file(tmp_path / "model.safetensors"), truncate(tiny, num_layers=1)[0].model.state_dict()
    assert {name: value.shape for name, value in saved.items()} == {name: value.shape for name, value in usual.items()}
    with torch.no_grad():  # all of them train
        for weight in cut.parameters():
            weight.add_(float(weight.requires_grad))
    assert not np.allclose(cut.encode(TEXTS), embedded, atol=0.1)
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert model.active_adapters() == ["default"]
    trains = {name.split(".")[-3] for name, weight in model.named_parameters() if weight.requires_grad}
    assert trains == {"lora_A", "lora_B"}


@pytest.mark.parametrize("kind", quick(KINDS, "dora", "whole modules", "IA3"))
def test_kinds_of_adapters(kind: str, tiny: SentenceTransformer) -> None:
    model = adapted(copy.deepcopy(tiny), KINDS[kind]())
    whole, shallow = expected(model, FULL), expected(model, Size(2, 8))
    assert np.abs(whole - tiny.encode(TEXTS)).max() > 0.01
    assert np.abs(encode_sizes(model, TEXTS, ["2L-8d"])[Size(2, 8)] - shallow).max() < ROUNDING
    assert np.abs(truncate(model, "2L-8d").encode(TEXTS) - shallow).max() < ROUNDING
    assert np.abs(truncate(model, FULL).encode(TEXTS) - whole).max() < ROUNDING
    require_plain(truncate(model, FULL))
    if kind == "whole modules":
        model.disable_adapters()
        assert np.abs(truncate(model, "2L-8d").encode(TEXTS) - expected(tiny, Size(2, 8))).max() < ROUNDING


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning", "ignore:All adapters are already merged")
def test_the_adapters_in_use_are_merged(tiny: SentenceTransformer) -> None:
    model = adapted(adapted(copy.deepcopy(tiny), name="one"), name="other")
    size = Size(3, 16)
    revisions = set()

    def check(plain: SentenceTransformer) -> None:
        assert np.abs(truncate(model, size).encode(TEXTS) - expected(plain, size)).max() < ROUNDING
        revisions.add(model_revision(model))

    def layers() -> list[Any]:
        return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]

    model.set_adapter("one")
    check(by_hand(tiny, model, "one"))
    model.set_adapter(["one", "other"])
    both = by_hand(tiny, model, "one", "other")
    check(both)
    for layer in layers():
        layer.merge()  # the adapters are in the weights already
    check(both)
    model.disable_adapters()
    for refused in (lambda: encode_sizes(model, TEXTS, [size]), lambda: truncate(model, size)):
        with pytest.raises(ValueError, match="adapters that are merged into its weights and disabled"):
            refused()
    model.encode(TEXTS)  # takes them out again
    check(tiny)
    model.enable_adapters()
    for layer in layers():
        layer.set_scale("one", 2.0)
        layer.set_scale("other", 2.0)
    check(by_hand(tiny, model, "one", "other", scale=2.0 * 3))
    assert len(revisions) == 5, "what embeds differently has another revision"
    model.delete_adapter(["one", "other"])
    check(tiny)
    require_plain(truncate(model, size))


def test_half_precision(tiny: SentenceTransformer) -> None:
    model = adapted(copy.deepcopy(tiny).bfloat16())
    size = Size(2, 8)
    wanted, cut = expected(by_hand(tiny, model), size), truncate(model, size)
    assert cut.dtype == torch.bfloat16
    assert np.abs(cut.encode(TEXTS, convert_to_tensor=True).float().numpy() - wanted).max() < 0.05
    assert np.abs(encode_sizes(model, TEXTS, [size])[size] - wanted).max() < 0.05


def test_layers_that_were_injected_by_hand(tiny: SentenceTransformer) -> None:
    model = copy.deepcopy(tiny)
    peft.inject_adapter_in_model(lora(init_lora_weights=False), model[0].model)
    cut = truncate(model, num_layers=2)
    assert np.abs(cut.encode(TEXTS) - expected(by_hand(tiny, model), Size(2, 32))).max() < ROUNDING
    require_plain(cut)


def test_an_adapter_that_cannot_be_merged_is_scored_and_not_cut(tiny: SentenceTransformer) -> None:
    with pytest.warns(UserWarning, match="aLoRA"):
        model = adapted(copy.deepcopy(tiny), lora(alora_invocation_tokens=[3]))
    size = Size(2, 8)
    assert np.abs(encode_sizes(model, TEXTS, [size])[size] - expected(model, size)).max() < ROUNDING
    with pytest.raises(
        ValueError, match=r"adapter layer encoder\.layer\.0.*cannot be merged.*aLoRA does not support merging"
    ):
        truncate(model, num_layers=2)


def test_merging_is_one_line_and_keeps_the_trained_sizes(model: SentenceTransformer, tmp_path: Path) -> None:
    sizes = [Size(1, 8), Size(2, 16), FULL]
    train(model, StarbucksLoss(model, MultipleNegativesRankingLoss(model), sizes), tmp_path / "run", max_steps=1)
    merged = truncate(model, sizes_ladder(model)[-1])
    require_plain(merged)
    assert np.abs(merged.encode(TEXTS) - model.encode(TEXTS)).max() < ROUNDING
    merged.save_pretrained(str(tmp_path / "merged"))
    assert Declaration.of(SentenceTransformer(str(tmp_path / "merged"), device="cpu").config).sizes == sizes
    with pytest.warns(UserWarning, match="not trained at 3L-16d"):
        truncate(model, "3L-16d")


def test_aligning_equals_aligning_the_merged_model(model: SentenceTransformer, tiny: SentenceTransformer) -> None:
    before = weights(model)
    aligned, wanted = align(model, MANY, layers="ends"), align(by_hand(tiny, model), MANY, layers="ends")
    for size in (Size(2, 8), Size(3, 32), FULL):
        assert np.abs(truncate(aligned, size).encode(TEXTS) - truncate(wanted, size).encode(TEXTS)).max() < 1e-3
    require_plain(aligned)
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in before.items())


def test_an_aligned_model_with_adapters_is_aligned_again(tiny: SentenceTransformer) -> None:
    model = adapted(turned(align(tiny, MANY)))
    again = align(model, MANY)
    assert np.abs(again.encode(TEXTS) - model.encode(TEXTS)).max() < ROUNDING, "the full size does not change"


def test_depth_as_an_argument(model: SentenceTransformer) -> None:
    cut = TruncatedTransformer.from_transformer(model[0]).to_transformer(2)
    assert type(cut) is Transformer
    require_plain(SentenceTransformer(modules=[cut, model[1]], device="cpu"))


def test_a_cut_lacks_the_hook_of_gradient_checkpointing(model: SentenceTransformer) -> None:
    # lets gradients through the frozen embeddings, by a local function
    model[0].model.gradient_checkpointing_enable()
    hooks = model[0].model.get_input_embeddings()._forward_hooks
    assert len(hooks) == 1
    pickle.dumps(truncate(model, num_layers=2))
    assert len(hooks) == 1
