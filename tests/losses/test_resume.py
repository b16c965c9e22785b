"""Killed and resumed trainings end bit-identical to uninterrupted ones; what a checkpoint of a loss holds."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch import Tensor, nn
from transformers import TrainerControl, TrainerState

from st_matryoshka2d.losses import LossStateCallback, MultiSizeLoss
from tests.losses.resume_script import LOSSES
from tests.support.disk import full_disk
from tests.support.killed import SAVED, STEPS, assert_resumed_bit_by_bit, different
from tests.support.launch import finished
from tests.support.training import RECIPES, train

pytestmark = pytest.mark.filterwarnings("ignore:MIPICLoss trains")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the trainings; return their folder."""
    folder = tmp_path_factory.mktemp("runs")
    finished(sys.executable, "-m", "tests.losses.resume_script", folder, timeout=600)
    return folder


def ends(runs: Path, name: str, whose: str = "") -> dict[str, Tensor]:
    return {key: value for key, value in load_file(runs / f"{name}.safetensors").items() if key.startswith(whose)}


def said(runs: Path, name: str) -> dict[str, Any]:
    return json.loads((runs / f"{name}.json").read_text())


def names_in(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as tensors:
        return set(tensors.keys())


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_killed_training_resumes_bit_by_bit(loss: str, runs: Path) -> None:
    folder = runs / loss / "killed"
    assert any(".layer.0." in name for name in assert_resumed_bit_by_bit(runs, loss, folder))
    assert [said(runs, f"{loss}, {end}") for end in ("whole", "resumed")] == [{"error": "", "said": []}] * 2
    own = [f"checkpoint-{step}/loss.safetensors" for step in (SAVED, STEPS)]
    if (folder / own[1]).exists():
        before, after = (load_file(folder / name) for name in own)
        assert len(different(before, after)) == len(after), "each of the loss's own parameters is trained"


@pytest.mark.slow
def test_missing_callback_warns_and_changes_result(runs: Path) -> None:
    """This also shows that the test above can fail."""
    (warning,) = said(runs, "unsaved, resumed")["said"]
    assert "callbacks=[LossStateCallback(loss)]" in warning
    for whose in ("loss", "model"):
        assert different(ends(runs, "MIPIC, whole", whose), ends(runs, "unsaved, resumed", whose))


@pytest.mark.slow
def test_parameters_of_a_loss_have_a_file_of_their_own(runs: Path) -> None:
    untrained = names_in(runs / "start" / "model.safetensors")
    checkpoint = f"whole/checkpoint-{SAVED}"
    for folder in (runs / "MIPIC" / "whole" / "final", runs / "MIPIC" / checkpoint):
        weights = [file for file in folder.rglob("*.safetensors") if file.name != "loss.safetensors"]
        assert [names_in(file) for file in weights] == [untrained]
    own = {name.removeprefix("loss/") for name in ends(runs, "MIPIC, whole", "loss/")}
    assert names_in(runs / "MIPIC" / checkpoint / "loss.safetensors") == own
    assert not list((runs / "MIPIC" / "whole" / "final").rglob("loss.safetensors"))
    assert names_in(runs / "2DMSE" / checkpoint / "loss.safetensors") == {"sampler.generator"}
    saved = names_in(runs / "a loss for each dataset" / checkpoint / "loss.safetensors")
    assert {"old.terms.0.P.4", "new.terms.1.phi.0.0.weight"} < saved


@pytest.mark.slow
def test_other_checkpoints_are_refused(runs: Path) -> None:
    """A checkpoint of the same step is in the output folder; only the arguments identify the right one."""
    for name, error, words in (
        ("no file", "FileNotFoundError", ["step 4", "loss.safetensors"]),
        ("another loss", "UsageError", ["terms.0.P.4", "terms.0.P.5"]),
        ("elsewhere, not told", "FileNotFoundError", ["resume_from_checkpoint="]),
    ):
        told = said(runs, name)["error"]
        assert told.startswith(error)
        assert all(word in told for word in words), told
    assert said(runs, "elsewhere, told")["error"] == ""
    assert different(ends(runs, "MIPIC, whole"), ends(runs, "elsewhere, told")) == []


@pytest.mark.parametrize("recipe", ["MIPIC", "2DMSE"])
def test_resumed_training_matches_uninterrupted_one(tiny: SentenceTransformer, tmp_path: Path, recipe: str) -> None:
    """In one process; those above are killed."""
    weights = []
    for seed, checkpoint in enumerate((None, str(tmp_path / "checkpoint-2"))):
        loss = four_steps(tiny, recipe, tmp_path, seed, checkpoint)
        weights.append({name: parameter.detach() for name, parameter in loss.named_parameters()})
    assert loss.own or loss.sampler.generator
    assert different(*weights) == []
    if recipe == "2DMSE":
        (tmp_path / "checkpoint-2" / "loss.safetensors").unlink()  # as before 0.3
        with pytest.warns(UserWarning, match="draws"):
            four_steps(tiny, recipe, tmp_path, checkpoint=checkpoint)


def four_steps(
    start: SentenceTransformer, recipe: str, folder: Path, seed: int = 0, checkpoint: str | None = None
) -> MultiSizeLoss:
    model = copy.deepcopy(start)
    torch.manual_seed(seed)
    loss = RECIPES[recipe](model)
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "resume": checkpoint}
    train(model, loss, folder, callbacks=[LossStateCallback(loss)], **settings)
    return loss


def test_errors_of_reading_and_writing_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    arguments = SentenceTransformerTrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    loss, state = nn.Module(), TrainerState(global_step=2)
    loss.P = nn.Parameter(torch.ones(300, 300))
    callback = LossStateCallback(loss)
    with pytest.raises(OSError, match=r"checkpoint-2/loss\.safetensors"), full_disk():
        callback.on_save(arguments, state, TrainerControl())
    assert list(folder.iterdir()) == []
    callback.on_save(arguments, state, TrainerControl())
    assert [path.name for path in folder.iterdir()] == ["loss.safetensors"]
    path = folder / "loss.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    state.save_to_json(str(folder / "trainer_state.json"))
    with pytest.raises(ValueError, match=r"checkpoint-2/loss\.safetensors"):
        callback.on_train_begin(arguments, state, TrainerControl())
