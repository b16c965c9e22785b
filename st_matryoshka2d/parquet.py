"""A corpus to Parquet files of embeddings, in shards that are written whole, so that a killed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from datasets import Dataset, IterableDataset
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from st_matryoshka2d.batch_encoder import SizesEncoder, require_columns, strings
from st_matryoshka2d.files import replace_file
from st_matryoshka2d.sizes import Size, positive_int

__all__ = ["encode_to_parquet"]

_ABOUT = b"st_matryoshka2d.encode_to_parquet"

# Keywords of `encode` that may be others when a run goes on: they change embeddings by no more than rounding.
_FREE = {"batch_size", "show_progress_bar"}


def encode_to_parquet(
    model: SentenceTransformer | str | os.PathLike[str],
    texts: Iterable[str] | Dataset | IterableDataset,
    folder: str | os.PathLike[str],
    sizes: Iterable[Size | str],
    *,
    text: str = "text",
    columns: Sequence[str] | None = None,
    shard_size: int = 10_000,
    normalize_embeddings: bool = False,
    device: str | None = None,
    show_progress_bar: bool = True,
    **kwargs: Any,
) -> list[Path]:
    """Embed a corpus at many sizes into Parquet files; killed and called again, it goes on.

    A shard is read, embedded and written before the next is read, so memory does not grow with the corpus. A file is there
    whole or not at all. The next call with the same arguments compares the texts with those of the shards that are there,
    and embeds the rest. A run that is killed loses the shard in hand and no other, and the files end byte for byte as those
    of a run that was not killed. One call at a time writes to a folder.

    Args:
        model: A `SentenceTransformer`, a folder or a Hub name.
        texts: A list or a generator of texts, or a `Dataset`, streamed or not, all of whose columns are kept. They must come
            in the same order each time.
        folder: Where `shard-000000.parquet` and those after it are written. It is made if it is not there.
        sizes: Sizes wanted, as `Size` or as text such as `"6L-128d"`.
        text: Column that holds the texts, read in a data set, and written.
        columns: Names of the new columns, one for each size; by default the sizes' own, such as `"6L-128d"`. Each holds
            lists of float32 of fixed length.
        shard_size: Texts in a file. The embeddings of one shard are in memory, at full width for each depth.
        normalize_embeddings: Unit length, after the dims are cut.
        device: Such as `"cuda"`; None for the best there is, or where the model is.
        show_progress_bar: Show one step for each text. Those that are there already count.
        **kwargs: Keywords of `SentenceTransformer.encode`: `batch_size`, `prompt_name`, ... A run may go on with another
            `batch_size`, and on another device.

    Returns:
        The files, in the order of the texts. `datasets.load_dataset("parquet", data_dir=folder)` reads them.

    Raises:
        TypeError: The texts are a table of another kind or one string, or a row is no text.
        ValueError: There are no texts, the folder holds embeddings of another model, of other sizes, texts or settings, or
            what `SizesEncoder` refuses.
        OSError: A file cannot be read or written.

    Example:
        >>> files = encode_to_parquet(model, texts, "embeddings", ["2L-32d", "6L-384d"], show_progress_bar=False)
        >>> files[0].name
        'shard-000000.parquet'
        >>> import pandas as pd
        >>> pd.read_parquet("embeddings").columns.tolist()
        ['text', '2L-32d', '6L-384d']
    """
    tables = _tables(texts, text, positive_int(shard_size, "shard_size"))
    place = _folder(folder)
    encoder = SizesEncoder(
        model, sizes, text=text, columns=columns, normalize_embeddings=normalize_embeddings, device=device, **kwargs
    )
    if isinstance(texts, Dataset | IterableDataset) and texts.column_names is not None:
        require_columns(texts.column_names, text, encoder.columns)
    about = _about(encoder, shard_size)
    for present in _shards(place)[:1]:
        _require_same(present, {**about, "texts": None})  # before anything is embedded
    total = len(texts) if isinstance(texts, Sized) else None
    with tqdm(desc="Texts", unit=" texts", total=total, disable=not show_progress_bar) as bar:
        written = _run(encoder, tables, place, about, bar)
    if not written:
        raise ValueError("There is no text to embed.")
    if more := sorted({*_shards(place)} - {*written}):
        raise ValueError(f"The texts end before {more[0]}: it is of a run with more texts. Choose another folder.")
    return written


def _run(
    encoder: SizesEncoder, tables: Iterator[pa.Table], place: Path, about: Mapping[str, Any], bar: tqdm[Any]
) -> list[Path]:
    """Write the shards that are not there."""
    shards: list[Path] = []
    try:
        for table in tables:
            path = place / f"shard-{len(shards):06d}.parquet"
            of_shard = {**about, "texts": _digest(table)}
            if path.exists():
                _require_same(path, of_shard)
            else:
                _write(path, encoder(table), of_shard)
            shards.append(path)
            bar.update(len(table))
    except (TypeError, ValueError) as error:
        error.add_note(f"This is of the shard that starts at row {len(shards) * about['shard size']}.")
        raise
    return shards


def _tables(texts: Any, column: str, rows: int) -> Iterator[pa.Table]:
    """The corpus in tables of the rows of a shard, read one by one."""
    if isinstance(texts, Dataset | IterableDataset):
        return iter(texts.with_format("arrow").iter(batch_size=rows))
    if isinstance(texts, str | Mapping | pd.DataFrame | pa.Table) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(
            f"texts must be a list or a generator of texts or a datasets.Dataset, got a {type(texts).__name__}. Of a frame, "
            "Dataset.from_pandas(frame) makes one; a DatasetDict has one for each split."
        )
    return _in_tables(iter(texts), column, rows)


def _in_tables(texts: Iterator[str], column: str, rows: int) -> Iterator[pa.Table]:
    """Texts alone as a table of one column."""
    while chunk := list(islice(texts, rows)):
        yield pa.table({column: strings(chunk, column)})


def _folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, without what a killed run was writing."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(f"{place} is a file; name a folder for the shards.")
    place.mkdir(parents=True, exist_ok=True)
    for part in place.glob(".*.part.parquet"):
        part.unlink(missing_ok=True)
    return place


def _shards(place: Path) -> list[Path]:
    """Every Parquet file of a folder: whoever reads the folder reads them all."""
    return sorted(place.glob("[!.]*.parquet"))


def _about(encoder: SizesEncoder, shard_size: int) -> dict[str, Any]:
    """What a run must share with the one that it goes on from, in words that an error can say."""
    return {
        "model": f"{encoder.model_name} {encoder.revision}",
        "sizes": [str(size) for size in encoder.columns.values()],
        "columns": list(encoder.columns),
        "text column": encoder.text,
        "shard size": shard_size,
        "normalized": encoder.normalize_embeddings,
        "keywords": {name: repr(value) for name, value in sorted(encoder.kwargs.items()) if name not in _FREE},
    }


def _require_same(path: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse to go on where a shard is there that this run would not have written."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise OSError(f"{path} cannot be read: {error}. Delete it, and it is made again.") from error
    if _ABOUT not in metadata:
        raise ValueError(f"{path} is not of encode_to_parquet. Choose a folder of its own for the embeddings.")
    found = json.loads(metadata[_ABOUT])
    for name, value in wanted.items():
        if value is not None and found.get(name) != value:
            told = "" if name == "texts" else f": {found.get(name)} there, {value} now"
            raise ValueError(
                f"{path} was made with other {name}{told}. To go on, call with the same arguments; to begin anew, choose "
                "another folder or delete this one."
            )


def _digest(table: pa.Table) -> str:
    """What the rows of a shard are known by, whatever the pieces they were read in."""
    sink = pa.BufferOutputStream()
    plain = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    return xxhash.xxh3_128_hexdigest(sink.getvalue())


def _write(path: Path, table: pa.Table, about: Mapping[str, Any]) -> None:
    """One file, whole or not at all; the same rows give the same bytes."""
    metadata = {**(table.schema.metadata or {}), _ABOUT: json.dumps(about)}
    table = table.replace_schema_metadata(metadata)
    replace_file(path, lambda part: pq.write_table(table, part, compression="zstd", write_page_checksum=True))
