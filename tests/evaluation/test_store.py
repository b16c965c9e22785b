"""The result cache returns only matching cells, and mteb can read it."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from mteb import ResultCache
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_matryoshka2d import GridResult, Size
from st_matryoshka2d.model.identity import model_name, model_revision
from tests.support.labels import BinaryClassification, aggregate
from tests.support.results import assert_identical
from tests.support.search import FewResults
from tests.support.sts import LocalSTS, OtherSTS, quiet, read_along
from tests.support.task_types import marks

pytestmark = marks

SIZES = [Size(1, 8), Size(3, 16)]


class Parts(LocalSTS):
    """The data of a split and subset does not depend on the other splits and subsets."""

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        self.loads += 1
        whole = LocalSTS()
        whole.load_data()
        self.dataset, self.data_loaded = whole.dataset, True


class Revised(Parts):
    __qualname__ = "Parts"  # the same class in a later run
    seed_of_data = 5
    metadata = LocalSTS.metadata.model_copy(update={"dataset": {"path": "none", "revision": "later"}})
    load_data = LocalSTS.load_data


def parts(splits: list[str], subsets: list[str] | None = None) -> Parts:
    task = Parts()
    task.filter_eval_splits(splits)
    task.hf_subsets = subsets or task.hf_subsets
    return task


def mean_of(splits: list[str]) -> AbsTaskAggregate:
    class Mean(AbsTaskAggregate):
        metadata = AggregateTaskMetadata(
            name="Mean", type="STS", description=".", main_score="mean", eval_splits=splits, tasks=[parts(splits)]
        )

    return Mean()


def cells(folder: Path) -> dict[Path, int]:
    """Return the modification time of each cell."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("cells/*.parquet")}


def test_mteb_finds_one_experiment_for_each_size(tiny: SentenceTransformer, tmp_path: Path) -> None:
    grid = quiet(tiny, [LocalSTS(), OtherSTS()], sizes=SIZES, precisions=["float32", "int8"], cache=tmp_path)
    results = ResultCache(tmp_path).load_results(load_experiments="match_name").model_results
    found = {
        (str(one.experiment_name), result.task_name): result.get_score() for one in results for result in one.task_results
    }
    assert {(one.model_name, one.model_revision) for one in results} == {(model_name(tiny), model_revision(tiny))}
    assert (grid.model, grid.revision, grid.full_size) == (model_name(tiny), model_revision(tiny), "4L-32d")
    expected = {
        (f"embed_dim_{size.dim}__num_layers_{size.num_layers}{suffix}", task): grid.at(precision=precision).score(size, task)
        for precision, suffix in (("float32", ""), ("int8", "__output_dtypes_int8"))
        for size in SIZES
        for task in grid.tasks
    }
    assert found == pytest.approx(expected, abs=1e-6)
    assert len(set(found.values())) == len(found) == 8
    shutil.rmtree(tmp_path / "results")
    assert_identical(
        quiet(tiny, [LocalSTS(), OtherSTS()], sizes=SIZES, precisions=["float32", "int8"], cache=tmp_path), grid
    )
    assert len(ResultCache(tmp_path).load_results(load_experiments="match_name").model_results) == len(results) == 4


def other_pooling(model: Any) -> None:
    model[1] = Pooling(32, pooling_mode="cls")


def other_weights(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))


CHECKPOINTS: dict[str, Callable[[Any], object]] = {
    "as it is": lambda model: None,
    "weights": other_weights,
    "prompts": lambda model: model.prompts.update(STS="the old red "),
    "pooling": other_pooling,
    "max_seq_length": lambda model: setattr(model, "max_seq_length", 5),
    "similarity": lambda model: setattr(model, "similarity_fn_name", "dot"),
}


@pytest.mark.slow
def test_checkpoints_with_same_name_have_separate_scores(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """The model is changed in place, so that its name stays."""
    found: dict[str, GridResult] = {}
    for what, change in CHECKPOINTS.items():
        model = copy.deepcopy(tiny)
        change(model)
        found[what] = quiet(model, LocalSTS(), sizes=SIZES, cache=tmp_path)
        assert_identical(found[what], quiet(model, LocalSTS(), sizes=SIZES))
    assert len({tuple(grid.frame["score"]) for grid in found.values()}) == len(CHECKPOINTS)
    (name,) = (tmp_path / "results").iterdir()
    assert name.name == model_name(tiny).replace("/", "__")
    assert len(list(name.iterdir())) == len(CHECKPOINTS)
    again = quiet(tiny, LocalSTS(), sizes=SIZES, cache=tmp_path)
    assert_identical(again, found["as it is"])


def test_cached_cells_are_not_computed(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tasks = [LocalSTS(), FewResults(), BinaryClassification()]
    first = quiet(tiny, [*tasks, aggregate()], sizes=SIZES[:1], cache=str(tmp_path))
    assert not any(task.data_loaded for task in tasks)
    written = cells(tmp_path)
    for cache in (tmp_path, ResultCache(tmp_path)):
        again, mean, seen = [LocalSTS(), FewResults(), BinaryClassification()], aggregate(), read_along(tiny)
        for task in [*again, *cast("Any", mean).tasks]:
            task.load_data = None
        assert_identical(first, quiet(tiny, [*again, mean], sizes=SIZES[:1], cache=cache))
        assert len(seen) in (0, 2), "none but the two rows of tokens that prove, once a process, that the model can be cut"
        after = cells(tmp_path)
        assert {path for path in after if after[path] != written[path]} <= set(tmp_path.rglob("MeanOfThree-*/cells/*"))


def test_more_sizes_and_precisions_only_add(tiny: SentenceTransformer, tmp_path: Path) -> None:
    quiet(tiny, FewResults(), sizes=SIZES[:1], cache=tmp_path)
    before = cells(tmp_path)
    wanted: dict[str, Any] = {"sizes": [Size(4, 32), SIZES[0]], "precisions": ["binary", "float32", "int8"]}
    more = quiet(tiny, FewResults(), cache=tmp_path, **wanted)
    assert_identical(more, quiet(tiny, FewResults(), **wanted))
    after = cells(tmp_path)
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    assert len({more.at(precision=precision).score("4L-32d") for precision in more.precisions}) == 3


def test_other_data_other_splits_other_subsets_and_other_seeds_are_scored_anew(
    tiny: SentenceTransformer, tmp_path: Path
) -> None:
    tasks: list[Callable[[], Any]] = [
        Parts,
        Revised,
        lambda: parts(["test"]),
        lambda: parts(["test"], ["one"]),
        BinaryClassification,
        lambda: BinaryClassification(seed=1),
    ]
    expected = [quiet(tiny, make(), sizes=SIZES[:1]) for make in tasks]
    assert len({tuple(grid.frame["score"]) for grid in expected}) == len(tasks)
    for make, of_task in zip(tasks, expected, strict=True):
        assert_identical(quiet(tiny, make(), sizes=SIZES[:1], cache=tmp_path), of_task)
    for make, of_task in zip(tasks, expected, strict=True):
        task = make()
        assert_identical(quiet(tiny, task, sizes=SIZES[:1], cache=tmp_path), of_task)
        assert not task.data_loaded
        assert getattr(task, "loads", 0) == 0


def test_splits_that_were_scored_apart_are_together_in_mtebs_file_and_apart_in_a_mean(
    tiny: SentenceTransformer, tmp_path: Path
) -> None:
    expected = {split: quiet(tiny, mean_of([split]), sizes=SIZES).score("1L-8d") for split in ("test", "validation")}
    assert expected["test"] != expected["validation"]
    for split in ("test", "validation", "test", "validation"):
        grid = quiet(tiny, mean_of([split]), sizes=SIZES, cache=tmp_path)
        assert grid.score("1L-8d") == pytest.approx(expected[split], abs=1e-6)
    results = ResultCache(tmp_path).load_results(load_experiments="match_name", tasks=["STS13"]).model_results
    assert [set(one.task_results[0].scores) for one in results] == [{"test", "validation"}] * 2


def states() -> list[bytes]:
    of_numpy = cast("Any", np.random.get_state(legacy=False))["state"]  # noqa: NPY002
    return [
        repr(random.getstate()).encode(),
        repr((of_numpy["key"].tobytes(), of_numpy["pos"])).encode(),
        bytes(torch.get_rng_state()),
    ]


@pytest.mark.slow
def test_random_states_and_the_model_are_left_as_they_were(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.train()
    modules = {name: (one.training, len(one._forward_hooks)) for name, one in tiny.named_modules()}
    tasks = [LocalSTS(), FewResults(), BinaryClassification(), aggregate()]
    random.random(), np.random.random(), torch.rand(1)  # noqa: NPY002
    transformer = cast("Any", tiny[0]).model
    before, config, revision = states(), transformer.config.to_dict(), model_revision(tiny)
    for cache in (None, tmp_path, tmp_path):
        quiet(tiny, tasks, sizes=SIZES[:1], cache=cache)
        assert states() == before
    with pytest.raises(TypeError):
        quiet(tiny, ["STS12", 3])  # mteb builds the named task and seeds every generator
    assert states() == before
    assert {name: (one.training, len(one._forward_hooks)) for name, one in tiny.named_modules()} == modules
    assert transformer.config.to_dict() == config
    assert model_revision(tiny) == revision


@pytest.mark.slow
def test_int8_ranges_of_other_chunks_are_other_cells(tiny: SentenceTransformer, tmp_path: Path) -> None:
    def asked(chunk: int, **kwargs: Any) -> GridResult:
        return quiet(tiny, FewResults(), sizes=SIZES, precisions=["float32", "int8"], corpus_chunk_size=chunk, **kwargs)

    for chunk in (5, 4096):
        assert_identical(asked(chunk, cache=tmp_path), asked(chunk))
    before = asked(5, cache=tmp_path).at(precision="int8")
    assert before.score(SIZES[0]) != asked(4096, cache=tmp_path).at(precision="int8").score(SIZES[0])
