"""Shared code of the tests that train every recipe: build it, run the Trainer, and check that it learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, util
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from torch.nn import functional

from st_matryoshka2d import Size
from st_matryoshka2d.losses import EspressoLoss, MIPICLoss, MultiSizeLoss, RelationalDistillLoss, StarbucksLoss, TwoDMSELoss
from tests.support.families import ENDS, TEXTS, cut_by_hand

OLD = [f"old {text}" for text in TEXTS]

Make = Callable[..., MultiSizeLoss]

RECIPES: dict[str, Make] = {
    "Starbucks": lambda model, **kw: StarbucksLoss(model, MultipleNegativesRankingLoss(model), **kw),
    "2DMSE": lambda model, **kw: TwoDMSELoss(model, MultipleNegativesRankingLoss(model), **kw),
    "Espresso": lambda model, **kw: EspressoLoss(model, MultipleNegativesRankingLoss(model), **kw),
    "MIPIC": lambda model, **kw: MIPICLoss(model, MultipleNegativesRankingLoss(model), **kw),
    "RelationalDistill": lambda model, **kw: RelationalDistillLoss(model, temperature=0.2, **kw),
}


def pairs() -> Dataset:
    return Dataset.from_dict({"anchor": TEXTS * 4, "positive": OLD * 4})


def train(
    model: SentenceTransformer, loss: Any, folder: Path, dataset: Any = None, callbacks: Any = (), **arguments: Any
) -> SentenceTransformerTrainer:
    settings = {"max_steps": 12, "per_device_train_batch_size": 5, "learning_rate": 1e-3, "logging_steps": 1}
    settings |= {"save_strategy": "no"} | arguments
    evaluated = {name: settings.pop(name, None) for name in ("eval_dataset", "evaluator")}
    checkpoint = settings.pop("resume", None)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(output_dir=str(folder), report_to="none", disable_tqdm=True, **settings),
        train_dataset=pairs() if dataset is None else dataset,
        loss=loss,
        callbacks=list(callbacks),
        **evaluated,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def embedded(model: SentenceTransformer, size: Size, prompt: str | None = None) -> list[Tensor]:
    """Embed queries and documents with the physically cut model, each by its route if there are several."""
    with cut_by_hand(model, size.num_layers, ENDS[size.num_layers]):
        columns = [
            model.encode_query(TEXTS, prompt=prompt, convert_to_tensor=True),
            model.encode_document(OLD, convert_to_tensor=True),
        ]
    return [column[:, : size.dim].clone().float() for column in columns]


class Watch:
    """Measures a recipe's error at one trained size: the ranking loss, or the divergence from the teacher."""

    def __init__(self, model: SentenceTransformer, recipe: str, prompt: str | None = None) -> None:
        self.model, self.recipe, self.prompt = model, recipe, prompt
        self.size = Size(4, 8) if recipe == "MIPIC" else Size(2, 8)
        self.teacher = self._relations(Size(4, 32))
        self.before = self.badness()

    def badness(self) -> float:
        if self.recipe == "RelationalDistill":
            student = self._relations(self.size)
            return float(functional.kl_div(student, self.teacher, reduction="batchmean", log_target=True))
        columns = embedded(self.model, self.size, self.prompt)
        return float(MultipleNegativesRankingLoss(self.model).compute_loss_from_embeddings(columns, None))  # type: ignore[arg-type]

    def assert_learned(self) -> None:
        after = self.badness()
        assert after < 0.9 * self.before, f"{self.recipe} at {self.size}: from {self.before:.4f} to {after:.4f}"

    def _relations(self, size: Size) -> Tensor:
        """Return each text's log distribution over the other texts."""
        texts = torch.cat(embedded(self.model, size, self.prompt))
        others = ~torch.eye(len(texts), dtype=torch.bool)
        return (util.cos_sim(texts, texts)[others].view(len(texts), -1) / 0.2).log_softmax(dim=-1)


class Falling(BaseEvaluator):
    """Returns a lower score at each call."""

    primary_metric, score = "score", 1.0

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.score -= 0.1
        return {"score": self.score}
