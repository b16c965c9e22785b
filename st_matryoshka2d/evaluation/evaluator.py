"""An evaluator that scores many sizes during training."""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel

from st_matryoshka2d._hosts.mteb import random_states_kept
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.evaluate import evaluate
from st_matryoshka2d.evaluation.tasks import Tasks, chosen_tasks, parts_of
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.grid.grid_result import GridResult
from st_matryoshka2d.model.pipeline import unwrap
from st_matryoshka2d.model.readout import least_depth
from st_matryoshka2d.sizes import Size, full_size, positive_int, sizes_ladder, validate_sizes

logger = logging.getLogger(__name__)

_CLEARLY = 1  # a point, in percent: smaller losses come and go


class GridEvaluator(BaseEvaluator):
    """Score many sizes on mteb tasks during training; each text goes through the model once.

    `STS12_06L_0128d` is the main metric of the task STS12 at size `6L-128d`, and `STS12_mean` its
    mean over the sizes. With several tasks, `all_06L_0128d` and `all_mean` are means over the
    tasks. Means do not skip NaN, and NaN is never the best.

    With `eval_on_start=True`, the Trainer scores the model before the first step too. From then on,
    each evaluation logs that score of each size beside the new one, as a warning if one has lost
    more than a point: what does better without training needs none.

    The data of the tasks stays in memory between calls. The model and the random states do not
    change. In distributed training the first process does all the work; if that takes more than
    half an hour, raise `ddp_timeout`.

    Args:
        tasks: As for `evaluate`: mteb tasks, their names, benchmarks.
        sizes: Sizes to score; None for `sizes_ladder(model)`.
        primary_size: The size whose score selects the best checkpoint; None for the mean over the
            sizes.
        name: Prefix of the metric names, to tell several evaluators apart.
        batch_size: Texts per forward pass.
        write_csv: Write `grid_evaluation_results.csv` into the Trainer's output folder.
        write_figure: Write the heat map of the last evaluation there, `grid.png`.
        show_progress_bar: Show a progress bar.

    Attributes:
        primary_metric: The metric that selects the best checkpoint, for `metric_for_best_model`.
        grid: `GridResult` of the last evaluation; None before the first.
        first: `GridResult` of the first evaluation.
        history: Epoch, steps and metrics of each evaluation.

    Raises:
        ImportError: A figure is asked for, and matplotlib is not installed.
        TypeError: A task is not a task.
        ValueError: Tasks, sizes or `primary_size` are unknown or repeated; when called, a size
            exceeds the model.

    Example:
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> from st_matryoshka2d.losses import RelationalDistillLoss
        >>> evaluator = GridEvaluator(task, sizes=["1L-16d", "2L-32d"])
        >>> loss = RelationalDistillLoss(model)
        >>> trainer = SentenceTransformerTrainer(model, train_dataset=triplets, loss=loss, evaluator=evaluator)
        >>> metrics = trainer.evaluate()
        >>> [name for name in metrics if "DemoSTS" in name]
        ['eval_DemoSTS_01L_0016d', 'eval_DemoSTS_02L_0032d', 'eval_DemoSTS_mean']
    """

    def __init__(
        self,
        tasks: Tasks,
        sizes: Iterable[Size | str] | None = None,
        *,
        primary_size: Size | str | None = None,
        name: str = "",
        batch_size: int = 32,
        write_csv: bool = True,
        write_figure: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tasks = chosen_tasks(tasks)
        self.sizes = None if sizes is None else _parsed(sizes)
        self.primary_size = None if primary_size is None else _parsed([primary_size])[0]
        self._require_primary(self.sizes)
        if write_figure:
            import st_matryoshka2d.plots  # noqa: F401  # refused here, not after the first evaluation
        self.name, self.show_progress_bar = name, show_progress_bar
        self.write_csv, self.write_figure = write_csv, write_figure
        self.batch_size = positive_int(batch_size, "batch_size")
        self.csv_file = f"{'_'.join(filter(None, ['grid_evaluation', name]))}_results.csv"
        self.figure_file = f"{'_'.join(filter(None, ['grid', name]))}.png"
        self.grid: GridResult | None = None
        self.first: GridResult | None = None
        self.history: list[dict[str, float]] = []
        names: list[str | None] = [task.metadata.name for task in self.tasks]
        scored = ", ".join(f"{task.metadata.name} ({task.metadata.main_score})" for task in self.tasks)
        self._config = {"tasks": scored, "sizes": ", ".join(map(str, self.sizes or [])) or "sizes_ladder(model)"}
        if self.primary_size is not None:
            self._config["primary_size"] = str(self.primary_size)
        self._columns = {task: self._column(task) for task in ([*names, None] if len(names) > 1 else names)}
        self.primary_metric = next(reversed(self._columns.values())).primary_metric

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model in its current state; return the metrics, and write files to `output_path` if it is given."""
        pipeline = unwrap(model)
        self.grid = self._evaluate(pipeline)
        metrics: dict[str, float] = {}
        for task, column in self._columns.items():
            scores = {_padded(size): self.grid.score(size, task) for size in self.grid.sizes}
            scores["mean"] = float(np.mean(list(scores.values())))
            scores = column.prefix_name_to_metrics(scores, column.name)
            column.store_metrics_in_model_card_data(pipeline, scores, epoch, steps)
            metrics |= scores
        self.history.append({"epoch": epoch, "steps": steps, **metrics})
        self.first = self.first or self.grid
        beside = self._beside_the_first(self.grid)
        level = logging.WARNING if (beside["change"] < -_CLEARLY).any() else logging.INFO
        told = f"\n\n{beside.to_string(float_format='{:.2f}'.format)}" if len(self.history) > 1 else ""
        logger.log(level, "Epoch %s, step %s. %s%s", epoch, steps, self.grid, told)
        if output_path is not None and self.write_csv:
            path = Path(output_path) / self.csv_file
            rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records") if path.exists() else []
            # an earlier run may have scored other sizes
            table = pd.DataFrame([*rows, self.history[-1]])
            replace_file(path, lambda part: table.to_csv(part, index=False))
        if output_path is not None and self.write_figure:
            self.grid.plot(Path(output_path) / self.figure_file)
        return metrics

    @property
    def description(self) -> str:
        """Heading in the model card."""
        return "Model Sizes"

    def get_config_dict(self) -> dict[str, str]:
        """Settings, for the model card."""
        return dict(self._config)

    def _evaluate(self, model: SentenceTransformer) -> GridResult:
        sizes = (
            sizes_ladder(model)
            if self.sizes is None
            else validate_sizes(self.sizes, full_size(model), least=least_depth(model))
        )
        show = self.show_progress_bar
        self._require_primary(sizes)
        with random_states_kept():
            for part in (part for task in self.tasks for part in parts_of(task)):
                if not part.data_loaded:
                    part.load_data()  # otherwise `evaluate` would load and unload it in each call
            return evaluate(model, self.tasks, sizes=sizes, batch_size=self.batch_size, show_progress_bar=show)

    def _beside_the_first(self, grid: GridResult) -> pd.DataFrame:
        """Lay out the scores of the first evaluation beside those of the last one, in percent."""
        first = self.first or grid
        sizes = [size for size in grid.sizes if size in first.sizes]
        before, after = ([100 * each.score(size) for size in sizes] for each in (first, grid))
        names = [f"step {self.history[place]['steps']}" for place in (0, -1)]
        table = pd.DataFrame({"before": before, "after": after}, index=[*map(str, sizes)])
        return table.assign(change=table["after"] - table["before"]).set_axis([*names, "change"], axis=1)

    def _column(self, task: str | None) -> GridEvaluator:
        """Copy this evaluator for one task, or for the means over all: the model card has a column per evaluator."""
        column = copy.copy(self)
        # the model card holds and copies this object, so drop the data
        column.tasks, column.history = [], []
        # Weights & Biases can only sort and filter names of letters, digits and underscores.
        column.name = "_".join(filter(None, [self.name, "all" if task is None else re.sub(r"\W", "_", task)]))
        column.primary_metric = f"{column.name}_{'mean' if self.primary_size is None else _padded(self.primary_size)}"
        return column

    def _require_primary(self, sizes: list[Size] | None) -> None:
        if self.primary_size is not None and sizes is not None and self.primary_size not in sizes:
            raise UsageError(f"primary_size: {self.primary_size} is not among the sizes {', '.join(map(str, sizes))}.")


def _parsed(sizes: Iterable[Size | str]) -> list[Size]:
    """Check sizes before there is a model."""
    listed = [sizes] if isinstance(sizes, (str, Size)) else list(sizes)
    # the latter is an example in the error
    no_limit = Size(sys.maxsize, sys.maxsize) if listed else Size(12, 768)
    return validate_sizes([Size.parse(str(size)) for size in listed], no_limit, least=0)


def _padded(size: Size) -> str:
    """Pad a size, so that sorting by name sorts by size."""
    return f"{size.num_layers:02d}L_{size.dim:04d}d"
