"""`fit-queries`: give a model a token table, by which queries are embedded without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.places import Places
from st_matryoshka2d.cli.tables import table_of_agreement
from st_matryoshka2d.cli.texts import TEXT_FILES, TEXT_FOLDER, Columns, drawn_texts

_DOCUMENTS = options.file_option("--documents", "The texts that are searched", TEXT_FILES, TEXT_FOLDER, exists=True)
_QUERIES = options.file_option("--queries", "Real queries, in a column `text`", TEXT_FILES, exists=True, show_default="none")
_EMBEDDINGS = (
    "Embeddings of the documents that exist already, in their order: a .npy file, or a Parquet file or a folder of them "
    "with a column of vectors, as `encode_to_parquet` writes."
)


def fit_queries(
    *,
    documents: Annotated[Path, _DOCUMENTS],
    columns: Columns = None,
    queries: Annotated[Path | None, _QUERIES] = None,
    embeddings: Annotated[Path | None, typer.Option(help=_EMBEDDINGS, exists=True, show_default="none")] = None,
    batch_size: options.BatchSize = 32,
    places: Places,
    source: Source,
) -> Answer:
    """Give a model a token table for queries without a network; the full size stays as it is.

    For example:

        st-matryoshka2d fit-queries all-MiniLM-L6-v2 --documents t.csv --out fitted
    """
    places.check(source.token)
    texts = drawn_texts(documents, columns, sys.maxsize)
    asked = None if queries is None else drawn_texts(queries, None, sys.maxsize)
    source.require()

    import st_matryoshka2d
    from st_matryoshka2d.model.declared_agreement import declared_agreement

    fitted = st_matryoshka2d.fit_queries(source.open(), texts, queries=asked, embeddings=embeddings, batch_size=batch_size)
    agreement = declared_agreement(fitted.config)
    saved, lines = places.save(fitted, source.token)
    about = {"documents": len(texts), "queries": len(asked or [])}
    data = {**about, "agreement": {str(size): value for size, value in agreement.items()}, **saved}
    title = f"Fitted a token table to {len(texts):,} documents: 0 layers."
    return Answer([title, "", *table_of_agreement(agreement), "", *lines], data)
