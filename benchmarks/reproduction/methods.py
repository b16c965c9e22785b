"""The methods to compare. All but one wrap the same contrastive loss and train on the same triplets."""

from __future__ import annotations

from collections.abc import Callable

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from torch import nn

from reproduction.angle import AnglEObjective
from st_matryoshka2d import Size, sizes_ladder
from st_matryoshka2d.aligning.rotation import Rotation
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

__all__ = [
    "ABLATIONS",
    "ALIGNED",
    "ALIGNED_FIRST",
    "ALL_DIMS",
    "BEST",
    "BY_SIZE",
    "CUT",
    "FOR_LADDER",
    "LABELLED",
    "METHODS",
    "PRETRAINED",
    "ROTATED",
    "SEPARATE",
    "SIMCSE",
    "UNALIGNED_ENDS",
]

# No training: the first layers of a model as it is, or its first and last ones.
CUT, UNALIGNED_ENDS = "cut", "first and last layers"

# One model per size of the ladder, cut before training. The second way trains all dims of each, as
# a plain loss does.
BY_SIZE = SEPARATE, ALL_DIMS = "separate", "separate, all dims trained"

# Trained on labelled pairs instead of triplets, with the loss that the authors of 2DMSE wrap.
LABELLED = "2DMSE, AnglE"

# Starts from an encoder pre-trained with SMAE.
PRETRAINED = "SMAE, Starbucks"

# Starts from the aligned model.
ALIGNED_FIRST = "aligned, distillation with labels"

# Methods with alignment after training: name -> name of the trained method.
ALIGNED = {f"{name}, aligned": name for name in (CUT, "full size", "Starbucks", "distillation", ALIGNED_FIRST)}

# With the first coordinates that suit a use best: name -> `rotation`. An index of the model is void.
ROTATED: dict[str, Rotation] = {f"{CUT}, aligned for {use}": use for use in ("similarity", "search")}
ALIGNED |= dict.fromkeys(ROTATED, CUT)

# The package's recommendation for labelled data.
BEST = f"{ALIGNED_FIRST}, aligned"

# The same with five times the texts in the last alignment, which also refines the sizes of the
# ladder.
FOR_LADDER = {f"{name} for the ladder": ALIGNED[name] for name in (f"{CUT}, aligned", BEST)}


def contrastive(model: SentenceTransformer) -> nn.Module:
    """Contrastive loss with in-batch and triplet negatives by cosine similarity, as in Starbucks' Table 5."""
    return MultipleNegativesRankingLoss(model)


def at_its_size(model: SentenceTransformer) -> nn.Module:
    """Train a cut at its own dims; the contrastive loss alone would train all of them."""
    return MultiSizeLoss(model, contrastive(model), [full_size(model)])


def ladder_dims(model: SentenceTransformer) -> list[int]:
    """Return the widths of the ladder."""
    return [size.dim for size in sizes_ladder(model)]


def full_dims(model: SentenceTransformer) -> list[Size]:
    """Return the depths of the ladder, each at the full width."""
    full = full_size(model)
    return [Size(size.num_layers, full.dim) for size in sizes_ladder(model)]


def with_labels(model: SentenceTransformer) -> nn.Module:
    """Distil a frozen copy of the starting model into every size, and train the full size on the labels."""
    return RelationalDistillLoss(model, loss=contrastive(model))


def both(model: SentenceTransformer) -> nn.Module:
    """Starbucks with a frozen copy of the starting model as a second teacher."""
    terms = [KLAlignment(temperature=0.3), RelationalDistill()]
    return MultiSizeLoss(model, contrastive(model), sizes=sizes_ladder(model), terms=terms)


Loss = Callable[[SentenceTransformer], nn.Module]

METHODS: dict[str, Loss | None] = {
    CUT: None,
    UNALIGNED_ENDS: None,
    "full size": contrastive,
    SEPARATE: at_its_size,
    ALL_DIMS: contrastive,
    "MRL": lambda model: MatryoshkaLoss(model, contrastive(model), ladder_dims(model)),
    "2DMSE": lambda model: TwoDMSELoss(model, contrastive(model)),
    LABELLED: lambda model: TwoDMSELoss(model, AnglEObjective(model)),
    "Espresso": lambda model: EspressoLoss(model, contrastive(model)),
    "Starbucks": lambda model: StarbucksLoss(model, contrastive(model)),
    PRETRAINED: lambda model: StarbucksLoss(model, contrastive(model)),
    "MIPIC": lambda model: MIPICLoss(model, contrastive(model)),
    "distillation": RelationalDistillLoss,
    "distillation with labels": with_labels,
    ALIGNED_FIRST: with_labels,  # uses the readouts, with `across`
    "Starbucks and distillation": both,
    **dict.fromkeys(ALIGNED),
}

# MIPIC's Tables 1 and 2. Each text is its own positive: dropout makes two embeddings of it.
SIMCSE: dict[str, Loss | None] = {
    "SimCSE": contrastive,
    **{f"{name}, SimCSE": METHODS[name] for name in ("MRL", "Espresso", "MIPIC")},
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
