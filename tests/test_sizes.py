"""Sizes, independent of models."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from st_matryoshka2d.sizes import Size, full_size, mrl_dims, resolve_size, sizes_ladder, sizes_product, validate_sizes


def model_of(num_layers: int | None, dim: int | None) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(num_hidden_layers=num_layers), get_embedding_dimension=lambda: dim)


def test_ladder_is_the_papers_for_bert_base() -> None:
    ladder = ["2L-32d", "4L-64d", "6L-128d", "8L-256d", "10L-512d", "12L-768d"]
    assert list(map(str, sizes_ladder(model_of(12, 768)))) == ladder


def test_ladder_needs_a_model_with_embeddings() -> None:
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got CrossEncoder"):
        sizes_ladder(CrossEncoder.__new__(CrossEncoder))


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5, 6, 7, 12, 24, 28, 36])
@pytest.mark.parametrize("dim", [2, 3, 8, 9, 32, 33, 64, 65, 384, 512, 768, 1000, 1024, 4096])
def test_ladder_follows_the_formula(num_layers: int, dim: int) -> None:
    log = math.floor(math.log2(dim - 1))
    rungs = min(6, num_layers, log + 2)
    expected = [
        Size(math.ceil(num_layers * j / rungs), dim if j == rungs else 2 ** (log - (rungs - 1 - j)))
        for j in range(1, rungs + 1)
    ]
    ladder = sizes_ladder(model_of(num_layers, dim))
    assert ladder == expected
    assert all(low.num_layers < high.num_layers and low.dim < high.dim for low, high in pairwise(ladder))


def test_sizes_print_parse_sort_and_hash() -> None:
    sizes = [Size(6, 128), Size(2, 512), Size(6, 32)]
    assert sorted(sizes) == [Size(2, 512), Size(6, 32), Size(6, 128)]
    assert [Size.parse(str(size)) for size in sizes] == sizes
    assert Size.parse(" 6l-128D ") in set(sizes)
    with pytest.raises(AttributeError):
        sizes[0].dim = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["6-128", "6L128d", "L6-128d", "6L-128", "", "6L-128d-x", "-6L-128d", None, 6])
def test_parse_refuses_invalid_text(text: object) -> None:
    with pytest.raises(ValueError, match="6L-128d"):
        Size.parse(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_layers", "dim"), [(-1, 8), (2, 0), (2, -8)])
def test_refuses_numbers_below_the_least(num_layers: int, dim: int) -> None:
    with pytest.raises(ValueError, match=r"must be [01] or more"):
        Size(num_layers, dim)


@pytest.mark.parametrize("value", [True, False, 2.0, "2", None])
def test_refuses_non_integers(value: object) -> None:
    with pytest.raises(TypeError, match="num_layers must be an integer"):
        Size(value, 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dim must be an integer"):
        Size(8, value)  # type: ignore[arg-type]


def test_converts_numpy_integers() -> None:
    size = Size(np.int64(6), np.int32(128))  # type: ignore[arg-type]
    assert (size, type(size.num_layers), type(size.dim)) == (Size(6, 128), int, int)
    with pytest.raises(TypeError, match="must be an integer"):
        Size(np.bool_(True), 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "num_layers", "dim", "found"),
    [
        (None, 3, 64, (3, 64)),
        (None, 3, None, (3, None)),
        (None, None, 64, (None, 64)),
        (None, None, None, (None, None)),
        ("3L-64d", None, None, (3, 64)),
        (Size(3, 64), None, None, (3, 64)),
    ],
)
def test_reads_every_form_of_size(size: object, num_layers: object, dim: object, found: tuple[object, object]) -> None:
    assert resolve_size(size, num_layers, dim) == found


def test_dims_and_products() -> None:
    assert mrl_dims(768) == [8, 16, 32, 64, 128, 256, 512]
    assert mrl_dims(9) == [8]
    assert mrl_dims(8) == []
    assert sizes_product(range(1, 3), iter([8, 16])) == [Size(1, 8), Size(1, 16), Size(2, 8), Size(2, 16)]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([Size(5, 8)], "has 5 layers, but the model has 4"),
        ([Size(4, 33)], "has 33 dimensions, but the model has 32"),
        ([Size(1, 8), Size(1, 8)], "more than once"),
        ([Size(1, 8), "1L-8d"], "more than once"),
        ([], "empty"),
    ],
)
def test_refuses_sizes_outside_model(sizes: list[Size], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        validate_sizes(sizes, Size(4, 32))


def test_refuses_other_types() -> None:
    with pytest.raises(TypeError, match=r"each of sizes must be a Size .* or text such as '6L-128d', got \(2, 8\)"):
        validate_sizes([(2, 8)], Size(4, 32))  # type: ignore[list-item]


def test_refuses_model_without_depth_or_width() -> None:
    with pytest.raises(ValueError, match="num_hidden_layers"):
        full_size(model_of(None, 8))
    with pytest.raises(ValueError, match="get_embedding_dimension"):
        full_size(model_of(4, None))
