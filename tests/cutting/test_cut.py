"""A cut is a plain model that shares the memory of the full model, and inherits its settings, routes and modes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module, Router
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from transformers import dynamic_module_utils

from st_matryoshka2d import Size, TruncatedTransformer, align, encode_sizes, load, sizes_ladder, truncate
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.losses.distillation import frozen_copy
from tests.support.families import TEXTS
from tests.support.pipelines import routed
from tests.support.quick import quick
from tests.support.training import Falling, train


def snapshot(model: SentenceTransformer) -> dict[str, object]:
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "config": model.config.to_dict(),
        "modes": [module.training for module in model.modules()],
        "settings": (model.truncate_dim, model.max_seq_length, dict(model.prompts), model.tokenizer.padding_side),
        "embeddings": model.encode(TEXTS),
    }


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    assert {k: v for k, v in before.items() if k not in ("weights", "embeddings")} == {
        k: v for k, v in after.items() if k not in ("weights", "embeddings")
    }
    assert all(torch.equal(value, after["weights"][name]) for name, value in before["weights"].items())  # type: ignore[index, attr-defined]
    assert np.array_equal(before["embeddings"], after["embeddings"])  # type: ignore[arg-type]


def test_changing_cut_leaves_full_model(tiny: SentenceTransformer) -> None:
    tiny.encode(TEXTS)
    before = snapshot(tiny)
    cut = truncate(tiny, num_layers=2, dim=8)
    cut.max_seq_length = 7
    cut.prompts["query"] = "ask: "
    cut.tokenizer.padding_side = "left"
    cut.config.hidden_dropout_prob = 0.9
    cut[1].pooling_mode = ("cls",)
    cut.train().bfloat16()
    assert cut.dtype == torch.bfloat16
    assert_same(before, snapshot(tiny))


def test_checked_model_can_be_pickled(tiny: SentenceTransformer) -> None:
    """Encoding with several processes pickles the model, which transformers' hooks for hidden states would prevent."""
    encode_sizes(tiny, TEXTS, sizes_ladder(tiny))
    loss = StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny))
    cut = truncate(tiny, num_layers=2, dim=8)
    for model in (tiny, cut):
        assert np.array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))
    loss([tiny.preprocess(TEXTS), tiny.preprocess(TEXTS)])
    after = truncate(tiny, num_layers=2, dim=8)
    assert np.array_equal(pickle.loads(pickle.dumps(after)).encode(TEXTS), cut.encode(TEXTS))


def test_cut_returns_prefix_without_renormalising(minilm: SentenceTransformer) -> None:
    full, cut = minilm.encode(TEXTS), truncate(minilm, dim=32)
    assert np.array_equal(cut.encode(TEXTS), full[:, :32])
    assert np.linalg.norm(cut.encode(TEXTS), axis=1).max() < 0.9
    assert np.allclose(np.linalg.norm(cut.encode(TEXTS, normalize_embeddings=True), axis=1), 1)
    sizes = encode_sizes(minilm, TEXTS, [Size(6, 32)], normalize_embeddings=True)
    assert np.allclose(sizes[Size(6, 32)], cut.encode(TEXTS, normalize_embeddings=True), atol=1e-7)


def test_prompts_settings_and_head_are_kept(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.prompts = {"query": "red blue ", "document": "old "}
    tiny.similarity_fn_name = "dot"
    tiny.max_seq_length = 9
    tiny.set_pooling_include_prompt(False)
    cut = truncate(tiny, num_layers=2, dim=8)
    cut.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    sizes = [Size(2, 8), Size(4, 32)]
    for method in ("encode_query", "encode_document"):
        expected = getattr(cut, method)(TEXTS)
        assert np.array_equal(getattr(again, method)(TEXTS), expected)
        name = method.removeprefix("encode_")
        assert np.array_equal(encode_sizes(tiny, TEXTS, sizes, prompt_name=name)[sizes[0]], expected)
    assert not np.allclose(cut.encode_query(TEXTS), cut.encode(TEXTS))
    assert (again.similarity_fn_name, again.max_seq_length, again.truncate_dim) == ("dot", 9, 8)


def test_encode_sizes_sends_each_text_through_the_model_once(tiny: SentenceTransformer) -> None:
    seen: list[int] = []
    weight = tiny[0].model.embeddings.word_embeddings
    with weight.register_forward_hook(lambda module, args, output: seen.append(len(args[0]))):
        encode_sizes(tiny, TEXTS * 3, sizes_ladder(tiny), batch_size=4)
    probes = 3  # forward passes that verify the cut, two rows each
    assert sum(seen) >= len(TEXTS) * 3
    assert sum(count for count in seen if count != 2) <= len(TEXTS) * 3 + probes * 2


def test_dims_of_a_cut_and_a_cut_of_a_cut(tiny: SentenceTransformer) -> None:
    """As with `truncate_dim` elsewhere, the modules still compute the full width."""
    cut = truncate(tiny, dim=8)
    assert np.array_equal(cut.encode(TEXTS, truncate_dim=16), tiny.encode(TEXTS)[:, :16])
    assert cut(cut.preprocess(TEXTS))["sentence_embedding"].shape == (5, 32)
    twice = truncate(truncate(tiny, num_layers=3, dim=16), num_layers=2, dim=8)
    assert np.array_equal(twice.encode(TEXTS), truncate(tiny, num_layers=2, dim=8).encode(TEXTS))


@pytest.mark.filterwarnings("ignore:Of texts that were left out")
@pytest.mark.parametrize("words", [None, TEXTS], ids=["all words", "few words"])
@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_saved_cut_is_plain(process: bool, words: list[str] | None, minilm: SentenceTransformer, tmp_path: Path) -> None:
    """It has its layers alone, and loads where this package cannot be imported, without trust_remote_code."""
    cut = truncate(minilm, num_layers=3, dim=64, vocabulary=words)
    assert np.array_equal(cut.encode(TEXTS), truncate(minilm, num_layers=3, dim=64).encode(TEXTS))
    cut.save_pretrained(str(tmp_path))
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert all(module["type"].startswith("sentence_transformers.") for module in modules)
    weights = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[2] for name in weights if name.startswith("encoder.layer.")} == {"0", "1", "2"}
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), cut.encode(TEXTS))
    code = (
        "import sys; sys.modules['st_matryoshka2d'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"print(SentenceTransformer({str(tmp_path)!r}, device='cpu').encode({TEXTS!r}).tolist())"
    )
    if process:
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        np.testing.assert_allclose(json.loads(run.stdout), cut.encode(TEXTS), atol=1e-6)


def test_saved_cut_declares_dims_for_servers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.config.matryoshka_dimensions = [8, 16, 32]
    truncate(tiny, num_layers=2, dim=16).save_pretrained(str(tmp_path / "trained"))
    saved = json.loads((tmp_path / "trained" / "config.json").read_text())
    assert (saved["is_matryoshka"], saved["matryoshka_dimensions"], saved["num_hidden_layers"]) == (True, [8, 16], 2)
    tiny.save_pretrained(str(tmp_path / "full"))
    assert load(str(tmp_path / "full"), num_layers=1, dim=24).config.matryoshka_dimensions == [8, 16, 24]


def test_sizes_are_taken_as_text_and_share_no_memory(tiny: SentenceTransformer) -> None:
    sizes = ["2L-8d", "4L-8d", "4L-16d", Size(4, 32)]
    for texts in (TEXTS, TEXTS[:1], []):
        embeddings = encode_sizes(tiny, texts, sizes)
        assert list(embeddings) == [Size(2, 8), Size(4, 8), Size(4, 16), Size(4, 32)]
        embeddings[Size(4, 16)][:] = 0
        for size in (Size(2, 8), Size(4, 8), Size(4, 32)):
            expected = truncate(tiny, size).encode(texts) if texts else np.zeros((0, size.dim))
            np.testing.assert_allclose(embeddings[size], expected, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_the_cut_of_a_router_has_no_weights_of_its_own(tiny: SentenceTransformer, shared: bool) -> None:
    model = routed(tiny, shared=shared)
    cut = truncate(model, num_layers=2, dim=8)
    owned = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in cut.parameters()} <= owned
    differs = not np.allclose(cut.encode(TEXTS, task="query"), cut.encode(TEXTS, task="document"))
    assert differs is not shared
    assert len({id(way[0]) for way in cut[0].sub_modules.values()}) == (1 if shared else 2)


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
    assert load(str(tmp_path / "own"), num_layers=2, device="cpu", trust_remote_code=True).trust_remote_code
    assert not truncate(SentenceTransformer(modules=list(own_code)), num_layers=2).trust_remote_code


@pytest.mark.parametrize("name", MAKERS)
def test_every_module_keeps_its_mode(loaded: SentenceTransformer, name: str) -> None:
    kept = ["", "0", "1", "0.model", "0.model.encoder.layer.0", "0.model.encoder.layer.0.output.dropout"]
    loaded[0].model.embeddings.dropout.p = 0.5
    loaded[0].model.encoder.layer[0].output.dropout.training = True
    for change in (lambda: loaded, loaded.train, loaded.eval):
        before = modes(change())
        made = modes(MAKERS[name](loaded))
        assert [made[path] for path in kept] == [before[path] for path in kept]
        assert all(mode == before.get(path, before["1"]) for path, mode in made.items())
        assert modes(loaded) == before


def test_modes_of_routes_depths_and_teachers(loaded: SentenceTransformer) -> None:
    assert loaded.training, "what sentence-transformers loads is in training mode"
    routed = SentenceTransformer(modules=[Router.for_query_document(list(loaded), list(truncate(loaded, dim=8)))])
    assert not any(modes(truncate(routed.eval(), num_layers=2)).values())
    loaded[0] = TruncatedTransformer.from_transformer(loaded[0])
    plain, before = modes(loaded[0].to_transformer(2)), modes(loaded[0])
    assert all(mode == before[path] for path, mode in plain.items())
    assert not any(modes(frozen_copy(loaded)).values()), "a teacher is frozen as it encodes"


@pytest.mark.parametrize("name", MAKERS)
def test_prompts_and_keywords_of_modules_are_kept(loaded: SentenceTransformer, name: str) -> None:
    """sentence-transformers uses the `passage` prompt if there is no `document` prompt."""
    modules: Any = OrderedDict(reads=loaded[0], pools=loaded[1], shifts=Shift())
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"passage": "red blue "})
    model.module_kwargs = {"shifts": ["by"]}
    model.default_prompt_name = "passage"
    made = MAKERS[name](model)
    assert (made.prompts, made.default_prompt_name) == (model.prompts, "passage")
    made.prompts["passage"] = ""
    assert model.prompts["passage"] == "red blue "
    assert made.module_kwargs == model.module_kwargs
    made.encode(TEXTS, by=1.0)
    assert name == "aligned" or np.allclose(made.encode(TEXTS, by=1.0), made.encode(TEXTS) + 1, atol=1e-6)


@pytest.mark.parametrize("what", ["pipeline", "module", "network", "layers"])
def test_model_compiled_in_place_is_cut(what: str, tiny: SentenceTransformer) -> None:
    expected = {size: truncate(tiny, size).encode(TEXTS) for size in (Size(2, 8), Size(4, 32))}
    network = tiny[0].model
    parts = {"pipeline": [tiny], "module": [tiny[0]], "network": [network], "layers": [*network.encoder.layer]}
    for part in parts[what]:
        part.compile(backend="eager")
    for size, embeddings in encode_sizes(tiny, TEXTS, [*expected]).items():
        assert np.abs(embeddings - expected[size]).max() < 1e-6
        assert np.abs(truncate(tiny, size).encode(TEXTS) - expected[size]).max() < 1e-6
