"""What questions have that documents lack: the share that keeps all its tokens, by the texts of a vocabulary.

    python benchmarks/questions.py --xquad XQUAD --stsb STSB --model FOLDER

XQUAD has the files `xquad.<language>.json` of google-deepmind/xquad, STSB those of stsb-multi-mt.
The questions of every second passage are asked; those of the others may be among the texts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measure import markdown, model_name
from tokenizers import Tokenizer
from translations import table

from st_matryoshka2d.vocabulary.choice import chosen, tokens_of
from st_matryoshka2d.vocabulary.shrink import Vocabulary

LANGUAGES = ["de", "es", "en"]
FEW = 100  # questions
NAMED = 12  # tokens that most questions lack


def passages(folder: Path, language: str) -> list[tuple[str, list[str]]]:
    """Read passages with their questions."""
    read = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    found = [passage for article in read for passage in article["paragraphs"]]
    return [(passage["context"], [asked["question"] for asked in passage["qas"]]) for passage in found]


def texts_of(xquad: Path, stsb: Path, language: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the texts of each vocabulary, and the questions that are asked."""
    read = passages(xquad, language)
    documents = [text for text, _ in read]
    known, asked = ([question for _, of in read[start::2] for question in of] for start in (0, 1))
    pairs = table(stsb, language, "train")
    everyday = [*dict.fromkeys([*pairs["sentence1"], *pairs["sentence2"]])]
    ways = {
        f"{len(documents)} passages": documents,
        f"and {FEW} questions": [*documents, *known[:FEW]],
        f"and {len(known)} questions": [*documents, *known],
        "and everyday sentences": [*documents, *everyday],
        f"and {FEW} questions, everyday sentences": [*documents, *everyday, *known[:FEW]],
    }
    return ways, asked


def row(vocabulary: Vocabulary, tokenizer: Tokenizer, texts: Sequence[str], asked: Sequence[str]) -> tuple[str, str, str]:
    """Return the rows, the share of questions that is exact, and the tokens that most others lack."""
    made = vocabulary.shrunk(chosen(vocabulary, {"": tokens_of(tokenizer, texts, [""])}, [], None))
    kept = {*made.former}
    tokens = [of.tolist() for of in tokens_of(tokenizer, asked, [""])]
    lacked = Counter(token for of in tokens for token in of if token not in kept)
    exact = np.mean([kept.issuperset(of) for of in tokens])
    named = ", ".join(f"`{vocabulary.names[token]}` {count}" for token, count in lacked.most_common(NAMED))
    return f"{len(made.former):,}", f"{exact:.1%}", named


def main() -> None:
    """Cut the vocabulary by the texts of each language, count what questions lack, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xquad", type=Path, required=True)
    parser.add_argument("--stsb", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "vocabulary")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    vocabulary = Vocabulary(tokenizer)
    shares: dict[str, list[str]] = {}
    lacked = [["questions", "vocabulary of", "tokens that most lack"]]
    for language in LANGUAGES:
        ways, asked = texts_of(options.xquad, options.stsb, language)
        for name, texts in ways.items():
            rows, exact, named = row(vocabulary, tokenizer, texts, asked)
            shares.setdefault(name, []).extend([rows, exact])
            lacked.append([language, name, named])
            print(language, name, rows, exact, named, sep=" | ", flush=True)
    head = ["vocabulary of", *(cell for language in LANGUAGES for cell in (f"rows, {language}", language))]
    table_of = markdown([head, *([name, *cells] for name, cells in shares.items())])
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"# What questions have that documents lack, by the tokens of {model_name(str(options.model))}"
    asked_of = f"Share of {len(asked)} questions of each language that keep all their tokens."
    lines = [title, "", asked_of, "", *table_of, "", "## Tokens", "", *markdown(lacked), ""]
    (options.out / "questions.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
