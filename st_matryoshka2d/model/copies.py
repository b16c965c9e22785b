"""Copies of a model or of its parts: with shared tensors, for a trial run, without weights.

Other threads may use a model at the same time, so whatever a trial needs (evaluation mode, hooks, a
setting of the config) is set on a copy that shares only the tensors. Nothing is drawn at random.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from st_matryoshka2d._hosts.torch import hooks
from st_matryoshka2d._hosts.transformers import as_read
from st_matryoshka2d.model.table import Table

Copied = TypeVar("Copied", bound=nn.Module)


def share_memory(module: Copied) -> Copied:
    """Copy a module but share its tensors; changes of the copy's dtype, device or mode do not affect the original."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    memo.update({id(b): b.detach() for b in module.buffers()})
    for part in module.modules():
        # a hook that is a bound method keeps reporting to its object, not to a copy of it
        memo.update({id(hook): hook for hook in hooks(part)})
        if isinstance(part, Transformer) and id(part.processor) not in memo:
            memo[id(part.processor)] = own_tokenizer(part.processor)
        # whose tokenizer has no settings of a call, and a copy would parse it again
        if isinstance(part, StaticEmbedding):
            memo[id(part)] = Table.around(part, copy.deepcopy(part.embedding, memo))
    return copy.deepcopy(module, memo)


def trial(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Return a copy of the model in evaluation mode, and inputs for a short run: two rows, one padded."""
    words: Any = model.get_input_embeddings()
    vocabulary, device = words.weight.shape[0], words.weight.device
    input_ids = torch.arange(3, 19, device=device).view(2, 8) % vocabulary
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 5:] = 0
    return share_memory(model).train(False), {"input_ids": input_ids, "attention_mask": attention_mask}


PLAIN = (bool, int, float, str, type(None))


def settings(module: nn.Module) -> dict[str, object]:
    """Return the plain attributes of a module, such as a sliding window, but for its mode."""
    plain = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
    return {name: value for name, value in plain.items() if not name.startswith("_") and name != "training"}


def same(left: Tensor, right: Tensor, tolerance: float = 0.0) -> bool:
    """Compare within a share of the largest value; NaN equals NaN, so that broken weights do not look like a new family."""
    scale = torch.nan_to_num(right).abs().max()
    return left.shape == right.shape and torch.allclose(left, right, rtol=0.0, atol=tolerance * float(scale), equal_nan=True)


# Parameters are made by these, to be filled by a checkpoint.
_WITHOUT_VALUES = (torch.empty, torch.rand, torch.randn)
_BUILT: set[type[PreTrainedModel]] = set()


def skeleton(cls: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model whose parameters take no memory; its buffers are real."""
    # Modes of torch hold for one thread. accelerate's `init_empty_weights` and transformers'
    # `no_init_weights` replace functions of torch for all threads; on the meta device, transformers
    # initialises no weights.
    with torch.device("meta"), _ValuesOnCPU():
        return cls(copy.deepcopy(config))


def rebuilt_from(view: PreTrainedModel) -> PreTrainedModel:
    """Rebuild a model as loading a saved cut does: from its config alone, then with its tensors."""
    rebuilt = skeleton(type(view), as_read(view.config))
    for name, _ in list(rebuilt.named_children()):
        if getattr(view, name, None) is None:
            # built without it, such as the encoder of a masked LM without its pooler
            setattr(rebuilt, name, None)
    rebuilt.load_state_dict(view.state_dict(), assign=True)
    nn.Module.to(rebuilt, view.device)
    rebuilt.train(False)
    return rebuilt


def register_outputs(model: PreTrainedModel) -> None:
    """Let transformers record the states of a model that was unpickled."""
    # Transformers registers what a class can record when its first model is built. A process that
    # only unpickles models, such as a worker, builds none, and would get no states.
    if type(model) not in _BUILT:
        skeleton(type(model), model.config)
        _BUILT.add(type(model))


class _ValuesOnCPU(TorchFunctionMode):
    """Within a device context, still make on the CPU whatever has values, such as a table of positions."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # With an empty tensor, transformers asks which device is set.
        if func in _WITHOUT_VALUES or (func is torch.tensor and isinstance(args[0], list) and not args[0]):
            return func(*args, **(kwargs or {}))
        with torch.device("cpu"):
            return func(*args, **(kwargs or {}))


_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "encode_special_tokens")


def own_tokenizer(processor: Any) -> Any:
    """Copy a tokenizer, or a processor around one, and settle it; its vocabulary and the settings of that are shared."""
    # A tokenizer holds the truncation and padding of the call under way, and the tokens that are
    # added to it. A plain deep copy would write out and parse a vocabulary, which takes seconds if
    # it has 250,000 tokens.
    fast = _fast(processor)
    return settled(copy.deepcopy(processor, {} if fast is None else {id(fast): copied_tokenizer(fast)}))


def settled(processor: Any) -> Any:
    """Let a tokenizer of our own pad and cut as `encode` will, whatever it did before, and return it."""
    # `tokenizer.json` keeps what the last call set, or the fixed length that a model was trained
    # with, and readers in other languages do what it says.
    tokenizer = getattr(processor, "tokenizer", processor)
    if _fast(processor) is not None:
        tokenizer("", padding=tokenizer.pad_token is not None, truncation=True, verbose=False)
    return processor


def copied_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Copy a tokenizer of the `tokenizers` library without truncation and padding; only its model is shared."""
    copied = Tokenizer(tokenizer.model)
    for part in _PARTS:
        setattr(copied, part, _own(getattr(tokenizer, part)))
    for _, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        (copied.add_special_tokens if token.special else copied.add_tokens)([token])
    return copied


def _fast(processor: Any) -> Tokenizer | None:
    """Return the tokenizer of the `tokenizers` library in another, or in a processor around one."""
    fast = getattr(getattr(processor, "tokenizer", processor), "backend_tokenizer", None)
    return fast if isinstance(fast, Tokenizer) else None


def _own(part: Any) -> Any:
    """Copy a part, such as a normalizer, whose settings may be changed in place; one written in Python stays shared."""
    try:
        return copy.deepcopy(part)
    except Exception:  # as the library raises: it cannot be serialized
        return part
