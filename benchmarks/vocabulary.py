"""What a smaller vocabulary keeps of STS-B in several languages and of search: by its rows, and by its texts.

    python benchmarks/vocabulary.py --data DATA --stsb STSB --model FOLDER --cache CACHE --query "query: " --layers 6

STSB has the files `stsb-<language>-{train,test}.csv` of stsb-multi-mt, of which the sentences for
training make the vocabulary, and DATA the sets of `benchmarks/data.py`. The documents of a search
are embedded by the whole model. A text that is split as before is not embedded again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from measure import DATA, markdown, model_name
from public.remembering import Remembering
from public.sets import PublicSet, Rows
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from translations import table

from st_matryoshka2d import align, truncate
from st_matryoshka2d.sizes import megabytes
from st_matryoshka2d.vocabulary.choice import chosen, tokens_of
from st_matryoshka2d.vocabulary.rows import holders_of, tokenizer_of, vocabulary_of, with_rows
from st_matryoshka2d.vocabulary.shrink import Shrunk

ROWS = [20_000, 30_000, 40_000, 60_000]
LANGUAGES = [["de", "en"], ["de"], ["es"], ["en"], ["de", "en", "es", "fr", "it"]]  # the first by rows and texts
FEW = 2000  # texts of a language, for a vocabulary of few
ALIGNED = 12_000  # texts of an alignment, in equal parts of each language


class Embedded:
    """Texts with their embeddings by a model with its whole vocabulary, of which few are embedded again."""

    def __init__(self, model: SentenceTransformer, texts: Sequence[str], prompt: str, known: Rows | None = None) -> None:
        self.texts = [prompt + text for text in texts]
        (holder,) = holders_of(model)
        self.tokens = tokens_of(tokenizer_of(holder), self.texts, [""])
        found = model.encode(self.texts, prompt="", show_progress_bar=False) if known is None else known
        self.whole: Rows = np.asarray(found)

    def by(self, small: SentenceTransformer, made: Shrunk) -> tuple[Rows, float]:
        """Return the embeddings by a smaller vocabulary, and the share that is exact."""
        kept = np.zeros(1 + max(map(max, self.tokens)), dtype=bool)
        kept[[token for token in made.former if token < len(kept)]] = True
        others = [place for place, row in enumerate(self.tokens) if not kept[row].all()]
        rows = self.whole.copy()
        if others:
            rows[others] = small.encode([self.texts[place] for place in others], prompt="", show_progress_bar=False)
        return rows, 1 - len(others) / len(rows)


class Pairs:
    """STS-B in a language."""

    def __init__(self, model: SentenceTransformer, folder: Path, language: str, prompt: str) -> None:
        pairs = table(folder, language, "test")
        self.scores = pairs["score"]
        self.embedded = Embedded(model, [*pairs["sentence1"], *pairs["sentence2"]], prompt)

    def score(self, rows: Rows) -> float:
        """Return Spearman's correlation of cosines with the scores (%)."""
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        left, right = np.split(unit, 2)
        return 100 * float(spearmanr((left * right).sum(1), self.scores).statistic)


class Search:
    """A public search task, whose documents the whole model has embedded."""

    def __init__(self, model: SentenceTransformer, whole: Remembering, data: Path, name: str, prompt: str) -> None:
        self.set = PublicSet(data, name)
        self.index: Rows = whole.encode_document(self.set.documents)
        known = whole.encode_query(self.set.queries) if model is whole else None
        self.embedded = Embedded(model, self.set.queries, prompt, known)

    def score(self, rows: Rows) -> float:
        """Return nDCG@10 (%)."""
        return float(self.set.ndcg(rows @ self.index.T).mean())


def small(
    model: SentenceTransformer, texts: Mapping[str, Sequence[str]], prompt: str, most: int | None
) -> tuple[SentenceTransformer, Shrunk]:
    """Return the model with the vocabulary of texts, as `truncate` makes it, but without measuring it."""
    (holder,) = holders_of(model)
    vocabulary, tokenizer = vocabulary_of(holder), tokenizer_of(holder)
    tokens = {language: tokens_of(tokenizer, of, ["", prompt]) for language, of in texts.items()}
    made = vocabulary.shrunk(chosen(vocabulary, tokens, [], most))
    return with_rows(model, {holder: made}), made


def main() -> None:
    """Cut the vocabulary for several languages, by rows and by texts, and write what each keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--stsb", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of embeddings by the whole model")
    parser.add_argument("--query", default="")
    parser.add_argument("--layers", type=int, help="of an aligned cut; by default the whole model")
    parser.add_argument("--languages", nargs="*", action="append", help="of one vocabulary, such as de en; repeat it")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--search", nargs="*", default=["mlquestions"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "vocabulary")
    options = parser.parse_args()
    whole = Remembering(options.model, options.cache)
    train = {
        language: random.Random(0).sample(texts, len(texts))  # the files are sorted by kind
        for language in sorted({each for group in options.languages or LANGUAGES for each in group})
        for pairs in [table(options.stsb, language, "train")]
        for texts in [[*dict.fromkeys([*pairs["sentence1"], *pairs["sentence2"]])]]
    }
    model: SentenceTransformer = whole
    if options.layers:
        mixed = [options.query + text for of in train.values() for text in of[: ALIGNED // len(train)]]
        aligned = align(SentenceTransformer(options.model, device="cpu"), mixed, rotation="keep")
        model = truncate(aligned, num_layers=options.layers)
    sets: dict[str, Pairs | Search] = {
        **{language: Pairs(model, options.stsb, language, options.query) for language in train},
        **{name: Search(model, whole, options.data, name, options.query) for name in options.search},
    }
    documents = {name: set_.set.documents for name, set_ in sets.items() if isinstance(set_, Search)}
    rows = [["vocabulary of", "rows", "MB", *(name for set_ in sets for name in (set_, "exact"))]]
    of_whole = [f"{set_.score(set_.embedded.whole):.1f}" for set_ in sets.values()]
    rows.append(["whole", *_sizes(model), *(cell for score in of_whole for cell in (score, ""))])
    first, *others = options.languages or LANGUAGES
    texts = {language: train[language] for language in first}
    few = {language: of[:FEW] for language, of in texts.items()}
    ways: list[tuple[str, list[str], Mapping[str, Sequence[str]], int | None]] = [("", first, texts, None)]
    ways += [(f", {most:,} rows", first, texts, most) for most in options.rows]
    ways.append((f", {FEW:,} texts each", first, few, None))
    ways += [("", group, {language: train[language] for language in group}, None) for group in others]
    ways += [("", [name], {name: of}, None) for name, of in documents.items()]
    for added, group, some, most in ways:
        rows.append(_row(", ".join(group) + added, model, some, options.query, most, sets, group))
        print(" | ".join(rows[-1]), flush=True)
    named = f"{model_name(options.model)}-{options.layers}L" if options.layers else model_name(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    counts = ", ".join(f"{language} {len(of):,}" for language, of in train.items())
    head = f"# Vocabularies of {named}\n\nSpearman x 100 on STS-B, nDCG@10 in search; MB in float32 and float16."
    head += f" Texts: {counts}."
    (options.out / f"{named}.md").write_text("\n".join([head, "", *markdown(rows), ""]), encoding="utf-8")


def _row(
    name: str,
    model: SentenceTransformer,
    texts: Mapping[str, Sequence[str]],
    prompt: str,
    most: int | None,
    sets: Mapping[str, Pairs | Search],
    group: Sequence[str],
) -> list[str]:
    """Score a vocabulary on the sets of its languages, and on searches in English."""
    cut, made = small(model, texts, prompt, most)
    cells = []
    for set_name, set_ in sets.items():
        if set_name in group or (isinstance(set_, Search) and "en" in group):
            found, exact = set_.embedded.by(cut, made)
            cells += [f"{set_.score(found):.1f}", f"{exact:.1%}"]
        else:
            cells += ["", ""]
    return [name, *_sizes(cut), *cells]


def _sizes(model: SentenceTransformer) -> list[str]:
    size = megabytes(model.parameters())
    return [f"{holders_of(model)[0].model.config.vocab_size:,}", f"{size:.0f}, {size / 2:.0f}"]


if __name__ == "__main__":
    main()
