"""Rotated models: the same at the full width, and better at small sizes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from st_matryoshka2d import Size, evaluate, load, rotate, sizes_ladder, sts_task, truncate
from st_matryoshka2d.losses import RelationalDistillLoss, StarbucksLoss
from tests import families, oracles
from tests.losses_support import batch, gradients, total

TEXTS = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(40)]
OTHERS = ["red river", "the old house", "a bird flew over the road", "new"]
SIZES = [Size(2, 6), Size(4, 16)]


def unchanged(model: SentenceTransformer) -> SentenceTransformer:
    return model


def normalized(model: SentenceTransformer) -> SentenceTransformer:
    return SentenceTransformer(modules=[*model.children(), Normalize()], device="cpu")


def rotation(model: SentenceTransformer) -> Tensor:
    return model.get_parameter("2.linear.weight").detach()


def divergence(model: SentenceTransformer, teacher: SentenceTransformer, size: Size, texts: list[str]) -> float:
    """Of how texts relate to each other, by the equation and on a cut model."""
    student = truncate(model, size.num_layers, size.dim).encode(texts, convert_to_tensor=True)
    whole = teacher.encode(texts, convert_to_tensor=True)

    def related(embeddings: Tensor, i: int) -> list[Tensor]:
        cosines = [oracles.cosine(embeddings[i], embeddings[j]) for j in range(len(texts)) if j != i]
        return oracles.distribution(cosines, 0.05)

    rows = range(len(texts))
    return float(torch.stack([oracles.kl(related(student, i), related(whole, i)) for i in rows]).mean())


@pytest.mark.parametrize("ends", [unchanged, normalized])
def test_at_the_full_width_nothing_changes(
    tiny: SentenceTransformer, ends: Callable[[SentenceTransformer], SentenceTransformer]
) -> None:
    model = ends(tiny)
    rotated = rotate(model, TEXTS, SIZES, steps=20)
    for num_layers in (2, 4):
        before = truncate(model, num_layers=num_layers).encode(OTHERS)
        after = truncate(rotated, num_layers=num_layers).encode(OTHERS)
        assert np.abs(after @ after.T - before @ before.T).max() < 1e-5 * np.abs(before @ before.T).max()
        assert np.abs(after - before).max() > 0.01 * np.abs(before).max()
    weight = rotation(rotated)
    assert (weight @ weight.T - torch.eye(32)).abs().max() < 1e-6


def test_each_size_relates_texts_more_as_the_full_model_does(tiny: SentenceTransformer) -> None:
    rotated = rotate(tiny, TEXTS, SIZES)
    for size in SIZES:
        assert divergence(rotated, tiny, size, TEXTS) < 0.8 * divergence(tiny, tiny, size, TEXTS)
    one = rotate(tiny, TEXTS, SIZES[:1])
    assert divergence(one, tiny, SIZES[0], TEXTS) < divergence(rotated, tiny, SIZES[0], TEXTS)


def test_of_many_sizes_each_has_its_turn(tiny: SentenceTransformer) -> None:
    sizes = [Size(1, 4), Size(1, 5), Size(1, 6), Size(1, 7), Size(4, 24)]
    rotated = rotate(tiny, TEXTS, sizes)
    assert divergence(rotated, tiny, sizes[-1], TEXTS) < divergence(rotate(tiny, TEXTS, sizes[:-1]), tiny, sizes[-1], TEXTS)


def test_the_same_texts_give_the_same_rotation(tiny: SentenceTransformer) -> None:
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    first = rotate(tiny, TEXTS, SIZES, steps=5)
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.manual_seed(2)
    again = rotate(tiny, iter([*TEXTS, TEXTS[0]]), SIZES, steps=5)
    assert torch.equal(rotation(first), rotation(again))


def test_the_model_is_left_as_it_was(tiny: SentenceTransformer) -> None:
    before = tiny.encode(OTHERS)
    rotated = rotate(tiny, TEXTS, SIZES, steps=5)
    assert np.array_equal(tiny.encode(OTHERS), before)
    assert len(tiny) == 2
    with torch.no_grad():
        next(rotated.parameters()).mul_(0)  # in the same memory
    assert not np.array_equal(tiny.encode(OTHERS), before)


def test_the_map_stands_before_the_last_normalize(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "the old ", "document": ""}
    tiny.default_prompt_name = "query"
    rotated = rotate(normalized(tiny), TEXTS, SIZES, steps=5)
    assert [type(module) for module in list(rotated.children())[-2:]] == [Dense, Normalize]
    assert np.linalg.norm(rotated.encode(OTHERS), axis=1) == pytest.approx(1)
    with_prompts = rotate(tiny, TEXTS, SIZES, steps=5)
    assert (with_prompts.prompts, with_prompts.default_prompt_name) == (tiny.prompts, "query")


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_module_takes_the_rotation_in(tiny: SentenceTransformer, bias: bool) -> None:
    dense = Dense(32, 24, bias=bias, activation_function=nn.Identity())
    model = SentenceTransformer(modules=[*tiny.children(), dense, Normalize()], device="cpu")
    before = model.encode(OTHERS)
    rotated = rotate(model, TEXTS, SIZES, steps=5)
    after = rotated.encode(OTHERS)
    assert [type(module) for module in rotated.children()] == [type(module) for module in model.children()]
    assert np.abs(after @ after.T - before @ before.T).max() < 1e-5
    assert np.abs(after - before).max() > 0.01
    assert np.array_equal(model.encode(OTHERS), before)


@pytest.mark.parametrize(
    "dense",
    [
        lambda: Dense(32, 32, activation_function=nn.Tanh()),
        lambda: Dense(32, 32, activation_function=nn.Identity(), use_residual=True),
        lambda: Dense(32, 32, activation_function=nn.Identity(), module_output_name="other"),
    ],
    ids=["tanh", "residual", "other output"],
)
def test_another_module_does_not(tiny: SentenceTransformer, dense: Callable[[], Dense]) -> None:
    model = SentenceTransformer(modules=[*tiny.children(), dense()], device="cpu")
    before = model.encode(OTHERS)
    rotated = rotate(model, TEXTS, SIZES, steps=5)
    after = rotated.encode(OTHERS)
    assert len(rotated) == len(model) + 1
    assert np.abs(after @ after.T - before @ before.T).max() < 1e-5 * np.abs(before @ before.T).max()


def test_a_saved_cut_needs_nothing_of_this_package(tiny: SentenceTransformer, tmp_path: Path) -> None:
    rotated = rotate(normalized(tiny), TEXTS, SIZES, steps=5)
    cut = truncate(rotated, num_layers=2, dim=6)
    cut.save_pretrained(str(tmp_path / "cut"))
    rotated.save_pretrained(str(tmp_path / "full"))
    plain = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert np.array_equal(plain.encode(OTHERS), cut.encode(OTHERS))
    assert np.array_equal(load(str(tmp_path / "full"), 2, 6).encode(OTHERS), cut.encode(OTHERS))
    by_hand = truncate(normalized(tiny), num_layers=2).encode(OTHERS) @ rotation(rotated).numpy().T
    assert np.abs(cut.encode(OTHERS) - by_hand[:, :6]).max() < 1e-6


def test_losses_train_the_map_with_the_model(tiny: SentenceTransformer) -> None:
    rotated = rotate(tiny, TEXTS, SIZES, steps=5)
    sizes = [*SIZES, Size(4, 32)]
    for loss in (
        RelationalDistillLoss(rotated, sizes=sizes),
        StarbucksLoss(rotated, MultipleNegativesRankingLoss(rotated), sizes=sizes),
    ):
        found = gradients(rotated, total(loss(batch(rotated, 2))))
        trained = {name for name, gradient in found.items() if gradient.abs().max() > 1e-7}
        assert any(name.endswith("linear.weight") for name in trained)
        assert any("layer.0." in name for name in trained)


def test_the_config_tells_what_was_rotated_for(tiny: SentenceTransformer) -> None:
    once = rotate(tiny, pd.Series(TEXTS), SIZES, steps=1)
    assert once.config.matryoshka_sizes == ["2L-6d", "4L-16d", "4L-32d"]
    assert once.config.matryoshka_loss == "rotate"
    assert once.config.matryoshka_dimensions == [6, 16, 32]
    assert not hasattr(tiny.config, "matryoshka_sizes")
    again = rotate(once, TEXTS, ["3L-8d"], steps=1)
    assert again.config.matryoshka_sizes == ["3L-8d", "4L-32d"], "no longer for what it was rotated for before"
    assert again.config.matryoshka_loss == "rotate"
    RelationalDistillLoss(once.train(), sizes=SIZES)(batch(once, 2))
    trained = rotate(rotate(once, TEXTS, SIZES, steps=1), TEXTS, ["3L-8d"], steps=1)
    assert trained.config.matryoshka_loss == "RelationalDistillLoss, rotate"
    assert trained.config.matryoshka_sizes == ["2L-6d", "3L-8d", "4L-16d", "4L-32d"], "it was trained at the others"


def test_by_default_it_is_for_all_sizes_that_are_scored(tiny: SentenceTransformer) -> None:
    rotated = rotate(tiny, TEXTS, steps=1)
    scored = evaluate(tiny, sts_task(pd.DataFrame({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": range(40)}))).sizes
    assert rotated.config.matryoshka_sizes == [str(size) for size in scored if size.dim < 32 or size == Size(4, 32)]


def test_half_precision_stays(tiny: SentenceTransformer) -> None:
    half = rotate(copy.deepcopy(tiny).to(torch.bfloat16), TEXTS, SIZES, steps=5)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert half.encode(OTHERS, convert_to_tensor=True).shape == (4, 32)


def test_what_is_refused(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"at least 3 different texts, better some thousand; got 2"):
        rotate(tiny, TEXTS[:2] * 2)
    for table, name in (("a text", "str"), ({"text": TEXTS}, "dict"), (pd.DataFrame({"text": TEXTS}), "DataFrame")):
        with pytest.raises(TypeError, match=f"one column of a table; got a {name}"):
            rotate(tiny, table)
    for texts, words in (
        (Dataset.from_dict({"text": TEXTS}), r"number 0 is .*\(dict\)"),
        ([*TEXTS, None], "number 40 is None"),
    ):
        with pytest.raises(TypeError, match=words):
            rotate(tiny, texts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got str"):
        rotate("a model", TEXTS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="truncate_dim=8"):
        rotate(truncate(tiny, dim=8), TEXTS)
    with pytest.raises(ValueError, match="full width, 32, which no rotation changes"):
        rotate(tiny, TEXTS, [Size(2, 32)])
    with pytest.raises(ValueError, match="steps"):
        rotate(tiny, TEXTS, SIZES, steps=0)
    with torch.no_grad():
        tiny.get_parameter("0.model.encoder.layer.3.output.dense.bias")[0] = torch.nan
    with pytest.raises(ValueError, match="not all finite"):
        rotate(tiny, TEXTS, SIZES)


def test_small_sizes_of_a_real_model_are_better(minilm: SentenceTransformer, shared: Path) -> None:
    pairs = pd.read_parquet(shared / "data" / "sts" / "stsb" / "dev.parquet")[:200]
    texts = pd.read_parquet(shared / "data" / "nli" / "triplets_train.parquet")["anchor"].unique()[:500]
    task = sts_task(pairs, name="stsb")
    sizes = sizes_ladder(minilm)
    before, after = (
        evaluate(model, task, sizes=sizes).to_frame().query("is_main").set_index(["num_layers", "dim"])["score"]
        for model in (minilm, rotate(minilm, list(texts), batch_size=64, steps=50))
    )
    gain = 100 * (after - before)
    assert (gain.iloc[:4] > 5).all()
    assert gain.iloc[-1] == pytest.approx(0, abs=0.01)
