"""Fit a token table: queries without a neural network, in the space of the whole model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor

from st_matryoshka2d._hosts.torch import around, parts
from st_matryoshka2d.cutting.cut import without_adapters
from st_matryoshka2d.encoding.existing_embeddings import Existing
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.identity import name_apart
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import Readout
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.model.table import Table
from st_matryoshka2d.queries.stand_ins import StandIns
from st_matryoshka2d.queries.table import fit_table
from st_matryoshka2d.queries.token_counts import TokenCounts, add_documents, each_once
from st_matryoshka2d.sizes import Size
from st_matryoshka2d.texts import require_finite

if TYPE_CHECKING:
    from jaxtyping import Float

_SAMPLE = 10_000  # documents of which stand-ins for queries are made
_BATCHES = 4  # that are embedded between moves of the bar
_FEW = 100  # with fewer documents, little is known of their words


def fit_queries(
    model: SentenceTransformer,
    documents: Iterable[str],
    *,
    queries: Iterable[str] | None = None,
    embeddings: ArrayLike | Tensor | str | os.PathLike[str] | None = None,
    whole_vocabulary: bool | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> SentenceTransformer:
    r"""Give a model a depth 0: a token table, by which queries are embedded without a neural network.

    They search an index of the whole model. The table has one row for each token, and the embedding
    of a query is the mean of its rows. They are fitted in closed form first:

    .. math:: \min_T \sum_i |x_i T - (y_i - \bar y)|^2 + \lambda |T - W A|^2

    with x_i the token counts of text i (square roots, of unit length), y_i its embedding by the
    whole model, W the model's token embeddings and A the linear map of them that predicts y best.
    The texts are the documents; stand-ins for queries, made from up to 10,000 documents: the
    beginning of each, a short piece, and its rare words; and your queries. The mean of the
    embeddings is left off, because it only adds the same to the score of each document, unevenly;
    where queries have a prompt of their own, theirs is. The strength is chosen on queries left out
    of the fit. From 1,000 queries and stand-ins on, 200 steps of gradient descent follow, so that
    queries rank documents as the whole model does:

    .. math:: \mathrm{KL}(\mathrm{softmax}(\hat q D^T / \tau);\, \mathrm{softmax}(q D^T / \tau))
        + 1 - \cos(\hat q, q - \bar y)

    with q a query by the whole model, :math:`\hat q` by the table, of unit length, D 2,048 of the
    documents, and :math:`\tau` half of the standard deviation of a query's scores.

    `truncate(model, num_layers=0)` is the table as a plain `SentenceTransformer`, and a size such
    as `"0L-384d"` works in `load`, `encode_sizes`, `evaluate` and the like. A table serves short
    queries on the documents that it was fitted on; for other documents, fit again. Documents are
    always embedded by the whole model. After training the model, fit again too.

    Args:
        model: A `SentenceTransformer` that starts with a `Transformer` with a fast tokenizer;
            aligned or not. It does not change; the result shares its weights.
        documents: The texts that are searched: a list, a column of a `datasets.Dataset`, or a
            generator, which is read once. Empty ones (None, NaN or blank) are left out. Of each,
            8 bytes for every different token stay in memory.
        queries: Real queries like those that will be asked, if there are any; hundreds already
            help.
        embeddings: Embeddings of the documents by the whole model, in their order, so that these
            are not embedded again: an array (documents, D), a `.npy` file of one, or a Parquet file
            or a folder of them with a column of D numbers, such as `encode_to_parquet` writes with
            the document prompt. Of a large corpus, embed it with that first, as it can be resumed.
        whole_vocabulary: Keep a row for every token, also for those that no text of the fit has. False
            makes a smaller table, of as good a search in these documents. Documents that are added
            later, or long words of queries, may then be split into other tokens. None: True up to
            65,536 tokens.
        batch_size: Texts per forward pass.
        show_progress_bar: Show progress bars. None: on a terminal or in a notebook.

    Returns:
        A `SentenceTransformer` whose embeddings at the full size are the same bit for bit. Saved,
        it also loads with plain sentence-transformers, at the full size; `load` restores the table.
        Its config has the agreement of the table with the whole model: `GridResult.from_agreement`.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, or a text is not a string.
        ValueError: There are fewer than three different documents, the model has a `truncate_dim`,
            a `Router` or no fast tokenizer, embeddings are not finite, or `embeddings` are not
            those of the documents by this model.
        FileNotFoundError: There are no files of embeddings.

    Warns:
        DataWarning: Documents or queries are empty, or there are fewer than 100 documents.

    Example:
        >>> from st_matryoshka2d import truncate
        >>> things, places = ("a cat", "rain", "the piano"), ("at home", "in town")
        >>> texts = [f"{thing} {place}, part" for thing in things for place in places]
        >>> documents = [f"{text} {part}" for part in range(20) for text in texts]
        >>> fitted = fit_queries(model, documents)
        >>> query = truncate(fitted, num_layers=0).encode_query("piano in town")  # no layer runs
        >>> best = model.similarity(query, fitted.encode_document(documents)).argmax()
        >>> documents[best].split(",")[0]
        'the piano in town'
    """
    # A caller's inference_mode would be in the weights of the table, which could not be trained.
    with torch.inference_mode(False), torch.no_grad():
        pipeline = Pipeline.of(model)
        _check(pipeline)
        pipeline, full = without_adapters(pipeline), pipeline.full
        counted = TokenCounts.of(pipeline)
        existing = None if embeddings is None else Existing(embeddings, "documents", str(full), full.dim)
        asked, empty = each_once(queries, "queries")
        hidden = None if show_progress_bar is None else not show_progress_bar
        embedder = _Embedder(pipeline.model, batch_size)
        stand_ins = StandIns(_SAMPLE)
        fitted = _read(documents, counted, embedder, existing, stand_ins, hidden)
        empty.tell()
        texts = [*stand_ins.texts(), *asked]
        random.Random(0).shuffle(texts)
        with progress("Queries and stand-ins", len(texts), "texts", hidden) as bar:
            true, drawn = embedder.query(texts, bar), np.stack(stand_ins.embedded)
        places = [f"queries[{asked[text]}]" if text in asked else "words of a document" for text in texts]
        require_finite(true, texts, places)
        table, agreement = fit_table(counted, texts, true, drawn, full.num_layers, whole_vocabulary, hidden)
        read = {"documents": fitted, "queries": len(asked)}
        with_queries = with_table(pipeline, table, agreement, read).model
        name_apart(with_queries, model, "queries")
        return with_queries


def _read(
    documents: Iterable[str],
    counted: TokenCounts,
    embedder: _Embedder,
    existing: Existing | None,
    stand_ins: StandIns,
    hidden: bool | None,
) -> int:
    """Add all documents to the fit, and return how many; refuse too few, and warn of few."""
    total = len(documents) if isinstance(documents, Sized) else None
    with progress("Documents", total, "documents", hidden) as bar:
        left_out = add_documents(counted, documents, embedder.document, existing, stand_ins, bar)
    left_out.tell()
    if (count := len(set(stand_ins.documents))) < 3:
        few = "A token table needs at least 3 different documents, and serves those it saw"
        raise UsageError(f"{few}; got {count}.")
    if (fitted := left_out.total - len(left_out.rows)) < _FEW:
        warn(
            f"{fitted} documents tell little of the words of queries, so most rows of the table hardly change. Pass all "
            "documents that are searched.",
            DataWarning,
        )
    return fitted


def _check(pipeline: Pipeline) -> None:
    """Refuse what a table cannot serve."""
    if pipeline.has_router:
        raise UsageError(
            "The model starts with a Router. A table stands in for one model: fit it to the route "
            "of the documents, as a SentenceTransformer of its modules."
        )
    if (dim := pipeline.model.truncate_dim) is not None:
        raise UsageError(
            f"The model has truncate_dim={dim}, but a table has all dims of the "
            "whole model. Set truncate_dim = None, fit the queries, and cut it afterwards."
        )


def with_table(
    pipeline: Pipeline, table: StaticEmbedding, agreement: Mapping[Size, float], read: Mapping[str, int]
) -> Pipeline:
    """Put a table, and what its fit read, into the pipeline of a model, whose full size stays bit for bit."""
    model, full = pipeline.model, pipeline.full
    modules = {name: share_memory(module) for name, module in model.named_children()}
    tail = [modules.popitem()[1] for _ in pipeline.trailing_normalize()]
    agrees = {str(size): value for size, value in agreement.items() if not size.num_layers}
    table = Table.of(table.to(device=model.device, dtype=model.dtype or torch.float32), {**read, "agreement": agrees})
    last = list(modules.values())[-1]
    if isinstance(last, Readout):
        name, _ = modules.popitem()
        readout = around(last, {**parts(last), "table": table.requires_grad_(False)})
    else:
        name, alike = str(len(modules)), table.embedding.weight
        same = linear_of(torch.eye(full.dim).to(alike), torch.zeros(full.dim).to(alike))
        readout = Readout(full.num_layers, same, {}, table).train(model.training)
    after = {str(len(modules) + place): module for place, module in enumerate(tail[::-1], start=1)}
    whole = pipeline.remade({**modules, name: readout, **after})
    return whole.declare(whole.declaration.with_table(agreement))


class _Embedder:
    """Embeds by the whole model, each side with its prompt."""

    def __init__(self, model: SentenceTransformer, batch_size: int) -> None:
        self.model = model
        self._settings: dict[str, Any] = {"batch_size": batch_size, "convert_to_tensor": True}
        self._settings["show_progress_bar"] = False
        self._step = _BATCHES * batch_size

    def document(self, texts: Sequence[str], bar: Any = None) -> Float[np.ndarray, "texts dim"]:
        """Embed documents."""
        return self._embedded(self.model.encode_document, texts, bar)

    def query(self, texts: Sequence[str], bar: Any = None) -> Float[np.ndarray, "texts dim"]:
        """Embed queries."""
        return self._embedded(self.model.encode_query, texts, bar)

    def _embedded(self, encode: Any, texts: Sequence[str], bar: Any) -> Float[np.ndarray, "texts dim"]:
        """Embed a few batches at a time, so that the bar moves; the longest first, as `encode` does with all."""
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        embedded = np.empty((len(texts), int(self.model.get_embedding_dimension() or 0)), np.float32)
        for start in range(0, len(texts), self._step):
            places = order[start : start + self._step]
            embedded[places] = encode([texts[place] for place in places], **self._settings).float().cpu().numpy()
            if bar is not None:
                bar.update(len(places))
        return embedded
