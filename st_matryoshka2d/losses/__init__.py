"""Losses for `SentenceTransformerTrainer`: a wrapped loss, sizes and terms."""

from __future__ import annotations

from st_matryoshka2d.losses.distillation import RelationalDistill
from st_matryoshka2d.losses.kl_alignment import KLAlignment
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.pca_compression import PCACompression
from st_matryoshka2d.losses.pic import PIC
from st_matryoshka2d.losses.recipes.espresso import EspressoLoss
from st_matryoshka2d.losses.recipes.mipic import MIPICLoss
from st_matryoshka2d.losses.recipes.relational_distill import RelationalDistillLoss
from st_matryoshka2d.losses.recipes.starbucks import StarbucksLoss
from st_matryoshka2d.losses.recipes.two_dmse import TwoDMSELoss
from st_matryoshka2d.losses.sampling import FixedSizes, SizeSampler, UniformSizes
from st_matryoshka2d.losses.saved_state import LossStateCallback
from st_matryoshka2d.losses.sia import SIA
from st_matryoshka2d.losses.step import Step, Term, Tokens

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
