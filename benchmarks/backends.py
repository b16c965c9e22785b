"""Compare the backends of sentence-transformers on a cut: encoding speed, STS-B score and file size.

    st-matryoshka2d truncate sentence-transformers/all-MiniLM-L6-v2 --size 3L-64d --out cuts/3L-64d
    python benchmarks/backends.py --data DATA --cuts cuts/3L-64d cuts/6L-384d

Needs the environment of `make test-backends`. A cut is any folder written by `save_pretrained` or
the command line; the script exports a copy of it. DATA holds `sts/stsb/test.parquet` (sentence1,
sentence2, score), and `sts/stsb/train.parquet` or `sts/sickr/test.parquet`, whose sentences
calibrate the static int8 model. Each round encodes the same sentences with all backends in turns,
in alternating order. Compare times only within a run. Tables go to `--out` as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from measure import DATA
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.backend import export_dynamic_quantized_onnx_model, export_static_quantized_openvino_model
from sentence_transformers.util import pairwise_cos_sim
from tqdm import trange

Backend = Literal["torch", "onnx", "openvino"]
F32 = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
WAYS: dict[str, tuple[Backend, str, dict[str, Any]]] = {  # backend, weights file, keyword arguments
    "torch fp32": ("torch", "model.safetensors", {}),
    "ONNX fp32": ("onnx", "onnx/model.onnx", {"file_name": "model.onnx"}),
    "ONNX int8, dynamic": ("onnx", "onnx/model_int8.onnx", {"file_name": "model_int8.onnx"}),
    "OpenVINO fp32": ("openvino", "openvino/openvino_model.bin", {"file_name": "openvino_model.xml", **F32}),
    "OpenVINO default": ("openvino", "openvino/openvino_model.bin", {"file_name": "openvino_model.xml"}),
    "OpenVINO int8, static": ("openvino", "openvino/openvino_model_int8.bin", {"file_name": "openvino_model_int8.xml"}),
}


def export(folder: Path, calibration: Path, samples: int) -> None:
    """Export a cut to every backend, in its own folder."""
    from optimum.intel import OVQuantizationConfig

    modules = folder / "modules.json"  # use module names that sentence-transformers 5 also supports
    older = re.sub(r'sentence_transformers\.[\w.]+\.(\w+)"', r'sentence_transformers.models.\1"', modules.read_text())
    modules.write_text(older)
    onnx = SentenceTransformer(str(folder), backend="onnx", device="cpu")
    onnx.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(onnx, "avx512_vnni", str(folder), file_suffix="int8")
    openvino = SentenceTransformer(str(folder), backend="openvino", device="cpu")
    openvino.save_pretrained(str(folder))
    export_static_quantized_openvino_model(
        openvino,
        OVQuantizationConfig(num_samples=samples),
        str(folder),
        dataset_name=str(calibration),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
        file_suffix="int8",
    )


def spearman(model: SentenceTransformer, pairs: pd.DataFrame) -> float:
    """Return the Spearman correlation of cosines with human scores, in percent."""
    one, two = (model.encode(pairs[name].tolist(), convert_to_tensor=True) for name in ("sentence1", "sentence2"))
    return 100 * float(stats.spearmanr(pairwise_cos_sim(one, two).numpy(), pairs["score"]).statistic)


def measure(cut: Path, pairs: pd.DataFrame, calibration: Path, options: argparse.Namespace) -> pd.DataFrame:
    """Return a row per backend: milliseconds per text, speed relative to torch, score, megabytes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(shutil.copytree(cut, Path(made) / cut.name))
        export(folder, calibration, options.samples)
        models = {
            name: SentenceTransformer(str(folder), backend=backend, device="cpu", model_kwargs=dict(keywords))
            for name, (backend, _, keywords) in WAYS.items()
        }
        texts = pairs["sentence1"].tolist()[: options.texts]
        rounds = []
        for turn in trange(1 + options.rounds, desc=cut.name):
            seconds = {}
            for name in list(WAYS)[:: 1 if turn % 2 else -1]:
                start = time.perf_counter()
                models[name].encode(texts, batch_size=options.batch_size)
                seconds[name] = time.perf_counter() - start
            rounds.append(seconds)
        times = pd.DataFrame(rounds[1:])
        rows = []
        for name, (_, file, _) in WAYS.items():
            speed = times["torch fp32"] / times[name]
            low, high = speed.quantile([0.25, 0.75])
            milliseconds = 1000 * times[name].median() / len(texts)
            score, size = spearman(models[name], pairs), (folder / file).stat().st_size / 2**20
            rows.append([cut.name, name, milliseconds, speed.median(), low, high, score, size])
    return pd.DataFrame(rows, columns=["cut", "backend", "ms per text", "speed-up", "low", "high", "STS-B", "MB"])


def main() -> None:
    """Measure all cuts and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--cuts", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "backends")
    for name, default in {"--rounds": 10, "--texts": 256, "--batch-size": 32, "--samples": 100}.items():
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    pairs = pd.read_parquet(options.data / "sts" / "stsb" / "test.parquet")
    train = options.data / "sts" / "stsb" / "train.parquet"
    others = pd.read_parquet(train if train.exists() else options.data / "sts" / "sickr" / "test.parquet")
    with tempfile.TemporaryDirectory() as calibration:
        others[["sentence1"]].rename(columns={"sentence1": "text"}).to_parquet(Path(calibration) / "train.parquet")
        table = pd.concat([measure(cut, pairs, Path(calibration), options) for cut in options.cuts])
    packages = ["torch", "onnxruntime", "openvino", "sentence-transformers", "transformers", "optimum-onnx", "optimum-intel"]
    rounded = table.round({"ms per text": 2, "speed-up": 2, "low": 2, "high": 2, "STS-B": 2, "MB": 1}).astype(str)
    lines = [
        "# Cuts in other backends",
        "",
        f"The first {options.texts} sentences of STS-B test in batches of {options.batch_size}, {options.rounds} rounds in "
        f"turns, CPU threads: {torch.get_num_threads()}. Other programs were running: read the ratios, not the "
        "milliseconds. `speed-up` is relative to torch in the same round: median, and quartiles as `low` and `high`. "
        "`STS-B` is Spearman (%) on the test set. The static int8 model is calibrated on "
        f"{options.samples} other sentences. {', '.join(f'{name} {version(name)}' for name in packages)}. "
        "Written by `benchmarks/backends.py`.",
        "",
        *(
            f"| {' | '.join(row)} |"
            for row in [list(table.columns), ["---"] * len(table.columns), *rounded.to_numpy().tolist()]
        ),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.out / "cpu.json").write_text(json.dumps(table.to_dict("records"), indent=1) + "\n", encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
