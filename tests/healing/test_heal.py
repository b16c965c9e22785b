"""Healed models: plain, in the space of the whole model, with weights of their own."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from st_matryoshka2d import Size, add_to_model_card, align, asymmetric, heal, truncate
from st_matryoshka2d.aligning import own_space, ridge
from st_matryoshka2d.healing import judge, regress, repair
from st_matryoshka2d.healing.heal import Judge
from st_matryoshka2d.sizes import full_size
from tests.support import families
from tests.support.pipelines import OTHERS, TEXTS, elastic, equal, normalized, readouts, turned

pytestmark = pytest.mark.filterwarnings("ignore:.*different texts or pairs are few")

MORE = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(120)]


def cosines(one: SentenceTransformer, other: SentenceTransformer) -> float:
    left, right = (each.encode(MORE[::3], normalize_embeddings=True) for each in (one, other))
    return float((left * right).sum(1).mean())


@pytest.mark.parametrize("has_dense", [True, False])
def test_saved_and_loaded_by_plain_sentence_transformers(
    has_dense: bool, tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "_POINTS", -2.0 if has_dense else 2.0)
    whole = normalized(tiny)
    healed = heal(whole, MORE, "2L-8d")
    asymmetric(whole, query=healed).save_pretrained(str(tmp_path / "both"))
    healed.save_pretrained(str(tmp_path / "healed"))
    for name in ("healed", "both"):
        add_to_model_card(tmp_path / name)
    plain = SentenceTransformer(str(tmp_path / "healed"), device="cpu")
    assert np.array_equal(plain.encode(OTHERS), healed.encode(OTHERS))
    assert full_size(plain) == Size(2, 8)
    card, of_both = ((tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("healed", "both"))
    told = f"{healed.config.matryoshka_healed['after']:.3f}; it was {healed.config.matryoshka_healed['before']:.3f}"
    for text, subject in ((card, "This model"), (of_both, "The encoder of queries")):
        assert re.search(rf"{subject} was cut from .*: layers 1, 4 of 4", text)
        assert told in text
    assert ("A `Dense` module follows pooling" in card) is has_dense
    assert any(isinstance(module, Dense) for module in plain) is has_dense
    assert str(healed.model_card_data.model_name).endswith("-2L-8d-healed")


def test_weights_are_its_own(tiny: SentenceTransformer) -> None:
    healed = heal(tiny, MORE, num_layers=3)
    theirs = {tensor.data_ptr() for tensor in tiny.state_dict().values()}
    assert not theirs & {tensor.data_ptr() for tensor in healed.state_dict().values()}
    assert all(weight.requires_grad for weight in healed.parameters())
    first: Any = healed[0]
    expected = dict(tiny[0].model.embeddings.named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in first.model.embeddings.named_parameters())


def test_a_readout_on_many_texts_is_refined(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    refined: list[int] = []
    for module in (ridge, own_space):
        monkeypatch.setattr(module, "MANY", 20)  # texts, in place of 2,000
    gradients = own_space.refined
    monkeypatch.setattr(own_space, "refined", lambda *given: (refined.append(1), gradients(*given))[1])
    monkeypatch.setattr(judge, "_POINTS", -2.0)  # it stays, whatever it adds
    healed = heal(tiny, MORE, num_layers=2)
    assert refined == [1]
    assert cosines(healed, tiny) > cosines(truncate(tiny, num_layers=2), tiny)


def test_with_all_layers_nothing_changes(tiny: SentenceTransformer) -> None:
    healed = heal(tiny, MORE, "4L-8d")
    assert np.array_equal(healed.encode(OTHERS), tiny.encode(OTHERS, truncate_dim=8))


def test_searches_an_index_of_the_whole_model(tiny: SentenceTransformer) -> None:
    healed = heal(tiny, MORE, num_layers=3)
    both = asymmetric(tiny, query=healed)
    assert np.array_equal(both.encode_query(OTHERS), healed.encode(OTHERS))
    index = tiny.encode(MORE)
    assert (tiny.similarity(both.encode_query(MORE[:20]), index).argmax(1) == torch.arange(20)).float().mean() > 0.7


@pytest.mark.parametrize("is_rotated", [False, True])
def test_of_an_aligned_model_layers_and_coordinates_stay(is_rotated: bool, tiny: SentenceTransformer) -> None:
    aligned = align(normalized(tiny), TEXTS, layers={2: [1, 2]}, rotation="keep", steps=0)
    if is_rotated:
        turned(aligned)
    healed = heal(aligned, MORE, num_layers=2)
    assert "layers" not in healed.config.matryoshka_cut, "the first ones"
    assert torch.equal(
        healed[0].model.encoder.layer[0].output.dense.weight, aligned[0].model.encoder.layer[0].output.dense.weight
    )
    assert not readouts(healed)
    assert cosines(healed, aligned) > cosines(truncate(aligned, num_layers=2), aligned)


def test_prompts_are_put_in_front(tiny: SentenceTransformer) -> None:
    tiny.prompts = {"query": "the old ", "document": "a new "}
    by_name = heal(tiny, {"query": MORE[:60], "document": MORE[60:]}, num_layers=2)
    assert by_name.prompts == tiny.prompts
    by_hand = heal(
        tiny, [*(f"the old {text}" for text in MORE[:60]), *(f"a new {text}" for text in MORE[60:])], num_layers=2, prompt=""
    )
    # padded otherwise, and left out in another order
    np.testing.assert_allclose(by_name.encode(OTHERS), by_hand.encode(OTHERS), atol=0.3)
    assert not equal(by_name, heal(tiny, MORE, num_layers=2, prompt=""))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_fitted_in_float32(dtype: torch.dtype, tiny: SentenceTransformer) -> None:
    half = copy.deepcopy(tiny).to(dtype)
    healed = heal(half, MORE, num_layers=2)
    assert {weight.dtype for weight in healed.parameters()} == {dtype}
    expected = heal(copy.deepcopy(half).float(), MORE, num_layers=2)
    found = dict(healed.named_parameters())
    assert all(torch.equal(found[name], weight.to(dtype)) for name, weight in expected.named_parameters())
    assert {weight.dtype for weight in half.parameters()} == {dtype}


def test_an_elastic_model_and_a_cut_vocabulary(tiny: SentenceTransformer) -> None:
    expected = heal(tiny, MORE, num_layers=2)
    assert equal(heal(elastic(copy.deepcopy(tiny)), MORE, num_layers=2), expected)
    small = truncate(tiny, vocabulary=MORE)
    healed = heal(small, MORE, num_layers=2)
    assert healed.config.matryoshka_vocabulary["rows"] == small.config.matryoshka_vocabulary["rows"]
    assert healed.config.matryoshka_healed["after"] > healed.config.matryoshka_healed["before"]


def test_same_in_any_mode(tiny: SentenceTransformer) -> None:
    expected = heal(tiny, MORE, num_layers=2, steps=2)
    tiny.train()
    families.set_dropout(tiny, 0.5)
    with torch.inference_mode():
        found = heal(tiny, iter(MORE), num_layers=2, steps=2)
    assert equal(found, expected)
    assert found.training
    assert found[0].model.training
    assert not any(weight.is_inference() for weight in found.parameters())


def test_steps_are_taken_if_they_help(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regress, "_STRENGTHS", (1e6,))  # which leaves much to do
    plain, trained = (heal(tiny, MORE, num_layers=2, steps=steps) for steps in (0, 30))
    assert trained.config.matryoshka_healed["after"] > plain.config.matryoshka_healed["after"]
    assert cosines(trained, tiny) > cosines(plain, tiny)
    assert all(weight.grad is None for weight in trained.parameters())


def test_steps_that_do_harm_are_not_taken(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_matryoshka2d.healing.descend._RATE", 10.0)
    assert equal(heal(tiny, MORE, num_layers=2, steps=3), heal(tiny, MORE, num_layers=2))


def test_a_map_follows_only_if_it_adds_enough(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    for points, count in ((-1.0, 1), (1.0, 0)):
        monkeypatch.setattr(judge, "_POINTS", points)
        healed = heal(normalized(tiny), MORE, num_layers=2)
        assert [type(module).__name__ for module in healed].count("Dense") == count


def test_an_interruption_leaves_the_model_as_it_was(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    before, modes = copy.deepcopy(tiny), [module.training for module in tiny.modules()]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Judge, "readout", interrupted)
    with pytest.raises(KeyboardInterrupt):
        heal(tiny, MORE, num_layers=2)
    assert equal(tiny, before)
    assert modes == [module.training for module in tiny.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in tiny.modules())


@pytest.mark.parametrize(("passes", "count"), [(2.0, 96), (1.0, 48), (0.1, 20), (100.0, 108)])
def test_many_texts_get_as_many_passes_as_there_is_time_for(
    passes: float, count: int, tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last of four blocks: the whole model once, one layer, then twice two, which is 2.25 passes."""
    texts, batches = [], repair.Batches

    def noted(model: SentenceTransformer, some: Any, batch_size: int) -> Any:
        texts.append(len(some))
        return batches(model, some, batch_size)

    monkeypatch.setattr(repair, "Batches", noted)
    monkeypatch.setattr(repair, "_MANY", 20)
    monkeypatch.setattr(repair, "_PASSES", passes)
    heal(tiny, MORE, num_layers=2)
    assert texts[0] == count


def test_states_fill_the_room_and_no_more(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three goals of a batch of 4 texts, of at most 10 tokens each, have at most 15 KiB; the last batch read may exceed."""
    reached, read = repair.reached, dict[int, int]()

    def noted(*args: Any) -> Any:
        found = reached(*args)
        read[args[3]] = sum(state.nbytes for batch in found for state in batch.states.values())
        return found

    monkeypatch.setattr(repair, "reached", noted)
    monkeypatch.setattr(repair, "_ROOM", 90 * 2**10)
    heal(tiny, MORE, num_layers=2, batch_size=4)
    assert sorted(read) == [10 * 2**10, 90 * 2**10]
    assert all(room <= filled < room + 15 * 2**10 for room, filled in read.items())


def test_a_search_is_scored_by_what_the_whole_model_finds_first() -> None:
    draw = np.random.default_rng(0)
    asked, whole, index = (draw.normal(size=(count, 6)) for count in (9, 9, 30))
    gains = []
    for one, true in zip(asked, whole, strict=True):
        scores, right = ([float(query @ text / np.linalg.norm(text)) for text in index] for query in (one, true))
        place = sorted(scores, reverse=True).index(scores[int(np.argmax(right))])
        gains.append(1 / np.log2(place + 2) if place < 10 else 0.0)
    found = judge.found_first(*(torch.from_numpy(rows) for rows in (asked, whole, index)))
    assert found == pytest.approx(np.mean(gains), abs=1e-6)
