"""Whether a live teacher can read a batch: a loss has only the tokens that the trained model's tokenizer made."""

from __future__ import annotations

import copy
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from torch import nn

from st_matryoshka2d.errors import UsageError

# Arguments of `Transformer` that change how a text is tokenized.
_SETTINGS = ("processing_kwargs", "query_length", "document_length", "query_expansion")


def check_reads_alike(teacher: SentenceTransformer, model: SentenceTransformer) -> None:
    """Raise unless the teacher would tokenize every text as the model does, in each route of the model."""
    theirs, ours = _readers(teacher), _readers(model)
    for name, module in ours.items():
        differences = _differences(theirs.get(name, theirs.get("")), module)
        if differences:
            raise UsageError(
                f"The teacher does not read texts as the model does: it has another {', another '.join(differences)}. A "
                "loss sees only the model's tokens, which may not give the teacher the same texts. Embed the texts with "
                'the teacher first, dataset.map(lambda rows: {"label": teacher.encode(rows["text"])}, batched=True), and '
                'pass teacher="labels".'
            )


def _readers(model: SentenceTransformer) -> dict[str, nn.Module]:
    """Return the tokenizing module of each route; without a Router, the name is empty."""
    first = next(model.children())
    if isinstance(first, Router):
        return {name: next(modules.children()) for name, modules in first.sub_modules.items()}
    return {"": first}


def _differences(reader: nn.Module | None, module: nn.Module) -> list[str]:
    """Return what differs in how two modules tokenize, in words."""
    if not isinstance(reader, Transformer) or not isinstance(module, Transformer):
        return [f"first module ({type(reader).__name__}, not {type(module).__name__})"]
    theirs, ours = _reading(reader), _reading(module)
    words = {"max_seq_length": f"max_seq_length ({reader.max_seq_length}, not {module.max_seq_length})"}
    return [words.get(name, name) for name in ours if theirs[name] != ours[name]]


def _reading(module: Transformer) -> dict[str, Any]:
    """Return all that decides which tokens a module makes of a text."""
    tokenizer: Any = module.tokenizer
    tokenization = tokenizer  # a slow one equals only itself
    if tokenizer.is_fast:
        # holds the length and padding of its last call
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.no_truncation()
        backend.no_padding()
        tokenization = backend.to_str()
    return {
        "tokenizer": tokenization,
        "max_seq_length": module.max_seq_length,
        "padding or truncation": (tokenizer.pad_token_id, tokenizer.padding_side, tokenizer.truncation_side),
        "chat template": tokenizer.chat_template if "message" in module.modality_config else None,
        **{name: getattr(module, name) for name in _SETTINGS},
    }
