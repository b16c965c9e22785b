"""Losses for `SentenceTransformerTrainer`: size sampler x wrapped loss x terms."""

from __future__ import annotations

from st_matryoshka2d.losses.alignment import KLAlignment as KLAlignment
from st_matryoshka2d.losses.compression import PCACompression as PCACompression
from st_matryoshka2d.losses.distillation import RelationalDistill as RelationalDistill
from st_matryoshka2d.losses.multi_size import MultiSizeLoss as MultiSizeLoss
from st_matryoshka2d.losses.pic import PIC as PIC
from st_matryoshka2d.losses.recipes.espresso import EspressoLoss as EspressoLoss
from st_matryoshka2d.losses.recipes.mipic import MIPICLoss as MIPICLoss
from st_matryoshka2d.losses.recipes.relational_distill import RelationalDistillLoss as RelationalDistillLoss
from st_matryoshka2d.losses.recipes.starbucks import StarbucksLoss as StarbucksLoss
from st_matryoshka2d.losses.recipes.two_dmse import TwoDMSELoss as TwoDMSELoss
from st_matryoshka2d.losses.sampling import FixedSizes as FixedSizes
from st_matryoshka2d.losses.sampling import SizeSampler as SizeSampler
from st_matryoshka2d.losses.sampling import UniformSizes as UniformSizes
from st_matryoshka2d.losses.sia import SIA as SIA
from st_matryoshka2d.losses.state import LossStateCallback as LossStateCallback
from st_matryoshka2d.losses.step import Step as Step
from st_matryoshka2d.losses.step import Term as Term
from st_matryoshka2d.losses.step import Tokens as Tokens

__all__ = [
    "PIC",
    "SIA",
    "EspressoLoss",
    "FixedSizes",
    "KLAlignment",
    "LossStateCallback",
    "MIPICLoss",
    "MultiSizeLoss",
    "PCACompression",
    "RelationalDistill",
    "RelationalDistillLoss",
    "SizeSampler",
    "StarbucksLoss",
    "Step",
    "Term",
    "Tokens",
    "TwoDMSELoss",
    "UniformSizes",
]
