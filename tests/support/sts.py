"""Small generated STS tasks, and a cell-by-cell comparison of a grid with mteb's results."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import mteb
import torch
from datasets import Dataset
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size, evaluate
from tests.support import families

Cells = dict[tuple[str, str, str], float]


def metadata(name: str) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        type="STS",
        description="Random pairs of sentences with random scores.",
        dataset={"path": "none", "revision": "none"},
        main_score="cosine_spearman",
        eval_splits=["validation", "test"],
        eval_langs={"one": ["eng-Latn"], "two": ["fra-Latn"]},
    )


class LocalSTS(AbsTaskSTS):
    """Two splits of two subsets each, named after a task of mteb, which drops prompts for unknown names."""

    metadata = metadata("STS13")
    seed_of_data = 0
    loads = 0

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        self.loads += 1
        generator = random.Random(self.seed_of_data)
        pool = [" ".join(generator.choices(families.WORDS, k=generator.randint(2, 9))) for _ in range(30)]
        self.dataset = {
            subset: {split: Dataset.from_list(self.pairs(pool, generator)) for split in self.eval_splits}
            for subset in self.hf_subsets
        }
        self.data_loaded = True

    def pairs(self, pool: list[str], generator: random.Random) -> list[dict[str, object]]:
        # No duplicate pairs: rounding errors would order their equal similarities.
        indices = generator.sample([(i, j) for i in range(len(pool)) for j in range(i)], k=25)
        return [{"sentence1": pool[i], "sentence2": pool[j], "score": generator.uniform(0, 5)} for i, j in indices]

    def texts(self) -> set[str]:
        splits = [split for subset in (self.dataset or {}).values() for split in subset.values()]
        return {text for split in splits for column in ("sentence1", "sentence2") for text in split[column]}


class OtherSTS(LocalSTS):
    metadata = metadata("STS14")
    seed_of_data = 1


class AsymmetricSTS(LocalSTS):
    metadata = metadata("STS15")
    input1_prompt_type = PromptType.query
    input2_prompt_type = PromptType.document


class ConstantSTS(LocalSTS):
    metadata = metadata("STS16")

    def pairs(self, pool: list[str], generator: random.Random) -> list[dict[str, object]]:
        return [{**pair, "score": 1.0} for pair in super().pairs(pool, generator)]


def cells(grid: GridResult, size: Size, task: str) -> Cells:
    frame = grid.to_frame()
    rows = frame[(frame["num_layers"] == size.num_layers) & (frame["dim"] == size.dim) & (frame["task"] == task)]
    return dict(zip(zip(rows["split"], rows["subset"], rows["metric"], strict=True), rows["score"], strict=True))


def cells_of_mteb(model: SentenceTransformer, task: Any) -> Cells:
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results[0]
    return {
        (split, scores["hf_subset"], metric): score
        for split, subsets in result.scores.items()
        for scores in subsets
        for metric, score in scores.items()
        if metric not in ("main_score", "hf_subset", "languages", "mteb_version")
    }


def quiet(*args: Any, **kwargs: Any) -> GridResult:
    return evaluate(*args, show_progress_bar=False, **kwargs)


def read_along(model: SentenceTransformer) -> Counter[str]:
    """Count every embedded text, decoded from the token ids."""
    seen: Counter[str] = Counter()
    tokenizer, transformer = model.tokenizer, cast("Any", model[0]).model

    def read(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen.update(tokenizer.batch_decode(args[0], skip_special_tokens=True))

    # A plain function, so that copies of the model share it and its counter.
    transformer.get_input_embeddings().register_forward_pre_hook(read)
    return seen
