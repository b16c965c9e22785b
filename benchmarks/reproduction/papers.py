"""What Starbucks prints, in percent: the mean of the seven STS sets."""

from __future__ import annotations

__all__ = ["STARBUCKS_BY_RUNG", "STARBUCKS_BY_SET"]

# Table 1: means over the ladder of BERT-base.
_SETS = ["stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr"]
_BY_SET = {
    "full size": (67.07, 55.25, 66.07, 60.36, 72.19, 69.02, 66.56),
    "separate": (78.72, 71.28, 77.42, 72.69, 80.75, 77.22, 77.02),
    "2DMSE": (76.29, 66.91, 72.82, 67.93, 78.83, 75.01, 75.84),
    "Starbucks": (79.06, 71.97, 77.42, 72.52, 81.26, 77.84, 77.66),
    "SMAE, Starbucks": (80.73, 72.86, 78.68, 75.58, 83.62, 79.48, 77.64),
}
STARBUCKS_BY_SET = {method: dict(zip(_SETS, scores, strict=True)) for method, scores in _BY_SET.items()}

# Table 4, column Average: 2 layers x 32, 4 x 64, 6 x 128, 8 x 256, 10 x 512, 12 x 768.
STARBUCKS_BY_RUNG = {
    "full size": (58.60, 58.21, 59.91, 62.77, 70.87, 80.95),
    "separate": (69.48, 73.26, 76.57, 78.94, 79.46, 80.95),
    "2DMSE": (68.41, 70.68, 71.87, 74.01, 75.68, 79.62),
    "Starbucks": (72.14, 74.66, 76.35, 78.33, 79.35, 80.10),
    "SMAE, Starbucks": (73.62, 77.64, 79.31, 79.81, 79.94, 79.91),
}
