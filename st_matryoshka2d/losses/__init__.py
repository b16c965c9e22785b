"""Losses for `SentenceTransformerTrainer`: size sampler x wrapped loss x terms."""

from __future__ import annotations

from st_matryoshka2d.losses.alignment import KLAlignment as KLAlignment
from st_matryoshka2d.losses.distillation import RelationalDistill as RelationalDistill
from st_matryoshka2d.losses.multi_size import MultiSizeLoss as MultiSizeLoss
from st_matryoshka2d.losses.recipes import RelationalDistillLoss as RelationalDistillLoss
from st_matryoshka2d.losses.recipes import StarbucksLoss as StarbucksLoss
from st_matryoshka2d.losses.recipes import TwoDMSELoss as TwoDMSELoss
from st_matryoshka2d.losses.sampling import FixedSizes as FixedSizes
from st_matryoshka2d.losses.sampling import SizeSampler as SizeSampler
from st_matryoshka2d.losses.sampling import UniformSizes as UniformSizes
from st_matryoshka2d.losses.step import Step as Step
from st_matryoshka2d.losses.step import Term as Term

__all__ = [
    "FixedSizes",
    "KLAlignment",
    "MultiSizeLoss",
    "RelationalDistill",
    "RelationalDistillLoss",
    "SizeSampler",
    "StarbucksLoss",
    "Step",
    "Term",
    "TwoDMSELoss",
    "UniformSizes",
]
