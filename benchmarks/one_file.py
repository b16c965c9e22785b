"""One small file: layers, vocabulary and 8 bits together, by bytes, score and milliseconds of a query on one core.

    python benchmarks/one_file.py --data DATA --stsb STSB --model FOLDER --cache CACHE --languages de en

STSB has the files `stsb-<language>-{train,test}.csv` of stsb-multi-mt, DATA the sets of `benchmarks/data.py`. Half of the
layers are healed on sentences for training of STS-B, real questions that are not asked, and documents; the vocabulary
is that of the sentences and of all documents. Documents are embedded by the whole model in float32. Each step is kept in
the cache, so a run continues where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from languages import table
from measure import DATA, markdown, model_name
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import OnnxEmbedder, export_onnx, heal, truncate
from st_matryoshka2d.exporting.onnx_embedder import GRAPH
from st_matryoshka2d.sizes import full_size

HEALED = {"sentences": 2000, "questions": 1500, "documents": 600}  # texts of a fit, of each language or set
DOCUMENTS = {"mlquestions": 4000, "scifact": 1000}  # in the index, the relevant ones among them
ASKED = 100  # queries that are timed


class Search:
    """A public search task: its relevant documents, and random others."""

    def __init__(self, whole: Remembering, data: Path, name: str) -> None:
        self.set = PublicSet(data, name)
        relevant = list(dict.fromkeys(place for places in self.set.relevant for place in places))
        others = np.random.default_rng(0).permutation(len(self.set.documents)).tolist()
        self.places = list(dict.fromkeys([*relevant, *others]))[: DOCUMENTS[name]]
        self.index: Rows = whole.encode_document([self.set.documents[place] for place in self.places])

    def score(self, encode: Callable[[list[str]], Rows]) -> float:
        """Return nDCG@10 (%)."""
        scores = np.full((len(self.set.queries), len(self.set.documents)), -np.inf)
        scores[:, self.places] = encode(self.set.queries) @ self.index.T
        return float(self.set.ndcg(scores).mean())


@dataclass(frozen=True)
class Pairs:
    """STS-B in a language."""

    folder: Path
    language: str

    def score(self, encode: Callable[[list[str]], Rows]) -> float:
        """Return Spearman's correlation of cosines with the scores (%)."""
        pairs = table(self.folder, self.language, "test")
        left, right = (encode(list(pairs[column])) for column in ("sentence1", "sentence2"))
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return 100 * float(spearmanr((left * right).sum(1) / norms, pairs["score"]).statistic)


def sentences(folder: Path, language: str) -> list[str]:
    """Return the sentences of STS-B for training, in random order: the file is sorted by kind."""
    pairs = table(folder, language, "train").sample(frac=1, random_state=0)
    return list(dict.fromkeys([*pairs["sentence1"], *pairs["sentence2"]]))


def texts_of_a_fit(everyday: dict[str, list[str]], sets: Iterable[PublicSet]) -> dict[str, list[str]]:
    """Return what `heal` reads: sentences and questions as queries, and documents."""
    queries = [text for of in everyday.values() for text in of[: HEALED["sentences"]]]
    documents: list[str] = []
    for each in sets:
        queries += each.questions[: HEALED["questions"]]
        share = HEALED["documents"] / len(dict.fromkeys(each.documents))
        documents += sorted(each.some(share), key=len)[: HEALED["documents"] // 2]  # the shorter half: time
    return {"query": queries, "document": documents}


def exported(folder: Path, make: Callable[[], SentenceTransformer], *, int8: bool) -> OnnxEmbedder:
    """Export a model, unless the cache has its graph."""
    if not (folder / GRAPH).exists():
        export_onnx(make(), folder, int8=int8)
    return OnnxEmbedder.load(folder, num_threads=1)


def milliseconds(ways: dict[str, OnnxEmbedder], queries: list[str]) -> dict[str, float]:
    """Return the median time of a query by each way, in turns, so that other programs meet all of them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for query in [queries[0], *queries[:ASKED]]:
        for name, embedder in ways.items():
            begun = time.perf_counter()
            embedder.encode_query(query)
            times[name].append(1000 * (time.perf_counter() - begun))
    return {name: float(np.median(of[1:])) for name, of in times.items()}


def main() -> None:
    """Make each file, score it, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--stsb", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of embeddings, cuts and graphs")
    parser.add_argument("--languages", nargs="+", default=["de", "en"])
    parser.add_argument("--layers", type=int, help="of the cut; by default half")
    parser.add_argument("--tokens", type=int, help="rows of the vocabulary, at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "one_file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = Remembering(options.model, options.cache)
    name, layers = model_name(options.model), options.layers or full_size(whole).num_layers // 2
    folder = options.cache / "one_file" / name
    searches = {set_: Search(whole, options.data, set_) for set_ in DOCUMENTS}
    sets: dict[str, Pairs | Search] = {**{each: Pairs(options.stsb, each) for each in options.languages}, **searches}
    everyday = {each: sentences(options.stsb, each) for each in options.languages}
    documents = [text for each in searches.values() for text in each.set.documents]

    def healed() -> SentenceTransformer:
        place = folder / f"{layers}L"
        if not (place / "modules.json").exists():
            fit = texts_of_a_fit(everyday, (each.set for each in searches.values()))
            heal(whole, fit, num_layers=layers, show_progress_bar=False).save_pretrained(str(place))
        return SentenceTransformer(str(place), device="cpu")

    def small() -> SentenceTransformer:
        words = {language: [*of, *documents] if language == "en" else of for language, of in everyday.items()}
        return truncate(healed(), vocabulary=words, max_tokens=options.tokens)

    made: dict[str, tuple[Callable[[], SentenceTransformer], bool]] = {
        "whole, float32": (lambda: SentenceTransformer(options.model, device="cpu"), False),
        "whole, int8": (lambda: SentenceTransformer(options.model, device="cpu"), True),
        f"{layers} layers, vocabulary, float32": (small, False),
        f"{layers} layers, vocabulary, int8": (small, True),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{name}.json"
    known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    ways: dict[str, OnnxEmbedder] = {}
    for way, (make, int8) in made.items():
        place = folder / way.replace(", ", "-").replace(" ", "")
        ways[way] = exported(place, make, int8=int8)
        row = known.setdefault(way, {"MB": (place / GRAPH).stat().st_size / 1e6})
        for set_, of in sets.items():
            if set_ not in row:
                row[set_] = of.score(ways[way].encode_query)
                file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(way, row, flush=True)
    for way, took in milliseconds(ways, searches["mlquestions"].set.queries).items():
        known[way]["ms"] = took
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    (options.out / f"{name}.md").write_text(written(name, known, list(sets)), encoding="utf-8")


def written(name: str, known: dict[str, dict[str, Any]], sets: list[str]) -> str:
    """Return the report."""
    rows = [["", "MB", *(TASKS.get(each, each) for each in sets), "ms of a query"]]
    for way, row in known.items():
        rows.append([way, f"{row['MB']:.1f}", *(f"{row[each]:.1f}" for each in sets), f"{row.get('ms', np.nan):.1f}"])
    about = (
        "MB of the graph; Spearman x 100 on STS-B by language; nDCG@10 of search, documents by the whole model in float32: "
        + ", ".join(f"{count:,} of {TASKS[each]}, the relevant ones and random others" for each, count in DOCUMENTS.items())
        + ". Milliseconds of one query on one core, in turns. Written by `benchmarks/one_file.py`."
    )
    return "\n".join([f"# {name} as one file", "", about, "", *markdown(rows), ""])


if __name__ == "__main__":
    main()
