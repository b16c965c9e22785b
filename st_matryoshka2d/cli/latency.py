"""`latency`: time a model at every depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.hub import open_model, require_model
from st_matryoshka2d.cli.tables import Columns, check_columns, drawn_texts, records, table, texts_in, texts_option

if TYPE_CHECKING:
    import pandas as pd

_MAX_TEXTS = 128


def latency(
    model: options.Model,
    texts: Annotated[
        Path | None, texts_option("Your own texts to time, instead of one batch of built-in English texts of mixed length")
    ] = None,
    columns: Columns = None,
    max_texts: Annotated[
        int, typer.Option(help="Texts to use; drawn at random if there are more. Each round encodes all of them.", min=1)
    ] = _MAX_TEXTS,
    num_layers: options.NumLayers = None,
    batch_size: Annotated[
        int, typer.Option(help="Texts in a batch; 1 encodes one text at a time, like single queries.", min=1)
    ] = 32,
    rounds: Annotated[int, typer.Option(help="Timed calls for each depth, after a warm-up of a tenth as many.", min=1)] = 30,
    out: Annotated[
        Path | None, options.file_option("--out", "Write the times, for recommend", (".csv", ".json"), writable=True)
    ] = None,
    plot: Annotated[Path | None, options.figure_option("Draw the speed-up")] = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Time each depth of a model against the full one, on your own texts (--texts) or one batch of built-in English ones."""
    if texts is None and (columns or max_texts != _MAX_TEXTS):
        raise typer.BadParameter("--columns and --max-texts need --texts.")
    if texts is not None:
        check_columns(texts, columns)
    options.make_folders(out, plot)
    sample = None if texts is None else drawn_texts(texts_in(texts, columns), max_texts)
    require_model(model, revision, token)

    from st_matryoshka2d import benchmark_latency, plot_speedup

    times = benchmark_latency(
        open_model(model, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token),
        num_layers or None,
        sample,
        batch_size=batch_size,
        rounds=rounds,
    )
    if out is not None:
        _write(times, out)
    if plot is not None:
        plot_speedup(times, plot)
    if sample is None:
        title, timed = f"Timed: one batch of {batch_size} built-in English texts", batch_size
    else:
        title, timed = f"Timed: {len(sample):,} of the texts in {texts}, in batches of {batch_size}", len(sample)
    head = ["layers", "ms a text", "ms in all", "quartiles", "speed-up", "in theory", "parameters"]
    body = [
        [
            str(row.num_layers),
            f"{row.milliseconds_per_text:.2f}",
            f"{row.milliseconds:.1f}",
            f"{row.low:.1f} to {row.high:.1f}",
            f"{row.speedup:.2f}x",
            f"{row.theory:.2f}x",
            f"{row.parameters:,}",
        ]
        for row in times.itertuples()
    ]
    data = {"model": model, "texts": timed, "batch_size": batch_size, "rounds": rounds, "times": records(times)}
    return Answer([title, "", table(head, body)], data, as_json, [out, plot])


def _write(times: pd.DataFrame, path: Path) -> None:
    from st_matryoshka2d.files import replace_file

    if path.suffix.lower() == ".csv":
        replace_file(path, lambda part: times.to_csv(part, index=False))
    else:
        replace_file(path, lambda part: times.to_json(part, orient="records", double_precision=15))
