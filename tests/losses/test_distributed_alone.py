"""Distributed losses in a launch of a single process; `test_distributed.py` has two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import distributed

from st_matryoshka2d.evaluation.launch import Processes
from st_matryoshka2d.losses import MIPICLoss
from st_matryoshka2d.losses.distributed import average_gradient, gather, own_rows
from tests.support.losses import assert_gradients_close, batch, exact, gradients, total

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")


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
    processes = Processes.of_launch(tiny)
    assert processes == Processes(rank=0, count=1)
    assert processes.everyones("value") == ["value"]
    with pytest.raises(OSError, match="no such data"), processes.failing_together():
        raise OSError("no such data")
