"""What the section of sizes calls the model."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, truncate
from st_matryoshka2d.model_card.grid import add_grid_to_model_card


@pytest.fixture
def grid() -> GridResult:
    row = {"task": "T", "split": "test", "subset": "default", "metric": "accuracy", "is_main": True, "score": 0.5}
    return GridResult(pd.DataFrame([{**row, "num_layers": 2, "dim": 8}]))


@pytest.mark.parametrize("quote", ["'", '"'])
def test_the_name_is_that_by_which_the_card_loads_the_model(grid: GridResult, tmp_path: Path, quote: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mine\n\nmodel = SentenceTransformer({quote}org/mine{quote})\n", encoding="utf-8")
    add_grid_to_model_card(tmp_path, grid)
    assert 'small = load("org/mine", num_layers=2, dim=8)' in readme.read_text(encoding="utf-8")


def test_the_name_can_be_set_before_saving(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = truncate(tiny, num_layers=3)
    for name in (None, "you/name"):
        if name is not None:
            model.model_card_data.set_model_id(name)
        model.save_pretrained(str(tmp_path))
        add_grid_to_model_card(tmp_path, grid)
        card = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert f'small = load("{name or "sentence_transformers_model_id"}", num_layers=2, dim=8)' in card


def test_the_grid_of_a_deeper_model_is_refused(grid: GridResult, tiny: SentenceTransformer, tmp_path: Path) -> None:
    truncate(tiny, num_layers=1).save_pretrained(str(tmp_path))
    before = (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"sizes of 2 layers, the model in .* has 1"):
        add_grid_to_model_card(tmp_path, grid)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == before
