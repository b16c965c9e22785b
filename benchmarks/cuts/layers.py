"""Ways to select layers: the first, evenly spaced, the most influential, and some of them with alignment."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.nn import functional as F

from st_matryoshka2d import Size, align, encode_sizes
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.cut import keeping
from st_matryoshka2d.model.kept_layers import ENDS, LayersByDepth
from st_matryoshka2d.model.kept_layers import FIRST as FIRST_LAYERS
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size

__all__ = ["ALIGNED", "ALIGNED_WAYS", "DEPTHS", "FIRST", "Embedder"]

Rows = NDArray[np.floating]
FIRST, EVEN, INFLUENCE = "first layers", "evenly spaced layers", "layers of most influence"
FIRST_ALIGNED, EVEN_ALIGNED, ALIGNED = f"{FIRST}, aligned", f"{EVEN}, aligned", "first and last layers, aligned"
ALIGNED_WAYS = [FIRST_ALIGNED, EVEN_ALIGNED, ALIGNED]
DEPTHS = [FIRST, EVEN, INFLUENCE, *ALIGNED_WAYS]


@dataclass
class Embedder:
    """Embeddings of a suite's texts and of the fitting texts, for different selections of layers."""

    model: SentenceTransformer
    texts: list[str]
    fitted: list[str]
    depths: list[int]
    folder: Path

    def __call__(self, kept: str, depth: int) -> tuple[Rows, Rows]:
        """Embed the suite's texts and the fitting texts with `depth` layers, selected by the method `kept`."""
        kept = FIRST if depth == max(self.depths) and kept not in ALIGNED_WAYS else kept
        if kept in (FIRST, *ALIGNED_WAYS):
            rows = self._of_one_pass(kept, depth)
        else:
            [rows] = self._known(f"{kept}-{depth}", lambda: [self._embed(self.kept(kept, depth))])
        return rows[[self._row[text] for text in self.texts]], rows[[self._row[text] for text in self.fitted]]

    def kept(self, kept: str, depth: int) -> list[int]:
        """Return the selected layers, counted from 0."""
        total = full_size(self.model).num_layers
        if kept == EVEN:
            return [round(place) for place in np.linspace(0, total - 1, depth)]
        return sorted(np.argsort(-self.influence, kind="stable")[:depth].tolist())

    @cached_property
    def _row(self) -> dict[str, int]:
        """Return the row of each distinct text: documents are often in both lists, and embedding is what takes long."""
        return {text: row for row, text in enumerate(dict.fromkeys([*self.texts, *self.fitted]))}

    @cached_property
    def influence(self) -> Rows:
        """Return each block's influence: 1 - cos of its input and output (ShortGPT, arXiv 2403.03853)."""
        network = Pipeline.of(self.model).transformer.model.eval()
        with torch.no_grad():
            batch = self.model.preprocess(self.fitted[:256])
            states = network(**{name: batch[name] for name in ("input_ids", "attention_mask")}, output_hidden_states=True)
            mask = batch["attention_mask"].bool()
            hidden = [state[mask].float() for state in states.hidden_states]
        return np.array([1 - float(F.cosine_similarity(a, b).mean()) for a, b in pairwise(hidden)])

    def _of_one_pass(self, kept: str, depth: int) -> Rows:
        def all_depths() -> list[Rows]:
            if kept in ALIGNED_WAYS:
                model = align(self.model, self.fitted, layers=self._layers(kept), show_progress_bar=True)
            else:
                model = keeping(Pipeline.of(self.model), FIRST_LAYERS).model
            sizes = [Size(depth, full_size(model).dim) for depth in self.depths]
            return list(encode_sizes(model, list(self._row), sizes, show_progress_bar=True).values())

        return np.asarray(self._known(kept, all_depths)[self.depths.index(depth)])

    def _layers(self, kept: str) -> str | LayersByDepth:
        """Return the layers of a way with alignment, as `align` takes them."""
        if kept == EVEN_ALIGNED:
            return {depth: [layer + 1 for layer in self.kept(EVEN, depth)] for depth in self.depths[:-1]}
        return ENDS if kept == ALIGNED else FIRST_LAYERS

    def _embed(self, kept: list[int]) -> Rows:
        return np.asarray(with_layers(self.model, kept).encode(list(self._row), show_progress_bar=True))

    def _known(self, name: str, make: Callable[[], list[Rows]]) -> Rows:
        file = self.folder / f"{name.replace(' ', '_')}.npy"
        if not file.exists():
            np.save(file.with_suffix(".part.npy"), np.stack(make()))
            file.with_suffix(".part.npy").rename(file)
        return np.asarray(np.load(file, mmap_mode="r"))


def with_layers(model: SentenceTransformer, kept: list[int]) -> SentenceTransformer:
    """Return a copy of the model with only these layers."""
    made = copy.deepcopy(model)
    network = Pipeline.of(made).transformer.model
    path = str(find_backbone(network).blocks)
    blocks = list(network.get_submodule(path).children())
    network.set_submodule(path, nn.ModuleList([blocks[index] for index in kept]))
    return made
