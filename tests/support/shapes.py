"""Check the shapes that annotations state while tests run: `pytest -p tests.support.shapes`, with beartype installed."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path

import jaxtyping
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

# What modules import for annotations alone, so that a user needs no jaxtyping.
NAMES = {"Float": jaxtyping.Float, "Int": jaxtyping.Int, "Bool": jaxtyping.Bool}
NAMES |= {"Tensor": Tensor, "nn": nn, "SentenceTransformer": SentenceTransformer}

package = Path(__file__).resolve().parents[2] / "st_matryoshka2d"
stated = [file for file in sorted(package.rglob("*.py")) if "from jaxtyping import" in file.read_text(encoding="utf-8")]
modules = [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in stated]

vars(builtins).update(NAMES)
with jaxtyping.install_import_hook(modules, "beartype.beartype"):
    for module in modules:
        importlib.import_module(module)
