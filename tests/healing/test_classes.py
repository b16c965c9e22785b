"""Rerankers, sparse and multi-vector encoders are healed: their outputs come nearer to the whole model's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from st_matryoshka2d import heal, truncate
from st_matryoshka2d.aligning.sample import Text
from st_matryoshka2d.healing.pairs import without_queries
from tests.support import classes, families
from tests.support.classes import CLASSES, outputs
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore::st_matryoshka2d.errors.DataWarning")


def text(seed: int) -> str:
    return " ".join(random.Random(seed).choices(families.WORDS, k=2 + seed % 7))


READ = [text(seed) for seed in range(160)]
PAIRS = [(text(seed), text(1000 + seed)) for seed in range(200)]


def distance(model: Any, whole: Any) -> float:
    return float((outputs(model) - outputs(whole)).square().mean())


@pytest.mark.parametrize("name", quick(CLASSES, "reranker"))
def test_outputs_come_nearer(name: str, tmp_path: Path) -> None:
    model = CLASSES[name](tmp_path / "weights")
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    healed = heal(model, PAIRS if name == "reranker" else READ, "2L", show_progress_bar=False)
    assert all(torch.equal(tensor, before[path]) for path, tensor in model.state_dict().items())
    assert type(healed) is type(model)
    told = healed.config.matryoshka_healed
    assert told["before"] <= told["after"] <= 1
    assert distance(healed, model) < distance(truncate(model, num_layers=2), model)
    healed.save_pretrained(str(tmp_path / "healed"))
    again = type(model)(str(tmp_path / "healed"), device="cpu")
    torch.testing.assert_close(outputs(again), outputs(healed))
    assert healed.model_card_data.model_name.endswith("-2L-healed")


@torch.no_grad()
def states(model: Any) -> torch.Tensor:
    """Return the states of all tokens of other pairs, which the head reads."""
    features = model.preprocess(classes.PAIRS)
    given = {name: features[name] for name in ("input_ids", "attention_mask")}
    return model[0].model.base_model(**given).last_hidden_state[features["attention_mask"].bool()]


@pytest.mark.parametrize("name", quick(["modernbert", "roberta", "qwen3", "deberta-v2"], "roberta"))
def test_states_of_a_reranker_of_another_family_come_nearer(name: str, tmp_path: Path) -> None:
    model = classes.reranker(tmp_path, name)
    healed, cut = heal(model, PAIRS, "2L", show_progress_bar=False), truncate(model, num_layers=2)
    lost, left = (float((states(each) - states(model)).square().mean()) for each in (cut, healed))
    assert left < lost


def test_what_is_told_is_the_correlation_of_scores(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path)
    healed = heal(model, PAIRS, num_layers=2, show_progress_bar=False)
    # a tenth of the pairs was left out; all of them tell about the same
    scores = [each.predict(PAIRS, activation_fn=nn.Identity()) for each in (healed, model)]
    assert healed.config.matryoshka_healed["texts"] == len(PAIRS)
    assert np.corrcoef(*scores)[0, 1] == pytest.approx(healed.config.matryoshka_healed["after"], abs=0.1)


@pytest.mark.slow
def test_steps_go_towards_the_scores(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path)
    plain, stepped = (heal(model, PAIRS, "2L", steps=steps, show_progress_bar=False) for steps in (0, 60))
    assert stepped.config.matryoshka_healed["after"] >= plain.config.matryoshka_healed["after"]
    assert distance(stepped, model) < distance(plain, model)


def test_pairs_are_a_list_or_two_columns(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path)
    table = pd.DataFrame(PAIRS, columns=["query", "document"])
    ways: list[Any] = [PAIRS, table, {"q": list(table["query"]), "d": list(table["document"])}]
    made = [outputs(heal(model, pairs, "2L", show_progress_bar=False)) for pairs in ways]
    assert all(torch.equal(each, made[0]) for each in made)


@pytest.mark.parametrize(
    ("pairs", "error", "said"),
    [
        (READ, TypeError, r"pairs\[0\] is '.*a reranker reads a list of pairs"),
        ([(*pair, "more") for pair in PAIRS], TypeError, r"pairs\[0\] is"),
        ([("a cat", 3)] * 4, TypeError, r"pairs\[0\] is 3"),
        (pd.DataFrame({"a": READ, "b": READ, "c": READ}), ValueError, r"columns \['a', 'b', 'c'\]"),
        (PAIRS[:2], ValueError, "at least 3 different"),
    ],
)
def test_other_pairs_are_refused(pairs: Any, error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        heal(classes.reranker(tmp_path), pairs, "2L")


@pytest.mark.parametrize(("queries", "documents"), [(1, 40), (2, 2)])
def test_too_few_queries_are_refused(queries: int, documents: int, tmp_path: Path) -> None:
    pairs = [(text(query), text(100 * query + document)) for query in range(queries) for document in range(documents)]
    with pytest.raises(ValueError, match=f"so {len(pairs)} pairs of {queries} quer.* are too few"):
        heal(classes.reranker(tmp_path), pairs, "2L")


@pytest.mark.parametrize("documents", [1, 7])
def test_no_query_that_is_fitted_tells_how_well(documents: int) -> None:
    pairs = [(text(query), text(100 + document)) for query in range(30) for document in range(documents)]
    random.Random(0).shuffle(pairs)
    sample = [Text(None, pair, 0, row) for row, pair in enumerate(pairs)]
    seen, held = without_queries(sample)
    assert sorted([*seen, *held], key=lambda pair: pair.row) == sample
    assert not {pair.text[0] for pair in seen} & {pair.text[0] for pair in held}
    assert 0.1 * len(pairs) <= len(held) < 0.1 * len(pairs) + documents


def test_dims_are_refused(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path)
    with pytest.raises(ValueError, match="dim=8: a CrossEncoder returns scores"):
        heal(model, PAIRS, num_layers=2, dim=8)
    assert heal(model, PAIRS, "2L-1d", show_progress_bar=False).config.num_hidden_layers == 2
