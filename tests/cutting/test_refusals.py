"""What cannot be cut is refused: the call, the type of the error, and what its text must hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, WeightedLayerPooling
from torch import nn
from transformers import BertConfig

import st_matryoshka2d as st
from st_matryoshka2d import Size, align, asymmetric, encode_sizes, evaluate, load, truncate
from st_matryoshka2d.losses import MultiSizeLoss
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.layers import Layers
from tests.support import families
from tests.support.adapters import lora
from tests.support.pipelines import TEXTS, elastic

STS = st.sts_task({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": list(range(len(TEXTS)))})
elastic_module = st.TruncatedTransformer.from_transformer

VERBS: dict[str, Callable[[Any], object]] = {
    "truncate": lambda model: truncate(model, num_layers=2),
    "encode_sizes": lambda model: encode_sizes(model, TEXTS, ["2L-8d"]),
    "align": lambda model: align(model, TEXTS),
    "fit_queries": lambda model: st.fit_queries(model, TEXTS),
    "asymmetric": lambda model: asymmetric(model, 2),
    "asymmetric, an encoder": lambda model: asymmetric(model, model),
    "SizesEncoder": lambda model: st.SizesEncoder(model, ["2L-8d"]),
    "encode_to_parquet": lambda model: st.encode_to_parquet(model, TEXTS, "none", ["2L-8d"]),
    "evaluate": lambda model: evaluate(model, STS),
    "evaluate_truncations": lambda model: st.evaluate_truncations(model, STS),
    "GridEvaluator": lambda model: st.GridEvaluator(STS, sizes=["2L-8d"])(model),
    "coordinate_spread": lambda model: st.coordinate_spread(model, TEXTS),
    "benchmark_latency": lambda model: st.benchmark_latency(model, rounds=1),
    "MultiSizeLoss": lambda model: MultiSizeLoss(model, CoSENTLoss(model), ["2L-8d"]),
    "TruncatedTransformer": lambda model: elastic_module(model[0]),
}
FIRST = list(VERBS)[:3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function that writes a folder before it refuses write none into the checkout."""
    monkeypatch.chdir(tmp_path)


class OVModelForFeatureExtraction:
    """Stands for optimum's class, which is no `nn.Module`: it has a config, and can be called."""

    def __init__(self, config: Any) -> None:
        self.config = config


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def around_every_layer(network: Any) -> Any:
    network.encoder.layer = nn.ModuleList(map(compiled, network.encoder.layer))
    return network


def with_network(change: Callable[[Any], Any]) -> Callable[[SentenceTransformer], Any]:
    """Return a function that puts a changed network in place of a model's own."""

    def changed(model: SentenceTransformer) -> SentenceTransformer:
        network = change(model[0].model)
        del model[0].model
        model[0].model = network
        return model

    return changed


WRONG: dict[str, tuple[Callable[[SentenceTransformer], Any], str]] = {
    "of another backend": (with_network(lambda it: OVModelForFeatureExtraction(it.config)), "OVModelForFeat.*'torch'"),
    "compiled": (compiled, r"^SentenceTransformer is .*`model.compile\(\)`"),
    "with a compiled module": (
        lambda model: SentenceTransformer(modules=[compiled(model[0]), model[1]], device="cpu"),
        r"^Transformer is .*`model.compile\(\)`",
    ),
    "with a compiled network": (with_network(compiled), r"^BertModel is .*`model.compile\(\)`"),
    "with compiled layers": (with_network(around_every_layer), r"encoder.layer.0\) is .*`model.compile\(\)`"),
    "in a wrapper of PEFT": (
        with_network(lambda network: peft.get_peft_model(network, lora(init_lora_weights=False))),
        r"got PeftModel.*merge_and_unload\(\)",
    ),
}


@pytest.mark.parametrize(
    ("kind", "verb"), [(kind, verb) for kind in WRONG for verb in (VERBS if kind == "of another backend" else FIRST)]
)
def test_a_model_that_is_not_a_plain_network_is_refused(kind: str, verb: str, tiny: SentenceTransformer) -> None:
    make, told = WRONG[kind]
    with pytest.raises(TypeError, match=told):
        VERBS[verb](make(tiny))


BAD_SIZES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_layers": 5}, ValueError, "num_layers=5: the model has 4 layers"),
    ({"num_layers": 0}, ValueError, "0 layers"),
    ({"num_layers": 2.0}, TypeError, "2.0"),
    ({"num_layers": "3L-8d"}, TypeError, "3L-8d"),
    ({"num_layers": 2, "dim": False}, TypeError, "False"),
    ({"dim": -1}, ValueError, "-1"),
    ({"size": "5L-8d"}, ValueError, "num_layers=5"),
    ({"size": Size(4, 33)}, ValueError, "dim=33: the model has 32 dimensions"),
    ({"size": "3L-8"}, ValueError, "'3L-8'"),
    ({"size": "3L-8d", "dim": 8}, ValueError, "got 3L-8d and {'dim': 8}"),
    ({"size": Size(3, 8), "num_layers": 3}, ValueError, "got 3L-8d and {'num_layers': 3}"),
    ({"size": (3, 8)}, TypeError, r"\(3, 8\)"),
    ({"size": 3}, TypeError, "num_layers=3 or dim=3"),
    ({"size": True}, TypeError, "True"),
    ({"layers": "ends"}, ValueError, "num_layers"),
    ({"layers": "ends", "num_layers": 5}, ValueError, "num_layers=5: the model has 4"),
    ({"layers": "last", "num_layers": 2}, ValueError, "'last'"),
    ({"layers": 3, "num_layers": 3}, ValueError, "got 3"),
    ({"layers": {2: [1, 4]}, "num_layers": 2}, ValueError, "2: "),
    ({"layers": [1, 4], "num_layers": 3}, ValueError, r"\[1, 4\]"),
    ({"layers": [1, 5]}, ValueError, "layer 5"),
    ({"layers": [4, 1]}, ValueError, r"\[4, 1\]"),
]


@pytest.mark.parametrize(("size", "error", "told"), BAD_SIZES, ids=[str(size) for size, *_ in BAD_SIZES])
def test_sizes_that_the_model_does_not_have(
    size: dict[str, Any], error: type[Exception], told: str, tiny: SentenceTransformer, tiny_folder: Path
) -> None:
    """In memory and while loading."""
    for cut in (truncate, load):
        with pytest.raises(error, match=told):
            cut(tiny if cut is truncate else tiny_folder, **size)


class Table(nn.Identity):
    modalities = ("text",)


def as_encoder(*modules: Any) -> SentenceTransformer:
    return SentenceTransformer(modules=list(modules), device="cpu")


def of_two_depths(model: SentenceTransformer) -> SentenceTransformer:
    return as_encoder(Router.for_query_document(list(truncate(model, num_layers=2)), list(model)))


def declared(entry: object) -> Any:
    return BertConfig(num_hidden_layers=4, matryoshka_layers=entry)


# `given` has a model of 4 layers x 32, and the same model aligned.
CALLS: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda given: truncate(given.tiny), ValueError, "num_layers"),
    (lambda given: truncate(truncate(given.tiny, "3L-16d"), num_layers=4), ValueError, "4: the model has 3 layers"),
    (lambda given: truncate(truncate(given.tiny, "3L-16d"), dim=32), ValueError, "32: the model has 16 dim"),
    (lambda given: truncate(given.tiny[0].model, num_layers=1), TypeError, "got BertModel"),
    (lambda given: truncate(given.static, num_layers=1), ValueError, "StaticEmbedding has no layers to cut"),
    (
        lambda given: truncate(as_encoder(given.tiny[0], WeightedLayerPooling(32, 4), Pooling(32)), num_layers=1),
        ValueError,
        "WeightedLayerPooling",
    ),
    (lambda given: find_backbone(nn.Linear(2, 2)), TypeError, "got Linear"),
    (lambda given: encode_sizes(given.tiny, TEXTS, [Size(1, 8)], truncate_dim=4), ValueError, "'truncate_dim'"),
    (lambda given: encode_sizes(given.tiny, TEXTS, None), TypeError, "list of sizes"),
    (lambda given: encode_sizes("a-model", TEXTS, ["1L-8d"]), TypeError, "got str"),
    # routers
    (lambda given: encode_sizes(of_two_depths(given.tiny), TEXTS, ["1L-8d"]), ValueError, "'query': 2.*'document': 4"),
    (lambda given: truncate(of_two_depths(given.tiny), num_layers=1), ValueError, "cannot be cut in depth"),
    (
        lambda given: truncate(as_encoder(Router({"query": [Table()], "document": list(given.tiny)})), dim=8),
        ValueError,
        "starts with Table",
    ),
    # layers that depths keep
    (lambda given: align(given.tiny, TEXTS, layers="last"), ValueError, "'last'"),
    (lambda given: align(given.tiny, TEXTS, layers=5), TypeError, "got 5"),
    (lambda given: align(given.tiny, TEXTS, layers={4: [1, 2, 3, 4]}), ValueError, "for 4 layers, but only 1 to 3"),
    (lambda given: align(given.tiny, TEXTS, layers={0: []}), ValueError, "got 0"),
    (lambda given: align(given.tiny, TEXTS, layers={2: [1, 5]}), ValueError, r"layer 5.* 4"),
    (lambda given: align(given.tiny, TEXTS, layers={2: [1]}), ValueError, r"got \[1\]"),
    (lambda given: align(given.tiny, TEXTS, layers={2: [4, 1]}), ValueError, r"got \[4, 1\]"),
    (lambda given: align(given.tiny, TEXTS, layers={2: [1, 1]}), ValueError, r"got \[1, 1\]"),
    (lambda given: truncate(given.ends, num_layers=2, layers="first"), ValueError, r"\[1, 4\], .* not \[1, 2\]"),
    (lambda given: evaluate(given.ends, STS, num_layers=3, layers={3: [2, 3, 4]}), ValueError, r"\[1, 3, 4\].*\[2, 3, 4\]"),
    *(
        (lambda given, entry=entry: Layers.of(declared(entry)).kept(2), ValueError, "`matryoshka_layers`")
        for entry in ("ends", {"1": [1]}, {"2": 5}, {"2": [1, 9]}, {"2": ["1", "2"]}, {"1": [2], "2": [1]})
    ),
    # a depth at call time
    *(
        (call, error, "num_layers")
        for value, error in ((5, ValueError), (0, ValueError), (True, TypeError), ("2", TypeError), ("2L-8d", TypeError))
        for call in (
            lambda given, value=value: elastic(given.tiny).encode(TEXTS, num_layers=value),
            lambda given, value=value: elastic_module(given.tiny[0], num_layers=value),
            lambda given, value=value: elastic_module(given.tiny[0]).to_transformer(value),
        )
    ),
    (lambda given: elastic_module(given.tiny[1]), TypeError, "got Pooling"),
    # sides
    (lambda given: asymmetric(given.tiny, 2), ValueError, "2 and of 4 layers.*not aligned"),
    (lambda given: asymmetric(truncate(given.ends, num_layers=2), 1), ValueError, "1 and of 2 layers"),
    (lambda given: asymmetric(asymmetric(given.ends, 2), 1), ValueError, "asymmetric already"),
    (lambda given: asymmetric(given.ends, 5), ValueError, "5: the model has 4"),
    (lambda given: asymmetric(given.ends, 2, "5L-8d"), ValueError, "5: the model has 4"),
    (lambda given: asymmetric(given.ends, "2L-33d"), ValueError, "33: the model has 32"),
    (lambda given: asymmetric("model", 2), TypeError, "SentenceTransformer"),
    (lambda given: asymmetric(given.ends, as_encoder(*given.tiny, Dense(32, 16))), ValueError, "16 dim.* 32"),
    (lambda given: asymmetric(given.ends, 0), ValueError, "fit_queries"),
    (lambda given: asymmetric(given.ends, 1, 0), ValueError, "0 layers"),
    (lambda given: truncate(asymmetric(given.ends, 2), num_layers=2), ValueError, r'query=2\).*route="query"'),
    (lambda given: encode_sizes(asymmetric(given.ends, 2), TEXTS, ["2L-8d"]), ValueError, "'document': 4, 'query': 2"),
]


@pytest.fixture(scope="module")
def ends(_tiny_bert: SentenceTransformer) -> SentenceTransformer:
    return align(copy.deepcopy(_tiny_bert), TEXTS, layers="ends", steps=0)


@pytest.mark.parametrize("place", range(len(CALLS)))
def test_calls_that_cannot_be_answered(place: int, tiny: SentenceTransformer, ends: SentenceTransformer) -> None:
    static = as_encoder(StaticEmbedding(families.tokenizer(), embedding_dim=8))
    call, error, told = CALLS[place]
    with pytest.raises(error, match=told):
        call(SimpleNamespace(tiny=tiny, ends=copy.deepcopy(ends), static=static))
