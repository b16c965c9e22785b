"""Killed and resumed trainings end bit-identical to uninterrupted ones."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.losses.resume_script import MORE_RESUMED, RESUMED, SAVED, STEPS
from tests.support.launch import finished

pytestmark = pytest.mark.slow  # starts processes; test_state.py has in-process tests


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the trainings; return their folder."""
    return trainings("some", tmp_path_factory)


@pytest.fixture(scope="module")
def more_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Further trainings, of losses that are saved and resumed like those in `runs`."""
    return trainings("more", tmp_path_factory)


def trainings(part: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(part)
    finished(sys.executable, "-m", "tests.losses.resume_script", folder, part)
    return folder


def ends(runs: Path, name: str, whose: str = "") -> dict[str, Tensor]:
    return {key: value for key, value in load_file(runs / f"{name}.safetensors").items() if key.startswith(whose)}


def said(runs: Path, name: str) -> dict[str, Any]:
    return json.loads((runs / f"{name}.json").read_text())


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


def names_in(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as tensors:
        return set(tensors.keys())


every_loss = pytest.mark.parametrize(
    ("fixture", "loss"),
    [
        *(("runs", loss) for loss in RESUMED),
        *(("more_runs", loss) for loss in MORE_RESUMED),
    ],
)


@every_loss
def test_killed_training_resumes_bit_by_bit(fixture: str, loss: str, request: pytest.FixtureRequest) -> None:
    runs = request.getfixturevalue(fixture)
    signals = json.loads((runs / "signals.json").read_text())
    assert (signals[f"{loss}, whole"], signals[f"{loss}, killed"]) == (0, signal.SIGKILL)
    saved = {folder.name for folder in (runs / loss / "killed").glob("checkpoint-*")}
    assert f"checkpoint-{STEPS}" in saved, "only the resumed training got as far as that"
    assert not (runs / f"{loss}, killed.safetensors").exists()
    assert said(runs, f"{loss}, resumed")["error"] == ""
    whole = ends(runs, f"{loss}, whole")
    assert different(whole, ends(runs, f"{loss}, resumed")) == []
    assert any(name.startswith("loss") for name in whole) == (loss.startswith("MIPIC") or "dataset" in loss)


@every_loss
def test_resumed_training_continues_after_checkpoint(fixture: str, loss: str, request: pytest.FixtureRequest) -> None:
    """Otherwise the test above would compare two copies of the checkpoint."""
    runs = request.getfixturevalue(fixture)
    checkpoint, final = (runs / loss / "killed" / f"checkpoint-{step}" for step in (SAVED, STEPS))
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, final))
    moved = different(before, after)
    assert any(".layer.0." in name for name in moved)
    if (final / "loss.safetensors").exists():
        before, after = (load_file(folder / "loss.safetensors") for folder in (checkpoint, final))
        assert len(different(before, after)) == len(after), "each of the loss's own parameters is trained"


def test_missing_callback_warns_and_changes_result(runs: Path) -> None:
    """This also shows that the tests above can fail."""
    (warning,) = said(runs, "unsaved, resumed")["said"]
    assert "callbacks=[LossStateCallback(loss)]" in warning
    whole = ends(runs, "MIPIC, whole")
    assert "loss/terms.0.P.4" in different(whole, ends(runs, "unsaved, resumed"))
    assert different(ends(runs, "MIPIC, whole", "model"), ends(runs, "unsaved, resumed", "model"))
    for name in ("MIPIC, whole", "MIPIC, resumed", "a loss for each dataset, whole", "2DMSE, whole"):
        assert said(runs, name)["said"] == [], name


def test_saved_models_exclude_loss_parameters(runs: Path) -> None:
    """A checkpoint stores the loss's parameters in a separate file."""
    untrained = names_in(runs / "start" / "model.safetensors")
    for folder in (runs / "MIPIC" / "whole" / "final", runs / "MIPIC" / "whole" / f"checkpoint-{SAVED}"):
        weights = [file for file in folder.rglob("*.safetensors") if file.name != "loss.safetensors"]
        assert [names_in(file) for file in weights] == [untrained]
    own = {name.removeprefix("loss/") for name in ends(runs, "MIPIC, whole", "loss/")}
    assert names_in(runs / "MIPIC" / "whole" / f"checkpoint-{SAVED}" / "loss.safetensors") == own
    assert not list((runs / "MIPIC" / "whole" / "final").rglob("loss.safetensors"))
    assert names_in(runs / "2DMSE" / "whole" / f"checkpoint-{SAVED}" / "loss.safetensors") == {"sampler.generator"}


def test_losses_of_several_datasets_are_saved_under_their_names(runs: Path) -> None:
    saved = names_in(runs / "a loss for each dataset" / "whole" / f"checkpoint-{SAVED}" / "loss.safetensors")
    assert {name.split(".")[0] for name in saved} == {"old", "new"}
    assert "old.terms.0.P.4" in saved
    assert "new.terms.1.phi.0.0.weight" in saved


def test_a_checkpoint_without_the_file_is_refused(runs: Path) -> None:
    error = said(runs, "no file")["error"]
    assert error.startswith("FileNotFoundError: Training resumes at step 4, but no loss.safetensors")
    assert "saved with LossStateCallback" in error


def test_the_file_of_another_loss_is_refused(runs: Path) -> None:
    error = said(runs, "another loss")["error"]
    assert error.startswith("ValueError: loss.safetensors belongs to another loss.")
    assert "terms.0.P.4" in error
    assert "terms.0.P.5" in error


def test_ignores_checkpoint_of_other_run(runs: Path) -> None:
    """The output folder has a checkpoint of the same step; only the arguments identify the right one."""
    error = said(runs, "elsewhere, not told")["error"]
    assert error.startswith("FileNotFoundError")
    assert "resume_from_checkpoint=" in error
    assert said(runs, "elsewhere, told")["error"] == ""
    assert different(ends(runs, "MIPIC, whole"), ends(runs, "elsewhere, told")) == []
