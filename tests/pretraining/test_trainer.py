"""Pre-training with transformers' Trainer and SMAETrainer: it learns, resumes bit by bit, and runs on two processes."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from st_matryoshka2d.pretraining import SMAEForPreTraining, SMAETrainer
from tests.pretraining.trainer_script import SEEDS, spread
from tests.support.in_processes import in_processes
from tests.support.killed import assert_resumed_bit_by_bit, different
from tests.support.launch import finished
from tests.support.quick import quick
from tests.support.smae import batch, masked_lm, rows, trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run uninterrupted, killed and resumed trainings; return their folder."""
    folder = tmp_path_factory.mktemp("killed")
    finished(sys.executable, "-m", "tests.pretraining.trainer_script", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of two processes."""
    return in_processes(2, spread, tmp_path_factory.mktemp("processes"))


def badness(model: SMAEForPreTraining) -> dict[str, float]:
    """Return each part of the loss on fixed masked texts."""
    collator, examples = trainer(model, Path()).data_collator, list(rows())
    with torch.no_grad():
        parts = copy.deepcopy(model).eval()(**collator(examples)).parts
    return {name: part.item() for name, part in parts.items()}


@pytest.mark.parametrize("settings", quick([{"gradient_accumulation_steps": 2}, {"bf16": True}], {"bf16": True}), ids=str)
def test_every_part_learns(settings: dict[str, Any], tmp_path: Path) -> None:
    model = SMAEForPreTraining(masked_lm(), ["1L-8d", "4L-32d"])
    before = badness(model)
    training = trainer(model, tmp_path, max_steps=25, learning_rate=1e-2, **settings)
    training.train()
    after = badness(model)
    assert all(after[name] < 0.9 * value for name, value in before.items()), f"{before} -> {after}"
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_both_trainers_train_the_same_weights(tmp_path: Path) -> None:
    """With dropout, and masks from torch's random numbers."""
    ends = []
    for kind in (Trainer, SMAETrainer):
        model = SMAEForPreTraining(masked_lm(dropout=None))
        start = {name: value.clone() for name, value in model.state_dict().items()}
        trainer(model, tmp_path, kind, seed=None, gradient_accumulation_steps=2, max_steps=3).train()
        assert {"W", "decoder.0.output.dense.weight"} < set(different(start, dict(model.state_dict())))
        ends.append(dict(model.state_dict()))
    assert different(*ends) == []


@pytest.mark.parametrize("accumulation", quick([1, 2], 2))
def test_the_parts_in_the_log_make_up_the_loss(accumulation: int, tmp_path: Path) -> None:
    """Over the steps of one log, with evaluations in between; the last step of an epoch has fewer batches."""
    model = SMAEForPreTraining(masked_lm(dropout=None), ["1L-8d", "4L-32d"])
    settings = {"gradient_accumulation_steps": accumulation, "eval_strategy": "steps", "eval_steps": 1}
    training = trainer(
        model, tmp_path, logging_steps=2, per_device_train_batch_size=4, eval_dataset=rows(), **settings
    )  # fmt: skip
    training.train()
    logs = [entry for entry in training.state.log_history if "loss" in entry]
    assert len(logs) == 3
    names = {f"{size}/{side}" for size in ("1L-8d", "4L-32d") for side in ("encoder", "decoder")}
    for entry in logs:
        assert {name for name in entry if "/" in name} == names
        assert sum(entry[name] for name in names) / 2 == pytest.approx(entry["loss"], rel=1e-5)
    evaluated = [entry for entry in training.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 6
    assert not any("/" in name for entry in evaluated for name in entry)


def test_accumulated_batches_make_the_step_of_their_mean(tmp_path: Path) -> None:
    model = SMAEForPreTraining(masked_lm())
    alone, seen = copy.deepcopy(model), []
    training = trainer(
        model,
        tmp_path,
        max_steps=1,
        gradient_accumulation_steps=3,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    collator = training.data_collator
    training.data_collator = lambda examples: seen.append(collator(examples)) or seen[-1]
    training.train()
    for inputs in seen[:3]:
        (alone(**inputs).loss / 3).backward()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter -= 0 if parameter.grad is None else parameter.grad
    torch.testing.assert_close(dict(model.state_dict()), dict(alone.state_dict()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", quick(["bert", "electra", "deberta-v2", "modernbert"], "bert", "modernbert"))
def test_checkpointed_activations_change_nothing(family: str) -> None:
    """With dropout, recomputed activations must equal the discarded ones."""
    gradients = []
    for checkpointed in (False, True):
        mlm = masked_lm(family, dropout=None)
        model = SMAEForPreTraining(mlm).train()
        if checkpointed:
            model.activation_checkpointing_enable()
        torch.manual_seed(0)
        model(**batch()).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_killed_training_resumes_bit_by_bit(runs: Path) -> None:
    """Includes the decoder and W, which affect the encoder."""
    for name in SEEDS:
        moved = assert_resumed_bit_by_bit(runs, name, runs / name / "killed")
        assert {"W", "decoder.0.output.dense.weight", "mlm.bert.encoder.layer.3.output.dense.weight"} < set(moved)
    with_seed, without = (load_file(runs / f"{name}, whole.safetensors") for name in SEEDS)
    assert different(with_seed, without), "this also shows that the comparison can fail"


@pytest.mark.slow
@pytest.mark.parametrize("case", [1, 2, "stream"])
def test_two_processes_stay_alike(ranks: list[dict[str, Any]], case: int | str) -> None:
    """Bit-identical, although each starts from other weights, and parts of the encoder are not trained."""
    first, second = (rank["ends"][case] for rank in ranks)
    assert different(first, second) == []
    start = SMAEForPreTraining(masked_lm(dropout=None), ["1L-8d", "2L-32d"]).state_dict()
    moved = different(dict(start), first)
    assert {"W", "decoder.0.output.dense.weight", "mlm.bert.encoder.layer.1.output.dense.weight"} < set(moved)
    assert not any(name.startswith("mlm.bert.encoder.layer.2") for name in moved)
    logs = [[entry for entry in rank["logs"][case] if "loss" in entry] for rank in ranks]
    for entries in zip(*logs, strict=True):
        parts = [{name: value for name, value in entry.items() if "/" in name} for entry in entries]
        assert parts[0] == parts[1]
        assert len(parts[0]) == 4
        assert sum(parts[0].values()) / 2 == pytest.approx(entries[0]["loss"], rel=1e-5)
