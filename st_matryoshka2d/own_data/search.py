"""Make a task from the user's own documents, queries and relevance judgments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import repeat
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from mteb.abstasks.retrieval import AbsTaskRetrieval

from st_matryoshka2d._hosts.mteb_texts import document_texts
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.own_data.table import as_names, as_numbers, check_cells, check_texts, columns_of, frames
from st_matryoshka2d.own_data.task import OwnData, check_name
from st_matryoshka2d.texts import is_missing

Texts: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, str | Mapping[str, str]]
_Relevant: TypeAlias = Mapping[Any, int] | Sequence[Any] | Set[Any]
Judgments: TypeAlias = Dataset | pd.DataFrame | Mapping[Any, _Relevant]


class OwnRetrieval(OwnData, AbsTaskRetrieval):
    """The task that `retrieval_task` makes."""

    kind, category, main_score = "Retrieval", "t2t", "ndcg_at_10"


def retrieval_task(
    corpus: Texts,
    queries: Texts,
    qrels: Judgments,
    *,
    candidates: Mapping[Any, Sequence[Any]] | None = None,
    name: str = "MyRetrieval",
) -> AbsTaskRetrieval:
    """Make a retrieval task from your own documents, queries and relevance judgments.

    The main score is nDCG@10, as in BEIR. Ids are strings; integers are converted. A `Dataset` on
    disk stays there. `sts_task` explains mteb's prompts and cache; here the prompt names are
    `"Retrieval-query"`, `"Retrieval"` or `"query"`, and likewise with `document`.

    Args:
        corpus: A dict of ids to texts or to `{"title": ..., "text": ...}`, or a table with the
            columns id (or _id), text and optionally title, which mteb puts before the text, as
            in `f"{title} {text}".strip()`. Pass such texts to fits, and embed them in your index.
        queries: A dict of ids to texts, or a table with the columns id (or _id) and text.
        qrels: A dict of query ids to lists of relevant document ids, or to dicts of document ids to
            relevance (0, 1, 2, ...), or a table with the columns query_id, corpus_id (or with a
            hyphen) and score. Others are not relevant, but for copies of a relevant document.
        candidates: A dict of query ids to lists of document ids, such as the first documents that
            another model finds: only these are ranked. A reranker needs them. None for the corpus.
        name: As for `sts_task`.

    Raises:
        TypeError: An argument has another type.
        ValueError: A column, id or text is missing; an id or judgment is repeated; a relevance is
            not 0, 1, 2, ...; a judgment or a candidate has an unknown id; a query has no candidates;
            no query has a relevant document.

    Warns:
        DataWarning: Queries without a relevant document are dropped; documents have neither text
            nor title, or repeat a relevant one.

    Example:
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess"}
        >>> queries = {"q1": "small cat", "q2": "bad weather"}
        >>> retrieval_task(corpus, queries, {"q1": ["d1"], "q2": ["d2"]}).metadata.description
        '2 queries and 3 documents.'
    """
    check_name(name)
    documents, questions = _read_texts(corpus, "corpus"), _read_texts(queries, "queries")
    judged = _read_judgments(qrels)
    _check_known(judged, questions, "queries")
    _check_known({name for grades in judged.values() for name in grades}, documents, "corpus")
    judged = {query: grades for query, grades in judged.items() if any(grades.values())}
    _add_copies(judged, documents)
    useful = [row for row, query in enumerate(questions["id"]) if query in judged]
    if not useful:
        raise UsageError("No query has a relevant document in qrels: every relevance is 0.")
    if dropped := len(questions) - len(useful):
        warn(f"Queries without a relevant document: {dropped} of {len(questions)}. They are dropped.", DataWarning)
        questions = questions.select(useful)
    ranked = None if candidates is None else _read_candidates(candidates, questions, documents)
    split = {"corpus": documents, "queries": questions, "relevant_docs": judged, "top_ranked": ranked}
    description = f"{len(questions)} queries and {len(documents)} documents."
    return OwnRetrieval(name, {"default": {"test": split}}, description=description)


def _read_texts(given: Texts, what: str) -> Dataset:
    """Check documents or queries and give them mteb's names and types; files stay on disk."""
    there = columns_of(given, what)
    table: Any = given
    if not isinstance(given, (Dataset, pd.DataFrame)):
        rows = [row if isinstance(row, Mapping) else {"text": row} for row in given.values()]
        table = {"id": list(given), "text": [row.get("text") for row in rows], "title": [row.get("title") for row in rows]}
        there = ["id", "text"] if all(map(is_missing, table["title"])) else list(table)
    columns = {"_id" if "_id" in there and "id" not in there else "id": "id", "text": "text"}
    if what == "corpus" and "title" in there:
        columns["title"] = "title"
    checked, blank = [], 0
    for frame in frames(table, what, list(columns)):
        checked = [_by_id(frame.rename(columns=columns), what)]  # the last batch of a data set, or all rows of others
        blank += sum(not any(map(str.strip, texts)) for texts in checked[0].to_numpy())
    if blank:
        warn(f"Documents in corpus without text and title: {blank}. They are kept.", DataWarning)
    features = Features({column: Value("string") for column in columns.values()})
    if isinstance(table, Dataset):
        dataset = table.with_format(None).select_columns(list(columns))
        dataset = dataset.rename_columns({old: new for old, new in columns.items() if old != new})
        if pa.types.is_integer(dataset.features["id"].pa_type):
            dataset = dataset.cast_column("id", Value("string"))
        if "title" in features and dataset.data.column("title").null_count:
            dataset = dataset.map(_with_titles, batched=True, features=features)
    else:
        dataset = Dataset.from_pandas(checked[0].reset_index(), features)
    # Arrow counts the ids in place, in a file or in memory.
    counts = dataset.select_columns(["id"]).with_format("arrow")[:]["id"].value_counts()
    if repeated := counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
        raise UsageError(f"{what}: repeated ids, such as {repeated[:3]}; keep one row for each.")
    return dataset


def _by_id(frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """Check documents or queries, and return their texts and titles by id."""
    frame = frame.set_index(as_names(frame["id"], what)).drop(columns="id")
    if "title" in frame:
        frame["title"] = frame["title"].mask(frame["title"].map(is_missing), "")
    for column in frame:
        check_texts(frame[column], what, blank=what == "corpus")
    return frame


def _with_titles(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**cells, "title": ["" if title is None else title for title in cells["title"]]}


def _read_judgments(given: Judgments) -> dict[str, dict[str, int]]:
    """Convert judgments to nested dicts: query id, document id, relevance."""
    there, columns = columns_of(given, "qrels"), ["query_id", "corpus_id", "score"]
    if isinstance(given, (Dataset, pd.DataFrame)):
        hub = [column.replace("_", "-") for column in columns]  # as in data sets on the Hub
        columns = hub if set(hub) <= set(there) else columns
        table: Any = given
    else:
        table = pd.DataFrame(_judged(given), columns=columns, dtype=object)
    rows = pd.concat(frames(table, "qrels", columns))
    ids = [as_names(rows[column], "qrels") for column in columns[:2]]
    pairs = pd.Index([*zip(*ids, strict=True)], name="(query, document)", tupleize_cols=False)
    cells = rows[columns[2]].set_axis(pairs)
    grades = as_numbers(cells, "qrels")
    # trec_eval keeps a count for every grade up to the highest, and fails at huge ones.
    whole = (grades % 1 == 0) & grades.between(0, 1_000_000)
    check_cells(whole, cells, "qrels", "a relevance: a whole number from 0 (not relevant) to 1,000,000")
    check_cells(~pairs.duplicated(), cells, "qrels", "one judgment")
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in zip(*ids, grades, strict=True):
        judged.setdefault(query, {})[document] = int(grade)
    return judged


def _read_candidates(given: Mapping[Any, Sequence[Any]], queries: Dataset, documents: Dataset) -> dict[str, list[str]]:
    """Convert candidates to ids of texts, of the queries that are asked."""
    named = {str(query): list(map(str, listed)) for query, listed in given.items()}
    _check_known({name for listed in named.values() for name in listed}, documents, "corpus", "candidates")
    if lacking := [query for query in queries["id"] if not named.get(query)]:
        raise UsageError(f"candidates: {len(lacking)} queries have none, such as {lacking[:3]}. Each query needs some.")
    return {query: list(dict.fromkeys(named[query])) for query in queries["id"]}


def _judged(given: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for query, documents in given.items():
        if not isinstance(documents, (Mapping, list, tuple, Set)):
            raise UsageError(
                f"qrels, query {query!r}: expected a list of document ids, or a dict of them to relevance, "
                f"got {documents!r:.60}."
            )
        graded = documents.items() if isinstance(documents, Mapping) else zip(documents, repeat(1))
        yield from ((query, document, grade) for document, grade in graded)


def _add_copies(judged: dict[str, dict[str, int]], documents: Dataset) -> None:
    """Give copies of a relevant document its relevance: a search cannot tell them apart."""
    relevant = {name for grades in judged.values() for name, grade in grades.items() if grade}
    rows = [row for row, name in enumerate(documents["id"]) if name in relevant]
    alike: dict[str, list[str]] = {text: [] for text in document_texts(documents.select(rows)[:])}
    for batch in documents.iter(1000):
        for name, text in zip(batch["id"], document_texts(batch), strict=True):
            if text in alike:
                alike[text].append(name)
    copies = {name: names for names in alike.values() for name in names}
    added = set()
    for grades in judged.values():
        for name, grade in [*grades.items()]:
            for copy in copies[name] if grade else ():
                if grades.get(copy, 0) < grade:
                    grades[copy] = grade
                    added.add(copy)
    if added:
        warn(f"Documents in corpus that repeat a relevant one: {len(added)}. They count as relevant too.", DataWarning)


def _check_known(judged: Collection[str], there: Dataset, what: str, given: str = "qrels") -> None:
    if unknown := sorted(set(judged).difference(there["id"])):
        raise UsageError(
            f"{given} has {len(unknown)} ids that are not in {what}, such as {unknown[:3]}. Remove these, or add the ids."
        )
