"""On a GPU, everything gives what it gives on a CPU."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from _demo import data as demo_data
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import batch_to_device

from st_matryoshka2d import (
    Size,
    SizesEncoder,
    TruncatedTransformer,
    align,
    benchmark_latency,
    classification_task,
    encode_sizes,
    encode_to_parquet,
    evaluate,
    evaluate_truncations,
    load,
    truncate,
)
from st_matryoshka2d.losses import LossStateCallback, MIPICLoss
from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support import families, smae
from tests.support.families import TEXTS
from tests.support.quick import quick
from tests.support.training import OLD, RECIPES, train

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

GPU = "cuda"
SIZES = [Size(1, 8), Size(2, 16), Size(3, 32), Size(4, 8), Size(4, 32)]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def on_gpu(tiny: SentenceTransformer) -> SentenceTransformer:
    """The model of `tiny`, on the GPU."""
    return copy.deepcopy(tiny).to(GPU)


def same(left: dict[Size, Any], right: dict[Size, Any], **close: Any) -> None:
    """Check embeddings by size."""
    assert list(left) == list(right)
    for size, values in left.items():
        np.testing.assert_allclose(values, right[size], err_msg=str(size), **CLOSE | close)


def frame_of(grid: Any) -> pd.DataFrame:
    """Return the main scores of a grid."""
    frame: pd.DataFrame = grid.to_frame()
    return frame[frame["is_main"]].drop(columns=[name for name in ("seconds",) if name in frame])


@pytest.mark.parametrize("name", quick(families.CONFIGS, "bert", "modernbert", "qwen3", "t5-encoder", "deberta-v2"))
def test_families(name: str, tmp_path: Path) -> None:
    model = families.pipeline(families.CONFIGS[name](), tmp_path, pooling="mean", dense=None)
    expected = encode_sizes(model, TEXTS, SIZES)
    model.to(GPU)
    same(encode_sizes(model, TEXTS, SIZES), expected)
    cuts = {size: truncate(model, size) for size in SIZES}
    assert {cut.device.type for cut in cuts.values()} == {GPU}
    same({size: cut.encode(TEXTS) for size, cut in cuts.items()}, expected)


def test_saved_cut(on_gpu: SentenceTransformer, tmp_path: Path) -> None:
    expected = truncate(on_gpu, "2L-16d").encode(TEXTS)
    truncate(on_gpu, "2L-16d").save_pretrained(str(tmp_path / "small"))
    on_gpu.save_pretrained(str(tmp_path / "whole"))
    for device in (GPU, "cpu"):
        plain = SentenceTransformer(str(tmp_path / "small"), device=device)
        np.testing.assert_allclose(plain.encode(TEXTS), expected, **CLOSE)
        loaded = load(tmp_path / "whole", "2L-16d", device=device)
        assert loaded.device.type == device
        np.testing.assert_allclose(loaded.encode(TEXTS), expected, **CLOSE)


def test_depth_as_argument(tiny: SentenceTransformer) -> None:
    elastic = SentenceTransformer(modules=[TruncatedTransformer.from_transformer(tiny[0]), *list(tiny)[1:]], device=GPU)
    for size in SIZES:
        expected = truncate(tiny.to("cpu"), size).encode(TEXTS)
        elastic.to(GPU)
        found = elastic.encode(TEXTS, num_layers=size.num_layers, truncate_dim=size.dim)
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, tiny: SentenceTransformer, on_gpu: SentenceTransformer) -> None:
    expected = encode_sizes(tiny, TEXTS, SIZES)
    on_gpu.to(dtype)
    same(encode_sizes(on_gpu, TEXTS, SIZES), expected, rtol=0.05, atol=0.05)
    aligned = align(on_gpu, TEXTS * 4, show_progress_bar=False)
    assert np.isfinite(encode_sizes(aligned, TEXTS, SIZES)[SIZES[0]]).all()


@pytest.mark.parametrize("layers", ["first", "ends"])
def test_align(layers: str, tiny: SentenceTransformer, on_gpu: SentenceTransformer, tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(families.WORDS, k=draw.randint(3, 12))) for _ in range(400)]
    settings: dict[str, Any] = {"layers": layers, "steps": 20, "show_progress_bar": False}
    here, there = align(tiny, texts, **settings), align(on_gpu, texts, **settings)
    assert {weight.device.type for weight in there.parameters()} == {GPU}
    for depth in (1, 2, 3, 4):
        one, two = (truncate(model, num_layers=depth).encode(TEXTS, normalize_embeddings=True) for model in (here, there))
        np.testing.assert_allclose(two @ two.T, one @ one.T, atol=1e-3)
    there.save_pretrained(str(tmp_path))
    same(encode_sizes(load(tmp_path, device="cpu"), TEXTS, SIZES), encode_sizes(there, TEXTS, SIZES))
    again = align(there, texts, show_progress_bar=False)
    assert {weight.device.type for weight in again.parameters()} == {GPU}


def test_scores(tiny: SentenceTransformer, on_gpu: SentenceTransformer) -> None:
    def tasks() -> list[Any]:
        texts = demo_data.triplets(40)["anchor"]
        labelled = pd.DataFrame({"text": texts, "label": [number % 2 for number in range(40)]})
        return [demo_data.demo_task(40), demo_data.demo_search(20), classification_task(labelled, labelled, name="two")]

    here, there = (frame_of(evaluate(model, tasks(), [1, 2, 4], [8, 32])) for model in (tiny, on_gpu))
    # ties and near ties
    np.testing.assert_allclose(here.pop("score"), there.pop("score"), atol=0.03)
    pd.testing.assert_frame_equal(here, there)
    evaluate_truncations(on_gpu, demo_data.demo_task(40), seeds=2)


def test_corpus(on_gpu: SentenceTransformer, tmp_path: Path) -> None:
    expected = encode_sizes(on_gpu, TEXTS, ["2L-16d", "4L-32d"])
    files = encode_to_parquet(on_gpu, TEXTS, tmp_path / "out", ["2L-16d", "4L-32d"], shard_size=2)
    assert encode_to_parquet(on_gpu, TEXTS, tmp_path / "out", ["2L-16d", "4L-32d"], shard_size=2) == files
    table = pd.concat([pq.read_table(file).to_pandas() for file in files])
    on_gpu.save_pretrained(str(tmp_path / "model"))
    batch = SizesEncoder(str(tmp_path / "model"), ["2L-16d", "4L-32d"], device=GPU)({"text": TEXTS})
    for size, values in expected.items():
        np.testing.assert_allclose(np.stack(list(table[str(size)])), values, **CLOSE)
        np.testing.assert_allclose(np.stack(list(batch[str(size)])), values, **CLOSE)


@pytest.mark.slow
def test_processes(on_gpu: SentenceTransformer) -> None:
    expected = encode_sizes(on_gpu, TEXTS, SIZES)
    same(encode_sizes(on_gpu, TEXTS, SIZES, device=[GPU, GPU]), expected)


def test_latency(on_gpu: SentenceTransformer) -> None:
    times = benchmark_latency(on_gpu, batch_size=2, rounds=3, show_progress_bar=False)
    assert (times["milliseconds"] > 0).all()


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_training(
    recipe: str, mini_batch_size: int | None, tiny: SentenceTransformer, on_gpu: SentenceTransformer, tmp_path: Path
) -> None:
    """Three steps of SGD give the weights that they give on a CPU."""
    ends = []
    for model, arguments in ((tiny, {"use_cpu": True}), (on_gpu, {})):
        torch.manual_seed(0)
        loss = RECIPES[recipe](model, mini_batch_size=mini_batch_size)
        train(model, loss, tmp_path, max_steps=3, optim="sgd", learning_rate=0.1, dataloader_pin_memory=False, **arguments)
        ends.append({name: weight.detach().cpu() for name, weight in model.named_parameters()})
    assert {weight.device.type for weight in on_gpu.parameters()} == {GPU}
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bfloat16(recipe: str, mini_batch_size: int | None, on_gpu: SentenceTransformer, tmp_path: Path) -> None:
    """The Trainer's losses stay close to those in float32."""
    logged = []
    for setting in ({}, {"bf16": True}):
        model = copy.deepcopy(on_gpu)
        torch.manual_seed(0)
        loss = RECIPES[recipe](model, mini_batch_size=mini_batch_size)
        settings: dict[str, Any] = {"max_steps": 4, "learning_rate": 1e-2, "max_grad_norm": 0.0, **setting}
        trainer = train(model, loss, tmp_path, optim="sgd", callbacks=[LossStateCallback(loss)], **settings)
        logged.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(logged[0]) == 4
    np.testing.assert_allclose(logged[1], logged[0], rtol=0.03, atol=0.03)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_scaled_gradients(recipe: str, mini_batch_size: int | None, on_gpu: SentenceTransformer) -> None:
    """In float16 the loss is scaled before the backward pass; the gradients are those of float32, for all parameters."""
    batch = [batch_to_device(on_gpu.preprocess(texts), on_gpu.device) for texts in (TEXTS, OLD)]
    found = []
    for half in (False, True):
        torch.manual_seed(0)
        model = copy.deepcopy(on_gpu)
        loss = RECIPES[recipe](model, mini_batch_size=mini_batch_size).to(GPU)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(GPU, init_scale=64.0, enabled=half)
        with torch.autocast(GPU, torch.float16, enabled=half):
            value = torch.stack(list(loss([dict(column) for column in batch], None).values())).sum()
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        found.append({name: weight.grad for name, weight in loss.named_parameters() if weight.grad is not None})
    assert list(found[0]) == list(found[1])
    largest = max(float(gradient.abs().max()) for gradient in found[0].values())
    for name, gradient in found[0].items():
        assert float((found[1][name] - gradient).abs().max()) < 0.03 * largest, name


def test_resumes(on_gpu: SentenceTransformer, tmp_path: Path) -> None:
    """The loss's own parameters are read from a checkpoint onto the GPU."""
    ends = []
    for steps in ((4,), (2, 4)):
        model = copy.deepcopy(on_gpu)
        folder = tmp_path / str(len(steps))
        for number, until in enumerate(steps):
            torch.manual_seed(0)
            loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
            settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
            resume = str(folder / "checkpoint-2") if number else None
            train(model, loss, folder, max_steps=until, callbacks=[LossStateCallback(loss)], resume=resume, **settings)
        ends.append({name: value.detach().cpu() for name, value in loss.state_dict().items()})
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


@pytest.mark.parametrize("projection", ["linear", "head"])
def test_pretraining(projection: Any) -> None:
    batch = smae.batch()
    made: list[SMAEForPreTraining] = [SMAEForPreTraining(smae.masked_lm(), projection=projection) for _ in range(2)]
    made[1].to(GPU)
    for model in made:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(**{name: values.to(model.mlm.device) for name, values in batch.items()}).loss.backward()
            optimizer.step()
    for (name, here), there in zip(made[0].named_parameters(), made[1].parameters(), strict=True):
        torch.testing.assert_close(there.cpu(), here, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)
