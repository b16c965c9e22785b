"""From one forward pass of a pipeline to its output at every depth."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling
from torch import Tensor, nn

from st_matryoshka2d.backbone import Backbone, hidden_states

__all__ = ["layer_features", "split_layers", "transformer_of", "unwrap"]


def unwrap(model: nn.Module) -> SentenceTransformer:
    """The pipeline inside `DistributedDataParallel` and `torch.compile` wrappers.

    Raises:
        TypeError: There is none.
    """
    inner: Any = model
    while not isinstance(inner, SentenceTransformer):
        wrapped = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if wrapped is None:
            raise TypeError(
                f"Expected a SentenceTransformer, got {type(model).__name__} (innermost: {type(inner).__name__})."
            )
        inner = wrapped
    return inner


def transformer_of(model: SentenceTransformer) -> Transformer:
    """The module whose depth can be chosen.

    Raises:
        TypeError: Not a `SentenceTransformer`.
        ValueError: The pipeline does not start with a `Transformer` that returns token embeddings, or reads all its layers.
    """
    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"Expected a SentenceTransformer, got {type(model).__name__}.")
    first, *head = model.children()
    if not isinstance(first, Transformer):
        raise ValueError(
            f"The model starts with {type(first).__name__}, which has no layers to choose from; "
            "a model that starts with a sentence_transformers Transformer module is needed."
        )
    text = first.modality_config.get("text", {})
    if (text.get("method"), text.get("method_output_name")) != ("forward", "last_hidden_state"):
        raise ValueError(
            f"The Transformer makes {first.module_output_name!r} of text from {text or 'nothing'}; "
            "only token embeddings read from `last_hidden_state` exist at every depth."
        )
    for module in head:
        if isinstance(module, WeightedLayerPooling):
            raise ValueError(
                "WeightedLayerPooling mixes all layers, so a model with fewer layers cannot equal a part of it."
            )
    transformer: Transformer = first
    return transformer


def layer_features(
    model: nn.Module, features: dict[str, Any], layers: Sequence[int], backbone: Backbone
) -> dict[int, dict[str, Any]]:
    """Run a batch once and return what the pipeline cut at each depth would return.

    The full model is called exactly once, through its wrapper if it has one, so that distributed training synchronises.

    Args:
        model: The pipeline, or `DistributedDataParallel` or `torch.compile` around it.
        features: What `model.preprocess` makes of a batch of texts.
        layers: Depths wanted, each 1..N.
        backbone: From `find_backbone`.

    Returns:
        For each depth the output features: `sentence_embedding` (batch, dim), `token_embeddings` (batch, tokens, hidden),
        `attention_mask`, ...
    """
    pipeline = unwrap(model)
    # A module that takes its depth per call runs no deeper than it must, and no less deep than its default.
    kwargs = {"num_layers": max(layers)} if "num_layers" in pipeline.get_model_kwargs() else {}
    with hidden_states(transformer_of(pipeline).model.config):
        outputs = model(features, **kwargs)
    return split_layers(pipeline, outputs, layers, backbone)


def split_layers(
    pipeline: SentenceTransformer, outputs: dict[str, Any], layers: Sequence[int], backbone: Backbone, **kwargs: Any
) -> dict[int, dict[str, Any]]:
    """Run the modules after the Transformer once for each depth.

    Args:
        pipeline: The model, without wrappers.
        outputs: Its output features, with `all_layer_embeddings`.
        layers: Depths wanted.
        backbone: From `find_backbone`.
        **kwargs: Call-time arguments of those modules, as `SentenceTransformer.forward` takes them.
    """
    _, *after = pipeline.named_children()
    head = copy.copy(pipeline)
    head._modules = dict(after)
    states: tuple[Tensor, ...] = outputs["all_layer_embeddings"]
    # A module that reads all layers would read deeper ones than a cut has.
    rest = {name: value for name, value in outputs.items() if name != "all_layer_embeddings"}
    by_layer: dict[int, dict[str, Any]] = {}
    for num_layers in layers:
        if num_layers == len(states) - 1:
            by_layer[num_layers] = rest
        else:
            state = backbone.finish(transformer_of(pipeline).model, states[num_layers])
            by_layer[num_layers] = SentenceTransformer.forward(head, {**rest, "token_embeddings": state}, **kwargs)
    return by_layer
