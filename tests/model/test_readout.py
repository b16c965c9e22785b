"""Readouts in plain checkpoints, copies, pickles and a Trainer's checkpoints."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn

from st_matryoshka2d import Size, align, encode_sizes, evaluate, load, sts_task, truncate
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss
from st_matryoshka2d.model.readout import Readout
from tests.support.command_line import PAIRS
from tests.support.pipelines import KINDS, OTHERS, TEXTS, elastic, equal, normalized, readouts, tasks, turned
from tests.support.quick import quick
from tests.support.training import Falling, train

FULL = {"trust_remote_code": True, "device": "cpu"}


@pytest.fixture(scope="module")
def _aligned(_tiny_bert: SentenceTransformer) -> SentenceTransformer:
    return turned(align(normalized(copy.deepcopy(_tiny_bert)), TEXTS))


@pytest.fixture
def aligned(_aligned: SentenceTransformer) -> SentenceTransformer:
    return copy.deepcopy(_aligned)


def saved(model: SentenceTransformer, folder: Path) -> str:
    model.save_pretrained(str(folder))
    return str(folder)


@pytest.mark.filterwarnings("ignore:This model was not aligned for")
@pytest.mark.parametrize("kind", quick(KINDS, "Dense"))
def test_save_and_load_round_trip(kind: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    """At full size by plain sentence-transformers, and with all readouts by `load`; `test_every_way.py` has the depths."""
    aligned = turned(align(KINDS[kind](tiny, tmp_path), TEXTS))
    folder = saved(aligned, tmp_path / "whole")
    types = {entry["type"] for file in (tmp_path / "whole").glob("*.json") for entry in modules_in(file)}
    assert all(name.startswith("sentence_transformers.") for name in types) or kind == "elastic"
    plain, whole = SentenceTransformer(folder, **FULL), load(folder, **FULL)
    assert type(whole) is SentenceTransformer
    assert {"Dense"} == {type(module).__name__ for module in readouts(whole)}
    assert not readouts(plain)
    assert equal(whole, aligned)
    for task in tasks(aligned):
        for model in (plain, whole):
            assert np.array_equal(model.encode(OTHERS, task=task), aligned.encode(OTHERS, task=task))
    cut_folder = saved(truncate(aligned, num_layers=2, dim=8), tmp_path / "cut")
    assert not list(Path(cut_folder).rglob("readout-*"))


def modules_in(file: Path) -> list[dict[str, Any]]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if file.name == "modules.json":
        return list(content)
    return [{"type": name} for name in content.get("types", {}).values()] if file.name == "router_config.json" else []


USES: dict[str, Callable[[SentenceTransformer], object]] = {
    "truncate": lambda model: truncate(model, num_layers=2),
    "encode_sizes": lambda model: encode_sizes(model, OTHERS, ["2L-8d"]),
    "evaluate": lambda model: evaluate(model, sts_task(PAIRS), sizes=["2L-8d"]),
    "loss": lambda model: MultiSizeLoss(model, MultipleNegativesRankingLoss(model), [Size(2, 8), Size(4, 32)]),
    "distillation": lambda model: RelationalDistillLoss(model, sizes=[Size(2, 8), Size(4, 32)]),
    "align": lambda model: align(model, TEXTS),
    "per call": lambda model: elastic(model).encode(OTHERS, num_layers=2),
}


@pytest.mark.parametrize("use", quick(USES, "truncate", "encode_sizes", "loss", "align", "per call"))
def test_plainly_loaded_model_has_only_full_depth(use: str, aligned: SentenceTransformer, tmp_path: Path) -> None:
    folder = saved(aligned, tmp_path)
    with pytest.raises(
        ValueError, match=r"readouts for \[1, 2, 3\] layers, but they were not loaded.*st_matryoshka2d\.load"
    ):
        USES[use](SentenceTransformer(folder, **FULL))
    USES[use](load(folder, **FULL))
    plain = SentenceTransformer(folder, **FULL)
    assert truncate(plain, dim=8).encode(OTHERS).shape == (4, 8), "all layers need no readout"
    assert elastic(plain).encode(OTHERS, num_layers=4).shape == (4, 32)


def narrower(file: Path) -> None:
    rewritten(file, {"linear.weight": torch.eye(16), "linear.bias": torch.zeros(16)})


def of_another_model(file: Path) -> None:
    with safe_open(file, "pt") as opened:
        facts = {name: value[::-1] for name, value in opened.metadata().items()}
    save_file(load_file(file), file, facts)


def rewritten(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    with safe_open(file, "pt") as opened:
        facts = opened.metadata()
    save_file(tensors, file, facts)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: file.unlink(), r"is aligned, but .*readout-2L\.safetensors is missing"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-100]), r"readout-2L\.safetensors cannot be read"),
    "empty": (lambda file: file.write_bytes(b""), r"readout-2L\.safetensors cannot be read"),
    "without facts": (lambda file: save_file(load_file(file), file), r"readout-2L\.safetensors belongs to other weights"),
    "another model's": (of_another_model, r"readout-2L\.safetensors belongs to other weights"),
    "another depth's": (lambda file: shutil.copy(file.with_name("readout-1L.safetensors"), file), "readout-2L.* 1 layers"),
    "no bias": (lambda file: rewritten(file, {"linear.weight": torch.eye(32)}), r"readout-2L\.safetensors cannot be read"),
    "of another width": (narrower, r"readout-2L\.safetensors is 16 x 16, but must be 32 x 32"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_readout_is_refused(how: str, aligned: SentenceTransformer, tmp_path: Path) -> None:
    folder = saved(aligned, tmp_path)
    change, words = BROKEN[how]
    change(tmp_path / "2_Dense" / "readout-2L.safetensors")
    for depth in (None, 2):
        with pytest.raises(ValueError, match=words):
            load(folder, num_layers=depth, dim=8, device="cpu")
    assert load(folder, num_layers=1, dim=8, device="cpu").encode(OTHERS).shape == (4, 8), "the others are whole"
    assert SentenceTransformer(folder, device="cpu").encode(OTHERS).shape == (4, 32)


@pytest.mark.parametrize("size", [None, "2L-8d"])
def test_readouts_beside_pickled_weights(size: str | None, aligned: SentenceTransformer, tmp_path: Path) -> None:
    aligned.save_pretrained(str(tmp_path), safe_serialization=False)
    with pytest.raises(ValueError, match=r"in 2_Dense, found \['2_Dense/pytorch_model.bin'\].*allow_bin=True"):
        load(tmp_path, size, device="cpu")
    loaded = load(tmp_path, size, device="cpu", allow_bin=True)
    if size is None:
        assert equal(loaded, aligned)
    else:
        assert np.array_equal(loaded.encode(OTHERS), truncate(aligned, size).encode(OTHERS))


def test_saving_again_removes_old_files(aligned: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(aligned, num_layers=2)
    folder, _ = saved(aligned, tmp_path / "cut"), saved(cut, tmp_path / "cut")
    assert np.array_equal(load(folder, num_layers=2, device="cpu").encode(OTHERS), cut.encode(OTHERS))
    for model in (align(tiny, TEXTS), align(truncate(tiny, num_layers=2), TEXTS)):
        folder = saved(model, tmp_path / "shallow")
    assert [path.name for path in Path(folder).rglob("readout-*")] == ["readout-1L.safetensors"]
    assert readouts(load(folder, device="cpu"))[0].depths == [1]


def test_copies_and_pickles_keep_the_readouts(aligned: SentenceTransformer) -> None:
    for other in (copy.deepcopy(aligned), pickle.loads(pickle.dumps(aligned))):
        assert equal(other, aligned)
        assert [type(module) for module in readouts(other)] == [Readout]
        with torch.no_grad():
            readouts(other)[0].at(2).weight.zero_()
        assert not equal(other, aligned)
        assert elastic(other).encode(OTHERS, num_layers=1).shape == (4, 32)


def test_a_trainers_checkpoint_keeps_the_readouts(tiny: SentenceTransformer, tmp_path: Path) -> None:
    whole, broken_off, resumed, best = (align(tiny, TEXTS) for _ in range(4))
    for model in (broken_off, resumed, best):
        for name, module in copy.deepcopy(whole).named_children():
            model[int(name)] = module

    def run(model: SentenceTransformer, folder: str, **kwargs: Any) -> Any:
        loss = MultiSizeLoss(model, MultipleNegativesRankingLoss(model), [Size(2, 8), Size(4, 32)])
        steps = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
        return train(model, loss, tmp_path / folder, **{**steps, "max_steps": 4, **kwargs})

    run(whole, "whole")
    run(broken_off, "broken off", max_steps=2)
    run(resumed, "resumed", resume=str(tmp_path / "broken off" / "checkpoint-2"))
    assert equal(resumed, whole)
    assert not equal(resumed, broken_off)
    checkpoint = load(tmp_path / "broken off" / "checkpoint-2", device="cpu")
    assert equal(checkpoint, broken_off)
    judged = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_score",
    }
    trainer = run(best, "best", evaluator=Falling(), **judged)
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert equal(best, broken_off)


def test_cut_of_cut_warns(aligned: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(aligned, num_layers=3)
    assert cut.config.matryoshka_readouts == []
    words = r"from an aligned one and only has the readout of its 3 layers, so embeddings of 2 layers are not in the same"
    folder, whole = saved(cut, tmp_path / "cut"), saved(aligned, tmp_path / "whole")
    uses: list[Callable[[], object]] = [
        lambda: truncate(cut, num_layers=2),
        lambda: load(folder, num_layers=2, device="cpu"),
        lambda: encode_sizes(cut, OTHERS, ["2L-8d"]),
        lambda: elastic(copy.deepcopy(cut)).encode(OTHERS, num_layers=2),
        lambda: elastic(load(whole, num_layers=3, device="cpu")).encode(OTHERS, num_layers=2),
    ]
    for use in uses:
        with pytest.warns(UserWarning, match=words) as caught:
            use()
        assert len(caught) == 1, [str(warning.message) for warning in caught]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_sizes(cut, OTHERS, ["3L-8d"])


def test_warns_once_of_unfitted_depth() -> None:
    readout = Readout(4, nn.Linear(3, 3), {1: nn.Linear(3, 3)})
    features = {"sentence_embedding": torch.ones(2, 3), "num_layers": 3}
    with pytest.warns(UserWarning, match=r"No readout was fitted for 3 layers, only for \[1, 4\]") as caught:
        found, _ = [readout(dict(features))["sentence_embedding"] for _ in range(2)]
    assert len(caught) == 1
    assert torch.equal(found, readout.linear(features["sentence_embedding"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for depth in (1, 4):
            found = readout({**features, "num_layers": depth})["sentence_embedding"]
            assert torch.equal(found, readout.at(depth)(features["sentence_embedding"]))
