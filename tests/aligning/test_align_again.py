"""Aligning again, what `align` keeps and refuses, and the config and card of an aligned model."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router

from st_matryoshka2d import Size, add_to_model_card, align, encode_sizes, evaluate, sts_task, truncate
from st_matryoshka2d.losses import RelationalDistillLoss
from tests.support.losses import batch
from tests.support.pipelines import OTHERS, SIZES, TEXTS, equal, products, readouts, routed


def apart(model: SentenceTransformer, depth: int) -> float:
    """Return the mean cosine distance between texts at a depth and in the whole model."""
    by_size = encode_sizes(model, TEXTS, [Size(depth, 32), Size(4, 32)], normalize_embeddings=True)
    small, whole = by_size.values()
    return float(1 - (small * whole).sum(axis=1).mean())


@pytest.mark.parametrize("kind", ["plain", "router"])
def test_aligning_again_composes_readouts(kind: str, tiny: SentenceTransformer) -> None:
    model = tiny if kind == "plain" else routed(tiny, shared=False)
    once = align(model, TEXTS, steps=5)
    before = {name: tensor.clone() for name, tensor in once.state_dict().items()}
    twice = align(once, TEXTS, steps=5)
    assert len(readouts(twice)) == len(readouts(once))
    assert len(list(twice.children())) == len(list(once.children()))
    for task in ("query", "document") if kind == "router" else (None,):
        expected = products(model, task)
        assert np.abs(products(twice, task) - expected).max() < 2e-6 * np.abs(expected).max()
        np.testing.assert_allclose(
            encode_sizes(twice, OTHERS, ["2L-32d"], task=task)[Size(2, 32)],
            truncate(twice, num_layers=2, dim=32).encode(OTHERS, task=task),
            atol=1e-6,
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in once.state_dict().items()), "the first is as it was"


def test_aligning_again_after_training_restores_fit(tiny: SentenceTransformer) -> None:
    aligned = align(tiny, TEXTS, steps=5)
    with torch.no_grad():
        for parameter in aligned[0].model.encoder.layer[1:].parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    expected = products(aligned)
    index = aligned.encode(OTHERS)
    again = align(aligned, TEXTS, steps=5)
    assert np.abs(products(again) - expected).max() < 2e-6 * np.abs(expected).max()
    assert np.array_equal(again.encode(OTHERS), index), "what was indexed can still be searched"
    for depth in (1, 2, 3):
        assert apart(again, depth) < 0.7 * apart(aligned, depth)


def test_leaves_model_unchanged(tiny: SentenceTransformer) -> None:
    before = tiny.encode(OTHERS)
    aligned = align(tiny, TEXTS, steps=2)
    assert np.array_equal(tiny.encode(OTHERS), before)
    assert len(tiny) == 2
    assert not hasattr(tiny.config, "matryoshka_readouts")
    with torch.no_grad():
        next(aligned.parameters()).mul_(0)  # shared memory would follow
    assert not np.array_equal(tiny.encode(OTHERS), before)


@pytest.mark.filterwarnings("ignore:The model declares prompts")
def test_prompts_are_kept_and_used(tiny: SentenceTransformer) -> None:
    tiny.prompts, tiny.default_prompt_name = {"query": "the old ", "document": ""}, "query"
    aligned = align(tiny, TEXTS, steps=0)
    assert (aligned.prompts, aligned.default_prompt_name) == (tiny.prompts, "query")
    tiny.default_prompt_name = None
    bare = align(tiny, TEXTS, steps=0)
    typed = align(tiny, [f"the old {text}" for text in TEXTS], steps=0)
    for depth in (1, 2, 3):
        found, without, expected = (readouts(model)[0].at(depth).weight for model in (aligned, bare, typed))
        assert torch.allclose(found, expected, atol=1e-4)
        assert not torch.allclose(found, without, atol=1e-2)


def test_half_precision_stays(tiny: SentenceTransformer) -> None:
    half = copy.deepcopy(tiny).to(torch.bfloat16)
    aligned = align(half, TEXTS, steps=2)
    assert {parameter.dtype for parameter in aligned.parameters()} == {torch.bfloat16}
    cosines = [model.similarity(embedded, embedded) for model in (half, aligned) for embedded in [model.encode(OTHERS)]]
    assert (cosines[0] - cosines[1]).abs().max() < 0.02
    for depth in (1, 2, 3):
        by_size = encode_sizes(aligned, OTHERS, [Size(depth, 32)])[Size(depth, 32)]
        cut = truncate(aligned, num_layers=depth, dim=32).encode(OTHERS, convert_to_tensor=True).float().numpy()
        np.testing.assert_allclose(by_size, cut, atol=0.02 * np.abs(cut).max())


def test_a_model_of_one_layer_is_rotated(tiny: SentenceTransformer) -> None:
    one = truncate(tiny, num_layers=1)
    aligned = align(one, TEXTS)
    assert aligned.config.matryoshka_readouts == []
    assert readouts(aligned)[0].depths == []
    assert np.abs(products(aligned) - products(one)).max() < 2e-6 * np.abs(products(one)).max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_sizes(aligned, OTHERS, ["1L-8d"])


def test_few_texts_are_not_refined(tiny: SentenceTransformer) -> None:
    assert equal(*(align(tiny, TEXTS, steps=steps) for steps in (0, 20)))


@pytest.mark.usefixtures("more_than_20_are_many")
def test_without_steps_there_is_no_refinement(tiny: SentenceTransformer) -> None:
    closed, refined = (align(tiny, TEXTS, steps=steps) for steps in (0, 20))
    assert torch.equal(readouts(closed)[0].linear.weight, readouts(refined)[0].linear.weight)
    assert not torch.equal(readouts(closed)[0].at(2).weight, readouts(refined)[0].at(2).weight)
    assert apart(closed, 2) < 0.3 * apart(tiny, 2)


@pytest.mark.usefixtures("more_than_20_are_many")
def test_refines_for_given_sizes_and_records_them(tiny: SentenceTransformer) -> None:
    aligned, by_default = align(tiny, TEXTS, ["2L-6d", Size(3, 32)], steps=5), align(tiny, TEXTS, steps=5)
    for depth, changed in ((1, False), (2, True), (3, False)):
        found, usual = (readouts(model)[0].at(depth).weight for model in (aligned, by_default))
        assert torch.equal(found, usual) is not changed, "only a depth with small dims is refined for them"
    assert aligned.config.matryoshka_readouts == [1, 2, 3]
    assert set(aligned.config.matryoshka_sizes) == {"1L-32d", "2L-6d", "2L-32d", "3L-32d", "4L-6d", "4L-32d"}
    assert aligned.config.matryoshka_dimensions == [6, 32]
    scored = evaluate(tiny, sts_task(pd.DataFrame({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": range(40)}))).sizes
    assert by_default.config.matryoshka_sizes == list(map(str, sorted(scored)))


def test_config_records_alignment(tiny: SentenceTransformer) -> None:
    once = align(tiny, pd.Series(TEXTS), SIZES, steps=1)
    assert once.config.matryoshka_loss == "align"
    again = align(once, TEXTS, ["3L-8d"], steps=1)
    assert set(again.config.matryoshka_sizes) == {"1L-32d", "2L-32d", "3L-8d", "3L-32d", "4L-8d", "4L-32d"}
    assert again.config.matryoshka_loss == "align"
    RelationalDistillLoss(once.train(), sizes=[Size(2, 5), Size(4, 32)])(batch(once, 2)).backward()
    trained = align(once, TEXTS, ["3L-8d"], steps=1)
    assert trained.config.matryoshka_loss == "RelationalDistillLoss, align"
    assert {"2L-5d", "3L-8d"} <= set(trained.config.matryoshka_sizes), "it was trained at the others"
    again = align(trained, TEXTS, ["3L-8d"], steps=1)
    assert again.config.matryoshka_loss == "RelationalDistillLoss, align"


def test_card_of_aligned_model(tiny: SentenceTransformer, tmp_path: Path) -> None:
    aligned = align(tiny, TEXTS, SIZES, steps=1)
    aligned.model_card_data.set_model_id("you/model")
    aligned.save_pretrained(str(tmp_path / "whole"))
    truncate(aligned, num_layers=2, dim=6).save_pretrained(str(tmp_path / "cut"))
    for name in ("whole", "cut"):
        add_to_model_card(tmp_path / name)
    whole, cut = ((tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("whole", "cut"))
    assert "This model can be cut in layers and in dimensions. It was aligned for these sizes, without training:" in whole
    assert "| 2 | 6, 32 |" in whole
    assert "can be compared" in whole
    assert "- aligned\n" in whole
    assert "Of the sizes that the whole model was aligned for, this cut has:" in cut
    assert "can be compared" in cut


class TestRefused:
    def test_texts(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(ValueError, match=r"at least 3 different texts, and works best with thousands; got 2"):
            align(tiny, TEXTS[:2] * 2)
        with pytest.raises(TypeError, match=r"texts\[40\] is 3"):
            align(tiny, [*TEXTS, 3])  # type: ignore[list-item]
        with pytest.raises(ValueError, match=r"texts\[1\]: character 0 .* half of a surrogate pair"):
            align(tiny, ["red", "\ud800", "blue"])

    def test_models(self, tiny: SentenceTransformer) -> None:
        with pytest.raises(TypeError, match="Expected a SentenceTransformer, got str"):
            align("a model", TEXTS)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"truncate_dim=8.*cut it afterwards"):
            align(truncate(tiny, dim=8), TEXTS)
        within = [*tiny.children(), Dense(32, 32)]
        router = Router.for_query_document(list(tiny.children()), list(tiny.children()))
        with pytest.raises(ValueError, match=r"followed by \['Dense', 'Normalize'\].*to the end of each route"):
            align(SentenceTransformer(modules=[router, Dense(32, 32), Normalize()], device="cpu"), TEXTS)
        align(SentenceTransformer(modules=[Router.for_query_document(within, within)], device="cpu"), TEXTS, steps=0)
        with torch.no_grad():
            tiny.get_parameter("0.model.encoder.layer.3.output.dense.bias")[0] = torch.nan
        with pytest.raises(ValueError, match="not all finite"):
            align(tiny, TEXTS)

    def test_numbers(self, tiny: SentenceTransformer) -> None:
        for steps in (-1, 2.0, True, "3"):
            with pytest.raises((TypeError, ValueError), match="steps"):
                align(tiny, TEXTS, steps=steps)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="has 5 layers"):
            align(tiny, TEXTS, ["5L-8d"])
