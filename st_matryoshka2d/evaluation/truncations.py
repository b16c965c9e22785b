"""Narrow one depth of a model in several ways: do the first coordinates carry more than others?"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.encoding.encode_sizes import encode_sizes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.run import score_variants
from st_matryoshka2d.evaluation.store import Cache
from st_matryoshka2d.evaluation.tasks import Tasks, chosen_tasks
from st_matryoshka2d.evaluation.variants import FIRST, Truncation, Variant
from st_matryoshka2d.grid.truncation_result import TruncationResult, truncation_dims
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import least_depth
from st_matryoshka2d.sizes import Size, all_within, positive_int, within
from st_matryoshka2d.texts import filled_texts, require_finite

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Reordered:
    """The coordinates in another order."""

    name: str
    order: list[int]

    def __call__(self, embeddings: Float[Tensor, "texts full"]) -> Float[Tensor, "texts full"]:
        """Reorder them."""
        return embeddings[..., self.order]


def random_subset(seed: int, full_dim: int) -> Reordered:
    """Random coordinates (Takeshita et al., 2025), nested: the subset for a small dim is part of that for a larger dim."""
    generator = random.Random(seed)  # reproducible on all machines and Python versions
    draws = [generator.random() for _ in range(full_dim)]
    return Reordered(f"random-{seed}", sorted(range(full_dim), key=draws.__getitem__))


def window(start: int, full_dim: int) -> Reordered:
    """Consecutive coordinates from `start` on, wrapping around at the end."""
    return Reordered(f"window-{start}", [*range(start, full_dim), *range(start)])


@dataclass(frozen=True, eq=False)
class PCA:
    """Principal components: embeddings centred and rotated by decreasing variance. Create it with `PCA.fit`."""

    name: str
    mean: Float[Tensor, " full"]
    components: Float[Tensor, "full full"]

    @classmethod
    def fit(cls, model: SentenceTransformer, texts: Iterable[str], size: Size, **encoding: Any) -> PCA:
        """Fit the components of a depth in full width on a sample of texts, in float64."""
        sample = list(dict.fromkeys(filled_texts(texts)))
        if len(sample) <= size.dim:
            raise UsageError(
                f"Components of {size.dim} dims need at least {size.dim + 1} different texts, got "
                f"{len(sample)}. Ten texts per dim are a good sample."
            )
        embeddings = encode_sizes(model, sample, [size], **encoding)[size]
        require_finite(embeddings, sample)
        mean = embeddings.mean(axis=0, dtype=np.float64)
        centred = embeddings - mean
        _, ascending = np.linalg.eigh(centred.T @ centred)
        components = ascending[:, ::-1]
        # The sign of an eigenvector is arbitrary: make the largest entry positive, for the same
        # result on every machine.
        largest = np.abs(components).argmax(axis=0)
        components = components * np.sign(components[largest, range(len(components))])
        digest = sha256("\0".join(sorted(sample)).encode("utf-8", "surrogatepass")).hexdigest()
        return cls(f"pca-{digest[:8]}", torch.from_numpy(mean).float(), torch.from_numpy(components).float())

    def __call__(self, embeddings: Float[Tensor, "texts full"]) -> Float[Tensor, "texts full"]:
        """Project embeddings onto the components, largest variance first."""
        return (embeddings - self.mean.to(embeddings)) @ self.components.to(embeddings)


def evaluate_truncations(
    model: SentenceTransformer,
    tasks: Tasks,
    dims: int | Iterable[int] | None = None,
    *,
    num_layers: int | None = None,
    seeds: int | Iterable[int] = 5,
    windows: Iterable[int] | None = None,
    pca_texts: Iterable[str] | None = None,
    cache: Cache = None,
    n_jobs: int = 1,
    batch_size: int = 32,
    show_progress_bar: bool = True,
) -> TruncationResult:
    """Find out whether a model needs matryoshka training at the dims you want.

    Compares the first coordinates with random subsets, windows and principal components of the same
    dim. If a random subset scores as well, the order of the coordinates carries no information ("To
    MRL or not to MRL").

    Args:
        model: As for `evaluate`.
        tasks: As for `evaluate`.
        dims: Widths, each 1..D; None for those of the paper, which remove up to 92 or 94 %. D
            itself is always scored.
        num_layers: The depth; None for all layers.
        seeds: Number of random subsets, or the seeds themselves; at least two.
        windows: Start of each window, counted from 0; None for a quarter, a half and three quarters
            of D.
        pca_texts: More than D texts to fit principal components on. Do not use the texts of the
            task: that would favour PCA. None leaves PCA out.
        cache: As for `evaluate`.
        n_jobs: As for `evaluate`.
        batch_size: Texts per forward pass.
        show_progress_bar: Show a progress bar.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, a task is not a task, or a number is
            not an integer.
        ValueError: A dim, depth or window exceeds the model, no dim is below D, or there are too
            few seeds or `pca_texts`.

    Example:
        >>> result = evaluate_truncations(model, task, [192, 96], num_layers=1, seeds=2, show_progress_bar=False)
        >>> result.verdict()[["dim", "removed"]].to_dict("list")
        {'dim': [192, 96], 'removed': [50, 75]}
        >>> result.grid.truncations
        ['first', 'random-0', 'random-1', 'window-96', 'window-192', 'window-288']
    """
    full = Pipeline.of(model).full
    depth = full.num_layers
    if num_layers is not None:
        depth = within(num_layers, depth, "num_layers", least_depth(model))
    wanted = truncation_dims(full.dim) if dims is None else all_within(dims, full.dim, "dim")
    narrow = sorted({*wanted} - {full.dim}, reverse=True)
    if not narrow:
        raise UsageError(f"dims must contain a dim below the full {full.dim}; nothing is removed.")
    given = seeds if isinstance(seeds, Iterable) else range(positive_int(seeds, "seeds"))
    drawn = [positive_int(seed, "seed", least=0) for seed in given]
    if len({*drawn}) < max(2, len(drawn)):
        raise UsageError(f"seeds: give at least two, each once; got {drawn}.")
    quarters = dict.fromkeys(full.dim * n // 4 for n in (1, 2, 3))
    starts = [positive_int(start, "start", least=0) for start in (quarters if windows is None else windows)]
    if len({*starts}) < len(starts) or max(starts, default=0) >= full.dim:
        raise UsageError(f"windows: give each start once, and below {full.dim}; got {starts}.")
    chosen = chosen_tasks(tasks)
    encoding: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
    whole: list[Truncation] = [FIRST]
    if pca_texts is not None:
        whole.append(PCA.fit(model, pca_texts, Size(depth, full.dim), **encoding))
    # A permutation of all coordinates changes no score: subsets and windows only below D.
    permuted = [random_subset(seed, full.dim) for seed in drawn] + [window(start, full.dim) for start in starts]
    pairs = [*product(whole, (full.dim, *narrow)), *product(permuted, narrow)]
    variants = [Variant(Size(depth, dim), truncation=truncation) for truncation, dim in pairs]
    grid = score_variants(model, chosen, variants, cache=cache, n_jobs=n_jobs, **encoding)
    return TruncationResult(grid)
