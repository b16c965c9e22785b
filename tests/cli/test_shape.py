"""The limit for sizes that JSON files give equals the full size of the loaded model, or refuses nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size
from st_matryoshka2d.cli.shape import largest_size
from st_matryoshka2d.sizes import full_size
from tests.support import families
from tests.support.pipelines import KINDS, elastic
from tests.support.quick import quick

ANY = sys.maxsize
ONE, CONFIG = (
    {"type": "a.Transformer", "path": ""},
    {"num_hidden_layers": 4, "pooling_mode": "cls", "embedding_dimension": 8},
)


def limit_of(folder: Path) -> Size:
    return largest_size(lambda path: json.loads((folder / path).read_text()) if (folder / path).is_file() else None)


@pytest.mark.parametrize("name", quick(families.CONFIGS, "bert", "distilbert", "t5-encoder"))
def test_depth_and_width_of_every_family(name: str, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS[name](), tmp_path / "weights", "mean", dense=None, normalize=True)
    model.save_pretrained(str(tmp_path / "saved"))
    assert limit_of(tmp_path / "saved") == full_size(model)


@pytest.mark.parametrize("kind", KINDS)
def test_width_of_every_head(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    model = KINDS[kind](tiny, tmp_path)
    model.save_pretrained(str(tmp_path / "saved"))
    assert limit_of(tmp_path / "saved") in (full_size(model), Size(ANY, ANY), Size(full_size(model).num_layers, ANY))


def test_elastic_depth_is_no_limit(tiny: SentenceTransformer, tmp_path: Path) -> None:
    elastic(tiny)
    tiny[0].num_layers = 2
    tiny.save_pretrained(str(tmp_path))
    assert limit_of(tmp_path) == Size(4, 32)


@pytest.mark.parametrize("modules", [None, {}, [], [1], [ONE] * 2, [ONE, {"type": "a.Wider"}], [{"type": 3}]])
def test_an_unknown_list_of_modules_refuses_nothing(modules: Any) -> None:
    assert largest_size(lambda path: modules if path == "modules.json" else CONFIG) == Size(ANY, ANY)


@pytest.mark.parametrize(
    "config", [None, [], {}, {"num_hidden_layers": "6"}, {"num_hidden_layers": True, "out_features": -1}]
)
def test_a_broken_config_refuses_nothing(config: Any) -> None:
    modules = [ONE, {"type": "a.Dense", "path": "1_Dense"}]
    assert largest_size(lambda path: modules if path == "modules.json" else config) == Size(ANY, ANY)
