"""Score one depth of a model, narrowed in several ways."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mteb import ResultCache
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.evaluation.scoring.scoring import score_views
from st_matryoshka2d.evaluation.scoring.tasks import Tasks, chosen_tasks
from st_matryoshka2d.evaluation.truncation.removed import truncation_dims
from st_matryoshka2d.evaluation.truncation.result import TruncationResult
from st_matryoshka2d.evaluation.truncation.truncations import PCA, RandomSubset, Window
from st_matryoshka2d.evaluation.views.views import FIRST, Truncation, View
from st_matryoshka2d.layers import transformer_of
from st_matryoshka2d.sizes import Size, all_within, full_size, positive_int, within

__all__ = ["evaluate_truncations"]


def evaluate_truncations(
    model: SentenceTransformer,
    tasks: Tasks,
    dims: int | Iterable[int] | None = None,
    *,
    num_layers: int | None = None,
    seeds: int | Iterable[int] = 5,
    windows: Iterable[int] | None = None,
    pca_texts: Iterable[str] | None = None,
    cache: str | os.PathLike[str] | ResultCache | None = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    show_progress_bar: bool = True,
) -> TruncationResult:
    """Find out whether a model needs matryoshka training at the dims you want.

    "To MRL or not to MRL" removes the last coordinates of models trained with and without a matryoshka loss, and finds that
    the training pays only where 80 % or more are removed. Here the prefix is also compared, within one model, with random
    subsets and windows of as many coordinates, and with principal components. Where a random subset does as well as the
    prefix, the coordinates are in no order that training could have made.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; it is left as it is.
        tasks: One or several mteb tasks, task names or benchmarks, as for `evaluate`.
        dims: Widths, each 1..D; None for the paper's, which remove up to 92 or 94 %. The full one is always scored.
        num_layers: The depth; None for all layers.
        seeds: How many random subsets, or the seeds themselves; at least two.
        windows: How many coordinates lie before each window; None for a quarter of D, a half and three quarters, an empty
            list for no windows.
        pca_texts: A sample of more than D texts to find principal components of. None leaves them out: the texts of the task
            are no sample for it, they would make the components look better than they are.
        cache: As for `evaluate`.
        n_jobs: As for `evaluate`.
        batch_size: Texts in a batch of the model.
        show_progress_bar: Show how far the evaluation is.

    Returns:
        The scores, with a verdict on each dim.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, a task is not a task, or a number is not an integer.
        ValueError: A dim, depth or window is not within the model, there are fewer than two seeds, no dim is below the full
            one, or there are too few `pca_texts`.

    Example:
        >>> result = evaluate_truncations(model, task, [192, 96], num_layers=1, seeds=2, show_progress_bar=False)
        >>> result.verdict()[["dim", "removed"]].to_dict("list")
        {'dim': [192, 96], 'removed': [50, 75]}
        >>> result.grid.truncations
        ['first', 'random-0', 'random-1', 'window-96', 'window-192', 'window-288']
    """
    transformer_of(model)
    full = full_size(model)
    depth = full.num_layers if num_layers is None else within(num_layers, full.num_layers, "num_layers")
    wanted = truncation_dims(full.dim) if dims is None else all_within(dims, full.dim, "dim")
    narrow = sorted({*wanted} - {full.dim}, reverse=True)
    if not narrow:
        raise ValueError(f"dims must have one below the full {full.dim}; nothing is removed otherwise.")
    # A permutation of all coordinates scores as they do in order: only what is narrower is scored.
    permuted: list[Truncation] = [*_random_subsets(seeds), *_windows(windows, full.dim)]
    chosen = chosen_tasks(tasks)
    whole: list[Truncation] = [FIRST]
    if pca_texts is not None:
        whole.append(PCA.fit(model, pca_texts, depth, batch_size=batch_size, show_progress_bar=show_progress_bar))
    views = [View(Size(depth, dim), truncation=one) for one in whole for dim in (full.dim, *narrow)]
    views += [View(Size(depth, dim), truncation=one) for one in permuted for dim in narrow]
    grid = score_views(
        model, chosen, views, cache=cache, n_jobs=n_jobs, batch_size=batch_size, show_progress_bar=show_progress_bar
    )
    return TruncationResult(grid)


def _random_subsets(seeds: int | Iterable[int]) -> list[RandomSubset]:
    given = list(seeds) if isinstance(seeds, Iterable) else list(range(positive_int(seeds, "seeds")))
    if len(set(given)) < max(2, len(given)):
        raise ValueError(f"seeds: at least two different ones are needed to see a spread, each once; got {given}.")
    return [RandomSubset(seed) for seed in given]


def _windows(starts: Iterable[int] | None, full_dim: int) -> list[Window]:
    quarters = [full_dim * quarter // 4 for quarter in (1, 2, 3)]
    given = list(dict.fromkeys(quarters)) if starts is None else list(starts)
    windows = [Window(start) for start in given]
    if wrong := [start for start in given if start >= full_dim or given.count(start) > 1]:
        raise ValueError(f"windows: {wrong[0]} is given more than once, or is not below {full_dim}, the dims of the model.")
    return windows
