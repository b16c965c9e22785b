"""The file of a loss's own parameters: training resumes from it, and read and write errors name it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch import nn
from transformers import TrainerControl, TrainerState

from st_matryoshka2d.losses import LossStateCallback, MultiSizeLoss
from tests.support.disk import full_disk
from tests.support.training import RECIPES, train

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")


@pytest.fixture
def arguments(tmp_path: Path) -> SentenceTransformerTrainingArguments:
    """Return arguments of a training that has just written its second checkpoint."""
    (tmp_path / "checkpoint-2").mkdir()
    return SentenceTransformerTrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)


@pytest.fixture
def callback() -> LossStateCallback:
    loss = nn.Module()
    loss.P = nn.Parameter(torch.ones(300, 300))
    return LossStateCallback(loss)


def test_full_disk_error_names_loss_file_and_leaves_none(
    arguments: SentenceTransformerTrainingArguments, callback: LossStateCallback, tmp_path: Path
) -> None:
    state = TrainerState(global_step=2)
    with pytest.raises(OSError, match=r"checkpoint-2/loss\.safetensors could not be written.*Make room"), full_disk():
        callback.on_save(arguments, state, TrainerControl())
    assert list((tmp_path / "checkpoint-2").iterdir()) == []
    callback.on_save(arguments, state, TrainerControl())
    assert [path.name for path in (tmp_path / "checkpoint-2").iterdir()] == ["loss.safetensors"]


def test_a_broken_file_is_named(
    arguments: SentenceTransformerTrainingArguments, callback: LossStateCallback, tmp_path: Path
) -> None:
    state = TrainerState(global_step=2)
    callback.on_save(arguments, state, TrainerControl())
    path = tmp_path / "checkpoint-2" / "loss.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    state.save_to_json(str(path.with_name("trainer_state.json")))
    with pytest.raises(ValueError, match=r"checkpoint-2/loss\.safetensors is broken.*Resume from an earlier checkpoint"):
        callback.on_train_begin(arguments, state, TrainerControl())


@pytest.mark.parametrize("recipe", ["MIPIC", "2DMSE"])
def test_resumed_training_matches_uninterrupted_one(tiny: SentenceTransformer, tmp_path: Path, recipe: str) -> None:
    """Bit-identical, with the loss's own parameters and draws. `test_resume.py` kills processes."""
    ends = []
    for seed, checkpoint in enumerate((None, str(tmp_path / "checkpoint-2"))):
        loss = four_steps(tiny, recipe, tmp_path, seed, checkpoint)
        ends.append({name: parameter.detach() for name, parameter in loss.named_parameters()})
    assert loss.own or loss.sampler.generator
    assert [name for name, value in ends[0].items() if not torch.equal(value, ends[1][name])] == []


def test_a_checkpoint_without_the_draws_is_resumed_with_a_warning(tiny: SentenceTransformer, tmp_path: Path) -> None:
    four_steps(tiny, "2DMSE", tmp_path)
    (tmp_path / "checkpoint-2" / "loss.safetensors").unlink()  # as before 0.3
    with pytest.warns(UserWarning, match="does not hold the draws"):
        four_steps(tiny, "2DMSE", tmp_path, checkpoint=str(tmp_path / "checkpoint-2"))


def four_steps(
    start: SentenceTransformer, recipe: str, folder: Path, seed: int = 0, checkpoint: str | None = None
) -> MultiSizeLoss:
    model = copy.deepcopy(start)
    torch.manual_seed(seed)
    loss = RECIPES[recipe](model)
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "resume": checkpoint}
    train(model, loss, folder, callbacks=[LossStateCallback(loss)], **settings)
    return loss


def test_the_callback_takes_losses_only(tiny: SentenceTransformer) -> None:
    for wrong, name in ((tiny, "SentenceTransformer"), ([1], "list"), ({"a": 1}, "int")):
        with pytest.raises(TypeError, match=f"or its losses by dataset, got {name}"):
            LossStateCallback(wrong)  # type: ignore[arg-type]
