"""Run a private copy of a model on a few tokens.

Other threads may use the model at the same time, so whatever a trial needs (evaluation mode, hooks,
a setting of the config) is set on a copy that shares only the tensors. Nothing is drawn at random.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import hooks

Copied = TypeVar("Copied", bound=nn.Module)


def share_memory(module: Copied) -> Copied:
    """Copy a module but share its tensors; changes of the copy's dtype, device or mode do not affect the original."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    memo.update({id(b): b.detach() for b in module.buffers()})
    # a hook that is a bound method keeps reporting to its object, not to a copy of it
    for part in module.modules():
        memo.update({id(hook): hook for hook in hooks(part)})
        # whose tokenizer has no settings of a call, and a copy would parse it again
        if isinstance(part, StaticEmbedding):
            memo[id(part.tokenizer)] = part.tokenizer
    return copy.deepcopy(module, memo)


def trial(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Return a copy of the model in evaluation mode, and inputs for a short run: two rows, one padded."""
    words: Any = model.get_input_embeddings()
    vocabulary, device = words.weight.shape[0], words.weight.device
    input_ids = torch.arange(3, 19, device=device).view(2, 8) % vocabulary
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 5:] = 0
    return share_memory(model).train(False), {"input_ids": input_ids, "attention_mask": attention_mask}


def same(left: Tensor, right: Tensor, tolerance: float = 0.0) -> bool:
    """Compare within a share of the largest value; NaN equals NaN, so that broken weights do not look like a new family."""
    scale = torch.nan_to_num(right).abs().max()
    return left.shape == right.shape and torch.allclose(left, right, rtol=0.0, atol=tolerance * float(scale), equal_nan=True)
