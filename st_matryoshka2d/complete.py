"""Proof that a model has all of its weights from the checkpoint: transformers makes up at random what it does not find."""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from transformers import PreTrainedModel

from st_matryoshka2d.backbone import find_backbone, probing

__all__ = ["check_complete"]

_NAMED = 5


def check_complete(pipeline: SentenceTransformer, where: str) -> None:
    """Refuse a loaded model if the checkpoint lacked weights that its token embeddings depend on."""
    for module in pipeline.modules():
        network = module.model if isinstance(module, Transformer) else None
        # what packs numbers replaces the parameters, and reads them itself
        if not isinstance(network, PreTrainedModel) or getattr(network, "hf_quantizer", None) is not None:
            continue
        if absent := _absent(network):
            more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
            raise ValueError(
                f"{where} lacks weights of {type(network).__name__}, or has them in other shapes: "
                f"{', '.join(absent[:_NAMED])}{more}. They are not replaced by random values: download the "
                "checkpoint again, or ask its author to save it again."
            )


def _absent(network: PreTrainedModel) -> list[str]:
    """Weights that were not read, in the blocks or wherever token embeddings depend on them, as not in a pooling head."""
    # Transformers marks what it has read or tied, so as to initialise the rest.
    made_up = {n: value for n, value in network.named_parameters() if not getattr(value, "_is_hf_initialized", False)}
    if not made_up:
        return []
    blocks = find_backbone(network).blocks
    with probing(network) as inputs, torch.enable_grad():
        state = network(**inputs).last_hidden_state
        used = torch.autograd.grad(state.sum(), list(made_up.values()), allow_unused=True)
    reached = {name for name, gradient in zip(made_up, used, strict=True) if gradient is not None}
    # A block may have experts that these few tokens do not reach.
    return [name for name in made_up if name in reached or (blocks and name.startswith(f"{blocks}."))]
