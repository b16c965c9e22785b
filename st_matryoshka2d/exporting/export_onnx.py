"""Export a model as one ONNX graph with its tokenizer and prompts, and compare it with the model."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.exporting.graph import Exportable, export_graph
from st_matryoshka2d.exporting.onnx_embedder import CONFIG, GRAPH, TOKENIZER, OnnxEmbedder
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.model.declaration import own_entries
from st_matryoshka2d.model.sides import DOCUMENT, QUERY, prompt_of

_CLOSE = 1e-4
_IN_8_BITS = ["MatMul", "Gemm", "Gather"]  # Gather reads the rows of tokens
# of one word to a thousand, embedded side by side
_TEXTS = [" ".join(["the river ran under an old bridge"] * times)[start:] for start, times in enumerate((1, 2, 3, 5, 150))]


def export_onnx(model: SentenceTransformer, folder: str | os.PathLike[str], *, int8: bool = False) -> OnnxEmbedder:
    """Export a model as one ONNX graph, from tokens to the embedding that `encode` returns.

    Pooling, readout, dims and normalization are in the graph. The folder has it in `model.onnx`,
    with inputs `input_ids` and `attention_mask`, (texts, tokens), and output
    `sentence_embedding`, (texts, dim); the tokenizer, which pads and cuts as the model's; and the
    prompts in `onnx_embedder.json`. Nothing else is needed to serve it, in any language. Files that
    the folder has already stay, except these three.

    The float graph is compared with the model before anything is written.

    Args:
        model: Any cut, also of an aligned model or of a vocabulary; the whole model; a token table;
            one side of an asymmetric model, `load(folder, route="query")`. Adapters are merged into
            a copy. Its weights must be float32.
        folder: Made if it is not there.
        int8: Weights and rows of tokens in 8 bits: a quarter of the bytes. Those of layers have a
            scale per channel. Embeddings change: score the file, for example with
            `mteb.evaluate(OnnxEmbedder.load(folder), tasks)`.

    Returns:
        What embeds texts by these files, as `OnnxEmbedder.load(folder)` does.

    Raises:
        TypeError: `model` is not a `SentenceTransformer`.
        ValueError: The model has a `Router`, weights of another precision, more weights than one
            file of ONNX holds, a tokenizer without padding or one written in Python, or prompts that
            its pooling leaves out; torch cannot export it; or an embedding by the graph differs from
            the model's by more than 1e-4. No file is written then.

    Example:
        >>> from st_matryoshka2d import OnnxEmbedder, export_onnx, truncate
        >>> small = truncate(model, "1L-64d")
        >>> embedder = export_onnx(small, "small-onnx")
        >>> bool(abs(embedder.encode("a cat") - small.encode("a cat")).max() < 1e-4)
        True
        >>> OnnxEmbedder.load("small-onnx").encode(["a cat", "rain"]).shape  # without torch
        (2, 64)
    """
    wanted = Path(folder)
    exported = Exportable.of(model)
    with TemporaryDirectory() as name:
        part = Path(name)
        export_graph(exported.graph, part / GRAPH)
        exported.tokenizer.save(str(part / TOKENIZER))
        about = _config(exported.model, model.model_card_data.base_model, int8)
        (part / CONFIG).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
        _compare(exported.model, OnnxEmbedder.load(part))
        if int8:
            _quantize(part / GRAPH)
        for file in (GRAPH, TOKENIZER, CONFIG):
            replace_file(wanted / file, partial(copyfile, part / file))
    return OnnxEmbedder.load(wanted)


def _config(model: SentenceTransformer, base_model: str | None, int8: bool) -> dict[str, object]:
    """Return what a reader must know beside the graph and the tokenizer, and what a card says of the model."""
    prompts = {side: prompt_of(model, side) for side in ("", QUERY, DOCUMENT)}
    about = {"dim": model.get_embedding_dimension(), "prompts": prompts, "similarity": model.similarity_fn_name}
    return about | {"int8": int8, "base_model": base_model} | own_entries(model.config)


def _compare(model: SentenceTransformer, embedder: OnnxEmbedder) -> None:
    """Refuse a graph that does not equal the model, for each kind of prompt, in a list and alone."""
    for way in ("encode", "encode_query", "encode_document"):
        expected = getattr(model, way)(_TEXTS, show_progress_bar=False)
        by_graph = getattr(embedder, way)
        worst = max(float(np.abs(by_graph(_TEXTS) - expected).max()), float(np.abs(by_graph(_TEXTS[0]) - expected[0]).max()))
        if not worst <= _CLOSE:  # nor NaN
            raise UsageError(
                f"The exported graph is not the model: an embedding differs by {worst:.2g} from that of `{way}`; "
                f"{_CLOSE:g} was expected. Nothing was written. Serve this model with sentence-transformers."
            )


def _quantize(graph: Path) -> None:
    """Put weights of layers and rows of tokens into 8 bits."""
    whole = graph.with_name("float.onnx")
    quant_pre_process(str(graph), str(whole), skip_symbolic_shape=True, skip_optimization=True)
    # Without the range reduced, sums overflow on processors that have no instructions for 8 bits.
    way: dict[str, Any] = {"per_channel": True, "weight_type": QuantType.QInt8, "reduce_range": True}
    quantize_dynamic(whole, graph, op_types_to_quantize=_IN_8_BITS, **way)
