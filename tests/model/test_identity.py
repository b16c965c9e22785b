"""The name and the revision of a model: equal if and only if its embeddings are, so that mteb's cache mixes up nothing."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import mteb
import pytest
import torch
from mteb import ResultCache
from mteb.models import ModelMeta
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from tokenizers import normalizers, processors

from st_matryoshka2d import Size, align, asymmetric, fit_queries, load, truncate
from st_matryoshka2d.model.identity import model_name, model_revision
from tests import ROOT
from tests.support import families
from tests.support.pipelines import elastic, routed
from tests.support.quick import quick
from tests.support.sts import LocalSTS, quiet

Change = Callable[[Any], object]


def first(model: Any) -> torch.nn.Parameter:
    return cast("torch.nn.Parameter", next(model.parameters()))


def nudge(model: Any) -> None:
    with torch.no_grad():
        first(model)[3, 5] += 1e-6


def retrain(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(model.preprocess(families.TEXTS))["sentence_embedding"].square().sum().backward()
    optimizer.step()


def set_backend(model: Any, name: str, value: Any) -> None:
    setattr(model.tokenizer.backend_tokenizer, name, value)


def swap_words(model: Any) -> None:
    vocabulary = families.VOCABULARY | {"cat": families.VOCABULARY["dog"], "dog": families.VOCABULARY["cat"]}
    model[0].processor = families.tokenizer(vocabulary)


def default_prompt(model: Any) -> None:
    model.prompts.update(query="a ")
    model.default_prompt_name = "query"


def adapter(model: Any, scale: int = 1) -> None:
    torch.manual_seed(0)
    model.add_adapter(LoraConfig(r=2, lora_alpha=2 * scale, target_modules=["query"], init_lora_weights=False))


# Each changes embeddings or the similarity function.
CHANGES: dict[str, Change] = {
    "one weight": nudge,
    "a training step": retrain,
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "prompts": lambda model: model.prompts.update(query="a "),
    "a default prompt": default_prompt,
    "prompt left out of the mean": lambda model: model.set_pooling_include_prompt(False),
    "pooling": lambda model: model.__setitem__(1, Pooling(32, pooling_mode="cls")),
    "a head": lambda model: model.append(Dense(32, 32)),
    "length one": lambda model: model.append(Normalize()),
    "max_seq_length": lambda model: setattr(model, "max_seq_length", 5),
    "truncate_dim": lambda model: setattr(model, "truncate_dim", 8),
    "similarity": lambda model: setattr(model, "similarity_fn_name", "dot"),
    "words": swap_words,
    "capitals": lambda model: set_backend(model, "normalizer", normalizers.Lowercase()),
    "no CLS": lambda model: set_backend(
        model, "post_processor", processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    ),
    "which end of a long text": lambda model: setattr(model.tokenizer, "truncation_side", "left"),
    "elastic, 3 layers": lambda model: setattr(elastic(model)[0], "num_layers", 3),
    "layers that a depth keeps": lambda model: setattr(model[0].model.config, "matryoshka_layers", {"2": [1, 4]}),
    "an adapter": adapter,
    "an adapter that is off": lambda model: (adapter(model), model[0].model.disable_adapters()),
    "an adapter of another scale": lambda model: adapter(model, scale=3),
    "cut in depth": lambda model: None,
}


def changed(model: SentenceTransformer, what: str) -> SentenceTransformer:
    if what == "cut in depth":
        return truncate(model, num_layers=3)
    other = copy.deepcopy(model)
    CHANGES[what](other)
    return other


def test_changes_of_embeddings_change_revision(tiny: SentenceTransformer) -> None:
    revisions = {what: model_revision(changed(tiny, what)) for what in CHANGES} | {"nothing": model_revision(tiny)}
    assert len(set(revisions.values())) == len(revisions), revisions
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in revisions.values())


def test_use_keeps_revision(tiny: SentenceTransformer) -> None:
    before = model_revision(tiny)
    assert model_revision(copy.deepcopy(tiny)) == before
    tiny.encode(families.TEXTS, batch_size=2)
    tiny.train()
    tiny.to("cpu")
    tiny[0].model.config.output_hidden_states = True  # as while another thread reads all layers
    quiet(tiny, LocalSTS(), sizes=[Size(2, 8)])
    tiny.eval()
    assert model_revision(tiny) == before


def test_a_folder_read_twice_and_moved(tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save_pretrained(str(tmp_path / "one"))
    one, again = (SentenceTransformer(str(tmp_path / "one"), device="cpu") for _ in range(2))
    assert model_name(one) == "local/one"
    assert model_revision(one) == model_revision(again) == model_revision(tiny)
    shutil.move(tmp_path / "one", tmp_path / "elsewhere" / "two")
    moved = SentenceTransformer(str(tmp_path / "elsewhere" / "two"), device="cpu")
    assert (model_name(moved), model_revision(moved)) == ("local/two", model_revision(one))
    monkeypatch.chdir(tmp_path)
    for relative in ("elsewhere/two", "elsewhere/two/"):  # which is no name of the Hub
        assert model_name(SentenceTransformer(relative, device="cpu")) == "local/two"


@pytest.mark.slow
def test_a_folder_read_in_another_process(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "one"))
    program = (
        "import sys; from sentence_transformers import SentenceTransformer;"
        "from st_matryoshka2d.model.identity import model_name, model_revision;"
        "model = SentenceTransformer(sys.argv[1], device='cpu'); print(model_name(model), model_revision(model))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "one")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.split() == ["local/one", model_revision(tiny)]


def test_the_name_is_the_models_own_before_that_of_what_it_was_trained_from(
    tiny: SentenceTransformer, tmp_path: Path
) -> None:
    card = tiny.model_card_data
    card.base_model = "sentence-transformers/all-MiniLM-L6-v2"
    assert model_name(tiny) == "sentence-transformers/all-MiniLM-L6-v2"
    tiny.save_pretrained(str(tmp_path))  # adds a title, which is no name
    assert model_name(tiny) == "sentence-transformers/all-MiniLM-L6-v2"
    card.model_id = "tom/mine.v2"
    assert model_name(tiny) == "tom/mine.v2"


PHRASES = [f"{one} {other}" for one, other in pairwise(families.WORDS)]
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
    aligned = align(tiny, PHRASES, ["1L-8d"], steps=20)
    made += [truncate(aligned, num_layers=1, dim=8), aligned]
    expected = [score(model, None) for model in made]
    assert len(set(expected[:-1])) == len(made) - 1, "all differ, but for the aligned model at the full size"
    for _ in range(2):  # written, then read
        # files hold rounded scores
        assert [score(model, cache) for model in made] == pytest.approx(expected, abs=1e-5)
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
    aligned = align(tiny, PHRASES)
    truncate(fit_queries(truncate(aligned, num_layers=3), PHRASES), num_layers=2, dim=8)
    asymmetric(aligned, 1)
    load(tmp_path / "tiny", num_layers=2, dim=8, device="cpu")


def test_derived_name_and_base_model_of_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    named(tiny, "org/tiny")
    aligned = align(tiny, PHRASES, ["2L-8d"], steps=1)
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
    assert identity(tiny) == identity(truncate(tiny, num_layers=4, dim=32)) == ("org/tiny", COMMIT)


MADE: dict[str, Callable[[Any], SentenceTransformer]] = {
    "plain": lambda model: model,
    "elastic": elastic,
    "router": lambda model: routed(model, shared=False),
}


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
