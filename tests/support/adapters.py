"""Models with PEFT adapters, and the same models with the adapters written into their weights by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftConfig
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size
from tests.support.families import ENDS, TEXTS, cut_by_hand

RANK, ALPHA = 2, 6
LORA = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["query", "value", "dense"]}


def lora(**changes: Any) -> LoraConfig:
    """Return a LoRA config; each model needs its own, as PEFT writes into it."""
    return LoraConfig(**(LORA | changes))


def adapted(model: SentenceTransformer, config: PeftConfig | None = None, name: str = "default") -> SentenceTransformer:
    """Add an adapter to a model, in place, as if it was trained: all that it trains has moved."""
    model.add_adapter(lora() if config is None else config, name)
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for weight in model[0].parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def by_hand(
    base: SentenceTransformer, model: SentenceTransformer, *names: str, scale: float = ALPHA / RANK
) -> SentenceTransformer:
    """Return the base with W + scale * B A for each weight W that a LoRA adapter of the model changes."""
    plain, weights = copy.deepcopy(base), model.state_dict()
    with torch.no_grad():
        for path, module in plain.named_modules():
            for name in names or ("default",):
                if f"{path}.lora_A.{name}.weight" in weights:
                    up, down = weights[f"{path}.lora_B.{name}.weight"], weights[f"{path}.lora_A.{name}.weight"]
                    module.weight += scale * up @ down
    return plain


def expected(model: SentenceTransformer, size: Size) -> NDArray[np.float32]:
    """Embed with the blocks of a depth alone, put into the model by hand, and keep the first coordinates."""
    with cut_by_hand(model, size.num_layers, ENDS[size.num_layers]):
        embeddings: NDArray[np.float32] = model.encode(TEXTS)
    return embeddings[:, : size.dim]


def saved_with_adapter(base: SentenceTransformer, folder: Path) -> tuple[SentenceTransformer, Path]:
    """Save a base model and an adapter of it, below a folder; return the model with the adapter, and its folder."""
    base.save_pretrained(str(folder / "base"))
    model = adapted(SentenceTransformer(str(folder / "base"), device="cpu"))
    model.save_pretrained(str(folder / "adapter"))
    return model, folder / "adapter"
