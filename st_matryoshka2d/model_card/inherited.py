"""What the card of a model that was made of another one takes from it."""

from __future__ import annotations

import copy

from sentence_transformers import SentenceTransformer

__all__ = ["inherit_card"]

# Said by the user, or known from training. Scores are not among them: those of a part are others.
_INHERITED = (
    *("language", "license", "task_name", "tags", "citations", "local_files_only"),
    *("base_model", "base_model_revision", "train_datasets", "eval_datasets"),
    *("all_hyperparameters", "non_default_hyperparameters"),
)


def inherit_card(made: SentenceTransformer, model: SentenceTransformer) -> None:
    """Give a model the card of the one it was made of: its license, data, settings of training and papers; not its scores.

    Args:
        made: A cut or a rotation, in memory.
        model: What it was made of.
    """
    for name in _INHERITED:
        setattr(made.model_card_data, name, copy.copy(getattr(model.model_card_data, name)))
