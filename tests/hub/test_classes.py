"""Cuts of every class of sentence-transformers come from the Hub without the bytes of the other layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from st_matryoshka2d import load, truncate
from tests.support.classes import CLASSES, outputs
from tests.support.hub import Hub
from tests.support.loader import another_hub
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore::st_matryoshka2d.errors.DataWarning")


@pytest.mark.parametrize("name", quick(CLASSES, "reranker"))
def test_a_partial_download_is_the_cut(name: str, hub: Hub, tmp_path: Path) -> None:
    folder = hub.root / "org" / name.replace(" ", "-")
    model = CLASSES[name](tmp_path / "weights")
    model.save_pretrained(str(folder))
    hub.reset()
    with another_hub(hub.url, tmp_path):
        small = load(f"org/{folder.name}", "2L", device="cpu", cache_folder=str(tmp_path / "cache"))
    assert type(small) is type(model)
    assert torch.equal(outputs(small), outputs(truncate(model, num_layers=2)))
    assert small.model_card_data.model_name.endswith("-2L")
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    others = sum(size for name, size in sizes.items() if {"1", "2"} & set(name.split(".")))
    header = (folder / "model.safetensors").stat().st_size - sum(sizes.values())
    assert others > 0
    assert hub.sent["model.safetensors"] <= sum(sizes.values()) - others + 2 * header + sum(
        path.stat().st_size for path in folder.glob("*_*/model.safetensors")
    )
