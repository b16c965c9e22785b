"""Tell once of texts that a smaller vocabulary has no words for, such as those in a language that was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from st_matryoshka2d._hosts.torch import call_before
from st_matryoshka2d.errors import DataWarning, warn
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.pipeline import transformers_of

_SHARE, _FEWEST = 0.1, 3  # tokens of a text that are unknown or fall back on characters


def watch(model: Any) -> None:
    """Watch the tokens that a model with a smaller vocabulary gets in this process; its files know nothing of it."""
    for transformer in transformers_of(model):
        if declared := Declaration.of(transformer.model.config).vocabulary:
            call_before(transformer, Watch(declared, getattr(transformer.tokenizer, "unk_token_id", None)))
            # saving would embed an example in English
            model.model_card_data.generate_widget_examples = False


class Watch:
    """Looks at the tokens of each batch, and warns once."""

    def __init__(self, vocabulary: Mapping[str, Any], unknown: int | None) -> None:
        self.start, self.stop = vocabulary["spare"]
        self.languages = ", ".join(vocabulary["texts"])
        self.unknown = -1 if unknown is None else unknown
        self.told = False

    def __call__(self, transformer: nn.Module, given: tuple[Any, ...]) -> None:
        """Count the tokens of each text that stand for a part of a word that is missing."""
        # whoever trains knows the texts
        if self.told or transformer.training or torch.compiler.is_compiling() or "input_ids" not in given[0]:
            return
        ids = given[0]["input_ids"]
        real = given[0].get("attention_mask", torch.ones_like(ids)) > 0
        strange = (((ids >= self.start) & (ids < self.stop)) | (ids == self.unknown)) & real
        counts, lengths = strange.sum(-1).flatten(), real.sum(-1).flatten()
        found = (counts >= _FEWEST) & (counts > _SHARE * lengths)
        if bool(found.any()):
            self.told = True
            worst = int((counts / lengths * found).argmax())
            warn(
                f"{counts[worst]} of {lengths[worst]} tokens of a text are unknown to this model or parts of words: its "
                f"vocabulary was cut to that of other texts ({self.languages}), and such a text is embedded badly. Cut the "
                "whole model again, with texts like this one in `vocabulary`.",
                DataWarning,
            )
