"""A short training with an evaluator, run in two processes by `test_evaluator.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import distributed

from st_matryoshka2d import GridEvaluator
from tests.support import families
from tests.support.sts import LocalSTS
from tests.support.training import pairs

SIZES = ["2L-8d", "4L-32d"]


def trained(
    model: SentenceTransformer, folder: Path, evaluator: BaseEvaluator | None, **arguments: Any
) -> SentenceTransformerTrainer:
    """Train eight steps in two epochs; evaluate every second step."""
    model.model_card_data.local_files_only = True
    evaluated = {"eval_strategy": "steps", "eval_steps": 2} if evaluator else {}
    args = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        **{"max_steps": 8, "per_device_train_batch_size": 5, "learning_rate": 1e-3, "logging_steps": 1} | arguments,
        **evaluated,
        save_strategy="steps" if "metric_for_best_model" in arguments else "no",
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=pairs(), loss=loss, evaluator=evaluator)
    trainer.train()
    return trainer


class Nothing(BaseEvaluator):
    """An evaluator without effect: the Trainer itself draws a random number for each evaluation."""

    def __call__(self, *args: Any, **kwargs: Any) -> float:
        return 0.0


def noisy(folder: Path) -> SentenceTransformer:
    """Build a model with dropout, so that training depends on the random state."""
    config = families.CONFIGS["bert"]()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    return families.pipeline(config, folder, pooling="mean", dense=None, normalize=False)


def with_and_without(folder: Path) -> dict[str, Any]:
    """Train with an evaluator, and alike without; return the scores and both ends."""
    rank = os.environ["RANK"]
    # Before the process group exists: later only the first process saves, and the other finds
    # nothing to load.
    model, same = noisy(folder / f"one-{rank}"), noisy(folder / f"two-{rank}")
    distributed.init_process_group("gloo")
    evaluator = GridEvaluator(LocalSTS(), SIZES, write_csv=False)
    trainer = trained(model, folder / "with", evaluator)
    trained(same, folder / "without", Nothing())  # type: ignore[no-untyped-call]
    return {
        "log": [entry["eval_STS13_mean"] for entry in trainer.state.log_history if "eval_STS13_mean" in entry],
        "history": [entry["STS13_mean"] for entry in evaluator.history],
        "with": model.state_dict(),
        "without": same.state_dict(),
    }
