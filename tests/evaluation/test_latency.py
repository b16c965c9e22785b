"""Latency benchmark: the order in which depths run, and the columns of the table."""

from __future__ import annotations

import io
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import DataWarning, Size, align, benchmark_latency, fit_queries, plot_speedup, truncate
from st_matryoshka2d.evaluation import latency
from tests.support import families
from tests.support.families import TEXTS
from tests.support.pipelines import TEXTS as MANY


class Runs:
    """Records depth and number of texts of every forward pass, after the checks of the model's structure."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.depths: list[int] = []
        self.texts: list[int] = []
        depths, texts = self.depths, self.texts

        # Plain functions, so that copies of the model share them and their lists.
        def first(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            depths.append(1)
            texts.append(len(args[0]))

        def further(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            depths[-1] += 1

        for index, block in enumerate(cast("Any", model[0]).model.encoder.layer):
            block.register_forward_pre_hook(further if index else first)


def test_depths_take_turns_and_each_round_starts_with_another(tiny: SentenceTransformer) -> None:
    runs = Runs(tiny)
    benchmark_latency(tiny, [1, 3], batch_size=5, rounds=9)
    timed = runs.depths[-27:]
    rounds = [timed[start : start + 3] for start in range(0, 27, 3)]
    assert all(sorted(turn) == [1, 3, 4] for turn in rounds)
    assert [turn[0] for turn in rounds].count(1) == [turn[0] for turn in rounds].count(4) == 3
    assert set(runs.texts[-27:]) == {5}


def test_the_depths_of_sizes_are_timed(tiny: SentenceTransformer) -> None:
    times = benchmark_latency(tiny, sizes=["2L-8d", Size(1, 4), "2L-32d"], batch_size=2, rounds=1)
    assert list(times["num_layers"]) == [1, 2, 4]


@pytest.mark.parametrize(("rounds", "calls"), [(1, 2), (3, 4), (20, 22)])
def test_warm_up_is_a_tenth_of_timed_rounds(tiny: SentenceTransformer, rounds: int, calls: int) -> None:
    runs = Runs(tiny)
    benchmark_latency(tiny, 4, batch_size=7, rounds=rounds)
    assert runs.texts.count(7) == calls


def test_the_bar_moves_with_every_call(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []

    class Bar(latency.tqdm):  # type: ignore[type-arg]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given, mininterval=0, file=io.StringIO())
            bars.append(self)
            self.seen: list[int] = []

        def update(self, n: float | None = 1) -> bool | None:
            self.seen.append(len(runs.depths))
            return super().update(n)

    runs = Runs(tiny)
    monkeypatch.setattr(latency, "tqdm", Bar)
    benchmark_latency(tiny, [1, 2], batch_size=2, rounds=3)
    (bar,) = bars
    assert (bar.total, bar.n) == (12, 12)
    assert [later - earlier for earlier, later in pairwise(bar.seen)] == [1] * 11


def test_own_texts_are_encoded_whole(tiny: SentenceTransformer) -> None:
    runs = Runs(tiny)
    table = benchmark_latency(tiny, [4], texts=TEXTS, batch_size=3, rounds=1)
    assert runs.texts[-2:] == [3, 2]
    assert table["milliseconds"][0] / table["milliseconds_per_text"][0] == pytest.approx(len(TEXTS))


def test_tells_of_depths_whose_times_overlap(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spread of 2 layers reaches into that of 4: nothing says which is faster."""
    seconds = np.array([[1, 2, 3, 6], [1, 2.5, 3.1, 6], [1.2, 3.5, 3.2, 6], [1.1, 3.6, 3.3, 6]]) / 1000
    monkeypatch.setattr(latency, "_time_in_turns", lambda *_: seconds)
    with pytest.warns(
        DataWarning, match=r"overlap \(quartiles: 2 layers 2\.4 to 3\.5 ms, 3 layers 3\.1 to 3\.2 ms\)"
    ) as found:
        benchmark_latency(tiny)
    assert found[0].filename == __file__
    monkeypatch.setattr(latency, "_time_in_turns", lambda *_: seconds[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        benchmark_latency(tiny)


def test_parameters_are_those_of_the_saved_cut(tiny: SentenceTransformer, tmp_path: Path) -> None:
    table = benchmark_latency(tiny, batch_size=1, rounds=1).set_index("num_layers")
    for depth in (1, 2, 3, 4):
        truncate(tiny, num_layers=depth).save_pretrained(str(tmp_path / str(depth)))
        with safe_open(tmp_path / str(depth) / "model.safetensors", "pt") as saved:
            assert table["parameters"][depth] == sum(saved.get_tensor(name).numel() for name in saved.keys())  # noqa: SIM118


def test_shared_layer_is_counted_once(tmp_path: Path) -> None:
    albert = families.pipeline(families.CONFIGS["albert"](), tmp_path, pooling="mean", dense=None)
    table = benchmark_latency(albert, batch_size=1, rounds=1)
    assert set(table["parameters"]) == {sum(weight.numel() for weight in albert.parameters())}


@pytest.mark.filterwarnings("ignore:.*(too few to align|documents tell little)")
def test_the_readouts_of_other_sizes_do_not_count(tiny: SentenceTransformer, tmp_path: Path) -> None:
    fitted = fit_queries(align(tiny, MANY, steps=0), MANY)
    fitted.save_pretrained(str(tmp_path))
    times = benchmark_latency(fitted, [1], batch_size=2, rounds=1)
    saved = [load_file(file) for file in tmp_path.rglob("model.safetensors")]
    numbers = sum(weight.numel() for weights in saved for weight in weights.values())
    assert len(saved) == 2, "the network and the readout of all layers"
    assert list(times["parameters"])[-1] == numbers
    assert list(times["megabytes"])[-1] == 4 * numbers / 1e6


def test_megabytes_in_8_bits(tiny: SentenceTransformer) -> None:
    """A byte for each number of a matrix, four for others: `test_8_bits` compares with a file."""
    weights = [weight for weight in tiny.parameters()]
    of_matrices, of_others = (
        sum(weight.numel() for weight in weights if (weight.ndim > 1) is kind) for kind in (True, False)
    )
    times = benchmark_latency(tiny, [4], batch_size=1, rounds=1, int8=True)
    assert list(times["megabytes"])[-1] == (of_matrices + 4 * of_others) / 1e6


def test_medians_and_ratios_with_fake_clock(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block takes a second and a call half a second more; every other full call takes twice as long."""
    clock = {"now": 0.0, "calls": 0}

    def first(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        clock["now"] += 1.5

    def further(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        clock["now"] += 1.0

    def last(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        clock["calls"] += 1
        clock["now"] += 1.0 if clock["calls"] % 2 else 5.5

    blocks = list(cast("Any", tiny[0]).model.encoder.layer)
    for block, hook in zip(blocks, (first, further, further, last), strict=True):
        block.register_forward_pre_hook(hook)
    monkeypatch.setattr("st_matryoshka2d.evaluation.latency.time.perf_counter", lambda: clock["now"])
    table = benchmark_latency(tiny, [1, 2], batch_size=3, rounds=5, show_progress_bar=False).set_index("num_layers")
    slow = [clock_time for clock_time in (4.5, 9.0) if table["milliseconds"][4] == 1000 * clock_time]
    assert len(slow) == 1, "the median of five rounds is one of the two times"
    assert list(table["milliseconds"])[:2] == [1500, 2500]
    assert (table["low"][4], table["high"][4]) == (4500, 9000)
    assert list(table["speedup"])[:2] == pytest.approx([slow[0] / 1.5, slow[0] / 2.5])
    assert list(table["theory"]) == [4, 2, 1]
    assert table["milliseconds_per_text"][2] == pytest.approx(2500 / 3)


def test_leaves_model_unchanged(tiny: SentenceTransformer) -> None:
    tiny.train()
    weights = {name: value.clone() for name, value in tiny.state_dict().items()}
    benchmark_latency(tiny, [2], rounds=1)
    assert all(module.training for module in tiny.modules())
    assert tiny.config is not None
    assert tiny.config.num_hidden_layers == 4
    assert all(torch.equal(value, weights[name]) for name, value in tiny.state_dict().items())


@pytest.fixture
def times() -> pd.DataFrame:
    per_text = [3.64, 6.3, 9.24, 11.8, 14.5, 17.3]
    return pd.DataFrame(
        {
            "num_layers": range(1, 7),
            "milliseconds_per_text": per_text,
            "speedup": [per_text[-1] / time for time in per_text],
            "theory": [6 / depth for depth in range(1, 7)],
        }
    )


def test_figure_shows_theory_and_measurements(times: pd.DataFrame, tmp_path: Path) -> None:
    figure = plot_speedup(times.sample(frac=1, random_state=0), tmp_path / "speedup.png", "a model")
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert lines["theory: N / layers"] == pytest.approx(times[["num_layers", "theory"]].to_numpy())
    assert lines["measured"] == pytest.approx(times[["num_layers", "speedup"]].to_numpy())
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}x" for value in times["speedup"]]
    assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["1\n3.64 ms", "2\n6.3 ms"]
    assert axes.get_title() == "a model"
    assert (tmp_path / "speedup.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("factor", [0.4, 1.6])
def test_figure_numbers_do_not_overlap_lines(times: pd.DataFrame, factor: float) -> None:
    """For models faster and slower than the theory; at full depth both ratios are 1."""
    measured = times["theory"] ** (1 + (factor - 1) / 4)
    figure = plot_speedup(times.assign(speedup=measured))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in axes.texts:
        box = text.get_window_extent()
        for line in axes.get_lines():
            along = axes.transData.transform(line.get_xydata())
            dense = np.column_stack([np.interp(np.linspace(0, 5, 500), range(6), along[:, axis]) for axis in (0, 1)])
            assert not ((dense > box.min) & (dense < box.max)).all(axis=1).any(), text.get_text()
