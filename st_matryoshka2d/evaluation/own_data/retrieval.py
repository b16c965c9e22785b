"""A collection of documents, queries and judgments as a task."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval

from st_matryoshka2d.evaluation.own_data.documents import Texts, count_empty, read_corpus, read_queries
from st_matryoshka2d.evaluation.own_data.judgments import Judgments, read_judgments
from st_matryoshka2d.evaluation.own_data.tables import rows
from st_matryoshka2d.evaluation.own_data.task import OwnData, check_name
from st_matryoshka2d.evaluation.own_data.values import first_of

__all__ = ["OwnRetrieval", "retrieval_task"]


class OwnRetrieval(OwnData, AbsTaskRetrieval):
    """A collection of the user's own; made by `retrieval_task`."""

    kind, category, main_score = "Retrieval", "t2t", "ndcg_at_10"


def retrieval_task(corpus: Texts, queries: Texts, qrels: Judgments, *, name: str = "MyRetrieval") -> AbsTaskRetrieval:
    """Make a task of your own documents and queries: how high do relevant documents rank?

    The main score is nDCG@10, as in BEIR. Ids are texts; integers become texts. The task works in `evaluate` and in mteb
    itself, and needs no network. A corpus that is a `Dataset` on disk stays on disk.

    mteb (2.26) looks for a prompt of the model by the type and the side: `"Retrieval-query"`, `"Retrieval"`, `"query"`, and
    the same for `document`; a prompt under the name of a task that is not its own is dropped with a warning. Its cache of
    results goes by the name alone: with other data, give `mteb.evaluate` another name or `cache=None`.

    Args:
        corpus: Id to text, or id to `{"title": ..., "text": ...}`, or a `Dataset` or `DataFrame` with the columns id (or
            _id), text and, if there are titles, title. mteb puts the title before the text.
        queries: Id to text, or a table with the columns id (or _id) and text.
        qrels: Query id to a list of the relevant documents' ids, or query id to document id to relevance (0, 1, 2, ...), or
            a table with the columns query_id, corpus_id (or both with a hyphen) and score. What is not named is not
            relevant.
        name: What the task is called in the results.

    Returns:
        An mteb task with its data. The revision in its metadata is a digest of the name, all texts and all judgments.

    Raises:
        TypeError: An argument is of no type that is named above.
        ValueError: A column is missing; an id is missing, or is there twice; a query or the text of a document is missing;
            a relevance is negative or no whole number; a judgment is there twice or names what is not there; no query has
            a relevant document; the name is one of mteb's. Rows are counted from 0.

    Warns:
        UserWarning: Queries without a relevant document are left out; documents have neither text nor title.

    Example:
        >>> from st_matryoshka2d import evaluate
        >>> corpus = {"d1": "a kitten sleeps", "d2": "rain is falling", "d3": "he plays chess"}
        >>> queries = {"q1": "small cat", "q2": "bad weather"}
        >>> task = retrieval_task(corpus, queries, {"q1": ["d1"], "q2": ["d2"]})
        >>> grid = evaluate(model, task, num_layers=6, dims=[64, 384], show_progress_bar=False)
        >>> grid.score("6L-384d")
        1.0
    """
    check_name(name)
    documents, questions, judged = read_corpus(corpus), read_queries(queries), read_judgments(qrels)
    _check_known(judged, questions, "query", "queries")
    _check_known({document for found in judged.values() for document in found}, documents, "document", "corpus")
    if empty := count_empty(documents):
        warnings.warn(f"Documents in corpus without text and title: {empty}; they are kept.", stacklevel=2)
    judged = {query: found for query, found in judged.items() if any(found.values())}
    kept = [row for row, (query,) in enumerate(rows(questions, ["id"])) if query in judged]
    if not kept:
        raise ValueError("No query has a relevant document in qrels: every relevance is 0.")
    if left_out := len(questions) - len(kept):
        warnings.warn(
            f"Queries without a relevant document: {left_out} of {len(questions)}; they are left out.", stacklevel=2
        )
        questions = questions.select(kept)

    split = {"corpus": documents, "queries": questions, "relevant_docs": judged, "top_ranked": None}
    description = f"{len(questions)} queries and {len(documents)} documents."
    return OwnRetrieval(name, {"default": {"test": split}}, description=description)


def _check_known(judged: Collection[str], there: Dataset, kind: str, what: str) -> None:
    unknown = sorted(set(judged).difference(name for (name,) in rows(there, ["id"])))
    if unknown:
        raise ValueError(
            f"qrels names {kind} ids that are not in {what}: {first_of(unknown)} ({len(unknown)} in all). "
            "Drop those judgments, or add what they name."
        )
