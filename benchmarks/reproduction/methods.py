"""What is compared: each method is a loss around the same contrastive loss, on the same triplets."""

from __future__ import annotations

from collections.abc import Callable

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from torch import nn

from st_matryoshka2d import Size, sizes_ladder
from st_matryoshka2d.losses import (
    EspressoLoss,
    KLAlignment,
    MIPICLoss,
    MultiSizeLoss,
    RelationalDistill,
    RelationalDistillLoss,
    StarbucksLoss,
    TwoDMSELoss,
)
from st_matryoshka2d.sizes import full_size

__all__ = ["ABLATIONS", "BEST", "CUT", "METHODS", "PRETRAINED"]
__all__ += ["ROTATED", "ROTATED_FIRST", "ROTATED_FOR_EACH", "ROTATED_FOR_LADDER", "ROTATIONS", "SEPARATE"]

# Nothing is trained; and one model is trained for each size of the ladder, cut before it is trained.
CUT, SEPARATE = "cut", "separate"

# What starts from an encoder that had SMAE before.
PRETRAINED = "SMAE, Starbucks"

# What starts from the rotated model.
ROTATED_FIRST = "rotated, distillation with labels"

# What is rotated after it was trained, by its new name: for all sizes, which is `rotate`'s default.
_LAST = [CUT, "full size", "Starbucks", "distillation", "distillation with labels", "Starbucks and distillation"]
ROTATED = {f"{name}, rotated": name for name in [*_LAST, ROTATED_FIRST]}

# The same for the ladder alone; and once for each size of the ladder, for that one alone.
ROTATED_FOR_LADDER = {f"{name}, rotated for the ladder": name for name in (CUT, ROTATED_FIRST)}
ROTATED_FOR_EACH = {f"{name}, rotated for each size": name for name in (CUT, ROTATED_FIRST)}
ROTATIONS = ROTATED | ROTATED_FOR_LADDER | ROTATED_FOR_EACH

# What this package recommends where there are labels.
BEST = f"{ROTATED_FIRST}, rotated"


def contrastive(model: SentenceTransformer) -> nn.Module:
    """In-batch negatives and the triplet's own, by cosine similarity, as in Starbucks' Table 5."""
    return MultipleNegativesRankingLoss(model)


def ladder_dims(model: SentenceTransformer) -> list[int]:
    """Widths of the ladder."""
    return [size.dim for size in sizes_ladder(model)]


def full_dims(model: SentenceTransformer) -> list[Size]:
    """The ladder's depths, each with all dimensions."""
    full = full_size(model)
    return [Size(size.num_layers, full.dim) for size in sizes_ladder(model)]


def with_labels(model: SentenceTransformer) -> nn.Module:
    """A frozen copy of the starting model teaches every size, and the labels the full size."""
    return RelationalDistillLoss(model, loss=contrastive(model))


def both(model: SentenceTransformer) -> nn.Module:
    """Starbucks with a frozen copy of the starting model as another teacher."""
    terms = [KLAlignment(temperature=0.3), RelationalDistill()]
    return MultiSizeLoss(model, contrastive(model), sizes=sizes_ladder(model), terms=terms)


Loss = Callable[[SentenceTransformer], nn.Module]

METHODS: dict[str, Loss | None] = {
    CUT: None,
    "full size": contrastive,
    SEPARATE: contrastive,
    "MRL": lambda model: MatryoshkaLoss(model, contrastive(model), ladder_dims(model)),
    "2DMSE": lambda model: TwoDMSELoss(model, contrastive(model)),
    "Espresso": lambda model: EspressoLoss(model, contrastive(model)),
    "Starbucks": lambda model: StarbucksLoss(model, contrastive(model)),
    PRETRAINED: lambda model: StarbucksLoss(model, contrastive(model)),
    "MIPIC": lambda model: MIPICLoss(model, contrastive(model)),
    "distillation": RelationalDistillLoss,
    "distillation with labels": with_labels,
    ROTATED_FIRST: with_labels,
    "Starbucks and distillation": both,
    **dict.fromkeys(ROTATIONS),
}

# 2DMSE's Table 2, Starbucks' Table 2, MIPIC's Tables 3 and 4.
ABLATIONS: dict[str, Loss | None] = {
    "2DMSE without alignment": lambda model: TwoDMSELoss(model, contrastive(model), weights=(1, 1, 1, 1, 0)),
    "2DMSE without last layer": lambda model: TwoDMSELoss(model, contrastive(model), weights=(0, 1, 1, 1, 1)),
    "Starbucks without KL": lambda model: StarbucksLoss(model, contrastive(model), kl_weight=0),
    "MIPIC without SIA": lambda model: MIPICLoss(model, contrastive(model), sia=False),
    "MIPIC without PIC": lambda model: MIPICLoss(model, contrastive(model), pic=False),
    "MIPIC, full dims in PIC": lambda model: MIPICLoss(model, contrastive(model), checkpoints=full_dims(model)),
}
