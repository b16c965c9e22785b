"""Cuts that read next to nothing: layers of most influence, and principal components."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.nn import functional as F

from public.sets import Rows
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.pipeline import Pipeline

__all__ = ["components", "influence", "most_influential", "with_layers"]


def influence(model: SentenceTransformer, texts: Sequence[str]) -> Rows:
    """Return each layer's influence: 1 - cos of its input and output over the tokens (ShortGPT, arXiv 2403.03853)."""
    network = Pipeline.of(model).transformer.model.eval()
    with torch.no_grad():
        batch = model.preprocess(list(texts))
        states = network(**{name: batch[name] for name in ("input_ids", "attention_mask")}, output_hidden_states=True)
    mask = batch["attention_mask"].bool()
    hidden = [state[mask].float() for state in states.hidden_states]
    return np.array([1 - float(F.cosine_similarity(one, other).mean()) for one, other in pairwise(hidden)])


def most_influential(model: SentenceTransformer, texts: Sequence[str], num_layers: int) -> SentenceTransformer:
    """Return a copy of the model with the layers that change their input most."""
    return with_layers(model, sorted(np.argsort(-influence(model, texts), kind="stable")[:num_layers].tolist()))


def with_layers(model: SentenceTransformer, kept: Sequence[int]) -> SentenceTransformer:
    """Return a copy of the model with only these layers, counted from 0."""
    prompts = {name: text or "" for name, text in model.prompts.items()}
    made = copy.deepcopy(SentenceTransformer(modules=list(model), prompts=prompts, device="cpu"))
    network = Pipeline.of(made).transformer.model
    path = str(find_backbone(network).blocks)
    blocks = list(network.get_submodule(path).children())
    network.set_submodule(path, nn.ModuleList([blocks[place] for place in kept]))
    return made


def components(sample: Rows, dim: int) -> Callable[[Rows], Rows]:
    """Return the projection on the first principal components of a sample."""
    mean = sample.mean(0)
    vectors = np.linalg.eigh(np.cov(sample - mean, rowvar=False))[1][:, ::-1][:, :dim]
    return lambda rows: np.asarray((rows - mean) @ vectors)
