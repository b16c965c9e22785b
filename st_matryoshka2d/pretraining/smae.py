"""Starbucks' masked auto-encoding: a backbone that is good at every size before any fine-tuning."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.generic import ModelOutput

from st_matryoshka2d.cutting.exactness import check_depths
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.atomic import share_weights
from st_matryoshka2d.model.copies import register_outputs
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.pretraining.cross_entropy import vocabulary_cross_entropy
from st_matryoshka2d.pretraining.masked_lm import find_masked_lm, load_masked_lm, register_tied_weights
from st_matryoshka2d.sizes import Size, ladder_to, positive_int, validate_sizes

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_NOT_MASKED = -100


@dataclass
class SMAEOutput(ModelOutput):
    """Output of a pre-training step.

    Attributes:
        loss: Eq. 9, a scalar: the sum of the parts, divided by the number of sizes.
        parts: Mean cross entropy over the masked tokens, without gradient, by size:
            `"2L-32d/encoder"`, `"2L-32d/decoder"`.
    """

    loss: Tensor | None = None
    parts: dict[str, Tensor] | None = None


class SMAEForPreTraining(nn.Module):
    r"""Masked auto-encoding over sizes (Starbucks, section 3.2), around any encoder with a masked-LM head.

    Each text is masked twice, more for the decoder (Eq. 6). For each size (n, d), the first d
    coordinates of layer n are projected to full width, and the head predicts the encoder's masked
    tokens from them. A small decoder predicts its own masked tokens, with the CLS embedding of its
    input replaced by the projected CLS state (Eq. 7):

    .. math::
        \tilde x^{cls}_{dec} = pool(V_n^d W_{1:d}), \qquad V_n^d = encoder_{1:n}(x_{enc})_{1:d}

        L_{mlm}(n, d) = L_{enc}(n, d) + L_{dec}(n, d) \quad\text{(Eq. 8)}, \qquad
        L = \frac{1}{|S|} \sum_{(n, d) \in S} L_{mlm}(n, d) \quad\text{(Eq. 9)}

    One pass of the encoder serves all sizes, and only masked tokens are scored. Layer n is the
    output of the model cut there, after the final norm of pre-norm families. `save_pretrained`
    writes the encoder as a plain checkpoint.

    The authors' code has no W: it projects as `projection="head"` does. It also halves L_enc +
    L_dec, which changes little with Adam, and nests the masks (`SMAEDataCollator`).

    Args:
        mlm: A model loaded with `AutoModelForMaskedLM`.
        sizes: S; None for the ladder of the model's depth and width (section 3.1).
        decoder_layers: Number of decoder layers, each initialised as a copy of the encoder's first.
        projection: `"linear"`: V W, as in Eq. 7; W starts as the identity. `"head"`: the layers of
            the masked-LM head before the vocabulary, with zeros beyond d: the authors' code.
        mae: False omits the decoder (Table 3, "- MAE"); with only the full size, this is plain
            masked language modelling.
        tokenizer: Saved along with the encoder, if given.

    Attributes:
        mlm: The trained model.
        W: (D, D), row i projects coordinate i; None if the head projects.
        decoder: The decoder's blocks; empty without a decoder.

    Raises:
        TypeError: `mlm` is not a transformers model, or a number is not an integer.
        ValueError: A size is outside the model, `mlm` is no encoder with a masked-LM head, or
            `projection` is unknown.

    Example:
        >>> from st_matryoshka2d.pretraining import SMAEDataCollator
        >>> model = SMAEForPreTraining.from_pretrained(folder, sizes=["3L-64d", "6L-384d"])
        >>> collator = SMAEDataCollator(model.tokenizer, seed=0)
        >>> output = model(**collator([{"text": "The seed says which words are masked."}]))
        >>> sorted(output.parts)
        ['3L-64d/decoder', '3L-64d/encoder', '6L-384d/decoder', '6L-384d/encoder']
    """

    def __init__(
        self,
        mlm: PreTrainedModel,
        sizes: Iterable[Size | str] | None = None,
        decoder_layers: int = 1,
        projection: Literal["linear", "head"] = "linear",
        mae: bool = True,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__()
        if projection not in ("linear", "head"):
            raise UsageError(f"projection must be 'linear' or 'head', got {projection!r}.")
        self._parts = find_masked_lm(mlm)
        encoder: Any = mlm.base_model
        full = Size(self._parts.backbone.num_layers, mlm.config.hidden_size)
        self.sizes = ladder_to(full) if sizes is None else validate_sizes(sizes, full)
        check_depths(encoder, self._parts.backbone, sorted({size.num_layers for size in self.sizes}))
        self.mlm = mlm
        self.projection = projection
        self.tokenizer = tokenizer
        words: Any = mlm.get_input_embeddings().weight
        self.W = (
            nn.Parameter(torch.eye(full.dim, dtype=words.dtype, device=words.device)) if projection == "linear" else None
        )
        first = next(encoder.get_submodule(str(self._parts.backbone.blocks)).children())
        copies = positive_int(decoder_layers, "decoder_layers") if mae else 0
        self.decoder = nn.ModuleList(copy.deepcopy(first) for _ in range(copies))
        if projection == "head" and (width := self._parts.head(mlm, words.new_zeros(1, full.dim)).shape[1]) != full.dim:
            raise UsageError(
                f"projection='head': the head of {type(mlm).__name__} is {width} wide, its states are {full.dim} wide, so "
                "it cannot project them to full width. Use projection='linear'."
            )
        register_tied_weights(self)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        sizes: Iterable[Size | str] | None = None,
        decoder_layers: int = 1,
        projection: Literal["linear", "head"] = "linear",
        mae: bool = True,
        **kwargs: Any,
    ) -> SMAEForPreTraining:
        """Load a checkpoint from the Hub or a folder; without a masked-LM head, transformers creates and reports one.

        Other keywords go to `AutoModelForMaskedLM.from_pretrained`: `revision`, `token`, `dtype`,
        ...

        Raises:
            ValueError: The architecture has no masked-LM head (a decoder-only model), or its
                tokenizer has no mask token.
        """
        mlm, tokenizer = load_masked_lm(name_or_path, **kwargs)
        return cls(mlm, sizes, decoder_layers, projection, mae, tokenizer)

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Save the encoder with its masked-LM head, and the tokenizer if any, without the decoder and W.

        `AutoModel`, `AutoModelForMaskedLM` and `SentenceTransformer` load the folder without this
        package. Its config says that each depth keeps the first layers, which were trained.
        """
        config = self.mlm.base_model.config
        replace(Declaration.of(config), layers=self._parts.backbone.layers.written()).write(config)
        self.mlm.save_pretrained(save_directory)
        share_weights(save_directory)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Trade time for memory in the encoder; the Trainer calls this for `activation_checkpointing=True`."""
        self.mlm.activation_checkpointing_enable(**kwargs)

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        attention_mask: Int[Tensor, "batch tokens"] | None = None,
        labels: Int[Tensor, "batch tokens"] | None = None,
        decoder_input_ids: Int[Tensor, "batch tokens"] | None = None,
        decoder_labels: Int[Tensor, "batch tokens"] | None = None,
    ) -> SMAEOutput:
        """Compute the loss of a batch from `SMAEDataCollator`.

        Args:
            input_ids: Texts masked for the encoder; the first token of each is CLS.
            attention_mask: 0 at padding; None for no padding.
            labels: Original tokens where the encoder's are masked, -100 elsewhere; a ValueError if
                none is masked.
            decoder_input_ids: Texts masked for the decoder, if there is one.
            decoder_labels: The same as `labels`, for the decoder.
        """
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self._states(input_ids, attention_mask)
        masked, targets = _masked(labels, "labels")
        projected = self._project([states[size.num_layers][masked][:, : size.dim] for size in self.sizes])
        rows = [projected if self.W is None else self._parts.head(self.mlm, projected)]
        tokens = {"encoder": targets}
        if len(self.decoder):
            decoder_masked, tokens["decoder"] = _masked(decoder_labels, "decoder_labels")
            if decoder_input_ids is None:
                raise UsageError("decoder_input_ids is missing; use SMAEDataCollator, or mae=False for no decoder.")
            cls = self._project([states[size.num_layers][:, 0, : size.dim] for size in self.sizes])
            given = decoder_masked, {"input_ids": decoder_input_ids, "attention_mask": attention_mask}
            # Recomputed in the backward pass, so that only one size is in memory at a time.
            rows += [checkpoint(self._decode, part, *given, use_reentrant=False) for part in cls.chunk(len(self.sizes))]
        return self._score(torch.cat(rows), tokens)

    def _states(self, input_ids: Tensor, attention_mask: Tensor) -> dict[int, Float[Tensor, "batch tokens D"]]:
        """Return the output of the encoder cut at each trained depth, from one pass."""
        encoder: Any = self.mlm.base_model
        register_outputs(encoder)
        outputs = encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        states = {depth: outputs.hidden_states[depth] for depth in {size.num_layers for size in self.sizes}}
        full = self._parts.backbone.num_layers
        finished = {depth: self._parts.backbone.finish(encoder, state) for depth, state in states.items() if depth < full}
        return finished | {full: outputs.last_hidden_state}

    def _project(self, states: list[Float[Tensor, "rows _"]]) -> Float[Tensor, "rows_of_sizes D"]:
        """Project each size to full width: V W over the first d rows of W, or the head over V and zeros."""
        if self.W is not None:
            return torch.cat([state @ self.W[: state.shape[1]].to(state.dtype) for state in states])
        padded = [nn.functional.pad(state, (0, self.mlm.config.hidden_size - state.shape[1])) for state in states]
        return self._parts.head(self.mlm, torch.cat(padded))

    def _decode(
        self, cls: Float[Tensor, "batch D"], masked: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> Float[Tensor, "rows E"]:
        """Return the head's output at the decoder's masked tokens, for one size."""
        return self._parts.head(self.mlm, self._parts.decode(self.mlm, self.decoder, cls, **inputs)[masked])

    def _score(self, rows: Float[Tensor, "rows E"], tokens: dict[str, Tensor]) -> SMAEOutput:
        """Compute Eq. 8 and 9 over masked tokens: the encoder's at all sizes, then the decoder's at all sizes."""
        vocabulary: Any = self.mlm.get_submodule(self._parts.vocabulary)
        names = {f"{size}/{part}": targets for part, targets in tokens.items() for size in self.sizes}
        counts = [len(targets) for targets in names.values()]
        exact = torch.promote_types(rows.dtype, torch.float32)
        weights = [rows.new_full((count,), 1 / (count * len(self.sizes)), dtype=exact) for count in counts]
        of_rows = torch.cat(list(names.values())), torch.cat(weights)
        loss, by_row = vocabulary_cross_entropy(rows, vocabulary.weight, vocabulary.bias, *of_rows)
        parts = {name: part.mean() for name, part in zip(names, by_row.split(counts), strict=True)}
        return SMAEOutput(loss=loss, parts=parts)


def _masked(labels: Tensor | None, name: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the places of masked tokens, and their labels."""
    if labels is None:
        raise UsageError(f"{name} is missing; SMAEDataCollator returns all inputs of the model.")
    # once: it waits for the GPU, as would each use of a mask
    places = (labels != _NOT_MASKED).nonzero(as_tuple=True)
    if not len(places[0]):
        raise UsageError(f"{name} has no masked token (all are {_NOT_MASKED}): there is nothing to learn from this batch.")
    return places, labels[places]
