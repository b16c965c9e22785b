"""Relational distillation, compared with a loop over its equation, with every teacher that reads what the model reads."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from tokenizers import normalizers, pre_tokenizers, processors
from torch import Tensor

from st_matryoshka2d import Size, align, truncate
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistill, RelationalDistillLoss
from st_matryoshka2d.losses.recipes.relational_distill import NoTask
from tests.support import families, oracles
from tests.support.families import TEXTS, VOCABULARY, WORDS
from tests.support.losses import BATCHES, assert_gradients_close, batch, exact, gradients, physical_columns, total
from tests.support.pipelines import turned
from tests.support.training import OLD, train

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
    # One backward pass for each side: the parts share a graph, so their weights differ to tell them
    # apart.
    assert_gradients_close(
        gradients(model, parts["distill"] + 2 * parts["distill_across"]), gradients(model, alone + 2 * across)
    )


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


def test_training_keeps_teacher_as_it_was_and_unsaved(tiny: SentenceTransformer, tmp_path: Path) -> None:
    loss = RelationalDistillLoss(tiny, temperature=0.2)
    frozen = {name: value.clone() for name, value in loss.terms[0].teacher.state_dict().items()}
    train(tiny, loss, tmp_path / "run", Dataset.from_dict({"text": TEXTS * 4}), max_steps=2)
    assert all(torch.equal(value, frozen[name]) for name, value in loss.terms[0].teacher.state_dict().items())
    assert not torch.equal(tiny.state_dict()[name := next(iter(frozen))], frozen[name])
    tiny.save_pretrained(str(tmp_path / "model"))
    assert [path.name for path in (tmp_path / "model").rglob("*.safetensors")] == ["model.safetensors"]


PROMPT = "the old bird "


def teacher_of(folder: Path, **settings: Any) -> SentenceTransformer:
    """Build a wider teacher of another family, with a tokenizer that equals the model's."""
    config = families.CONFIGS["roberta"]()
    config.hidden_size = 48
    given = {"pooling": "mean", "dense": None, "normalize": True} | settings
    return families.pipeline(config, folder / "teacher", **given)


def backend(teacher: SentenceTransformer) -> Any:
    return teacher.tokenizer.backend_tokenizer


def lower(teacher: SentenceTransformer) -> None:
    backend(teacher).normalizer = normalizers.Lowercase()


def backwards(teacher: SentenceTransformer) -> None:
    ids = dict(zip(WORDS, (VOCABULARY[word] for word in reversed(WORDS)), strict=True))
    teacher[0].processor = families.tokenizer(VOCABULARY | ids)


def set_backend(name: str, value: Any) -> Callable[[SentenceTransformer], None]:
    return lambda teacher: setattr(backend(teacher), name, value)


def set_tokenizer(name: str, value: str) -> Callable[[SentenceTransformer], None]:
    return lambda teacher: setattr(teacher.tokenizer, name, value)


NO_SPECIAL_TOKENS = processors.TemplateProcessing(single="$A", special_tokens=[])


OTHERWISE: dict[str, tuple[Callable[[SentenceTransformer], None], str]] = {
    "lower case": (lower, "another tokenizer"),
    "letters": (set_backend("pre_tokenizer", pre_tokenizers.Split("", "isolated")), "another tokenizer"),
    "no special tokens": (set_backend("post_processor", NO_SPECIAL_TOKENS), "another tokenizer"),
    "other ids": (backwards, "another tokenizer"),
    "longer texts": (lambda teacher: setattr(teacher, "max_seq_length", 60), r"another max_seq_length \(60, not 48\)"),
    "padding on the left": (set_tokenizer("padding_side", "left"), "another padding or truncation"),
    "another padding token": (set_tokenizer("pad_token", "[MASK]"), "another padding or truncation"),
    "truncation on the left": (set_tokenizer("truncation_side", "left"), "another padding or truncation"),
    "another call": (
        lambda teacher: setattr(teacher[0], "processing_kwargs", {"text": {"max_length": 3}}),
        "another processing_kwargs",
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_refuses_teacher_that_reads_other_texts(tiny: SentenceTransformer, name: str, tmp_path: Path) -> None:
    change, words = OTHERWISE[name]
    teacher = teacher_of(tmp_path)
    RelationalDistillLoss(tiny, teacher)  # nothing differs yet
    change(teacher)
    texts = [*TEXTS, "The CAT " + "sat quickly " * 40]
    theirs, ours = (model.preprocess(texts)["input_ids"] for model in (teacher, tiny))
    assert theirs.shape != ours.shape or not torch.equal(theirs, ours), "the teacher reads the same tokens"
    for make in (lambda: RelationalDistillLoss(tiny, teacher), lambda: with_term(tiny, teacher)):
        with pytest.raises(ValueError, match=rf'it has {words}.*teacher.encode\(rows\["text"\]\).*teacher="labels"'):
            make()


def with_term(model: SentenceTransformer, teacher: SentenceTransformer) -> MultiSizeLoss:
    return MultiSizeLoss(model, NoTask(), ["4L-32d"], [RelationalDistill(teacher)])


def test_each_route_of_a_router_is_compared(tiny: SentenceTransformer, tmp_path: Path) -> None:
    def routed(*routes: SentenceTransformer) -> SentenceTransformer:
        query, document = (list(copy.deepcopy(route).children()) for route in routes)
        router = Router.for_query_document(query_modules=query, document_modules=document)
        return SentenceTransformer(modules=[router], device="cpu")

    model, teacher, other = routed(tiny, tiny), teacher_of(tmp_path / "alike"), teacher_of(tmp_path / "other")
    backwards(other)
    for refused in (other, routed(teacher, other), routed(other, teacher)):
        with pytest.raises(ValueError, match="another tokenizer"):
            RelationalDistillLoss(model, refused)
    with pytest.raises(ValueError, match=r"another first module \(NoneType, not Transformer\)"):
        RelationalDistillLoss(tiny, routed(teacher, teacher))
    columns = [model.preprocess(TEXTS, task="query"), model.preprocess(OLD, task="document")]
    labels = torch.stack([teacher.encode(texts, convert_to_tensor=True) for texts in (TEXTS, OLD)], dim=1)
    expected = RelationalDistillLoss(model, "labels")(columns, labels)["distill"].item()
    for accepted in (teacher, routed(teacher, teacher)):
        assert RelationalDistillLoss(model, accepted)(columns)["distill"].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("mini_batch", "include_prompt"),
    [({}, True), ({"mini_batch_size": 2}, False), ({"mini_batch_num_tokens": 9}, False)],
    ids=str,
)
def test_teacher_that_reads_alike_equals_its_encodings(
    tiny: SentenceTransformer, mini_batch: dict[str, int], include_prompt: bool, tmp_path: Path
) -> None:
    """Also with a prompt that its pooling leaves out, and whatever its tokenizer was last called with."""
    teacher = teacher_of(tmp_path)
    teacher.set_pooling_include_prompt(include_prompt)
    teacher.truncate_dim = 24 if include_prompt else None
    teacher.tokenizer(TEXTS, padding="max_length", truncation=True, max_length=5)
    labels = torch.stack([teacher.encode(texts, prompt=PROMPT, convert_to_tensor=True) for texts in BATCHES[2]], dim=1)
    columns = [tiny.preprocess(texts, prompt=PROMPT) for texts in BATCHES[2]]
    expected = RelationalDistillLoss(tiny, "labels")(columns, labels)["distill"].item()
    found = RelationalDistillLoss(tiny, teacher, **mini_batch)(columns)["distill"].item()
    assert found == pytest.approx(expected, abs=1e-6)
    assert expected > 1e-3


def test_teacher_in_training_mode_is_frozen_and_without_dropout(tiny: SentenceTransformer, tmp_path: Path) -> None:
    teacher = teacher_of(tmp_path)
    labels = teacher.encode(TEXTS, convert_to_tensor=True)
    expected = RelationalDistillLoss(tiny, "labels")(batch(tiny, 1), labels)["distill"].item()
    families.set_dropout(teacher, 0.5)
    loss = RelationalDistillLoss(tiny, teacher).train()
    teacher.train()
    parts = loss(batch(tiny, 1))
    assert parts["distill"].item() == pytest.approx(expected, abs=1e-6)
    teacher.requires_grad_(True)  # by a user who trains it elsewhere
    loss(batch(tiny, 1)).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
