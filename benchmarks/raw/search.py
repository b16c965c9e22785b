"""Documents, queries and judgments, from tables of the Hub and from the files of the old test collections."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from raw.hub import Hub
from raw.pairs import Tables

__all__ = ["FILES", "answers", "claims", "collection", "ml_questions", "mteb_search"]

# Documents, queries and judgments of the old collections, as their archives name them.
FILES = {
    "cranfield": ("cran.all.1400", "cran.qry", "cranqrel"),
    "cisi": ("CISI.ALL", "CISI.QRY", "CISI.REL"),
    "cacm": ("cacm.all", "query.text", "qrels.text"),
}


def mteb_search(hub: Hub, name: str, repository: str) -> Tables:
    """A search task in mteb's form."""
    corpus, queries = (hub.table(repository, part, "test", "train", config=part) for part in ("corpus", "queries"))
    judgments = "default" if "default" in hub.configs(repository) else "qrels"
    qrels = hub.table(repository, "test", config=judgments)
    qrels = qrels.rename(columns={"query-id": "query_id", "corpus-id": "corpus_id"})
    return _named(
        name,
        corpus.rename(columns={"_id": "id"}).assign(title=corpus.get("title", "")),
        queries.rename(columns={"_id": "id"}),
        qrels.astype({"query_id": str, "corpus_id": str, "score": int}),
    )


def claims(hub: Hub) -> Tables:
    """SciFact: the claims of its test split are asked, those of the training split are questions."""
    tables = mteb_search(hub, "scifact", "mteb/scifact")
    queries, qrels = (tables[f"retrieval/scifact/{part}"] for part in ("queries", "qrels"))
    asked = queries["id"].isin(qrels["query_id"])
    tables["retrieval/scifact/queries"] = queries[asked]
    return tables | {"retrieval/scifact/questions": queries.loc[~asked, ["text"]]}


def ml_questions(hub: Hub) -> Tables:
    """MLQuestions: its test split, and questions that have no passage."""
    tables = mteb_search(hub, "mlquestions", "mteb/MLQuestions")
    others = hub.file("McGill-NLP/mlquestions", "questions_unaligned.csv")
    return tables | {"retrieval/mlquestions/questions": others[["target_text"]].set_axis(["text"], axis=1)}


def answers(hub: Hub, name: str, repository: str) -> Tables:
    """All candidate sentences of the test questions as one corpus."""
    rows = hub.table(repository, "test", "test_clean")
    documents = {text: str(number) for number, text in enumerate(rows["answer"].drop_duplicates())}
    queries = {text: f"q{number}" for number, text in enumerate(rows["question"].drop_duplicates())}
    judged = pd.DataFrame({"query_id": rows["question"].map(queries), "corpus_id": rows["answer"].map(documents)})
    judged = (
        judged.assign(score=rows["label"].astype(int)).groupby(["query_id", "corpus_id"], sort=False, as_index=False).max()
    )
    corpus = pd.DataFrame({"id": documents.values(), "title": "", "text": documents.keys()})
    return _named(name, corpus, pd.DataFrame({"id": queries.values(), "text": queries.keys()}), judged)


def collection(folder: Path, name: str) -> Tables:
    """Cranfield, CISI or CACM, from the files of its archive."""
    corpus, queries, qrels = (folder / file for file in FILES[name])
    documents = pd.DataFrame([_document(one) for one in _records(corpus)])
    asked = _records(queries)
    # Cranfield's judgments count the queries; the numbers in the file of queries are others.
    names = [str(place) if name == "cranfield" else one["I"] for place, one in enumerate(asked, start=1)]
    judged = [line.split() for line in qrels.read_text(encoding="latin-1").splitlines() if line.strip()]
    rows = pd.DataFrame({"query_id": [str(int(row[0])) for row in judged], "corpus_id": [row[1] for row in judged]})
    if name == "cranfield":
        grades = [int(row[2]) for row in judged]
        rows = rows.assign(score=[int(grade in (1, 2, 3, 4)) for grade in grades], raw_grade=grades)
    else:
        rows = rows.assign(score=1).drop_duplicates()
    texts = pd.DataFrame({"id": names, "text": [one.get("W", "") for one in asked]})
    return _named(name, documents, texts, rows)


def _records(file: Path) -> list[dict[str, str]]:
    """Read a file of the SMART system: `.I 1` starts a record, `.T` and the like a field."""
    found = []
    for block in re.split(r"^\.I", file.read_text(encoding="latin-1"), flags=re.MULTILINE)[1:]:
        number, _, rest = block.partition("\n")
        marks = re.split(r"^\.([A-Z])\s*$", rest, flags=re.MULTILINE)
        # backwards: of a repeated field, the first counts
        fields = dict(zip(marks[-2::-2], marks[:0:-2], strict=True))
        found.append({"I": number.strip()} | {mark: " ".join(text.split()) for mark, text in fields.items()})
    return found


def _document(record: dict[str, str]) -> dict[str, str]:
    title, text = record.get("T", ""), record.get("W", "")
    return {"id": record["I"], "title": title, "text": text.removeprefix(title).strip() or title}


def _named(name: str, corpus: pd.DataFrame, queries: pd.DataFrame, qrels: pd.DataFrame) -> Tables:
    parts = {"corpus": corpus[["id", "title", "text"]], "queries": queries[["id", "text"]], "qrels": qrels}
    return {f"retrieval/{name}/{part}": table for part, table in parts.items()}
