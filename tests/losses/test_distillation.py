"""Relational distillation, compared with a loop over its equation, with every form of teacher."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from torch import Tensor

from st_matryoshka2d import Size, align, encode_sizes, sizes_ladder, truncate
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistill, RelationalDistillLoss
from st_matryoshka2d.losses.recipes.relational_distill import NoTask
from tests.support import families, oracles
from tests.support.families import TEXTS
from tests.support.losses import BATCHES, assert_gradients_close, batch, exact, gradients, physical_columns, total
from tests.support.pipelines import turned
from tests.support.training import train

SIZES = [(1, 4), (3, 20), (4, 32)]


def oracle(students: list[list[Tensor]], teacher: list[Tensor], temperature: float) -> Tensor:
    """For each size and text: KL of the softmaxes over similarities to all other texts."""
    values = []
    for student in students:
        for i in range(len(teacher)):
            others = [j for j in range(len(teacher)) if j != i]
            t = oracles.distribution([oracles.cosine(teacher[i], teacher[j]) for j in others], temperature)
            s = oracles.distribution([oracles.cosine(student[i], student[j]) for j in others], temperature)
            values.append(oracles.kl(s, t))
    return torch.stack(values).mean()


def oracle_across(students: list[list[Tensor]], teacher: list[Tensor], temperature: float) -> Tensor:
    """For each size and text: KL over similarities to the teacher's other texts, and distance from its own embedding."""
    values = []
    for student in students:
        for i, text in enumerate(student):
            others = [j for j in range(len(teacher)) if j != i]
            cut = [embedding[: len(text)] for embedding in teacher]
            t = oracles.distribution([oracles.cosine(teacher[i], teacher[j]) for j in others], temperature)
            a = oracles.distribution([oracles.cosine(text, cut[j]) for j in others], temperature)
            values.append(oracles.kl(a, t) + 2 * (1 - oracles.cosine(text, cut[i])))
    return torch.stack(values).mean()


def moved(model: SentenceTransformer, seed: int = 3) -> SentenceTransformer:
    """Change the weights of a model, as training does."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def test_teacher_cut_from_student_stays_frozen(tiny: SentenceTransformer) -> None:
    """The cut shares the model's memory and would otherwise follow the student."""
    loss = RelationalDistillLoss(tiny, teacher=truncate(tiny, num_layers=4), sizes=[Size(4, 32)])
    assert total(loss(batch(tiny, 2))).item() == pytest.approx(0, abs=1e-6)
    moved(tiny)
    assert total(loss(batch(tiny, 2))).item() > 1e-3


def test_teacher_has_declared_width(tiny: SentenceTransformer) -> None:
    teacher = truncate(moved(copy.deepcopy(tiny)), dim=4)
    embeddings = torch.stack([teacher.encode(texts, convert_to_tensor=True) for texts in BATCHES[2]], dim=1)
    asked = RelationalDistillLoss(tiny, teacher=teacher)(batch(tiny, 2))
    told = RelationalDistillLoss(tiny, teacher="labels")(batch(tiny, 2), embeddings)
    assert embeddings.shape[-1] == 4
    assert asked["distill"].item() == pytest.approx(told["distill"].item(), abs=1e-6)


def embedded(
    model: SentenceTransformer, start: SentenceTransformer, columns: int
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Embed all texts of a batch at each of SIZES, with gradients, and with the teacher."""
    by_layer = physical_columns(model, columns)
    students = [[text for column in oracles.at(by_layer, n, d) for text in column] for n, d in SIZES]
    return students, [text for texts in BATCHES[columns] for text in start.encode(texts, convert_to_tensor=True).clone()]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_both_parts_match_their_equations(tiny: SentenceTransformer, columns: int) -> None:
    model = exact(tiny)
    start = copy.deepcopy(model).eval()
    term = RelationalDistill(weight=0.5, temperature=0.2, across=0.3)
    loss = MultiSizeLoss(model, NoTask(), [Size(*size) for size in SIZES], terms=[term])
    moved(model)
    parts = loss(batch(model, columns))
    assert list(parts) == ["distill", "distill_across"]
    students, teacher = embedded(model, start, columns)
    alone, across = 0.5 * oracle(students, teacher, 0.2), 0.5 * 0.3 * oracle_across(students, teacher, 0.2)
    for part, expected in zip(parts.values(), (alone, across), strict=True):
        assert part.item() == pytest.approx(expected.item(), abs=1e-6)
        assert expected.item() > 1e-3
    # One backward pass for each side: the parts share a graph, so their weights differ to tell them apart.
    assert_gradients_close(
        gradients(model, parts["distill"] + 2 * parts["distill_across"]), gradients(model, alone + 2 * across)
    )


def test_across_needs_teacher_of_model_width(tiny: SentenceTransformer) -> None:
    """Models are checked at construction, labels at the first batch."""
    words = "teacher's embeddings have 4 and the student's 32"
    with pytest.raises(ValueError, match=words):
        RelationalDistillLoss(tiny, teacher=truncate(tiny, dim=4), across=1.0)
    labels = torch.rand(len(TEXTS), 4)
    with pytest.raises(ValueError, match=words):
        RelationalDistillLoss(tiny, "labels", across=1.0)(batch(tiny, 1), labels)
    wide = RelationalDistillLoss(tiny, "labels", across=1.0)(batch(tiny, 1), torch.rand(len(TEXTS), 32, dtype=torch.float64))
    assert wide["distill_across"].item() > 0
    assert RelationalDistillLoss(tiny, "labels", across=1.0).get_config_dict()["distill_across"] == 1.0


def test_self_distillation_keeps_aligned_space(tiny: SentenceTransformer) -> None:
    aligned = turned(align(tiny, [" ".join(pair) for pair in itertools.product(families.WORDS[:12], repeat=2)]))
    parts = RelationalDistillLoss(aligned)(batch(aligned, 1))
    expected = RelationalDistillLoss(aligned, across=1.0)(batch(aligned, 1))
    assert parts["distill_across"].item() == pytest.approx(expected["distill_across"].item(), abs=1e-7)
    assert RelationalDistillLoss(aligned).get_config_dict()["distill_across"] == 1.0
    without = [RelationalDistillLoss(aligned, across=0.0), RelationalDistillLoss(aligned, tiny), RelationalDistillLoss(tiny)]
    assert all(list(loss(batch(loss.model, 1))) == ["distill"] for loss in without)


def test_task_loss_trains_only_full_size(tiny: SentenceTransformer) -> None:
    model = exact(tiny)
    task = CoSENTLoss(model)
    loss = RelationalDistillLoss(model, loss=task)
    moved(model)
    labels = torch.rand(len(BATCHES[2][0]), dtype=torch.float64)
    parts = loss(batch(model, 2), labels)
    full = task.compute_loss_from_embeddings([model(features)["sentence_embedding"] for features in batch(model, 2)], labels)
    raw = MultiSizeLoss(model, task, loss.sampler.candidates, terms=[loss.terms[0]])(batch(model, 2), labels)
    assert parts["task"].item() == pytest.approx(full.item(), abs=1e-9)
    assert parts["distill"].item() == pytest.approx(raw["distill"].item(), abs=1e-9)
    assert parts["distill"].item() > 1e-3
    assert_gradients_close(gradients(model, parts["task"]), gradients(model, full))
    assert loss.signature == "RelationalDistillLoss(CoSENTLoss)"
    assert loss.get_config_dict()["size_weights"] == [0, 0, 0, 4]  # the loss takes the mean


def test_trainer_moves_small_sizes_and_keeps_teacher_unsaved(tiny: SentenceTransformer, tmp_path: Path) -> None:
    def distance(model: SentenceTransformer, reference: Any) -> dict[Size, float]:
        found = encode_sizes(model, TEXTS, sizes_ladder(model), normalize_embeddings=True)
        return {size: float(np.abs(part @ part.T - reference).mean()) for size, part in found.items()}

    start = tiny.encode(TEXTS, normalize_embeddings=True)
    reference = start @ start.T
    before = distance(tiny, reference)
    loss = RelationalDistillLoss(tiny, temperature=0.2)
    frozen = {name: value.clone() for name, value in loss.terms[0].teacher.state_dict().items()}
    train(tiny, loss, tmp_path / "run", Dataset.from_dict({"text": TEXTS * 4}), max_steps=40, learning_rate=3e-3)
    after = distance(tiny, reference)
    assert all(after[size] < before[size] for size in list(before)[:-1]), (before, after)
    assert all(torch.equal(value, frozen[name]) for name, value in loss.terms[0].teacher.state_dict().items())
    tiny.save_pretrained(str(tmp_path / "model"))
    assert not [path for path in (tmp_path / "model").rglob("*.safetensors") if path.name != "model.safetensors"]
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert np.array_equal(
        truncate(again, num_layers=2, dim=8).encode(TEXTS), truncate(tiny, num_layers=2, dim=8).encode(TEXTS)
    )
