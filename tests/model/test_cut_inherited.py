"""Settings that cut and aligned models inherit from the original model, besides its modules."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module, Router
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from transformers import dynamic_module_utils

from st_matryoshka2d import Size, TruncatedTransformer, align, load, truncate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.losses.distillation import frozen_copy
from tests.support.families import TEXTS
from tests.support.quick import quick
from tests.support.training import Falling, train

Make = Callable[[SentenceTransformer], SentenceTransformer]

MAKERS: dict[str, Make] = {
    "cut": lambda model: truncate(model, num_layers=2, dim=8),
    "narrow cut": lambda model: truncate(model, dim=8),
    "every layer": lambda model: EveryLayer.of(model, [2]),
    "aligned": lambda model: align(model, TEXTS, [Size(2, 8)], steps=2),
}
OWN_CODE = """
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


class Shift(Module):
    """A module with a keyword argument."""

    def forward(self, features: dict[str, Any], by: float = 0.0) -> dict[str, Any]:
        return {**features, "sentence_embedding": features["sentence_embedding"] + by}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def loaded(tiny_folder: Path) -> SentenceTransformer:
    """Load a model with sentence-transformers: pipeline in training mode, backbone with dropout in evaluation mode."""
    return SentenceTransformer(str(tiny_folder), device="cpu")


@pytest.fixture
def own_code(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SentenceTransformer:
    """A model with custom code."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "own"
    SentenceTransformer(str(tiny_folder), device="cpu").save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": auto_map}))
    (folder / "own_code.py").write_text(OWN_CODE)
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def twice(model: SentenceTransformer, **kwargs: Any) -> list[torch.Tensor]:
    return [model(model.preprocess(TEXTS), **kwargs)["sentence_embedding"] for _ in range(2)]


@pytest.mark.parametrize("name", MAKERS)
def test_two_forwards_of_a_loaded_model_agree(loaded: SentenceTransformer, name: str) -> None:
    loaded[0].model.embeddings.dropout.p = 0.5
    assert loaded.training, "what sentence-transformers loads is in training mode"
    assert torch.equal(*twice(MAKERS[name](loaded)))


@pytest.mark.parametrize("name", MAKERS)
def test_every_module_keeps_its_mode(loaded: SentenceTransformer, name: str) -> None:
    kept = ["", "0", "1", "0.model", "0.model.encoder.layer.0", "0.model.encoder.layer.1.output.dropout"]
    loaded[0].model.encoder.layer[1].output.dropout.training = True
    for change in (lambda: loaded, loaded.train, loaded.eval):
        before = modes(change())
        made = modes(MAKERS[name](loaded))
        assert [made[path] for path in kept] == [before[path] for path in kept]
        assert all(mode == before.get(path, before["1"]) for path, mode in made.items())
        assert modes(loaded) == before


def test_routes_keep_their_modes(loaded: SentenceTransformer) -> None:
    routed = SentenceTransformer(modules=[Router.for_query_document(list(loaded), list(truncate(loaded, dim=8)))])
    routed.eval()
    assert not any(modes(truncate(routed, num_layers=2)).values())


def test_a_depth_at_call_time_changes_no_mode(loaded: SentenceTransformer) -> None:
    loaded[0] = TruncatedTransformer.from_transformer(loaded[0])
    assert torch.equal(*twice(loaded, num_layers=2))
    plain, before = modes(loaded[0].to_transformer(2)), modes(loaded[0])
    assert all(mode == before[path] for path, mode in plain.items())
    assert not any(modes(frozen_copy(loaded)).values()), "a teacher is frozen as it encodes"


@pytest.mark.parametrize("name", quick(["cut", "narrow cut", "aligned"], "aligned"))
def test_loads_best_checkpoint_of_model_with_custom_code(own_code: SentenceTransformer, name: str, tmp_path: Path) -> None:
    made = MAKERS[name](own_code)
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_score", "max_steps": 2}
    trainer = train(made, MultipleNegativesRankingLoss(made), tmp_path / "run", evaluator=Falling(), **best)
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    first, last = (
        SentenceTransformer(str(tmp_path / "run" / f"checkpoint-{step}"), device="cpu", trust_remote_code=True)
        for step in (1, 2)
    )
    assert np.array_equal(made.encode(TEXTS), first.encode(TEXTS))
    assert not np.array_equal(made.encode(TEXTS), last.encode(TEXTS))
    resumed = MAKERS[name](own_code)
    more = {"max_steps": 3, "save_strategy": "no", "resume": str(tmp_path / "run" / "checkpoint-2")}
    assert train(resumed, MultipleNegativesRankingLoss(resumed), tmp_path / "more", **more).state.global_step == 3


def test_loaded_cut_keeps_trust_remote_code(own_code: SentenceTransformer, tmp_path: Path) -> None:
    assert load(str(tmp_path / "own"), num_layers=2, device="cpu", trust_remote_code=True).trust_remote_code
    assert not truncate(SentenceTransformer(modules=list(own_code)), num_layers=2).trust_remote_code


@pytest.mark.parametrize("name", MAKERS)
def test_cut_keeps_prompts(loaded: SentenceTransformer, name: str) -> None:
    """sentence-transformers uses the `passage` prompt if there is no `document` prompt."""
    loaded.prompts = {"passage": "red blue "}
    loaded.default_prompt_name = "passage"
    made = MAKERS[name](loaded)
    assert (made.prompts, made.default_prompt_name) == ({"passage": "red blue "}, "passage")
    made.prompts["passage"] = ""
    assert loaded.prompts == {"passage": "red blue "}


@pytest.mark.parametrize("name", MAKERS)
def test_modules_receive_their_keywords(loaded: SentenceTransformer, name: str) -> None:
    modules: Any = OrderedDict(reads=loaded[0], pools=loaded[1], shifts=Shift())
    model = SentenceTransformer(modules=modules, device="cpu")
    model.module_kwargs = {"shifts": ["by"]}
    made = MAKERS[name](model)
    assert made.module_kwargs == model.module_kwargs
    made.encode(TEXTS, by=1.0)
    assert name == "aligned" or np.allclose(made.encode(TEXTS, by=1.0), made.encode(TEXTS) + 1, atol=1e-6)
