"""mteb's cache treats cut and aligned models as separate models."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mteb
import pytest
import torch
from mteb import ResultCache
from mteb.models import ModelMeta
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import TruncatedTransformer, align, asymmetric, fit_queries, load, truncate
from tests.support import families
from tests.support.pipelines import routed
from tests.support.quick import quick
from tests.support.sts import LocalSTS

TEXTS = [f"{one} {other}" for one, other in pairwise(families.WORDS)]
COMMIT = "c" * 40


def named(model: SentenceTransformer, name: str | None) -> SentenceTransformer:
    """Name a model as if it came from the Hub."""
    model.model_card_data.base_model = name
    model.model_card_data.base_model_revision = COMMIT if name else None
    return model


def identity(model: SentenceTransformer) -> tuple[str | None, str | None]:
    meta = ModelMeta.from_sentence_transformer_model(model, fill_missing=None)  # type: ignore[arg-type]
    return meta.name, meta.revision


def score(model: SentenceTransformer, cache: ResultCache | None) -> float:
    results = mteb.evaluate(model, LocalSTS(), cache=cache, co2_tracker=False, show_progress_bar=False)
    return float(results.task_results[0].get_score())


@pytest.mark.parametrize("name", quick(["org/tiny", None], None))
def test_mteb_cache_separates_model_and_derived_models(name: str | None, tiny: SentenceTransformer, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    other = copy.deepcopy(tiny)
    with torch.no_grad():
        other[0].model.embeddings.word_embeddings.weight.normal_()
    made = [
        named(tiny, name),
        truncate(tiny, num_layers=1, dim=8),
        truncate(tiny, num_layers=2),
        truncate(tiny, dim=8),
        truncate(other, num_layers=1, dim=8),
    ]
    aligned = align(tiny, TEXTS, ["1L-8d"], steps=20)
    made += [truncate(aligned, num_layers=1, dim=8), aligned]
    expected = [score(model, None) for model in made]
    assert len(set(expected[:-1])) == len(made) - 1, "all differ, but for the aligned model at the full size"
    for _ in range(2):  # written, then read
        assert [score(model, cache) for model in made] == pytest.approx(expected, abs=1e-5)  # files hold rounded scores
    assert len(list(tmp_path.rglob("STS13.json"))) == len({identity(model) for model in made}) == len(made)


def test_a_cut_that_was_trained_since_shares_no_score(tiny: SentenceTransformer, tmp_path: Path) -> None:
    cache, cut = ResultCache(tmp_path), truncate(tiny, num_layers=2, dim=8)
    before, score_before = identity(cut), score(cut, cache)
    with torch.no_grad():  # as an optimizer does
        tiny[0].model.embeddings.word_embeddings.weight.normal_()
    assert identity(cut)[0] == before[0]
    assert identity(cut)[1] != before[1]
    assert abs(score(cut, None) - score_before) > 1e-3
    assert score(cut, cache) == pytest.approx(score(cut, None), abs=1e-5)


@pytest.mark.filterwarnings("ignore:21 documents tell little")
def test_derived_models_read_no_weights_for_a_name(
    tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(tiny, "org/tiny").save_pretrained(str(tmp_path / "tiny"))
    monkeypatch.setattr("st_matryoshka2d.model.identity.model_revision", lambda model: pytest.fail("hashed"))
    aligned = align(tiny, TEXTS)
    truncate(fit_queries(truncate(aligned, num_layers=3), TEXTS), num_layers=2, dim=8)
    asymmetric(aligned, 1)
    load(tmp_path / "tiny", num_layers=2, dim=8, device="cpu")


def test_derived_name_and_base_model_of_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    named(tiny, "org/tiny")
    aligned = align(tiny, TEXTS, ["2L-8d"], steps=1)
    cuts = {
        "org/tiny-1L-8d": truncate(tiny, num_layers=1, dim=8),
        "org/tiny-aligned-2L-8d": truncate(aligned, num_layers=2, dim=8),
    }
    for name, model in {**cuts, "org/tiny-aligned": aligned}.items():
        told, revision = identity(model)
        assert told == name
        assert revision is not None
        assert revision.startswith(f"{COMMIT}+")
        model.save_pretrained(str(tmp_path / name))
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert "base_model: org/tiny\n" in card
        assert f"\n# {name}\n" in card
    assert identity(tiny) == ("org/tiny", COMMIT)


def test_cut_to_full_size_keeps_name(tiny: SentenceTransformer) -> None:
    assert identity(truncate(named(tiny, "org/tiny"), num_layers=4, dim=32)) == ("org/tiny", COMMIT)


def elastic(model: SentenceTransformer) -> SentenceTransformer:
    model[0] = TruncatedTransformer.from_transformer(model[0])
    return model


MADE: dict[str, Callable[[Any], SentenceTransformer]] = {"plain": lambda model: model, "elastic": elastic}
MADE["router"] = lambda model: routed(model, shared=False)


@pytest.mark.parametrize("kind", MADE)
def test_load_and_truncate_give_same_name(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    MADE[kind](tiny).save_pretrained(str(tmp_path / "tiny"))
    whole = SentenceTransformer(str(tmp_path / "tiny"), device="cpu", trust_remote_code=True)
    loaded = load(tmp_path / "tiny", num_layers=1, dim=8, device="cpu", trust_remote_code=True)
    assert identity(loaded) == identity(truncate(whole, num_layers=1, dim=8)) != identity(whole)
    if kind == "plain":
        assert identity(loaded)[0] == "local/tiny-1L-8d"
        shutil.copytree(tmp_path / "tiny", tmp_path / "elsewhere" / "tiny")
        assert identity(load(tmp_path / "elsewhere" / "tiny", num_layers=1, dim=8, device="cpu")) == identity(loaded)
        assert identity(load(tmp_path / "tiny", num_layers=4, dim=32, device="cpu")) == identity(whole)
