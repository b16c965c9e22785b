"""What a model is before it is aligned: its layers, and whether its dims were trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, truncate
from st_matryoshka2d.aligning import starting_point as module
from st_matryoshka2d.aligning.starting_point import starting_point, trained_narrow
from st_matryoshka2d.model.kept_layers import declare_layers
from st_matryoshka2d.model.trained_sizes import declare_training
from tests.support.pipelines import TEXTS

ENDS = {"1": [1], "2": [1, 4], "3": [1, 2, 4]}


def layers(model: SentenceTransformer) -> object:
    return getattr(model.config, "matryoshka_layers", None)


def test_a_fresh_model_keeps_both_ends(tiny: SentenceTransformer) -> None:
    assert layers(starting_point(tiny, None)) == ENDS
    assert layers(starting_point(tiny, "first")) is None
    assert layers(starting_point(tiny, {2: [1, 3]})) == {**ENDS, "2": [1, 3], "3": [1, 2, 3]}
    assert layers(tiny) is None, "the model given is as it was"


def test_layers_that_were_chosen_before_stay(tiny: SentenceTransformer) -> None:
    first = align(tiny, TEXTS, layers="first", steps=0)
    assert layers(starting_point(first, None)) is None
    assert layers(starting_point(first, "ends")) == ENDS
    declare_layers(tiny.config, {1: [2], 2: [2, 4], 3: [1, 2, 3]})
    assert layers(starting_point(tiny, None)) == {"1": [2], "2": [2, 4], "3": [1, 2, 3]}


@pytest.mark.parametrize(("trained", "expected"), [(Size(2, 8), None), (Size(4, 8), ENDS)], ids=["depths", "dims"])
def test_a_model_trained_for_shallower_sizes_keeps_its_first_layers(
    trained: Size, expected: object, tiny: SentenceTransformer
) -> None:
    declare_training(tiny.config, [trained, Size(4, 32)], "MatryoshkaLoss")
    assert layers(starting_point(tiny, None)) == expected


def test_layers_that_only_work_in_a_row_are_the_first(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("the layers only work in a row")

    monkeypatch.setattr(module, "check_depths", refuse)
    assert layers(starting_point(tiny, None)) is None
    assert layers(starting_point(tiny, "ends")) == ENDS, "whoever asks for them is told later"


TOLD: dict[str, Callable[[SentenceTransformer], object]] = {
    "config": lambda model: setattr(model.config, "is_matryoshka", True),
    "dims": lambda model: setattr(model.config, "matryoshka_dimensions", [8, 32]),
    "tag": lambda model: model.model_card_data.add_tags("loss:MatryoshkaLoss"),
}


@pytest.mark.parametrize("how", TOLD)
def test_a_model_trained_for_several_dims_says_so(how: str, tiny: SentenceTransformer) -> None:
    assert not trained_narrow(tiny)
    TOLD[how](tiny)
    assert trained_narrow(tiny)


def test_a_cut_in_depth_alone_was_not_trained_for_several_dims(tiny: SentenceTransformer) -> None:
    assert not trained_narrow(truncate(tiny, num_layers=3))


def test_the_card_a_model_was_loaded_with_says_so(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    assert not trained_narrow(SentenceTransformer(str(tmp_path), device="cpu"))
    with (tmp_path / "README.md").open("a", encoding="utf-8") as card:
        card.write("\nIt was trained with Matryoshka representation learning.\n")
    assert trained_narrow(SentenceTransformer(str(tmp_path), device="cpu"))
