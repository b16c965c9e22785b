"""`latency`: time a model at every depth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.checkpoints import Source
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.cli.tables import records, table_of
from st_matryoshka2d.cli.texts import Columns, drawn_texts, texts_option
from st_matryoshka2d.sizes import all_within

_TEXTS = "Your own texts to time, instead of one batch of built-in English texts of mixed length"
_MAX_TEXTS = 128
_MOST = "Texts to use; drawn at random if there are more. Each round encodes all of them."
_BATCH = "Texts in a batch; 1 encodes one text at a time, like single queries."
_OUT = options.file_option("--out", "Write the times, for recommend", (".csv", ".json"), writable=True)

_SHOWN = {
    "layers": "{num_layers}",
    "ms per text": "{milliseconds_per_text:.2f}",
    "ms in all": "{milliseconds:.1f}",
    "quartiles": "{low:.1f} to {high:.1f}",
    "speed-up": "{speedup:.2f}x",
    "in theory": "{theory:.2f}x",
    "parameters": "{parameters:,}",
}


def latency(
    *,
    texts: Annotated[Path | None, texts_option(_TEXTS)] = None,
    columns: Columns = None,
    max_texts: Annotated[int, typer.Option(help=_MOST, min=1)] = _MAX_TEXTS,
    num_layers: options.NumLayers = None,
    batch_size: Annotated[int, typer.Option(help=_BATCH, min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="Timed calls for each depth, after a warm-up of a tenth as many.", min=1)] = 30,
    out: Annotated[Path | None, _OUT] = None,
    plot: Annotated[Path | None, options.figure_option("Draw the speed-up")] = None,
    source: Source,
) -> Answer:
    """Time each depth of a model against the full one, on your own texts (--texts) or one batch of built-in English ones.

    For example:

        st-matryoshka2d latency all-MiniLM-L6-v2 --out times.csv
    """
    if texts is None and (columns or max_texts != _MAX_TEXTS):
        raise typer.BadParameter("--columns and --max-texts need --texts.")
    sample = None if texts is None else drawn_texts(texts, columns, max_texts)
    options.check_outputs(out, plot)
    limit = largest_size(source.require())
    if num_layers:
        all_within(num_layers, limit.num_layers, "num_layers", least=0)

    from st_matryoshka2d import benchmark_latency, plot_speedup
    from st_matryoshka2d.files.atomic import replace_file

    times = benchmark_latency(source.open(), num_layers or None, sample, batch_size=batch_size, rounds=rounds)
    if out is not None:
        is_csv = out.suffix.lower() == ".csv"
        text = times.to_csv(index=False) if is_csv else times.to_json(orient="records", double_precision=15)
        replace_file(out, lambda part: part.write_text(text, encoding="utf-8"))
    if plot is not None:
        plot_speedup(times, plot, title=Path(source.model).name)
    if sample is None:
        title, timed = f"Timed: one batch of {batch_size} built-in English texts", batch_size
    else:
        title, timed = f"Timed: {len(sample):,} of the texts in {texts}, in batches of {batch_size}", len(sample)
    rows = records(times)
    data = {"model": source.model, "texts": timed, "batch_size": batch_size, "rounds": rounds, "times": rows}
    return Answer([title, "", table_of(rows, _SHOWN)], data, [out, plot])
