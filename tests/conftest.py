"""What tests of several folders are given: a Hub and a process that loads from it, saved models, files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from st_matryoshka2d import Size, sizes_ladder
from st_matryoshka2d.losses import StarbucksLoss
from tests.support import families
from tests.support.command_line import PAIRS
from tests.support.grids import random_grid, random_times
from tests.support.hub import Hub, serving
from tests.support.loader import Loader
from tests.support.training import train


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.fixture(scope="module")
def loader(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    process = Loader(hub.url, tmp_path_factory.mktemp("home"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 4 layers x 32."""
    folder = tmp_path_factory.mktemp("model")
    made = families.pipeline(families.CONFIGS["bert"](), folder / "weights", "mean", dense=None, normalize=False)
    made.save_pretrained(str(folder / "tiny"))
    return folder / "tiny"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with everything that a command can read."""
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    PAIRS.to_parquet(tmp_path / "pairs.parquet")
    PAIRS.drop(columns="score").to_csv(tmp_path / "unscored.csv", index=False)
    PAIRS.set_axis(["text a", "text_b", "label"], axis=1).to_csv(tmp_path / "renamed.csv", index=False)
    (tmp_path / "lines.txt").write_text("a cat sat\n\na dog ran\na red house\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("a cat sat\na dog ran\n", encoding="utf-8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    random_grid(0).save(tmp_path / "first.parquet")
    random_grid(1).save(tmp_path / "second.json")
    random_grid(1, tasks=["C"]).save(tmp_path / "other.json")
    random_times(0).to_csv(tmp_path / "times.csv", index=False)
    random_times(0).to_json(tmp_path / "times.json", orient="records")
    random_times(0, layers=[1]).to_csv(tmp_path / "lacking.csv", index=False)
    return tmp_path


@pytest.fixture(scope="session")
def starbucks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on Starbucks' ladder, plus two narrower dims at full depth, and saved."""
    folder = tmp_path_factory.mktemp("starbucks")
    model = families.pipeline(families.CONFIGS["bert"](), folder / "bert", pooling="mean", dense=None, normalize=False)
    sizes = [*sizes_ladder(model), Size(4, 8), Size(4, 16)]
    train(model, StarbucksLoss(model, MultipleNegativesRankingLoss(model), sizes), folder / "run", max_steps=1)
    model.model_card_data.set_model_id("you/trained")
    model.save_pretrained(str(folder / "saved"))
    return folder / "saved"
