"""`latency`: time a model at every depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from st_matryoshka2d.cli import options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.cli.hub import open_model
from st_matryoshka2d.cli.tables import records, table, written

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["latency"]


def latency(
    model: options.Model,
    layers: options.Layers = None,
    batch_size: options.BatchSize = 32,
    rounds: Annotated[int, typer.Option(help="Timed calls for each depth, after a warm-up.", min=1)] = 30,
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
    """Time one batch of English texts at each depth of a model, against the full model."""
    options.make_folders(out, plot)

    from st_matryoshka2d import benchmark_latency, plot_speedup

    times = benchmark_latency(
        open_model(model, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token),
        layers or None,
        batch_size=batch_size,
        rounds=rounds,
    )
    if out is not None:
        _write(times, out)
    if plot is not None:
        plot_speedup(times, plot)
    head = ["layers", "ms a text", f"ms a batch of {batch_size}", "quartiles", "speed-up", "in theory", "parameters"]
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
    files = written(out, plot)
    return Answer(
        [table(head, body), *(f"Written: {file}" for file in files)],
        {"model": model, "batch_size": batch_size, "rounds": rounds, "times": records(times), "written": files},
        as_json,
    )


def _write(times: pd.DataFrame, path: Path) -> None:
    from st_matryoshka2d.evaluation.grid.files import replace_file

    if path.suffix.lower() == ".csv":
        replace_file(path, lambda part: times.to_csv(part, index=False))
    else:
        replace_file(path, lambda part: times.to_json(part, orient="records", double_precision=15))
