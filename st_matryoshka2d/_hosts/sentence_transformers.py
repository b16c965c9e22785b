"""What sentence-transformers keeps under private names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin, RandContext
from sentence_transformers.base.losses.gradcache import _create_minibatch, _minibatch_ranges
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.losses.adaptive_layer import TransformerDecorator
from sentence_transformers.util.distributed import distributed_evaluation
from torch import Tensor, nn

# what a card calls a model without an id on the Hub
UNNAMED: str = SentenceTransformer._model_card_model_id_placeholder


def load_with_classes(cls: type[BaseModel], name: str, classes: Mapping[str, type[nn.Module]], **kwargs: Any) -> BaseModel:
    """Load a model whose `modules.json` may name these classes: no code of the checkpoint runs for them."""
    # The Trainer reads its checkpoints in this way; there is no public one.
    return cls._load_with_module_classes(name, dict(classes), **kwargs)


def route_name(router: Router, features: Mapping[str, Any]) -> str:
    """Return the name of the route that a batch takes."""
    return str(router._resolve_route(task=features.get("task"), modality=features.get("modality")))


def card_text(model: BaseModel) -> str | None:
    """Return the text of the card that a model was loaded with, which saving writes again."""
    return model._model_card_text


def drop_card_text(model: BaseModel) -> None:
    """Let saving write a new card."""
    model._model_card_text = None


def shares_out_texts(model: SentenceTransformer) -> bool:
    """Tell whether `encode` itself shares the texts out to the processes of the launch."""
    return getattr(model, "_distributed_inference", None) is not None


@contextmanager
def shared_out(infer: Callable[..., Tensor]) -> Iterator[Callable[..., Tensor] | None]:
    """In the first process of a launch, yield a function with which all infer together; in the others, None afterwards."""
    # of a model: the functions that share out know these attributes alone
    stand_in: Any = SimpleNamespace(_inference=infer, _distributed_inference=None, device=torch.device("cpu"))
    with distributed_evaluation(stand_in) as leads:
        yield (stand_in._distributed_inference or infer) if leads else None


def is_cut_by_adaptive_layer_loss(module: nn.Module) -> bool:
    """Tell whether `AdaptiveLayerLoss`, within its forward pass, has replaced the `forward` of a module."""
    return isinstance(vars(module).get("forward"), TransformerDecorator)


class SortedByTokens(SentenceTransformer):
    """A model whose `encode` sorts texts by tokens, with a third less padding than if sorted by characters."""

    def _input_length(self, sample: Any) -> int:  # type: ignore[override]  # a static method, called on the model
        if not isinstance(sample, str) or not getattr(self.tokenizer, "is_fast", False):
            return super()._input_length(sample)
        return sum(self.tokenizer.backend_tokenizer.encode(sample).attention_mask)


def mini_batches(column: dict[str, Any], texts: int, tokens: int | None) -> Iterator[dict[str, Any]]:
    """Yield parts of a column with at most so many texts, or tokens, as the gradient cache does."""
    for start, end in _minibatch_ranges(column, texts, tokens):
        yield _create_minibatch(column, start, end)


def embed_mini_batch(embed: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, RandContext | None]:
    """Embed a part of a column as the gradient cache does, by a function in place of the model."""
    stand_in: Any = SimpleNamespace(model=embed)  # of a loss: the method uses its model alone
    return CachedLossMixin.embed_minibatch(stand_in, *args, **kwargs)
