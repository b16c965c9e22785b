"""Losses on two processes, each with half of the batch, against one process with all of it; and a launch of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import distributed

from st_matryoshka2d.evaluation.processes import in_all_processes
from st_matryoshka2d.losses import MIPICLoss, RelationalDistillLoss
from st_matryoshka2d.losses.distributed import average_gradient, gather, own_rows
from tests.losses.distributed_script import ACCUMULATION, CASES, RECIPES, Case, Named, compared
from tests.support.in_processes import in_processes
from tests.support.losses import assert_gradients_close, batch, exact, gradients, total

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return in_processes(2, compared, tmp_path_factory.mktemp("distributed"))


def assert_close(found: Named, expected: Named) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        difference = float((found[name] - gradient).abs().max())
        assert difference <= 1e-6, f"{name}: {difference:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_match_step_of_one(ranks: Results, case: Case) -> None:
    """With gathering, the step of the whole batch; without, the mean over its halves. Includes the loss's parameters."""
    expected = ranks[0]["expected"][case.recipe, case.gathered]
    assert_both_took(ranks, str(case), expected, case.recipe)


@pytest.mark.slow
@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_processes_may_have_different_columns(ranks: Results, recipe: str, mini_batch_size: int | None) -> None:
    """With several datasets, the Trainer gives processes batches of different datasets."""
    assert_both_took(ranks, (recipe, mini_batch_size), ranks[0]["expected"][recipe, "uneven"], recipe)


def assert_both_took(ranks: Results, case: Any, expected: dict[str, Named], recipe: str) -> None:
    assert sum(float(gradient.abs().sum()) for gradient in expected["model"].values()) > 1e-3
    assert bool(expected["own"]) == (recipe == "MIPIC")
    assert all(gradient.any() for gradient in expected["own"].values())
    for rank in ranks:
        assert_close(rank["found"][case]["model"], expected["model"])
        assert_close(rank["found"][case]["own"], expected["own"])


@pytest.mark.slow
def test_unused_parameters_do_not_block(ranks: Results) -> None:
    """Unused parameters get zero gradients if DDP awaits all parameters, otherwise none, as in one process."""
    expected = ranks[0]["expected"]["maps by depth", False]["model"]
    assert {name.split(".")[1] for name in expected if name.startswith("3.")} == {"full", "shallow"}
    for rank in ranks:
        unused = {name: gradient for name, gradient in rank["all awaited"].items() if "neither" in name}
        assert len(unused) == 2
        assert not any(gradient.any() for gradient in unused.values())
        assert_close({name: value for name, value in rank["all awaited"].items() if name not in unused}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if "a shallow size" not in recipe])
def test_gathering_makes_a_difference(ranks: Results, recipe: str) -> None:
    """Otherwise the test above could not detect missing gathering."""
    apart, gathered = (ranks[0]["expected"][recipe, gathered]["model"] for gathered in (False, True))
    assert max(float((gathered[name] - apart[name]).abs().max()) for name in gathered) > 1e-3


def test_distillation_has_its_own_gather_argument(tiny: SentenceTransformer) -> None:
    """Distillation has no wrapped loss to configure; the other tests set the attribute directly."""
    for told in (False, True):
        assert RelationalDistillLoss(tiny, gather_across_devices=told).loss.gather_across_devices is told


@pytest.mark.slow
def test_all_processes_draw_the_same_sizes(ranks: Results) -> None:
    first, second = ranks
    assert first["drawn"] == second["drawn"]
    assert first["drawn_alone"] != second["drawn_alone"]
    assert len({tuple(sizes) for sizes in first["drawn"]}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", ACCUMULATION)
def test_trainer_keeps_processes_identical(ranks: Results, accumulation: int) -> None:
    """Bit-identical, including the loss, although each process draws other projectors; also after resuming."""
    first, second = (rank["trained"][accumulation] for rank in ranks)
    for whose in ("model", "own"):
        expected = first["whole"][whose]
        for found in (second["whole"], first["resumed"], second["resumed"]):
            assert [name for name in expected if not torch.equal(expected[name], found[whose][name])] == []
    assert first["whole"]["own"]
    moved = [
        name for name, value in first["start"]["model"].items() if not torch.equal(value, first["whole"]["model"][name])
    ]
    assert any(".layer.0." in name for name in moved)


@pytest.fixture
def _launch(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_launch")
def test_single_process_keeps_rows_and_gradients() -> None:
    rows = torch.randn(3, 4, requires_grad=True)
    (gather(rows) * torch.arange(4)).sum().backward()
    assert torch.equal(gather(rows), rows)
    assert torch.equal(rows.grad, torch.arange(4.0).expand(3, 4))  # type: ignore[arg-type]
    assert torch.equal(average_gradient(rows.detach()), rows)
    assert own_rows(rows, gathered=True).tolist() == [0, 1, 2]


def test_single_process_launch_matches_plain_step(tiny: SentenceTransformer, request: pytest.FixtureRequest) -> None:
    model = exact(tiny)
    loss = MIPICLoss(model, MultipleNegativesRankingLoss(model, gather_across_devices=True)).double()
    alone = gradients(loss, total(loss(batch(model, 2))))
    request.getfixturevalue("_launch")
    assert_gradients_close(gradients(loss, total(loss(batch(model, 2)))), alone, 1e-9)


@pytest.mark.usefixtures("_launch")
def test_single_process_does_not_share_evaluation(tiny: SentenceTransformer) -> None:
    encode = tiny.encode
    assert in_all_processes(tiny, encode, lambda *given: given, {"tasks": ["T"]}) == (encode, 1)
