"""Aligned models: unchanged similarities at full size, and all sizes in one space, however they are computed."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sklearn.metrics.pairwise import cosine_similarity

from st_matryoshka2d import GridResult, Size, align, encode_sizes, evaluate, sizes_ladder, sts_task, truncate
from st_matryoshka2d.aligning.aligned_model import starting_point
from st_matryoshka2d.losses import MultiSizeLoss
from st_matryoshka2d.model.agreement_table import agreement_text
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.pipeline import Pipeline
from tests.support import families
from tests.support.pipelines import KINDS, OTHERS, SIZES, TEXTS, equal, normalized, products, readouts, routed, tasks
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore:This model was not aligned for")


@pytest.fixture(params=quick(KINDS, "mean", "three poolings, Dense, unit", "router"))
def kind(request: pytest.FixtureRequest, tiny: SentenceTransformer, tmp_path: Path) -> SentenceTransformer:
    return KINDS[request.param](tiny, tmp_path)


def main_scores(result: GridResult) -> dict[Size, float]:
    rows = result.to_frame().query("is_main")
    return {Size(layers, dim): score for layers, dim, score in rows[["num_layers", "dim", "score"]].itertuples(index=False)}


def test_loss_trains_embeddings_of_the_cut_routes(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """For routes; `losses/test_equations.py` has models without."""
    aligned = align(routed(tiny, shared=False), TEXTS, steps=5)
    loss = MultipleNegativesRankingLoss(aligned)
    seen: list[list[torch.Tensor]] = []
    monkeypatch.setattr(loss, "compute_loss_from_embeddings", lambda columns, _: seen.append(columns) or columns[0].sum())
    sizes = [*SIZES, Size(4, aligned.get_embedding_dimension() or 0)]
    named = ["query", "document"]
    columns = [aligned.preprocess(OTHERS, task=task) for task in named]
    MultiSizeLoss(aligned, loss, sizes)(columns)
    for size, embedded in zip(sizes, seen, strict=True):
        for task, column in zip(named, embedded, strict=True):
            expected = truncate(aligned, num_layers=size.num_layers, dim=size.dim).encode(OTHERS, task=task)
            np.testing.assert_allclose(column.detach().numpy(), expected, atol=2e-6)


def test_same_texts_give_same_model(tiny: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    first = align(tiny, TEXTS, steps=5)
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.manual_seed(2)
    for texts in (TEXTS, iter([*TEXTS, TEXTS[0]]), pd.Series(TEXTS), Dataset.from_dict({"text": TEXTS})["text"]):
        assert equal(align(tiny, texts, steps=5), first)
    with torch.no_grad():
        assert equal(align(tiny, TEXTS, steps=5), first)
    with torch.inference_mode():
        inside = align(tiny, TEXTS, steps=5)
    assert equal(inside, first)
    assert not any(parameter.is_inference() for parameter in inside.parameters())


@pytest.mark.parametrize("kind", ["mean", "mean, unit"])
def test_with_kept_coordinates_the_full_size_is_bit_for_bit_the_model(kind: str, tiny: SentenceTransformer) -> None:
    model = tiny if kind == "mean" else normalized(tiny)
    aligned = align(model, TEXTS, rotation="keep", steps=0)
    before, after = (each.encode(OTHERS, convert_to_tensor=True) for each in (model, aligned))
    assert torch.equal(before, after)


def test_a_rotation_is_told_once_where_align_is_called(tiny: SentenceTransformer) -> None:
    """For these texts, a rotation is better; aligning again keeps the coordinates."""
    texts = [" ".join(random.Random(n).choices(families.WORDS, k=2 + n % 7)) for n in range(400)]
    with pytest.warns(UserWarning, match="rotation='keep'") as told:
        aligned = align(tiny, texts, rotation="search", steps=0)
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        align(aligned, texts, rotation="search", steps=0)
        align(tiny, texts, rotation="keep", steps=0)


def test_what_each_size_keeps_is_printed_with_the_progress_bars(
    tiny: SentenceTransformer, capsys: pytest.CaptureFixture[str]
) -> None:
    aligned = align(tiny, TEXTS, steps=0, show_progress_bar=True)
    assert capsys.readouterr().out == f"{agreement_text(Declaration.of(aligned.config).agreement)}\n"
    align(tiny, TEXTS, steps=0)
    assert capsys.readouterr().out == ""


FEW = [Size(1, 24), Size(1, 384), Size(2, 96), Size(3, 384), Size(5, 24)]


def measured(model: SentenceTransformer, pairs: pd.DataFrame) -> dict[str, float]:
    """Correlate, in points, cosines with the scores of pairs, and those of each text to the others with the full size's."""
    by_size = encode_sizes(model, [*pairs["sentence1"], *pairs["sentence2"]], [*FEW, Size(6, 384)])
    cosines = {size: cosine_similarity(rows) for size, rows in by_size.items()}
    found = {}
    for size in FEW:
        found[f"STS {size}"] = 100 * spearmanr(cosines[size].diagonal(len(pairs)), pairs["score"])[0]
        of_texts = zip(cosines[size], cosines[Size(6, 384)], strict=True)
        others = [np.delete(both, place, axis=1) for place, both in enumerate(map(np.array, of_texts))]
        found[f"agreement {size}"] = 100 * np.mean([np.corrcoef(both)[0, 1] for both in others])
    return found


@pytest.mark.parametrize("count", quick([20, 40], 20))
def test_few_texts_do_no_harm_to_a_real_model(count: int, minilm: SentenceTransformer, shared: Path) -> None:
    pairs = pd.read_parquet(shared / "data" / "sts" / "stsb" / "dev.parquet")[:100]
    texts = pd.read_parquet(shared / "data" / "nli" / "triplets_train.parquet")["anchor"].unique()[:count]
    plain, aligned = (
        measured(each, pairs) for each in (starting_point(Pipeline.of(minilm), None).model, align(minilm, list(texts)))
    )
    changes = {what: aligned[what] - plain[what] for what in plain}
    assert min(changes.values()) > -0.5, changes
    assert np.mean(list(changes.values())) > 1, "on the whole they help"


@pytest.mark.slow
def test_improves_small_sizes_of_real_model(minilm: SentenceTransformer, shared: Path) -> None:
    pairs = pd.read_parquet(shared / "data" / "sts" / "stsb" / "dev.parquet")[:200]
    texts = pd.read_parquet(shared / "data" / "nli" / "triplets_train.parquet")["anchor"].unique()[:400]
    sizes = [*sizes_ladder(minilm), Size(2, 384), Size(4, 384)]
    before, after = (
        main_scores(evaluate(model, sts_task(pairs, name="stsb"), sizes=sizes))
        for model in (minilm, align(minilm, list(texts), sizes, batch_size=64, steps=10))
    )
    gains = {size: 100 * (after[size] - before[size]) for size in sizes}
    assert gains.pop(Size(6, 384)) == pytest.approx(0, abs=0.01)
    # From half of the layers on, the first and last ones need hardly any map.
    assert all(gain > (2 if size.num_layers < 3 else -1) for size, gain in gains.items()), gains


def test_keeps_similarities_at_full_size(kind: SentenceTransformer) -> None:
    aligned = align(kind, TEXTS, steps=5)
    for task in tasks(kind):
        before, after = products(kind, task), products(aligned, task)
        assert np.abs(after - before).max() < 2e-6 * np.abs(before).max()
        turned = kind.encode(OTHERS, task=task) @ readouts(aligned)[0].linear.weight.detach().numpy().T
        np.testing.assert_allclose(aligned.encode(OTHERS, task=task), turned, atol=2e-6 * np.abs(turned).max())
    weight = readouts(aligned)[0].linear.weight.detach()
    assert (weight @ weight.T - torch.eye(len(weight))).abs().max() < 1e-5
    assert len(list(aligned.children())) == len(list(kind.children())) + (len(tasks(kind)) == 1)
    for depth in (1, 2, 3):
        layers = [module for module in truncate(aligned, num_layers=depth).modules() if type(module) is Dense]
        assert not readouts(truncate(aligned, num_layers=depth))
        assert any(layer.linear is readouts(aligned)[0].at(depth) or equal_linear(layer, aligned, depth) for layer in layers)


def equal_linear(layer: Dense, aligned: SentenceTransformer, depth: int) -> bool:
    return any(torch.equal(layer.linear.weight, readout.at(depth).weight) for readout in readouts(aligned))
