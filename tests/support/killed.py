"""Trainings that are killed and resumed, each in a forked process: importing takes longer than training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from tests.support.launch import cache_card_templates, forked, freeze_garbage_collector, killed_by

STEPS, SAVED, KILLED_IN = 6, 4, 5


class Kill(TrainerCallback):
    """Kill the process after the backward pass, before the optimizer step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_IN - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def run_each(root: Path, trainings: Mapping[str, Callable[[], dict[str, Tensor]]]) -> None:
    """Write `<name>.safetensors` of each training that was not killed, and `signals.json`."""
    torch.set_num_threads(1)
    freeze_garbage_collector()
    cache_card_templates()
    signals = {
        name: killed_by(forked(partial(_save, root / f"{name}.safetensors", train))) for name, train in trainings.items()
    }
    (root / "signals.json").write_text(json.dumps(signals))


def _save(file: Path, train: Callable[[], dict[str, Tensor]]) -> None:
    save_file(train(), file)


def different(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not bit-identical."""
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


def assert_resumed_bit_by_bit(root: Path, name: str, folder: Path) -> list[str]:
    """Compare the runs `whole` and `resumed` of a name; return what the resumed run has moved since its checkpoint."""
    signals = json.loads((root / "signals.json").read_text())
    assert (signals[f"{name}, whole"], signals[f"{name}, killed"]) == (0, signal.SIGKILL)
    assert not (root / f"{name}, killed.safetensors").exists()
    whole, resumed = (load_file(root / f"{name}, {end}.safetensors") for end in ("whole", "resumed"))
    assert different(whole, resumed) == []
    # Only the resumed training got as far as the last checkpoint, and otherwise two copies would be
    # compared.
    before, after = (load_file(folder / f"checkpoint-{step}" / "model.safetensors") for step in (SAVED, STEPS))
    return different(before, after)
