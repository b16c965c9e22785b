"""One small file: layers, vocabulary and 8 bits together, by bytes, score and milliseconds of a query on one core.

    python benchmarks/one_file.py --data DATA --stsb STSB --model FOLDER --cache CACHE --languages de en

STSB has the files `stsb-<language>-{train,test}.csv` of stsb-multi-mt, DATA the sets of `benchmarks/data.py`. Half of the
layers are healed, or aligned, on sentences for training of STS-B, real questions that are not asked, and documents; the
vocabulary is that of the sentences and of all documents. Documents are embedded by the whole model in float32;
`--documents` leaves out some that are not relevant. Each step is kept in the cache, so a run
continues where it stopped. What a token table keeps in how many bytes is in `small_tables.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import DATA, markdown, model_name
from public.remembering import Remembering
from public.sets import TASKS, PublicSet, Rows
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from translations import table

from st_matryoshka2d import OnnxEmbedder, align, export_onnx, heal, truncate
from st_matryoshka2d.exporting.onnx_embedder import GRAPH
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.sizes import full_size

FIT = {"sentences": 1000, "questions": 800, "documents": 150}  # texts of a fit, of each language or set
PAIRS = 690  # of STS-B
ASKED = 100  # queries that are timed
_CHUNK = 128  # documents that an interruption loses at most


class Search:
    """A public search task, and its documents by the whole model."""

    def __init__(self, whole: Remembering, data: Path, name: str, most: int | None) -> None:
        self.set = PublicSet(data, name, most)
        documents = sorted(self.set.documents, key=len)
        for start in range(0, len(documents), _CHUNK):
            whole.encode_document(documents[start : start + _CHUNK])
        self.index: Rows = whole.encode_document(self.set.documents)

    def score(self, encode: Callable[[list[str]], Rows]) -> float:
        """Return nDCG@10 (%)."""
        return float(self.set.ndcg(encode(self.set.queries) @ self.index.T).mean())


@dataclass(frozen=True)
class Pairs:
    """STS-B in a language."""

    folder: Path
    language: str

    def score(self, encode: Callable[[list[str]], Rows]) -> float:
        """Return Spearman's correlation of cosines with the scores (%)."""
        pairs = table(self.folder, self.language, "test").sample(PAIRS, random_state=0)
        left, right = (encode(list(pairs[column])) for column in ("sentence1", "sentence2"))
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return 100 * float(spearmanr((left * right).sum(1) / norms, pairs["score"]).statistic)


def sentences(folder: Path, language: str) -> list[str]:
    """Return the sentences of STS-B for training, in random order: the file is sorted by kind."""
    pairs = table(folder, language, "train").sample(frac=1, random_state=0)
    return list(dict.fromkeys([*pairs["sentence1"], *pairs["sentence2"]]))


@dataclass(frozen=True)
class Files:
    """The files of a model, each made once and kept in a folder."""

    whole: Remembering
    model: str
    folder: Path
    everyday: dict[str, list[str]]
    searches: dict[str, Search]
    layers: int
    tokens: int | None
    by: str

    def graph(self, name: str, make: Callable[[], SentenceTransformer], *, int8: bool) -> tuple[OnnxEmbedder, Path]:
        """Return an exported model and its file."""
        place = self.folder / name
        if not (place / GRAPH).exists():
            export_onnx(make(), place, int8=int8)
        return OnnxEmbedder.load(place, num_threads=1), place / GRAPH

    def all(self) -> SentenceTransformer:
        """Return the model as it is."""
        return SentenceTransformer(self.model, device="cpu")

    def small(self) -> SentenceTransformer:
        """Return the layers that stay, fitted, with the words of the sentences and of all documents."""
        place = self.folder / f"{self.layers}L-{self.by}"
        if not (place / "modules.json").exists():
            fit = self._fit()
            if self.by == "heal":
                cut = heal(self.whole, fit, num_layers=self.layers, show_progress_bar=False)
            else:
                cut = truncate(align(self.whole, fit, rotation="keep", show_progress_bar=False), num_layers=self.layers)
            cut.save_pretrained(str(place))
        documents = [text for each in self.searches.values() for text in each.set.documents]
        words = {language: [*of, *documents] if language == "en" else of for language, of in self.everyday.items()}
        return truncate(SentenceTransformer(str(place), device="cpu"), vocabulary=words, max_tokens=self.tokens)

    def _fit(self) -> dict[str, list[str]]:
        """Return what the fit reads: sentences and questions as queries, and documents."""
        drawn = [text for of in self.everyday.values() for text in of[: FIT["sentences"]]]
        sets = [each.set for each in self.searches.values()]
        documents = [each.some(FIT["documents"] / len(dict.fromkeys(each.documents))) for each in sets]
        return {"query": [*drawn, *self._questions()], "document": [text for of in documents for text in of]}

    def _questions(self) -> list[str]:
        return [text for each in self.searches.values() for text in each.set.questions[: FIT["questions"]]]


def keep(file: Path, known: Mapping[str, Mapping[str, float]]) -> None:
    """Write what is known, whole or not at all."""
    text = json.dumps(known, indent=1) + "\n"
    replace_file(file, lambda part: part.write_text(text, encoding="utf-8"))


def milliseconds(ways: Mapping[str, OnnxEmbedder], queries: list[str]) -> dict[str, float]:
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
    parser.add_argument("--by", choices=["heal", "align"], default="heal", help="what fits the layers that stay")
    parser.add_argument("--tokens", type=int, help="rows of the vocabulary, at most")
    parser.add_argument("--documents", type=int, nargs=len(TASKS), default=[None] * len(TASKS), help=", ".join(TASKS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "one_file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = Remembering(options.model, options.cache)
    name, layers = model_name(options.model), options.layers or full_size(whole).num_layers // 2
    limits = zip(TASKS, options.documents, strict=True)
    searches = {set_: Search(whole, options.data, set_, most) for set_, most in limits}
    sets: dict[str, Pairs | Search] = {**{each: Pairs(options.stsb, each) for each in options.languages}, **searches}
    everyday = {each: sentences(options.stsb, each) for each in options.languages}
    folder = options.cache / "one_file" / name
    files = Files(whole, options.model, folder, everyday, searches, layers, options.tokens, options.by)
    cut = f"{layers} layers ({options.by}), vocabulary"
    made: dict[str, Callable[[], tuple[OnnxEmbedder, Path]]] = {
        "whole, float32": partial(files.graph, "whole-float32", files.all, int8=False),
        "whole, int8": partial(files.graph, "whole-int8", files.all, int8=True),
        f"{cut}, int8": partial(files.graph, f"{layers}L-{options.by}-int8", files.small, int8=True),
        f"{cut}, float32": partial(files.graph, f"{layers}L-{options.by}-float32", files.small, int8=False),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{name}.json"
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    ways: dict[str, OnnxEmbedder] = {}
    for way, make in made.items():
        ways[way], size = make()
        row = known.setdefault(way, {"MB": size.stat().st_size / 1e6})
        for set_, of in sets.items():
            if set_ not in row:
                row[set_] = of.score(ways[way].encode_query)
                keep(file, known)
        print(way, row, flush=True)
        (options.out / f"{name}.md").write_text(written(name, known, sets), encoding="utf-8")
    for way, took in milliseconds(ways, searches["mlquestions"].set.queries).items():
        known[way]["ms"] = took
    keep(file, known)
    (options.out / f"{name}.md").write_text(written(name, known, sets), encoding="utf-8")


def written(name: str, known: Mapping[str, Mapping[str, float]], sets: Mapping[str, Pairs | Search]) -> str:
    """Return the report."""
    rows = [["", "MB", *(TASKS.get(each, each) for each in sets), "ms of a query"]]
    for way, row in known.items():
        rows.append([way, f"{row['MB']:.1f}", *(f"{row[each]:.1f}" if each in row else "" for each in [*sets, "ms"])])
    searched = [f"{len(of.set.documents):,} of {TASKS[each]}" for each, of in sets.items() if isinstance(of, Search)]
    about = (
        f"MB of the graph; Spearman x 100 on {PAIRS} pairs of STS-B by language; nDCG@10 of search, documents "
        f"by the whole model in float32: {', '.join(searched)}, the relevant ones among them. Milliseconds of a query on "
        "one core, in turns. Written by `benchmarks/one_file.py`."
    )
    return "\n".join([f"# {name} as one file", "", about, "", *markdown(rows), ""])


if __name__ == "__main__":
    main()
