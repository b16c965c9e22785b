"""Cuts exported with sentence-transformers' backends embed like the torch cut; int8 embeds almost alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.backend import export_dynamic_quantized_onnx_model, export_static_quantized_openvino_model

FULL_PRECISION: dict[str, dict[str, Any]] = {
    "onnx": {},
    # else bfloat16, on processors that have it
    "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},
}
CUTS = {"minilm-1L-384d": 384, "minilm-3L-64d": 64, "minilm-3L-384d": 384, "minilm-6L-64d": 64}
CUTS |= {"aligned-3L-64d": 64, "aligned-6L-384d": 384, "bert-2L-8d": 8, "roberta-3L-24d": 24}
QUANTIZED = "minilm-3L-64d"
TEXTS = [  # of different lengths, so that padding counts
    "how to descale a kettle",
    "Rain expected.",
    "The train to the coast leaves at a quarter past six and stops at every village on the way.",
    "She tuned the old piano by ear, one string after the other, until late in the night.",
    "What is the difference between a lease and a licence?",
    "the old bird flew slowly over the red house under a blue tree",
]


def load(folder: Path, backend: str = "torch", **model_kwargs: Any) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", backend=backend, model_kwargs=model_kwargs)


def cosines(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)


@pytest.mark.parametrize("backend", FULL_PRECISION)
@pytest.mark.parametrize("cut", CUTS)
def test_an_export_gives_the_embeddings_of_the_torch_cut(cuts: Path, cut: str, backend: str, tmp_path: Path) -> None:
    expected = load(cuts / cut).encode(TEXTS)
    assert expected.shape == (len(TEXTS), CUTS[cut])
    load(cuts / cut, backend, **FULL_PRECISION[backend]).save_pretrained(str(tmp_path))
    assert not list(tmp_path.glob("*.safetensors")), "what is loaded below is the export"
    exported = load(tmp_path, backend, **FULL_PRECISION[backend])
    assert exported.truncate_dim == CUTS[cut] or CUTS[cut] == expected.shape[1] == exported.get_embedding_dimension()
    assert exported.encode(TEXTS).shape == expected.shape
    np.testing.assert_allclose(exported.encode(TEXTS), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(exported.encode(TEXTS[1]), expected[1], atol=1e-4, rtol=0, err_msg="without padding")


def test_export_keeps_config_for_servers(cuts: Path, tmp_path: Path) -> None:
    load(cuts / QUANTIZED, "onnx").save_pretrained(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["is_matryoshka"], config["matryoshka_dimensions"], config["num_hidden_layers"]) == (True, [64], 3)


def test_int8_dynamic_onnx(cuts: Path) -> None:
    folder = cuts / QUANTIZED
    model = load(folder, "onnx")
    model.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(model, "avx2", str(folder))
    check_int8(folder, "onnx", "model.onnx", "model_qint8_avx2.onnx", "model_quint8_avx2.onnx")


def test_int8_static_openvino(cuts: Path, tmp_path: Path) -> None:
    from optimum.intel import OVQuantizationConfig

    folder = cuts / QUANTIZED
    model = load(folder, "openvino")
    model.save_pretrained(str(folder))
    Dataset.from_dict({"text": [f"{one} {two}" for one in TEXTS for two in TEXTS]}).to_parquet(tmp_path / "train.parquet")
    export_static_quantized_openvino_model(
        model,
        OVQuantizationConfig(num_samples=8),
        str(folder),
        dataset_name=str(tmp_path),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    check_int8(folder, "openvino", "openvino_model.bin", "openvino_model_qint8_quantized.bin")


def check_int8(folder: Path, backend: str, full: str, *candidates: str) -> None:
    """Check for a quarter of the bytes and similar directions: the lowest cosine to torch in 100 texts was 0.978."""
    (small,) = [folder / backend / name for name in candidates if (folder / backend / name).exists()]
    assert small.stat().st_size < 0.3 * (folder / backend / full).stat().st_size
    name = small.with_suffix(".xml").name if backend == "openvino" else small.name
    embeddings = load(folder, backend, file_name=name).encode(TEXTS)
    similar = cosines(embeddings, load(folder).encode(TEXTS))
    assert similar.min() > 0.96
    assert similar.mean() > 0.98
    assert similar.max() < 0.99999, "it is not the full precision that was compared"
