"""`rotate`: make small sizes of a model good without training it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options, saving
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.hub import open_model
from st_matryoshka2d.cli.tables import read_texts
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["rotate"]


def rotate(
    model: options.Model,
    texts: Annotated[
        Path,
        options.file_option(
            "--texts", "Texts like those that will be embedded, some thousands", (".csv", ".parquet", ".txt"), exists=True
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(help="A column of texts; may be repeated. A .txt has a text in each line.", show_default="text"),
    ] = None,
    max_texts: Annotated[int, typer.Option(help="If there are more, so many are drawn.", min=3)] = 10_000,
    sizes: Annotated[
        list[Size] | None,
        typer.Option(
            help="A size that will be shipped, such as 6L-128d; may be repeated.",
            parser=options.read_size,
            metavar="SIZE",
            show_default="the ladder",
        ),
    ] = None,
    batch_size: options.BatchSize = 32,
    out: saving.Out = None,
    push: saving.Push = None,
    private: saving.Private = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Turn a model's embeddings so that the first coordinates are worth most; nothing changes at the full width."""
    if columns and texts.suffix.lower() == ".txt":
        raise typer.BadParameter("--columns is about a .csv or .parquet file; a .txt has a text in each line.")
    saving.check_places(out, push, private, token)
    sample = _drawn(_read(texts, columns or ["text"]), max_texts)

    import st_matryoshka2d
    from st_matryoshka2d.trained import trained_sizes

    whole = open_model(model, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token)
    rotated = st_matryoshka2d.rotate(whole, sample, sizes or None, batch_size=batch_size, show_progress_bar=True)
    declared = [str(size) for size in trained_sizes(rotated.config)]
    places = saving.saved(rotated, out, push, private, token)
    return Answer(
        [f"Rotated, from {len(sample):,} texts. Its sizes: {', '.join(declared)}", *saving.told(places)],
        {"texts": len(sample), "sizes": declared, **places},
        as_json,
    )


def _read(path: Path, columns: list[str]) -> pd.Series[str]:
    """The different texts in a file, in their order; an empty one is none."""
    import pandas as pd

    if path.suffix.lower() == ".txt":
        texts = pd.Series(path.read_text(encoding="utf-8").splitlines(), dtype=object)
    else:
        table = read_texts(path, columns, [], "Say with --columns which of them are texts.")
        texts = pd.concat([table[column] for column in columns], ignore_index=True)
    texts = texts.dropna()
    return texts[texts.astype(str).str.strip() != ""].drop_duplicates()


def _drawn(texts: pd.Series[str], most: int) -> list[str]:
    return list(texts.sample(most, random_state=0) if len(texts) > most else texts)
