"""Whatever names a size says which layers it has, and a cut by what it says is what was scored."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from typer.testing import CliRunner

from st_matryoshka2d import GridResult, Size, add_to_model_card, align, evaluate, load, sts_task, truncate
from st_matryoshka2d.cli.app import app
from st_matryoshka2d.losses import MultiSizeLoss
from tests.support.families import ENDS, cut_by_hand
from tests.support.pipelines import OTHERS, TEXTS
from tests.support.training import train

pytestmark = pytest.mark.filterwarnings("ignore:(Nothing says that this model|This model was not|No interval is known)")

SIZE = Size(3, 8)
KEPT: dict[str | None, list[int]] = {"first": [0, 1, 2], None: ENDS[3]}
TOLD = {"first": "keeps the first ones", None: "keeps half of them from the start and half from the end"}


def scored(model: SentenceTransformer, **choice: Any) -> GridResult:
    right = TEXTS[1:] + TEXTS[:1]
    gold = model.similarity_pairwise(*map(model.encode, (TEXTS, right))).tolist()  # of all layers
    pairs = {"sentence1": TEXTS, "sentence2": right, "score": gold}
    return evaluate(model, sts_task(pairs, name="made"), sizes=[SIZE, "4L-32d"], show_progress_bar=False, **choice)


def called(text: str, model: SentenceTransformer) -> SentenceTransformer:
    """Run the call of `truncate` in a text."""
    [call] = set(re.findall(r"truncate\(model, (?:size|'3L-8d'), layers=\S+\)", text))
    cut = eval(call, {"truncate": truncate, "model": model, "size": str(SIZE)})
    assert isinstance(cut, SentenceTransformer)
    return cut


def by_the_shell(_: GridResult, model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    model.save_pretrained(str(folder / "model"))
    line = f"truncate {folder / 'model'} --size {SIZE} --out {folder / 'cut'} --device cpu"
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    return SentenceTransformer(str(folder / "cut"), device="cpu")


def by_the_card(grid: GridResult, model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    model.save_pretrained(str(folder / "card"))
    add_to_model_card(folder / "card", grid)
    card = (folder / "card" / "README.md").read_text(encoding="utf-8")
    return called(card, load(folder / "card", device="cpu"))


def by_the_report(grid: GridResult, model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    grid.report(folder / "page.html", reference=grid, max_bytes=32, min_score=0.01)
    text = (folder / "page.html").read_text(encoding="utf-8")
    return called(html.unescape(text).replace("\\u0027", "'"), model)


def by_a_file(grid: GridResult, model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    grid.save(folder / "grid.json")
    return called(str(GridResult.load(folder / "grid.json")), model)


def proposed(grid: GridResult, model: SentenceTransformer, _: Path) -> SentenceTransformer:
    best = grid.recommend(None, max_bytes=32)
    assert best.size == SIZE
    np.testing.assert_array_equal(
        called(str(best), model).encode(OTHERS),
        truncate(model, best.size, layers=best.layers).encode(OTHERS),  # type: ignore[arg-type]
    )
    return called(str(best), model)


WAYS: dict[str, Callable[[GridResult, SentenceTransformer, Path], SentenceTransformer]] = {
    "grid": lambda grid, model, _: called(str(grid), model),
    "grid, saved": by_a_file,
    "recommend": proposed,
    "pareto": lambda grid, model, _: called(str(grid.pareto()), model),
    "report": by_the_report,
    "card": by_the_card,
    "the shell": by_the_shell,
}


@pytest.mark.parametrize("layers", KEPT)
def test_every_source_of_a_size_leads_to_its_layers(layers: str | None, tiny: SentenceTransformer, tmp_path: Path) -> None:
    loss = MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), [SIZE, "4L-32d"], layers=layers)
    train(tiny, loss, tmp_path / "run", max_steps=1)
    tiny.eval()
    with cut_by_hand(tiny, 3, KEPT[layers]):
        expected = tiny.encode(OTHERS)[:, :8]
    grid = scored(tiny)
    for name, way in WAYS.items():
        np.testing.assert_allclose(way(grid, tiny, tmp_path).encode(OTHERS), expected, atol=2e-6, err_msg=name)
    assert TOLD[layers] in (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    assert TOLD[layers] in CliRunner().invoke(app, ["info", str(tmp_path / "model")]).stdout
    aligned = align(tiny, TEXTS, steps=0)
    agreement = GridResult.from_agreement(aligned)
    np.testing.assert_allclose(
        called(str(agreement), aligned).encode(OTHERS), truncate(aligned, SIZE).encode(OTHERS), atol=2e-6
    )
    assert agreement.layers == (layers or "ends")


def test_layers_that_are_no_word_are_listed(tiny: SentenceTransformer, tmp_path: Path) -> None:
    grid = scored(tiny, layers={3: [1, 2, 4]})
    assert grid.layers == [[1], [1, 2], [1, 2, 4]]
    grid.save(tmp_path / "grid.parquet")
    for each in (grid, GridResult.load(tmp_path / "grid.parquet")):
        best = each.recommend(None, max_bytes=32)
        assert best.layers == [1, 2, 4]
        assert "truncate(model, '3L-8d', layers=[1, 2, 4])" in str(best)
        assert "truncate(model, size, layers=[1, 2, 4])" in str(each)
    tiny.save_pretrained(str(tmp_path))
    add_to_model_card(tmp_path, grid.at(num_layers=3))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "num_layers=3, dim=8, layers=[1, 2, 4])" in card
