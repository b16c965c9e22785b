"""A live teacher reads the model's tokens: one that would read other texts is refused, and labels take its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import normalizers, pre_tokenizers, processors
from torch import nn

from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistill, RelationalDistillLoss
from st_matryoshka2d.losses.recipes.relational_distill import NoTask
from tests.support import families
from tests.support.families import TEXTS, VOCABULARY, WORDS
from tests.support.losses import BATCHES, batch
from tests.support.training import OLD, train

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
    "longer texts": (
        lambda teacher: setattr(teacher, "max_seq_length", 60),
        r"another max_seq_length \(60, not 48\)",
    ),
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


def test_refuses_teacher_without_tokens_in_common(tiny: SentenceTransformer) -> None:
    static = SentenceTransformer(modules=[StaticEmbedding(families.tokenizer(), embedding_dim=32)], device="cpu")
    with pytest.raises(ValueError, match=r"another first module \(StaticEmbedding, not Transformer\)"):
        RelationalDistillLoss(tiny, static)


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
    for module in teacher.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    loss = RelationalDistillLoss(tiny, teacher).train()
    teacher.train()
    parts = loss(batch(tiny, 1))
    assert parts["distill"].item() == pytest.approx(expected, abs=1e-6)
    teacher.requires_grad_(True)  # by a user who trains it elsewhere
    loss(batch(tiny, 1)).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_labels_of_another_tokenizer_reach_the_loss_as_encoded(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """The way that the error shows, in the Trainer."""
    teacher = teacher_of(tmp_path)
    lower(teacher)
    texts = [text.title() for text in TEXTS]
    dataset = Dataset.from_dict({"text": texts})
    dataset = dataset.map(lambda rows: {"label": teacher.encode(rows["text"])}, batched=True)
    loss = RelationalDistillLoss(tiny, teacher="labels")
    seen: list[torch.Tensor] = []
    loss.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    train(tiny, loss, tmp_path / "run", dataset, max_steps=1)
    both = MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), ["4L-32d"], [RelationalDistill("labels")])
    parts = both(batch(tiny, 2), torch.stack([seen[0]] * 2, dim=1))
    assert list(parts) == ["task", "distill"]
    sums = [labels.sum(dim=0) for labels in seen]  # the Trainer shuffles
    torch.testing.assert_close(sums, [teacher.encode(texts, convert_to_tensor=True).sum(dim=0)])
