"""What an exported graph computes: all modules of a model and its dims, from tokens to what `encode` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer
from torch import Tensor, nn

from st_matryoshka2d.cutting.cut import without_adapters
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.exporting.onnx_embedder import INPUTS, OUTPUT
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import is_table, own_weights
from st_matryoshka2d.model.sides import with_modules
from st_matryoshka2d.sizes import megabytes

_MOST = 2000  # megabytes; one file of ONNX holds less than 2 GiB


@dataclass(frozen=True)
class Exportable:
    """A model that was checked, on the CPU and in evaluation mode, and the tokenizer that its graph goes with."""

    model: SentenceTransformer
    graph: nn.Module
    tokenizer: Tokenizer

    @classmethod
    def of(cls, model: SentenceTransformer) -> Exportable:
        """Check a model, and copy it; its weights stay shared if they are on the CPU."""
        if isinstance(model, SentenceTransformer) and isinstance(next(model.children()), Router):
            raise UsageError(
                "A model with a Router has a graph for each side. Save it, load a side, and export that: "
                'load(folder, route="query").'
            )
        whole = model if is_table(model) else _plain(Pipeline.of(model))
        own = with_modules(whole, {name: share_memory(part) for name, part in whole.named_children()}, SentenceTransformer)
        own.truncate_dim = model.truncate_dim
        own.to("cpu").train(False)
        _check_weights(own)
        if is_table(own):
            return cls(own, _TableGraph(own), _of_table(cast("StaticEmbedding", own[0])))
        return cls(own, _Graph(own), _of_network(own))


class _Graph(nn.Module):
    """The graph of a model with layers."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model, self.dim = model, model.get_embedding_dimension()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed tokens, (texts, tokens), as (texts, dim)."""
        features = self.model({"input_ids": input_ids, "attention_mask": attention_mask})
        return cast("Tensor", features["sentence_embedding"])[:, : self.dim]


class _TableGraph(nn.Module):
    """The graph of a token table: the mean of the rows of the tokens in the mask."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        table, *after = model.children()
        self.rows = nn.Embedding.from_pretrained(cast("StaticEmbedding", table).embedding.weight.detach())
        self.after, self.dim = nn.ModuleList(after), model.get_embedding_dimension()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed tokens, (texts, tokens), as (texts, dim)."""
        mask = attention_mask.unsqueeze(-1).float()
        mean = (self.rows(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        features: dict[str, Any] = {"sentence_embedding": mean}
        for module in self.after:
            features = module(features)
        return cast("Tensor", features["sentence_embedding"])[:, : self.dim]


def _plain(pipeline: Pipeline) -> SentenceTransformer:
    """Return the model without adapters; refuse one whose pooling asks how long a prompt is."""
    pipeline.require_padding()
    leaves_out = any(isinstance(module, Pooling) and not module.include_prompt for module in pipeline.model.modules())
    if leaves_out and any(pipeline.model.prompts.values()):
        raise UsageError(
            "The pooling of this model leaves out the tokens of the prompt (include_prompt=False), and a graph does not see "
            "where a prompt ends. Only a model whose pooling reads the prompt, or without prompts, can be exported."
        )
    return without_adapters(pipeline).model


def _check_weights(model: SentenceTransformer) -> None:
    weights = own_weights(model)
    found = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights} - {"float32"})
    if found:
        raise UsageError(
            f"Weights of the model are {', '.join(found)}; float32 was expected. Export `copy.deepcopy(model).float()`; "
            "int8=True makes the file smaller."
        )
    if (size := megabytes(weights)) > _MOST:
        raise UsageError(
            f"The model has {size:,.0f} MB of weights, and a file of ONNX holds {_MOST:,}. Cut it first, in layers or in "
            "vocabulary, with `truncate`."
        )


def _of_network(model: SentenceTransformer) -> Tokenizer:
    """Return the tokenizer of a copied model, which pads and cuts as `encode` does."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise UsageError(
            f"The tokenizer of the model, {type(model.tokenizer).__name__}, is written in Python; one of the `tokenizers` "
            "library was expected, which readers in other languages have."
        )
    return tokenizer


def _of_table(table: StaticEmbedding) -> Tokenizer:
    """Copy the tokenizer of a table: it adds no special tokens, and pads by any row, as the mask leaves it out."""
    tokenizer: Any = Tokenizer.from_str(table.tokenizer.to_str())
    tokenizer.post_processor = None
    tokenizer.enable_padding()
    return cast("Tokenizer", tokenizer)


def export_graph(graph: nn.Module, file: Path) -> None:
    """Write the graph for any number of texts of any length; refuse a model that torch cannot trace."""
    tokens = torch.tensor([[1, 2, 3, 1], [2, 1, 0, 0]])
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    names: dict[str, Any] = {
        "input_names": INPUTS,
        "output_names": [OUTPUT],
        "dynamic_shapes": dict.fromkeys(INPUTS, any_size),
    }
    try:
        with torch.no_grad():
            program: Any = torch.onnx.export(
                graph.eval(), (tokens, (tokens > 0).long()), dynamo=True, verbose=False, **names
            )
    except torch.onnx.OnnxExporterError as error:
        raise UsageError(
            f"torch cannot export this model to ONNX: {str(error).strip()[:300]}. Another release of torch or of onnxscript "
            "may; otherwise serve the model with sentence-transformers."
        ) from error
    # traces of the stack, with the folders of this machine
    ClearMetadataAndDocStringPass()(program.model)
    program.save(file, external_data=False)
