"""Tiny random models of each class of sentence-transformers, and what they make of texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder
from torch import Tensor

from tests.support import families
from tests.support.families import TEXTS

PAIRS = [(TEXTS[place], text) for place in (0, 3) for text in TEXTS]


def saved(config: Any, folder: Path, head: Any) -> str:
    """Save a random network with a head, norms included, so that a missing norm changes the output."""
    torch.manual_seed(0)
    config.pad_token_id = 0
    network = head.from_config(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(("classifier.weight", "score.weight", "out_proj.weight")):
                parameter.uniform_(-1, 1)
    network.save_pretrained(folder)
    families.tokenizer().save_pretrained(folder)
    return str(folder)


def reranker(folder: Path, family: str = "bert", num_labels: int = 1) -> CrossEncoder:
    config = (families.CONFIGS | families.UNNAMED)[family]()
    config.num_labels = num_labels
    return CrossEncoder(saved(config, folder, hf.AutoModelForSequenceClassification), device="cpu").eval()


def splade(folder: Path, family: str = "bert") -> SparseEncoder:
    config = (families.CONFIGS | families.UNNAMED)[family]()
    return SparseEncoder(saved(config, folder, hf.AutoModelForMaskedLM), device="cpu").eval()


def sparse_features(folder: Path) -> SparseEncoder:
    transformer = Transformer(saved(families.CONFIGS["bert"](), folder, hf.AutoModel))
    modules = [transformer, Pooling(32), SparseAutoEncoder(32, 64, k=8, k_aux=16)]
    return SparseEncoder(modules=modules, device="cpu", max_active_dims=6).eval()


def late_interaction(folder: Path) -> MultiVectorEncoder:
    transformer = Transformer(saved(families.CONFIGS["modernbert"](), folder, hf.AutoModel))
    dense = Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    modules = [transformer, dense, MultiVectorMask(skiplist_words=["on"]), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "new ", "document": "old "}).eval()


CLASSES: dict[str, Callable[[Path], Any]] = {
    "reranker": reranker,
    "splade": splade,
    "sparse features": sparse_features,
    "late interaction": late_interaction,
}


def outputs(model: Any) -> Tensor:
    """Return the scores of pairs, or the embeddings of texts or tokens, one below the other."""
    if isinstance(model, CrossEncoder):
        return model.predict(PAIRS, convert_to_tensor=True, activation_fn=torch.nn.Identity())
    if isinstance(model, SparseEncoder):
        return model.encode(TEXTS).to_dense()
    return torch.cat([*model.encode_query(TEXTS), *model.encode_document(TEXTS)])
