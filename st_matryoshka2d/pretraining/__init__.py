"""Masked auto-encoding: pre-train a backbone to be cut."""

from __future__ import annotations

from st_matryoshka2d.errors import naming_the_extra

with naming_the_extra("Pre-training"):
    import accelerate  # noqa: F401  # which the Trainer would miss only when it is made

from st_matryoshka2d.pretraining.collator import SMAEDataCollator
from st_matryoshka2d.pretraining.smae import SMAEForPreTraining, SMAEOutput
from st_matryoshka2d.pretraining.tokens import token_rows
from st_matryoshka2d.pretraining.trainer import SMAETrainer

__all__ = ["SMAEDataCollator", "SMAEForPreTraining", "SMAEOutput", "SMAETrainer", "token_rows"]
