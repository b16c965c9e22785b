"""transformers' Trainer, with the loss of every size in its logs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DataCollatorWithPadding, Trainer, default_data_collator

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.pretraining.smae import SMAEForPreTraining


class SMAETrainer(Trainer):
    """transformers' `Trainer` that also logs the loss of each size: `"2L-32d/encoder"`, `"2L-32d/decoder"`, ...

    Each is the mean over the steps since the last log, and over processes. The plain `Trainer`
    trains the same weights. For streams, it collates on the first process for all, which fails if
    batches differ in width; here each process collates its own, unless `accelerator_config` says
    otherwise. Arguments are those of `Trainer`; the model must be an `SMAEForPreTraining`, the data
    collator an `SMAEDataCollator` or equivalent.

    Raises:
        TypeError: The model is not an `SMAEForPreTraining`.
        ValueError: The data collator is missing, or its tokenizer is not the model's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.model, SMAEForPreTraining):
            raise UsageTypeError(
                f"SMAETrainer trains an SMAEForPreTraining, got {type(self.model).__name__}; wrap the model: "
                "SMAEForPreTraining(model)."
            )
        if isinstance(self.data_collator, DataCollatorWithPadding) or self.data_collator is default_data_collator:
            raise UsageError("data_collator is missing; pass SMAEDataCollator(tokenizer), which masks the texts.")
        of_model, of_texts = self.model.tokenizer, getattr(self.data_collator, "tokenizer", None)
        if of_model is not None and of_texts is not None and of_model.get_vocab() != of_texts.get_vocab():
            raise UsageError(
                f"The data collator's tokenizer ({type(of_texts).__name__}, {len(of_texts)} tokens) is not the model's "
                f"({type(of_model).__name__}, {len(of_model)} tokens); pass SMAEDataCollator(model.tokenizer)."
            )
        self._parts: dict[str, Tensor] = {}
        self._steps = 0.0

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, with collation in each process."""
        config: Any = self.args.accelerator_config
        if config.dispatch_batches is None:
            config.dispatch_batches = False
        super().create_accelerator_and_postprocess()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss of a batch, and keep its parts for the next log."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            # the last step of an epoch may be shorter
            share = 1 / self.current_gradient_accumulation_steps
            self._steps += share
            for name, part in outputs["parts"].items():
                self._parts[name] = self._parts.get(name, 0) + share * part.detach()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write logs, with the parts in those of training steps."""
        if "loss" in logs and self._parts:
            means = torch.stack(list(self._parts.values())) / self._steps
            over_processes = self.accelerator.reduce(means, reduction="mean").tolist()
            logs = logs | dict(zip(self._parts, over_processes, strict=True))
            self._parts, self._steps = {}, 0.0
        super().log(logs, start_time)
