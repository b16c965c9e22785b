"""What a model was trained for is read again, however it was saved, and every way of reading keeps the same layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import (
    Size,
    TruncatedTransformer,
    add_to_model_card,
    align,
    encode_sizes,
    evaluate,
    load,
    sts_task,
    truncate,
)
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.model.declaration import Declaration
from tests.support.adapters import adapted, lora
from tests.support.families import TEXTS, cut_by_hand
from tests.support.pipelines import TEXTS as MANY
from tests.support.training import train

SMALL, FULL = Size(2, 8), Size(4, 32)
Saved = tuple[SentenceTransformer, Path]


def trained(model: SentenceTransformer, folder: Path, layers: str | None = "first", **arguments: Any) -> SentenceTransformer:
    """Train other layers than a model keeps by default."""
    loss = StarbucksLoss(model, MultipleNegativesRankingLoss(model), [SMALL, FULL], layers=layers)
    train(model, loss, folder / "run", **{"max_steps": 1, **arguments})
    return model.eval()


def adapter(base: Path, folder: Path) -> Saved:
    model = trained(adapted(SentenceTransformer(str(base), device="cpu")), folder)
    model.save_pretrained(str(folder / "adapter"))
    return model, folder / "adapter"


def whole(base: Path, folder: Path) -> Saved:
    model = trained(SentenceTransformer(str(base), device="cpu"), folder)
    model.save_pretrained(str(folder / "whole"))
    return model, folder / "whole"


def again(made: Callable[[Path, Path], Saved]) -> Callable[[Path, Path], Saved]:
    def make(base: Path, folder: Path) -> Saved:
        model, saved = made(base, folder)
        SentenceTransformer(str(saved), device="cpu").save_pretrained(str(folder / "again"))
        return model, folder / "again"

    return make


def checkpoint(base: Path, folder: Path) -> Saved:
    trained(adapted(SentenceTransformer(str(base), device="cpu")), folder, max_steps=2, save_strategy="steps", save_steps=1)
    saved = folder / "run" / "checkpoint-1"
    return SentenceTransformer(str(saved), device="cpu"), saved


def merged_by_peft(base: Path, folder: Path) -> Saved:
    model = SentenceTransformer(str(base), device="cpu")
    added: Any = peft.get_peft_model(model[0].model, lora(init_lora_weights=False))
    trained(model, folder)
    model[0].model = added.merge_and_unload()
    model.save_pretrained(str(folder / "merged"))
    return model, folder / "merged"


def merged_by_truncate(base: Path, folder: Path) -> Saved:
    model, _ = adapter(base, folder)
    truncate(model, FULL).save_pretrained(str(folder / "merged"))
    return model, folder / "merged"


WAYS = {
    "the whole model": whole,
    "the whole model, by who did not train it": again(whole),
    "an adapter": adapter,
    "an adapter, by who did not train it": again(adapter),
    "a checkpoint in the middle of training": checkpoint,
    "merged by PEFT": merged_by_peft,
    "merged by a cut": merged_by_truncate,
}


@pytest.mark.parametrize("way", WAYS)
def test_trained_layers_are_kept(way: str, tiny_folder: Path, tmp_path: Path) -> None:
    model, folder = WAYS[way](tiny_folder, tmp_path)
    with cut_by_hand(model, SMALL.num_layers):
        expected = model.encode(TEXTS)[:, : SMALL.dim]
    elastic = SentenceTransformer(str(folder), device="cpu")
    elastic[0] = TruncatedTransformer.from_transformer(elastic[0])
    found = {
        "truncate": truncate(SentenceTransformer(str(folder), device="cpu"), SMALL).encode(TEXTS),
        "load": load(folder, SMALL, device="cpu").encode(TEXTS),
        "encode_sizes": encode_sizes(SentenceTransformer(str(folder), device="cpu"), TEXTS, [SMALL])[SMALL],
        "encode": elastic.encode(TEXTS, num_layers=SMALL.num_layers, truncate_dim=SMALL.dim),
    }
    for name, embeddings in found.items():
        np.testing.assert_allclose(embeddings, expected, atol=1e-5, err_msg=name)
    assert Declaration.of(load(folder, device="cpu").config).sizes == [SMALL, FULL]
    add_to_model_card(folder)
    assert "trained with `StarbucksLoss(MultipleNegativesRankingLoss)`" in (folder / "README.md").read_text(encoding="utf-8")


def test_scores_are_those_of_the_cut(tiny_folder: Path, tmp_path: Path) -> None:
    model, folder = adapter(tiny_folder, tmp_path)
    rows = {"sentence1": MANY[:20], "sentence2": MANY[20:], "score": [n % 5 / 4 for n in range(20)]}

    def scored(model: SentenceTransformer) -> float:
        return evaluate(model, sts_task(rows, name="made"), sizes=[SMALL], show_progress_bar=False).score(SMALL)

    found = scored(SentenceTransformer(str(folder), device="cpu"))
    with cut_by_hand(model, SMALL.num_layers):
        left, right = (model.encode(rows[name])[:, : SMALL.dim] for name in ("sentence1", "sentence2"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert found == pytest.approx(spearmanr(cosines, rows["score"]).statistic, abs=1e-4)


def test_an_adapter_of_a_model_that_was_aligned_in_memory(tiny_folder: Path, tmp_path: Path) -> None:
    model = trained(adapted(align(SentenceTransformer(str(tiny_folder), device="cpu"), MANY, steps=0)), tmp_path, None)
    model.save_pretrained(str(tmp_path / "adapter"))
    for size in (SMALL, FULL):
        loaded = load(tmp_path / "adapter", size, device="cpu")
        np.testing.assert_allclose(loaded.encode(TEXTS), truncate(model, size).encode(TEXTS), atol=1e-5)
