"""Scores that the papers report, in percent, for comparison. Their backbone is BERT-base, 12 x 768."""

from __future__ import annotations

__all__ = ["ABLATIONS_BY_SIZE", "STARBUCKS_BY_RUNG", "STARBUCKS_BY_SET", "STARBUCKS_MRR"]

# Starbucks, Table 1: means over its ladder. Its separate models have fewer layers and train all
# dims (`train_baseline.py`).
_SETS = ["stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr"]
_BY_SET = {
    "full size": (67.07, 55.25, 66.07, 60.36, 72.19, 69.02, 66.56),
    "separate, all dims trained": (78.72, 71.28, 77.42, 72.69, 80.75, 77.22, 77.02),
    "2DMSE": (76.29, 66.91, 72.82, 67.93, 78.83, 75.01, 75.84),
    "Starbucks": (79.06, 71.97, 77.42, 72.52, 81.26, 77.84, 77.66),
    "SMAE, Starbucks": (80.73, 72.86, 78.68, 75.58, 83.62, 79.48, 77.64),
}
STARBUCKS_BY_SET = {method: dict(zip(_SETS, scores, strict=True)) for method, scores in _BY_SET.items()}

# Starbucks, Table 4, column Average: 2 layers x 32, 4 x 64, 6 x 128, 8 x 256, 10 x 512, 12 x 768.
STARBUCKS_BY_RUNG = {
    "full size": (58.60, 58.21, 59.91, 62.77, 70.87, 80.95),
    "separate, all dims trained": (69.48, 73.26, 76.57, 78.94, 79.46, 80.95),
    "2DMSE": (68.41, 70.68, 71.87, 74.01, 75.68, 79.62),
    "Starbucks": (72.14, 74.66, 76.35, 78.33, 79.35, 80.10),
    "SMAE, Starbucks": (73.62, 77.64, 79.31, 79.81, 79.94, 79.91),
}

# The same table, MRR@10 on the dev set of MS MARCO, on which these models were trained.
STARBUCKS_MRR = {
    "full size": (0.01, 0.00, 0.00, 0.09, 0.00, 33.41),
    "separate, all dims trained": (20.92, 26.92, 29.35, 31.60, 32.79, 33.41),
    "2DMSE": (15.89, 22.66, 25.32, 27.70, 30.22, 31.85),
    "Starbucks": (21.47, 27.22, 29.83, 31.59, 32.49, 32.66),
    "SMAE, Starbucks": (22.82, 29.50, 32.74, 33.69, 34.16, 34.03),
}

# Effect of removing a component, in points: 2DMSE's Table 2 (mean of the STS sets), Starbucks'
# Table 2 (STS-B), MIPIC's Tables 3 and 4 (STS12, last layer, 16 to 256 dimensions and all). For the
# first two, sizes correspond to the paper's sizes by their place on the ladder, or by their share
# of depth and width. `notes.md` quotes the rows without such a size.
_LADDER = ("1L-16d", "2L-32d", "3L-64d", "4L-128d", "5L-256d", "6L-384d")
_WIDTHS = ("6L-16d", "6L-32d", "6L-64d", "6L-128d", "6L-256d", "6L-384d")
ABLATIONS_BY_SIZE = {
    "2DMSE without alignment": {"2L-128d": -0.24, "4L-256d": -0.08, "6L-384d": -0.08},
    "2DMSE without last layer": {"2L-128d": -0.93, "4L-256d": -1.50, "6L-384d": -1.34},
    "Starbucks without KL": dict(zip(_LADDER, (0.08, -0.08, -0.12, -0.04, -0.09, -0.05), strict=True)),
    "MIPIC without SIA": dict(zip(_WIDTHS, (-1.96, -2.48, -1.06, -0.98, -0.21, -0.52), strict=True)),
    "MIPIC without PIC": dict(zip(_WIDTHS, (-0.81, -0.97, -0.34, -0.60, -0.11, -0.11), strict=True)),
    "MIPIC, full dims in PIC": dict(zip(_WIDTHS, (-0.10, -1.75, -1.11, -0.20, -0.56, -0.08), strict=True)),
}
