"""Make the folder of data that the other benchmarks read, from public data sets.

    python benchmarks/data.py                                     # into data/, where the others look
    python benchmarks/data.py --sets nli stsb --out OTHER         # a part of it, elsewhere
    python benchmarks/data.py --archives FOLDER                   # also Cranfield, CISI and CACM
    python benchmarks/data.py --sources OTHER/sources.json        # at the revisions of another folder

White space is collapsed and text put in Unicode NFC. From training texts, rows go that share a
sentence with an STS test or development set. `sources.json` in the folder has the revision of each
repository, the rows of each file, what is not the set that the published figures were measured on,
and what could not be had. A later run keeps these revisions.

Cranfield, CISI and CACM are on the Hub only as loading scripts, or not at all. `--archives` names a
folder with the files of their archives, which the University of Glasgow gives out with its IR test
collections (ir.dcs.gla.ac.uk/resources): cran.all.1400, cran.qry, cranqrel, CISI.ALL, CISI.QRY,
CISI.REL, cacm.all, query.text, qrels.text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from measure import DATA
from raw import pairs, search
from raw.hub import Hub
from raw.pairs import Tables

_NAMES = {"id", "query_id", "corpus_id"}
_TRAINING = ("nli/", "pairs/")


@dataclass(frozen=True)
class Recipe:
    """How a set is made: its maker, the rows that its files must have, and how it differs from the measured one."""

    make: Callable[[Hub], Tables]
    rows: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    differs: str = ""


_TREC = "lucadiliello/trecqa"
_PARTS = ("corpus", "queries", "qrels", "questions")
_YEARS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}
_TWEETS = "cardiffnlp/tweet_eval"
_JUDGED: list[tuple[str, dict[str, Any], int]] = [
    ("mrpc/test", {"repository": "nyu-mll/glue", "config": "mrpc", "split": "test"}, 1725),
    ("rte/dev", {"repository": "nyu-mll/glue", "config": "rte", "split": "validation"}, 277),
    ("scitail/test", {"repository": "allenai/scitail", "config": "tsv_format", "split": "test"}, 2126),
    ("wic/val", {"repository": "aps/super_glue", "config": "wic", "split": "validation"}, 638),
]

RECIPES: dict[str, Recipe] = {
    **{name: Recipe(partial(pairs.sts, name=name), {f"sts/{name}/test": rows}) for name, rows in _YEARS.items()},
    "stsb": Recipe(pairs.stsb, {"sts/stsb/train": 5749, "sts/stsb/dev": 1500, "sts/stsb/test": 1379}),
    "sickr": Recipe(
        pairs.sick,
        {"sts/sickr/trial": 500, "sts/sickr/test": 9427},
        "All of SICK, in one split on the Hub: 500 pairs drawn at random for trial, not SICK's own parts",
    ),
    "nli": Recipe(
        pairs.nli,
        {"nli/triplets_train": 557_850, "nli/triplets_dev": 6584, "nli/pairs_train": 942_069, "nli/pairs_dev": 19_657},
        "All of SNLI and MultiNLI instead of 49,052 triplets of several smaller sets",
    ),
    "captions": Recipe(
        pairs.captions, {"pairs/captions_train": (150_000, 170_000)}, "Flickr30k instead of its part in Multi30k"
    ),
    "wikisplit": Recipe(
        pairs.simplified, {"pairs/wikisplit_train": (90_000, 110_000)}, "Simple Wikipedia: WikiSplit is a loading script"
    ),
    "books": Recipe(pairs.prose, {"text/books_train": (100_000, 160_000)}, "Paragraphs of WikiText-103 instead of novels"),
    "banking77": Recipe(
        partial(pairs.classes, name="banking77", repository="mteb/banking77"),
        {"classification/banking77/train": 10_003, "classification/banking77/test": 3080},
    ),
    "emotion": Recipe(
        partial(pairs.classes, name="emotion", repository="mteb/emotion"),
        {"classification/emotion/train": 16_000, "classification/emotion/val": 2000, "classification/emotion/test": 2000},
    ),
    "tweeteval_emotion": Recipe(
        partial(pairs.classes, name="tweeteval_emotion", repository=_TWEETS, config="emotion"),
        {"classification/tweeteval_emotion/train": 3257, "classification/tweeteval_emotion/test": 1421},
    ),
    "tweeteval_sentiment": Recipe(
        partial(pairs.classes, name="tweeteval_sentiment", repository=_TWEETS, config="sentiment"),
        {"classification/tweeteval_sentiment/val": 2000, "classification/tweeteval_sentiment/test": 12_284},
    ),
    **{
        part.split("/")[0]: Recipe(partial(pairs.judged, part=part, **source), {f"pair_classification/{part}": rows})
        for part, source, rows in _JUDGED
    },
    "wikiqa_train": Recipe(
        partial(pairs.questions, name="wikiqa", repository="microsoft/wiki_qa"), {"pairs/wikiqa_train": (1000, 1040)}
    ),
    "trecqa_train": Recipe(partial(pairs.questions, name="trecqa", repository=_TREC), {"pairs/trecqa_train": (300, 7000)}),
    "wikiqa_test": Recipe(
        partial(search.answers, name="wikiqa_test", repository="microsoft/wiki_qa"),
        {"retrieval/wikiqa_test/queries": 633, "retrieval/wikiqa_test/qrels": (6100, 6165)},
    ),
    "trecqa_test": Recipe(
        partial(search.answers, name="trecqa_test", repository=_TREC),
        {"retrieval/trecqa_test/queries": (68, 95), "retrieval/trecqa_test/qrels": (1400, 1517)},
    ),
    "msmarco_trecdl_subset": Recipe(
        partial(search.mteb_search, name="msmarco_trecdl_subset", repository="mteb/MSMARCO_test_top_250_only_w_correct-v2"),
        {"retrieval/msmarco_trecdl_subset/corpus": 8812, "retrieval/msmarco_trecdl_subset/queries": 43},
        "mteb's 8,812 passages for TREC-DL 2019 instead of 5,000",
    ),
    "scifact": Recipe(
        search.claims, {f"retrieval/scifact/{part}": rows for part, rows in zip(_PARTS, (5183, 300, 339, 809), strict=True)}
    ),
    "mlquestions": Recipe(
        search.ml_questions,
        {f"retrieval/mlquestions/{part}": rows for part, rows in zip(_PARTS, (11_000, 1500, 1500, 35_364), strict=True)},
    ),
}
_COLLECTIONS = {
    "cranfield": {"corpus": 1400, "queries": 225, "qrels": 1837},
    "cisi": {"corpus": 1460, "queries": 112, "qrels": 3114},
    "cacm": {"corpus": 3204, "queries": 64, "qrels": 796},
}


def recipes(archives: Path | None) -> dict[str, Recipe]:
    """All recipes; those of the old collections read a folder."""

    def read(hub: Hub, name: str) -> Tables:
        if archives is None:
            raise ValueError(f"not on the Hub as data: give --archives a folder with {', '.join(search.FILES[name])}")
        return search.collection(archives, name)

    rows = {name: {f"retrieval/{name}/{part}": n for part, n in parts.items()} for name, parts in _COLLECTIONS.items()}
    return RECIPES | {name: Recipe(partial(read, name=name), rows[name]) for name in _COLLECTIONS}


def normalised(table: pd.DataFrame) -> pd.DataFrame:
    """Collapse white space and compose characters in all texts."""
    texts = [str(name) for name in table if name not in _NAMES and pd.api.types.is_string_dtype(table[name])]
    clean = {name: [" ".join(unicodedata.normalize("NFC", text).split()) for text in table[name]] for name in texts}
    return table.assign(**clean).reset_index(drop=True)


def wrong_rows(tables: Tables, recipe: Recipe) -> list[str]:
    """Describe the files whose number of rows is not the expected one."""
    found = []
    for path, wanted in recipe.rows.items():
        least, most = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        if not least <= len(tables[path]) <= most:
            found.append(f"{path} has {len(tables[path]):,} rows, {least:,}{f' to {most:,}' * (most > least)} expected")
    return found


def without_test_sentences(table: pd.DataFrame, seen: set[str]) -> pd.DataFrame:
    """Drop the rows with a sentence that equals one of `seen`, as `plain` writes them."""
    texts = [name for name in ("anchor", "positive", "negative", "premise", "hypothesis") if name in table]
    known = pd.concat([table[name].map(plain).isin(seen) for name in texts], axis=1).any(axis=1)
    return table[~known].reset_index(drop=True)


def plain(text: str) -> str:
    """A text without case and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def evaluated(folder: Path) -> set[str]:
    """All sentences of the STS sets in the folder, but those of train parts."""
    files = [file for file in folder.glob("sts/*/*.parquet") if file.stem != "train"]
    columns = [column for file in files for _, column in pd.read_parquet(file)[["sentence1", "sentence2"]].items()]
    return {plain(text) for column in columns for text in column}


def write(folder: Path, tables: Tables) -> dict[str, int]:
    """Write tables; return their rows."""
    training = any(path.startswith(_TRAINING) for path in tables)
    seen = evaluated(folder) if training else set()
    if training and not seen:
        print(f"  NOT COMPARED with STS sets, of which {folder} has none: make those first, then this one again", flush=True)
    rows = {}
    for path, table in tables.items():
        kept = without_test_sentences(table, seen) if path.startswith(_TRAINING) else table
        file = folder / f"{path}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        kept.to_parquet(file, index=False, compression="zstd")
        rows[path] = len(kept)
    return rows


def main() -> None:
    """Read the command line, make each set, tell what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=recipes(None), default=list(recipes(None)))
    parser.add_argument("--archives", type=Path, help="folder with the files of Cranfield, CISI and CACM")
    parser.add_argument("--sources", type=Path, help="sources.json with the revisions to use (default: the one in --out)")
    options = parser.parse_args()
    file = options.out / "sources.json"
    about: dict[str, Any] = {"revisions": {}, "rows": {}, "differs": {}, "missing": {}, "unexpected": {}}
    about |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if options.sources:
        about["revisions"] |= json.loads(options.sources.read_text(encoding="utf-8"))["revisions"]
    hub = Hub(about["revisions"])
    options.out.mkdir(parents=True, exist_ok=True)
    # STS sets come first: the sentences of training sets are compared with theirs.
    for name, recipe in recipes(options.archives).items():
        if name not in options.sets:
            continue
        for notes in ("differs", "missing", "unexpected"):
            about[notes].pop(name, None)
        try:
            tables = {path: normalised(table) for path, table in recipe.make(hub).items()}
        except (DatasetNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, KeyError, OSError, ValueError) as error:
            about["missing"][name] = " ".join(str(error).split())
            print(f"{name}: MISSING: {about['missing'][name]}", flush=True)
            continue
        rows = write(options.out, tables)
        about["rows"] |= rows
        if recipe.differs:
            about["differs"][name] = recipe.differs
        if wrong := wrong_rows(tables, recipe):
            about["unexpected"][name] = wrong
        told = [f"{path} {count:,}" for path, count in rows.items()]
        print(f"{name}: {', '.join(told)}", *(f"  UNEXPECTED: {one}" for one in wrong), sep="\n", flush=True)
        if recipe.differs:
            print(f"  REPLACED: {recipe.differs}", flush=True)
        file.write_text(json.dumps(about | {"revisions": hub.revisions}, indent=1) + "\n", encoding="utf-8")
    file.write_text(json.dumps(about | {"revisions": hub.revisions}, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if about["missing"] or about["unexpected"] else 0)


if __name__ == "__main__":
    main()
