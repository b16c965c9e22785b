"""What the card of a model that was made of another one takes from it."""

from __future__ import annotations

import copy
from typing import Any

from huggingface_hub import RepoCard
from sentence_transformers import SentenceTransformer

__all__ = ["inherit_card", "replace_card"]

# Said by the user, or known from training. Scores are not among them: those of a part are others.
_INHERITED = (
    *("language", "license", "task_name", "tags", "citations", "local_files_only"),
    *("base_model", "base_model_revision", "datasets", "train_datasets", "eval_datasets"),
    *("all_hyperparameters", "non_default_hyperparameters"),
)


def inherit_card(made: SentenceTransformer, model: SentenceTransformer) -> None:
    """Give a model the card of the one it was made of: license, data, training and papers, but not its scores."""
    for name in _INHERITED:
        setattr(made.model_card_data, name, copy.copy(getattr(model.model_card_data, name)))
    _take_origin(made, model._model_card_text)


def replace_card(model: SentenceTransformer) -> None:
    """Let a new card be written for a cut that was loaded with the card of the whole, with what that said of its origin."""
    _take_origin(model, model._model_card_text)
    model._model_card_text = None


def _take_origin(made: SentenceTransformer, text: str | None) -> None:
    """Take from a card that was read what is not known otherwise: sentence-transformers keeps it as text alone."""
    said = _metadata(text)
    data = made.model_card_data
    data.language = data.language or _texts(said.get("language"))
    data.license = data.license or next(iter(_texts(said.get("license"))), None)
    data.datasets = data.datasets or _texts(said.get("datasets"))
    data.base_model = data.base_model or next(iter(_texts(said.get("base_model"))), None)


def _metadata(text: str | None) -> dict[str, Any]:
    """What stands at the head of a card; nothing where that cannot be read, since a card is no part of the model."""
    if not text:
        return {}
    try:
        card: Any = RepoCard(text, ignore_metadata_errors=True)
    except Exception:
        return {}
    return dict(card.data.to_dict())


def _texts(value: Any) -> list[str]:
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
