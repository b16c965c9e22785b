"""The whole model and its cut while they are compared: copies in float32, and what follows the layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.cutting.cut import cut_to
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.model.sides import with_modules

Precision = Mapping[str, torch.dtype]


def reference(pipeline: Pipeline) -> Any:
    """Return the whole model with all depths' readouts, in float32 and in evaluation mode; it shares what is so already."""
    return cut_to(pipeline).float().train(False)


def own_cut(pipeline: Pipeline, num_layers: int) -> Any:
    """Cut a model, with weights of its own and with the modules that follow the last layer of the whole one."""
    cut = cut_to(pipeline, num_layers)
    if pipeline.kind.no_dims:  # which has no readouts
        return copy.deepcopy(cut)
    return copy.deepcopy(with_modules(cut, {"0": cut[0], **_head(pipeline, None)}, SentenceTransformer))


def with_map(cut: SentenceTransformer, pipeline: Pipeline, readout: Affine) -> SentenceTransformer:
    """Put a map behind a cut, in front of a final `Normalize`, merged into the readout of the whole model if it has one."""
    head = copy.deepcopy(_head(pipeline, readout))
    return with_modules(cut, {"0": cut[0], **head}, SentenceTransformer)


def _head(pipeline: Pipeline, readout: Affine | None) -> dict[str, nn.Module]:
    _, *after = pipeline.model.children()
    ends = [after.pop() for _ in pipeline.trailing_normalize()]
    linear = None
    if after and isinstance(last := after[-1], Readout):
        after.pop()
        linear = last.linear
    if readout is None and linear is not None and not _is_identity(linear):
        readout = Affine(linear.weight.detach().float(), linear.bias.detach().float())
    elif readout is not None and linear is not None:
        readout = readout.after(linear)
    if readout is not None:
        dense = Readout(1, linear_of(readout.weight, readout.bias), {}).plain()
        after.append(dense.to(pipeline.model.device))
    after += ends[::-1]
    return {str(place): module for place, module in enumerate(after, start=1)}


def _is_identity(linear: nn.Linear) -> bool:
    same = torch.eye(*linear.weight.shape).to(linear.weight)
    return torch.equal(linear.weight, same) and not linear.bias.any()


def precision_of(model: SentenceTransformer) -> Precision:
    """Note the precision of each tensor."""
    return {name: tensor.dtype for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def in_precision(model: SentenceTransformer, before: Precision) -> SentenceTransformer:
    """Give tensors the precision that they had; new ones that of the model."""
    usual = next(iter(before.values()))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(before.get(name, usual))
    return model
