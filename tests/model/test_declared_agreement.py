"""The config says how well each size agrees with the whole model, for as long as that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size, load, truncate
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.model.declared_agreement import (
    agreement_table,
    agreement_text,
    declare_agreement,
    declared_agreement,
)
from st_matryoshka2d.model.identity import model_revision
from tests.support.losses import batch

MEASURED = {Size(depth, dim): depth * dim / 128 for depth in (1, 2, 3, 4) for dim in (8, 16, 32)}

pytestmark = pytest.mark.filterwarnings("ignore:This model was not")


def test_reads_what_was_declared(tiny: SentenceTransformer, tmp_path: Path) -> None:
    declare_agreement(tiny.config, {Size(4, 32): 1.0000001, Size(2, 16): 0.123456, Size(1, 10): -0.5})
    assert tiny.config.matryoshka_agreement == {"1L-10d": -0.5, "2L-16d": 0.1235, "4L-32d": 1.0}
    tiny.save_pretrained(str(tmp_path))
    plain = SentenceTransformer(str(tmp_path), device="cpu").config
    expected = {Size(1, 10): -0.5, Size(2, 16): 0.1235, Size(4, 32): 1.0}
    for config in (plain, plain.to_dict(), load(tmp_path, device="cpu").config):
        assert declared_agreement(config) == expected
        assert list(declared_agreement(config)) == sorted(expected)


def test_declaring_replaces_what_was_there(tiny: SentenceTransformer) -> None:
    declare_agreement(tiny.config, MEASURED)
    declare_agreement(tiny.config, {Size(1, 8): 0.5})
    assert declared_agreement(tiny.config) == {Size(1, 8): 0.5}
    declare_agreement(tiny.config, {})
    assert not hasattr(tiny.config, "matryoshka_agreement")


@pytest.mark.parametrize(
    "entry",
    [None, 0.9, "0.9", ["4L-32d"], {"4L": 0.9}, {"4L-32d": None}, {"4L-32d": "x"}, {"4L-32d": float("nan")}, {"4L-32d": 2}],
    ids=str,
)
def test_ignores_foreign_config_values(tiny: SentenceTransformer, entry: object) -> None:
    tiny.config.matryoshka_agreement = entry
    assert declared_agreement(tiny.config) == {}
    assert not hasattr(truncate(tiny, num_layers=2, dim=8).config, "matryoshka_agreement")


@pytest.mark.parametrize("ways", ["in memory", "while loading"])
def test_a_cut_keeps_what_still_holds(ways: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    """A shallower cut of an aligned model has no readouts of the depths below its own."""
    declare_agreement(tiny.config, MEASURED)
    tiny.save_pretrained(str(tmp_path))

    def kept(**size: int) -> dict[Size, float]:
        cut: Any = truncate(tiny, **size) if ways == "in memory" else load(tmp_path, **size, device="cpu")
        return declared_agreement(cut.config)

    assert kept(num_layers=3, dim=16) == {size: MEASURED[size] for size in (Size(3, 8), Size(3, 16))}
    assert kept(dim=20) == {size: value for size, value in MEASURED.items() if size.dim < 20}
    assert kept(num_layers=1, dim=4) == {}
    assert kept(num_layers=4) == declared_agreement(tiny.config) == MEASURED


def test_training_drops_it(tiny: SentenceTransformer) -> None:
    declare_agreement(tiny.config, MEASURED)
    loss = StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny))(batch(tiny, 2))
    assert declared_agreement(tiny.config) == MEASURED, "nothing is trained yet"
    loss.backward()
    assert not hasattr(tiny.config, "matryoshka_agreement")


def test_it_is_no_part_of_the_revision(tiny: SentenceTransformer) -> None:
    before = model_revision(tiny)
    declare_agreement(tiny.config, MEASURED)
    assert model_revision(tiny) == before


def test_a_table_has_the_largest_dims() -> None:
    measured = {Size(depth, dim): depth * dim / 10_000 for depth in (1, 12) for dim in (8, 16, 32, 64, 128, 256, 512)}
    head, rows = agreement_table({**measured, Size(12, 768): 1.0, Size(3, 8): 0.1})
    assert head == ["layers / dim", "32", "64", "128", "256", "512", "768"]
    assert rows == [
        ["1", "0.003", "0.006", "0.013", "0.026", "0.051", ""],
        ["12", "0.038", "0.077", "0.154", "0.307", "0.614", "1.000"],
    ]


def test_text_has_a_line_for_each_depth() -> None:
    assert agreement_text({Size(2, 8): 0.5, Size(3, 8): -0.25, Size(3, 16): 1.0}).splitlines() == [
        "Agreement with 3L-16d, on texts left out of the fit:",
        "layers / dim       8     16",
        "           2   0.500",
        "           3  -0.250  1.000",
    ]
