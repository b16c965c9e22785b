"""GridEvaluator reports the scores of `evaluate` to the Trainer and does not affect training."""

from __future__ import annotations

import copy
import csv
import pickle
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mteb.mocks.mock_tasks import MockAggregatedTask, MockClassificationTask
from scipy.stats import spearmanr
from sentence_transformers import InputExample, SentenceTransformer, SimilarityFunction
from sentence_transformers.base.evaluation import SequentialEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import pairwise_cos_sim
from torch.utils.data import DataLoader

from st_matryoshka2d import GridEvaluator, GridResult, Size, add_to_model_card, sizes_ladder
from st_matryoshka2d.evaluation.tasks import parts_of
from tests.evaluation.evaluator_script import SIZES, Nothing, noisy, trained, with_and_without
from tests.support.adapters import by_hand, lora
from tests.support.families import ENDS, TEXTS
from tests.support.in_processes import in_processes
from tests.support.quick import quick
from tests.support.sts import ConstantSTS, LocalSTS, OtherSTS, metadata, quiet, read_along
from tests.support.training import OLD, RECIPES, cut_by_hand, train


class LikeAtTheStart(LocalSTS):
    """Pairs graded by the current model, so that any training lowers the score."""

    metadata = metadata("STS12")

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.start = copy.deepcopy(model)

    def pairs(self, pool: list[str], generator: random.Random) -> list[dict[str, object]]:
        rows = super().pairs(pool, generator)
        one, two = (self.start.encode([str(row[column]) for row in rows]) for column in ("sentence1", "sentence2"))
        scores = SimilarityFunction.to_similarity_pairwise_fn("cosine")(one, two)
        return [{**row, "score": 2 + 2 * float(score)} for row, score in zip(rows, scores, strict=True)]


def read(path: Path) -> list[dict[str, float]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def test_metrics_match_evaluate(tiny: SentenceTransformer) -> None:
    evaluator = GridEvaluator([LocalSTS(), OtherSTS()], sizes=["4L-32d", Size(2, 8)], name="dev")
    metrics = evaluator(tiny)
    grid = quiet(tiny, [LocalSTS(), OtherSTS()], sizes=["4L-32d", "2L-8d"])
    small, full = grid.score("2L-8d"), grid.score("4L-32d")
    means = {name: (grid.score("2L-8d", name) + grid.score("4L-32d", name)) / 2 for name in grid.tasks}
    assert metrics == pytest.approx(
        {
            "dev_STS13_02L_0008d": grid.score("2L-8d", "STS13"),
            "dev_STS13_04L_0032d": grid.score("4L-32d", "STS13"),
            "dev_STS13_mean": means["STS13"],
            "dev_STS14_02L_0008d": grid.score("2L-8d", "STS14"),
            "dev_STS14_04L_0032d": grid.score("4L-32d", "STS14"),
            "dev_STS14_mean": means["STS14"],
            "dev_all_02L_0008d": small,
            "dev_all_04L_0032d": full,
            "dev_all_mean": (small + full) / 2,
        },
        rel=1e-9,
    )
    assert len(set(metrics.values())) == len(metrics)
    assert evaluator.primary_metric == "dev_all_mean"
    assert evaluator.grid is not None
    assert evaluator.grid.to_frame().equals(grid.to_frame())
    assert evaluator.history == [{"epoch": -1, "steps": -1, **metrics}]


def test_by_default_the_ladder_is_scored_with_one_forward_pass(tiny: SentenceTransformer) -> None:
    task, seen = LocalSTS(), read_along(tiny)
    evaluator = GridEvaluator(task, batch_size=64)
    evaluator(tiny)
    assert evaluator.grid is not None
    assert evaluator.grid.sizes == sizes_ladder(tiny)
    assert set(seen) >= task.texts()
    assert max(seen[text] for text in task.texts()) == 1


def test_names_of_metrics_sort_as_sizes_do_and_please_every_logger() -> None:
    class Named(LocalSTS):
        metadata = metadata("STS13").model_copy(update={"name": "STS-22 (v2.1)"})

    sizes = [Size(2, 32), Size(2, 768), Size(4, 64), Size(10, 8), Size(10, 1024), Size(24, 1024)]
    keys = [GridEvaluator([Named()], sizes, primary_size=size).primary_metric for size in sizes]
    assert keys[0] == "STS_22__v2_1__02L_0032d"
    assert keys == sorted(keys)
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key) for key in keys)


@pytest.mark.parametrize(
    ("tasks", "primary_size", "name", "expected"),
    [
        ([LocalSTS()], None, "", "STS13_mean"),
        ([LocalSTS()], "2L-8d", "STS13", "STS13_STS13_02L_0008d"),
        ([LocalSTS(), OtherSTS()], None, "", "all_mean"),
        ([LocalSTS(), OtherSTS()], Size(2, 8), "all", "all_all_02L_0008d"),
    ],
)
def test_primary_metric_is_set_before_evaluation(
    tiny: SentenceTransformer, tasks: list[LocalSTS], primary_size: Any, name: str, expected: str
) -> None:
    evaluator = GridEvaluator(tasks, ["2L-8d", "4L-8d"], primary_size=primary_size, name=name)
    assert evaluator.primary_metric == expected
    assert evaluator.greater_is_better
    assert expected in evaluator(tiny)
    assert evaluator.primary_metric == expected


def test_trainer_loads_best_checkpoint(tiny: SentenceTransformer, tmp_path: Path) -> None:
    task = LikeAtTheStart(tiny)
    evaluator = GridEvaluator(task, SIZES, primary_size="2L-8d", write_figure=True)
    trainer = trained(
        tiny, tmp_path, evaluator, max_steps=4, load_best_model_at_end=True, metric_for_best_model=evaluator.primary_metric
    )
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "eval_STS12_mean" in entry}
    scores = {step: entry["eval_STS12_02L_0008d"] for step, entry in logged.items()}
    assert list(scores) == [2, 4]
    best = max(scores, key=lambda step: scores[step])
    assert scores[best] > scores[4]  # the best is not the last checkpoint
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert trainer.state.best_metric == scores[best]
    for model in (tiny, SentenceTransformer(str(tmp_path / f"checkpoint-{best}"), device="cpu")):
        assert evaluator(model)["STS12_02L_0008d"] == pytest.approx(scores[best], abs=1e-6)
    assert task.loads == 1
    assert [entry["STS12_02L_0008d"] for entry in evaluator.history[:2]] == list(scores.values())
    table = read(tmp_path / "eval" / "grid_evaluation_results.csv")
    assert table == evaluator.history[:2]
    assert list(table[0]) == ["epoch", "steps", "STS12_02L_0008d", "STS12_04L_0032d", "STS12_mean"]
    assert (tmp_path / "eval" / "grid.png").stat().st_size > 5000


def test_the_scores_before_training_stand_beside_those_after(
    tiny: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = GridEvaluator(LikeAtTheStart(tiny), SIZES, write_csv=False)
    with caplog.at_level("INFO", "st_matryoshka2d.evaluation.evaluator"):
        trained(tiny, tmp_path, evaluator, eval_on_start=True, max_steps=2, learning_rate=1e-1)
    assert evaluator.first is not None
    assert evaluator.grid is not None
    assert [entry["steps"] for entry in evaluator.history] == [0, 2]
    start, end = [record for record in caplog.records if "evaluator" in record.name]
    assert [start.levelname, end.levelname] == ["INFO", "WARNING"], "training lowers this score"
    assert "change" not in start.getMessage()
    rows = [line.split() for line in end.getMessage().splitlines()]
    assert ["step", "0", "step", "2", "change"] in rows
    for size in SIZES:
        before, after = 100 * evaluator.first.score(size), 100 * evaluator.grid.score(size)
        assert [size, f"{before:.2f}", f"{after:.2f}", f"{after - before:.2f}"] in rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fit_saves_the_best_model(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.model_card_data.local_files_only = True
    evaluator = GridEvaluator([LikeAtTheStart(tiny), LocalSTS()], SIZES, write_csv=False)
    examples: Any = [InputExample(texts=[old, new]) for old, new in zip(OLD, TEXTS, strict=True)]
    tiny.fit(
        [(DataLoader(examples, batch_size=5), MultipleNegativesRankingLoss(tiny))],
        evaluator=evaluator,
        epochs=3,
        warmup_steps=0,
        optimizer_params={"lr": 1e-2},
        output_path=str(tmp_path / "best"),
        show_progress_bar=False,
    )
    scores = [entry["all_mean"] for entry in evaluator.history]
    assert len(scores) == 3
    assert max(scores) > scores[-1]
    saved = SentenceTransformer(str(tmp_path / "best"), device="cpu")
    assert evaluator(saved)["all_mean"] == pytest.approx(max(scores), abs=1e-6)
    assert not list(tmp_path.rglob("*.csv")) + list(tmp_path.rglob("*.png"))


def test_with_other_evaluators(tiny: SentenceTransformer) -> None:
    task = LocalSTS()
    task.load_data()
    data = task.dataset["one"]["test"]  # type: ignore[index]
    other = EmbeddingSimilarityEvaluator(data["sentence1"], data["sentence2"], data["score"], name="sts")
    evaluator = GridEvaluator(task, ["2L-8d", "4L-32d"], primary_size="2L-8d")
    both = SequentialEvaluator([other, evaluator])(tiny)
    alone = evaluator(tiny)
    assert set(both) == {"sts_pearson_cosine", "sts_spearman_cosine", *alone, "sequential_score"}
    assert both["sequential_score"] == alone["STS13_02L_0008d"]
    full = evaluator.grid.to_frame().query("split == 'test' and subset == 'one' and is_main and num_layers == 4")  # type: ignore[union-attr]
    assert both["sts_spearman_cosine"] == pytest.approx(full["score"].item(), abs=1e-6)


@pytest.mark.slow
def test_other_types_of_tasks(tiny: SentenceTransformer) -> None:
    evaluator = GridEvaluator([MockClassificationTask(), MockAggregatedTask()], SIZES)
    first = evaluator(tiny)
    assert all(part.data_loaded for task in evaluator.tasks for part in parts_of(task))
    assert evaluator(tiny) == first
    grid = quiet(tiny, [MockClassificationTask(), MockAggregatedTask()], sizes=SIZES)
    assert first["all_02L_0008d"] == grid.score("2L-8d")
    assert len(first) == 9


@pytest.mark.parametrize("dropout", quick([True, False], True))
def test_does_not_affect_training(tmp_path: Path, dropout: bool) -> None:
    """The Trainer draws a random number per evaluation, which changes dropout, so compare with another evaluator."""
    start = noisy(tmp_path)
    for module in start.modules():
        if isinstance(module, torch.nn.Dropout) and not dropout:
            module.p = 0.0
    watched = copy.deepcopy(start)
    trained(start, tmp_path / "alone", Nothing() if dropout else None, max_steps=4)
    trained(watched, tmp_path / "watched", GridEvaluator(LocalSTS(), SIZES, write_csv=False), max_steps=4)
    for name, weights in start.state_dict().items():
        assert torch.equal(watched.state_dict()[name], weights), name


def test_leaves_model_and_random_states_unchanged(tmp_path: Path) -> None:
    model, task = noisy(tmp_path).train(), LocalSTS()
    model[1].eval()

    def states() -> tuple[Any, ...]:
        modes = {name: module.training for name, module in model.named_modules()}
        of_numpy: Any = np.random.get_state()  # noqa: NPY002 - the global one is what mteb seeds
        return modes, random.getstate(), of_numpy[1].tolist(), torch.get_rng_state().tolist()

    random.seed(7), np.random.seed(7), torch.manual_seed(7)  # noqa: NPY002 - not what mteb seeds with
    before = states()
    GridEvaluator("STS12")  # builds the task, for which mteb sets seeds
    GridEvaluator(task, SIZES)(model)
    assert states() == before


@pytest.mark.slow
def test_a_compiled_model_is_scored_as_itself(tiny: SentenceTransformer) -> None:
    evaluator = GridEvaluator(LocalSTS(), SIZES)
    assert evaluator(torch.compile(tiny)) == evaluator(tiny)  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """The first process evaluates, both receive the scores, and training is unaffected."""
    first, second = in_processes(2, with_and_without, tmp_path)
    assert len(first["log"]) == 4
    assert first["log"] == first["history"] == second["log"]
    assert second["history"] == []
    for result in (first, second):
        for name, weights in result["without"].items():
            assert torch.equal(result["with"][name], weights), name


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_nan_is_never_the_best_score(tiny: SentenceTransformer, tmp_path: Path) -> None:
    evaluator = GridEvaluator([LocalSTS(), ConstantSTS()], SIZES, write_csv=False)
    trainer = trained(
        tiny, tmp_path, evaluator, max_steps=2, load_best_model_at_end=True, metric_for_best_model=evaluator.primary_metric
    )
    assert trainer.state.best_model_checkpoint is None
    (metrics,) = evaluator.history
    assert np.isnan([metrics["STS16_mean"], metrics["all_02L_0008d"], metrics["all_mean"]]).all()
    assert np.isfinite(metrics["STS13_mean"])
    tiny.save_pretrained(str(tmp_path / "saved"))
    assert "nan" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")


def test_resumed_training_with_other_sizes_appends_to_file(tiny: SentenceTransformer, tmp_path: Path) -> None:
    before = GridEvaluator(LocalSTS(), ["2L-8d"], name="dev")(tiny, str(tmp_path), 1, 10)
    after = GridEvaluator(LocalSTS(), ["4L-8d"], name="dev", write_figure=True)(tiny, str(tmp_path), 2, 20)
    table = read(tmp_path / "grid_evaluation_dev_results.csv")
    assert table == [{"epoch": 1, "steps": 10, **before}, {"epoch": 2, "steps": 20, **after}]
    assert (tmp_path / "grid_dev.png").exists()


def test_only_a_figure_that_is_asked_for_needs_matplotlib(
    tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("st_matryoshka2d.plots")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # cannot be imported
    trained(tiny, tmp_path, GridEvaluator(LocalSTS(), ["2L-8d"]), max_steps=2)
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["grid_evaluation_results.csv"]
    with pytest.raises(ImportError, match=r"pip install matplotlib\. The extra \[plot\]"):
        GridEvaluator(LocalSTS(), ["2L-8d"], write_figure=True)


def test_the_model_card_has_sizes_by_tasks(tiny: SentenceTransformer, tmp_path: Path) -> None:
    evaluator = GridEvaluator([LocalSTS(), OtherSTS()], SIZES, write_csv=False)
    trained(tiny, tmp_path, evaluator, max_steps=2)
    grid = evaluator.grid
    assert grid is not None
    tiny.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    section = card[card.index("#### Model Sizes") : card.index("## Training Details")]
    assert card.count("#### Model Sizes") == 1
    assert '"tasks": "STS13 (cosine_spearman), STS14 (cosine_spearman)"' in section
    assert '"sizes": "2L-8d, 4L-32d"' in section
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    assert rows[0] == ["Metric", "STS13", "STS14", "all"]
    expected = [*(grid.score("2L-8d", task) for task in grid.tasks), grid.score("2L-8d")]
    assert rows[2] == ["02L_0008d", *(str(round(score, 4)) for score in expected)]
    assert [row[0] for row in rows[2:]] == ["02L_0008d", "04L_0032d", "mean"]
    assert "| Epoch | Step | Training Loss | STS13_mean | STS14_mean | all_mean |" in re.sub(" +", " ", card)
    # The card keeps its entries as long as the model lives; they must not hold the data.
    assert len(pickle.dumps(tiny.model_card_data.eval_results_dict)) < 10_000


def rows(card: str) -> dict[str, list[str]]:
    """Read the table of the section "Sizes"."""
    table = card[card.index("| layers / dim") : card.index("![Scores by layers")].splitlines()
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line]
    return {depth: cells for depth, *cells in (head, *body)}


def in_percent(grid: GridResult) -> dict[str, list[str]]:
    return {str(depth): [f"{score * 100:.2f}" for score in row] for depth, row in grid.pivot().iterrows()}


def test_a_grid_is_added_to_a_saved_model_and_replaced(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    readme, figure = tmp_path / "README.md", tmp_path / "grid.png"
    plain = readme.read_text(encoding="utf-8")
    before, after = quiet(tiny, LocalSTS(), num_layers=[2, 4], dims=[8, 16]), quiet(tiny, OtherSTS(), sizes=["3L-8d"])
    add_to_model_card(tmp_path, before)
    first, drawn = readme.read_text(encoding="utf-8"), figure.read_bytes()
    assert rows(first) == {"layers / dim": ["8", "16"], **in_percent(before)}
    assert "![Scores by layers and dimensions](grid.png)" in first
    assert first.index("## Usage") < first.index("## Sizes") < first.index("## Training Details")
    assert f'small = load("{tmp_path.name}", num_layers=4, dim=8)' in first
    start, end = first.index("<!-- sizes: begin -->"), first.index("<!-- sizes: end -->")
    # sentence-transformers says so of any model
    of_untrained = plain.replace("model trained. It maps", "model. It maps")
    assert first[:start] + first[end + len("<!-- sizes: end -->\n\n") :] == of_untrained
    add_to_model_card(tmp_path, after)
    second = readme.read_text(encoding="utf-8")
    assert second.count("## Sizes") == 1
    assert rows(second) == {"layers / dim": ["8"], **in_percent(after)}
    assert figure.read_bytes() != drawn
    add_to_model_card(tmp_path, before)
    assert readme.read_text(encoding="utf-8") == first
    SentenceTransformer(str(tmp_path), device="cpu")


def test_a_card_of_another_kind_gets_the_section_at_its_end(tmp_path: Path) -> None:
    row = {"task": "T", "split": "test", "subset": "default", "metric": "accuracy", "is_main": True, "score": 0.5}
    grid = GridResult(pd.DataFrame([{**row, "num_layers": 2, "dim": 8}]))
    with pytest.raises(FileNotFoundError, match="save the model there first"):
        add_to_model_card(tmp_path, grid)
    (tmp_path / "README.md").write_text("# Mine\n", encoding="utf-8")
    add_to_model_card(tmp_path, grid)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Mine\n\n<!-- sizes: begin -->\n## Sizes\n")
    assert f'load("{tmp_path.name}", num_layers=2, dim=8)' in card
    assert card.endswith("<!-- sizes: end -->\n")


class OnePart(LocalSTS):
    """One split of one subset."""

    metadata = LocalSTS.metadata.model_copy(update={"eval_splits": ["test"], "eval_langs": ["eng-Latn"]})


# of mteb
@pytest.mark.filterwarnings("ignore:The fill_missing parameter is deprecated:DeprecationWarning")
def test_training_with_an_adapter_is_scored(
    tiny: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, task, sizes = copy.deepcopy(tiny), OnePart(), [Size(2, 8), Size(4, 32)]
    model.add_adapter(lora())
    evaluator = GridEvaluator(task, sizes, write_csv=False, primary_size="2L-8d")
    schedule = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.02}
    best = {"load_best_model_at_end": True, "metric_for_best_model": evaluator.primary_metric, "greater_is_better": True}
    train(model, RECIPES["Starbucks"](model), tmp_path, max_steps=2, evaluator=evaluator, **schedule, **best)
    assert "Could not load the best model" not in caplog.text
    (found,) = evaluator.history
    (subset,) = task.dataset.values()
    rows = subset["test"]
    plain = by_hand(tiny, model)
    assert abs(plain.encode(TEXTS) - tiny.encode(TEXTS)).max() > 0.01
    for size in sizes:
        with cut_by_hand(plain, size.num_layers, ENDS.get(size.num_layers)):
            one, two = (plain.encode(rows[name])[:, : size.dim] for name in ("sentence1", "sentence2"))
        wanted = spearmanr(pairwise_cos_sim(one, two), rows["score"]).statistic
        name = f"STS13_{size.num_layers:02d}L_{size.dim:04d}d"
        assert found[name] == pytest.approx(wanted, abs=1e-3)
