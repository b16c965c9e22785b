"""Embed texts at many sizes; each text goes through the model once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_matryoshka2d._hosts.sentence_transformers import SortedByTokens
from st_matryoshka2d.cutting.cut import pipeline_at_depth
from st_matryoshka2d.cutting.exactness import check_routes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.backbone import Backbone
from st_matryoshka2d.model.depths import layer_features
from st_matryoshka2d.model.pipeline import Pipeline, transformers_of
from st_matryoshka2d.model.readout import is_table, least_depth, require_readouts, require_table
from st_matryoshka2d.model.sides import with_modules
from st_matryoshka2d.sizes import Size, full_size, layered, prefix, validate_sizes
from st_matryoshka2d.texts import strings

_OF_TABLE = "table_"  # before the names of the features of depth 0, which has its own tokens
_REPLACED = {"truncate_dim", "num_layers", "output_value", "precision", "pool", "convert_to_tensor", "convert_to_numpy"}


class EveryLayer(SortedByTokens):
    """A pipeline that returns its embeddings at several depths side by side, for use with `encode`.

    Prompts, batches, devices, processes and progress bars are those of `SentenceTransformer`.
    Create it with `of`.
    """

    depths: Sequence[int]  # ascending; 0 for the token table
    backbones: dict[str, Backbone]
    normalize: bool
    ends: list[nn.Module]  # the final `Normalize` modules, for the table
    sees_prompts: bool = True  # not the table of a model, whose rows contain what its prompts do

    @classmethod
    def of(cls, model: SentenceTransformer | Pipeline, depths: Iterable[int], *, normalize: bool = True) -> EveryLayer:
        """Wrap a model up to the deepest of these depths, with shared weights."""
        wanted = sorted(set(depths))
        if isinstance(model, SentenceTransformer) and is_table(model):
            return cls._of_table(with_modules(model, dict(model.named_children()), cls), normalize)
        pipeline = model if isinstance(model, Pipeline) else Pipeline.of(model)
        model, full = pipeline.model, pipeline.full
        require_readouts(model, pipeline.declaration, full.num_layers, wanted)
        if wanted[-1] == 0:
            table = cls._of_table(pipeline_at_depth(pipeline, 0, cls), normalize)
            table.sees_prompts = False
            return table
        pipeline.require_padding()
        if wanted[0] == 0:
            require_table(model)
        layers = [depth for depth in wanted if depth]
        deepest = pipeline.layers.smallest_depth_with(layers)
        every = pipeline_at_depth(pipeline, deepest, cls, plain=False)  # verifies the deepest
        every.depths, every.normalize = wanted, normalize
        every.ends = pipeline.trailing_normalize() if normalize else []
        check_routes(pipeline, [depth for depth in layers if depth < deepest])
        within = pipeline.layers.within(deepest)
        every.backbones = {name: replace(backbone, layers=within) for name, backbone in pipeline.backbones.items()}
        for transformer in transformers_of(every):
            config = transformer.model.config
            config.output_hidden_states = layered(config).output_hidden_states = True
        return every

    @classmethod
    def _of_table(cls, table: EveryLayer, normalize: bool) -> EveryLayer:
        """Complete the pipeline of a token table alone."""
        if not normalize:
            del table[1:]
        table.depths, table.normalize, table.backbones = [0], normalize, {}
        return table

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenize; for depth 0 also by the tokenizer of its table, without the prompt."""
        if not self.backbones:
            return super().preprocess(inputs, prompt=prompt if self.sees_prompts else None, **kwargs)
        features = super().preprocess(inputs, prompt=prompt, **kwargs)
        if self.depths[0] == 0:
            features |= {f"{_OF_TABLE}{name}": value for name, value in require_table(self).preprocess(inputs).items()}
        return features

    def forward(self, input: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Output features whose `sentence_embedding` is (batch, depths x full dim)."""
        if not self.backbones:
            return super().forward(input, **kwargs)
        columns = [self._by_table(input)] if self.depths[0] == 0 else []
        layers = [depth for depth in self.depths if depth]
        run, normalize = super().forward, self.normalize
        by_layer = layer_features(self, input, layers, self.backbones, normalize=normalize, forward=run, **kwargs)
        columns += [by_layer[num_layers]["sentence_embedding"] for num_layers in layers]
        return {**by_layer[self.depths[-1]], "sentence_embedding": torch.cat(columns, dim=-1)}

    def _by_table(self, input: dict[str, Any]) -> Tensor:
        """Take the features of depth 0 out of the input, and embed them."""
        features = {name: input.pop(f"{_OF_TABLE}{name}") for name in ("input_ids", "offsets")}
        for module in (require_table(self), *self.ends):
            features = module(features)
        embedded: Tensor = features["sentence_embedding"]
        return embedded

    def get_sentence_embedding_dimension(self) -> int | None:
        """Return the full dim. mteb still calls this name, of which sentence-transformers warns."""
        return self.get_embedding_dimension()

    def split(self, embeddings: Any, size: Size) -> Any:
        """Select the columns of one size from the result of `encode`."""
        width = embeddings.shape[-1] // len(self.depths)
        start = self.depths.index(size.num_layers) * width
        return prefix(embeddings[..., start : start + width], size.dim)

    def at_sizes(
        self, texts: list[str], sizes: Iterable[Size], unit: bool, **kwargs: Any
    ) -> dict[Size, NDArray[np.float32]]:
        """Embed texts, and return an array (texts, dim) for each size, of unit length if wanted."""
        if not texts:
            return {size: np.empty((0, size.dim), dtype=np.float32) for size in sizes}
        embeddings = self.encode(texts, convert_to_tensor=True, **kwargs)
        parts = {size: self.split(embeddings, size) for size in sizes}
        parts = {size: torch.nn.functional.normalize(part, dim=-1) if unit else part for size, part in parts.items()}
        # copies: a view would keep all sizes in memory
        return {size: np.array(part.float().cpu().numpy()) for size, part in parts.items()}


def encode_sizes(
    model: SentenceTransformer,
    texts: Iterable[str],
    sizes: Iterable[Size | str],
    *,
    normalize_embeddings: bool = False,
    **kwargs: Any,
) -> dict[Size, NDArray[np.float32]]:
    """Embed texts at many sizes with one forward pass through the deepest of them.

    Equals `truncate(model, size).encode(texts)` for each size, up to rounding.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`, or with a `Router` over
            several of the same depth.
        texts: A list, a column of NumPy, pandas, pyarrow or `datasets`, or a generator.
        sizes: Sizes wanted, as `Size` or as text such as `"6L-128d"`; those without layers by the
            token table.
        normalize_embeddings: Unit length, after the dims are cut.
        **kwargs: Keywords of `SentenceTransformer.encode`: `batch_size`, `prompt_name`,
            `show_progress_bar`, ... With `device=["cuda:0", "cuda:1"]` each device has a process of
            its own.

    Returns:
        A dict from each `Size` to an array (texts, dim), of float32 whatever the model computes in.

    Raises:
        TypeError: `texts` is one string or a table, or a text is not a string.
        ValueError: A size is not within the model, a keyword cannot be taken (such as `pool`), a
            text cannot be encoded, or the tokenizer has no padding token.

    Example:
        >>> by_size = encode_sizes(model, ["a text", "another"], ["2L-32d", Size(6, 384)])
        >>> by_size[Size(2, 32)].shape, by_size[Size(6, 384)].shape
        ((2, 32), (2, 384))
    """
    if replaced := _REPLACED & set(kwargs):
        raise UsageError(
            f"encode_sizes does not take {sorted(replaced)}: the sizes say what is kept, arrays are "
            'returned, and device=["cuda:0", "cuda:1"] takes the place of a pool.'
        )
    full = full_size(model) if is_table(model) else Pipeline.of(model).full
    wanted = validate_sizes(sizes, full, least=least_depth(model))
    rows = strings(texts)
    every = EveryLayer.of(model, (size.num_layers for size in wanted))
    return every.at_sizes(rows, wanted, normalize_embeddings, **kwargs)
