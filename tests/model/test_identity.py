"""Model identity in a cache: equal if and only if the embeddings are equal."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from tokenizers import normalizers, processors

from st_matryoshka2d import Size, TruncatedTransformer, truncate
from st_matryoshka2d.model.identity import model_name, model_revision
from tests import ROOT
from tests.support import families
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


def elastic(model: Any) -> None:
    model[0] = TruncatedTransformer.from_transformer(model[0], num_layers=3)


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
    "elastic, 3 layers": elastic,
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


def test_a_folder_read_twice_moved_and_saved_again(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "one"))
    one, again = (SentenceTransformer(str(tmp_path / "one"), device="cpu") for _ in range(2))
    assert model_name(one) == "local/one"
    assert model_revision(one) == model_revision(again) == model_revision(tiny)
    shutil.move(tmp_path / "one", tmp_path / "elsewhere" / "two")
    moved = SentenceTransformer(str(tmp_path / "elsewhere" / "two"), device="cpu")
    assert (model_name(moved), model_revision(moved)) == ("local/two", model_revision(one))


@pytest.mark.slow
def test_a_folder_read_in_another_process(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "one"))
    program = (
        "import sys; from sentence_transformers import SentenceTransformer;"
        "from st_matryoshka2d.model.identity import model_name, model_revision;"
        "model = SentenceTransformer(sys.argv[1], device='cpu'); print(model_name(model), model_revision(model))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "one")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert run.stdout.split() == ["local/one", model_revision(tiny)]


def test_the_name_is_the_models_own_before_that_of_what_it_was_trained_from(tiny: SentenceTransformer) -> None:
    card = tiny.model_card_data
    card.base_model = "sentence-transformers/all-MiniLM-L6-v2"
    assert model_name(tiny) == "sentence-transformers/all-MiniLM-L6-v2"
    card.model_id = "tom/mine.v2"
    assert model_name(tiny) == "tom/mine.v2"


def test_title_is_not_a_name(tiny: SentenceTransformer, tmp_path: Path) -> None:
    """sentence-transformers adds a title when a model is first saved."""
    tiny.model_card_data.base_model = "sentence-transformers/all-MiniLM-L6-v2"
    before = model_name(tiny)
    tiny.save_pretrained(str(tmp_path / "saved"))
    assert tiny.model_card_data.model_name == "SentenceTransformer based on sentence-transformers/all-MiniLM-L6-v2"
    assert model_name(tiny) == before


def test_relative_folder_is_not_a_hub_name(
    tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save_pretrained(str(tmp_path / "runs" / "mine"))
    monkeypatch.chdir(tmp_path)
    assert model_name(SentenceTransformer("runs/mine", device="cpu")) == "local/mine"
    assert model_name(SentenceTransformer("runs/mine/", device="cpu")) == "local/mine"
