"""Every recipe on a model with a query route and a document route."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dropout
from torch import nn

from st_matryoshka2d import Size
from st_matryoshka2d.losses import EspressoLoss, MIPICLoss, MultiSizeLoss, StarbucksLoss
from tests.support import families
from tests.support.families import ENDS, TEXTS, cut_by_hand
from tests.support.losses import SumOfSquares, assert_gradients_close, gradients
from tests.support.quick import quick
from tests.support.training import OLD, RECIPES, Watch, train

pytestmark = pytest.mark.filterwarnings("ignore:.* trains .* tensors of its own", "ignore:.* does not train the full size")

Modules = list[nn.Module]


def modules(family: str, folder: Path) -> Modules:
    """Build a new Transformer and a pooling, without dropout."""
    model = families.pipeline(families.CONFIGS[family](), folder / family, pooling="mean", dense=None, normalize=False)
    families.set_dropout(model, 0.0)
    return list(model.children())


def routed(query: Modules, document: Modules, *after: nn.Module) -> SentenceTransformer:
    router = Router.for_query_document(query_modules=query, document_modules=document)
    return SentenceTransformer(modules=[router, *after], device="cpu")


def separate(folder: Path, *after: nn.Module) -> SentenceTransformer:
    return routed(modules("bert", folder), modules("modernbert", folder), *after)


def shared(folder: Path, *after: nn.Module) -> SentenceTransformer:
    transformer, *rest = modules("bert", folder)
    return routed([transformer, *rest], [transformer, *rest, Dropout(0.0)], *after)


MODELS: dict[str, Callable[..., SentenceTransformer]] = {"two Transformers": separate, "one Transformer": shared}


def columns(model: SentenceTransformer, count: int = 2) -> list[dict[str, Any]]:
    documents = [OLD, TEXTS[::-1]][: count - 1]
    return [model.preprocess(TEXTS, task="query"), *(model.preprocess(texts, task="document") for texts in documents)]


@pytest.mark.parametrize("recipe", quick(RECIPES, "MIPIC"))
@pytest.mark.parametrize("name", MODELS)
def test_the_physically_cut_routes_learn(recipe: str, name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path)
    loss = RECIPES[recipe](model, mini_batch_size=3 if name == "one Transformer" else None)
    watch = Watch(model, recipe)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    train(model, loss, tmp_path / "run", router_mapping={"anchor": "query", "positive": "document"})
    watch.assert_learned()
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert {key.split(".")[2] for key in moved} == {"query", "document"}


@pytest.mark.parametrize("size", [Size(1, 4), Size(3, 20), Size(4, 32)], ids=str)
@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_each_size_trains_embeddings_of_cut_routes(
    name: str, mini_batch_size: int | None, size: Size, tmp_path: Path
) -> None:
    model = MODELS[name](tmp_path, Normalize()).double().train()
    task = MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=util.dot_score)
    found = MultiSizeLoss(model, task, [size], mini_batch_size=mini_batch_size)(columns(model, 3))["task"]
    with cut_by_hand(model, size.num_layers, ENDS[size.num_layers]):
        cut = [model(column)["sentence_embedding"][:, : size.dim] for column in columns(model, 3)]
    expected = task.compute_loss_from_embeddings(cut, None)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    ours, theirs = gradients(model, found), gradients(model, expected)
    assert_gradients_close(ours, theirs, 1e-6)
    for route in {"two Transformers": ("query", "document"), "one Transformer": ("query",)}[name]:
        reached = {key.split("layer")[1].split(".")[1] for key, value in ours.items() if route in key and "layer" in key}
        assert reached >= {str(layer) for layer in ENDS[size.num_layers]}, f"{route}: {reached}"


def ending(folder: Path, normalized: set[str]) -> SentenceTransformer:
    routes = {"query": modules("bert", folder), "document": modules("modernbert", folder)}
    for name in normalized:
        routes[name].append(Normalize())
    return routed(routes["query"], routes["document"]).train()


@pytest.mark.parametrize(
    ("recipe", "normalized"), [(StarbucksLoss, {"query"}), (EspressoLoss, {"query", "document"}), (MIPICLoss, set())]
)
@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_wrapped_loss_reads_route_outputs(
    recipe: Any, normalized: set[str], mini_batch_size: int | None, tmp_path: Path
) -> None:
    """With terms that read unnormalized embeddings and with others."""
    model = ending(tmp_path, normalized)
    loss = recipe(model, SumOfSquares(), mini_batch_size=mini_batch_size)
    expected = 0.0
    for size, weight in loss.sampler.draw().items():
        with cut_by_hand(model, size.num_layers, ENDS[size.num_layers]):
            cut = [model(column)["sentence_embedding"][:, : size.dim] for column in columns(model)]
        expected += weight * SumOfSquares().compute_loss_from_embeddings(cut, None).item()
    assert loss(columns(model))[loss.task_name].item() == pytest.approx(expected, rel=1e-4)
