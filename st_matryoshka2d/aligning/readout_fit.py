"""Fit readouts: ridge regression, one rotation for all depths, and a refinement by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.similarity import kl_divergence

_STRENGTHS = [10.0**exponent for exponent in range(-5, 1)]  # ridge strengths to try, in units of the mean variance
_MIXED = 5  # the first D / 5 directions are mixed at random
_BATCH = 512  # texts per step of the refinement
_DIMS_PER_STEP = 2  # small dims drawn for a step
_LEARNING_RATE = 1e-3
_TEMPERATURE = 0.05
_SMALL_ANCHOR = 0.4  # at the drawn dims: weight of the distance to the text's own full embedding
_ACROSS, _ANCHOR = 6.0, 8.0  # at all dims: weights of the divergence across depths, and of that distance
_DAMPING = 0.3  # exponent by which badly predicted coordinates are scaled down
_KIND: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}  # of sums, whatever the user's defaults


@dataclass(frozen=True)
class Affine:
    """The map x -> `weight` x + `bias`."""

    weight: Float[Tensor, "out dim"]
    bias: Float[Tensor, " out"]

    def __call__(self, rows: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts out"]:
        """Map rows."""
        return F.linear(rows, self.weight, self.bias)

    def then(self, matrix: Float[Tensor, "out out"]) -> Affine:
        """Multiply by a matrix from the left."""
        return Affine(matrix @ self.weight, matrix @ self.bias)

    def after(self, linear: nn.Linear) -> Affine:
        """Compose: apply `linear` first, then this map."""
        weight, bias = linear.weight.detach().float().cpu(), linear.bias.detach().float().cpu()
        return Affine(self.weight @ weight, self.weight @ bias + self.bias)

    def times(self, factor: float) -> Affine:
        """Scale by a factor."""
        return Affine(factor * self.weight, factor * self.bias)


class Sums:
    """Running sums of pairs of vectors, x of a depth and z of the whole model, from which a regression is computed."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.x, self.z = (torch.zeros(dim, **_KIND) for _ in range(2))
        self.xx, self.xz = (torch.zeros(dim, dim, **_KIND) for _ in range(2))

    def add(self, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> None:
        """Add pairs."""
        # Float32 is precise enough for the products of a chunk, and twice as fast as float64.
        self.count += len(x)
        self.x += x.sum(0, dtype=torch.float64)
        self.z += z.sum(0, dtype=torch.float64)
        self.xx += (x.T @ x).double()
        self.xz += (x.T @ z).double()

    def __add__(self, other: Sums) -> Sums:
        both = Sums(len(self.x))
        for name in vars(both):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Means of x and of z."""
        return self.x / self.count, self.z / self.count

    @property
    def covariance(self) -> Tensor:
        """Covariance of x."""
        return self.about(self.means)[0]

    def about(self, centre: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean products x x^T and x z^T of the deviations from a centre."""
        (x, z), (mean_x, mean_z) = centre, self.means
        xx = self.xx / self.count - torch.outer(x, mean_x) - torch.outer(mean_x - x, x)
        xz = self.xz / self.count - torch.outer(x, mean_z) - torch.outer(mean_x - x, z)
        return xx, xz


def fit_readout(fitted: Sums, held_out: Sums) -> Affine:
    """Ridge regression in closed form; choose the strength on held-out texts, then fit on all texts."""
    both = fitted + held_out
    strength = _best_strength(fitted, held_out) if held_out.count and fitted.count > 1 else _STRENGTHS[-2]
    covariance, with_z = both.about(both.means)
    values, basis = torch.linalg.eigh(covariance)
    slope = basis @ ((basis.T @ with_z) * _factors(values, strength).unsqueeze(1))
    x, z = both.means
    return Affine(slope.T.float().contiguous(), (z - x @ slope).float())


def _best_strength(fitted: Sums, held_out: Sums) -> float:
    """Return the strength with the least error on held-out texts, from one decomposition for all strengths."""
    covariance, with_z = fitted.about(fitted.means)
    values, basis = torch.linalg.eigh(covariance)
    turned = basis.T @ with_z
    unseen, unseen_with_z = held_out.about(fitted.means)
    # With slopes basis @ diag(f) @ turned, the error is a constant + f Q f - 2 q f.
    square = (basis.T @ unseen @ basis) * (turned @ turned.T)
    line = (turned * (basis.T @ unseen_with_z)).sum(1)
    factors = {strength: _factors(values, strength) for strength in _STRENGTHS}
    errors = {strength: float(f @ square @ f - 2 * line @ f) for strength, f in factors.items()}
    return min(errors, key=errors.__getitem__)


def _factors(variances: Tensor, strength: float) -> Tensor:
    """Return the factors of a ridge regression along each direction."""
    variances = variances.clamp(min=0)  # rounding may make a variance of 0 negative
    return 1 / (variances + strength * (float(variances.mean()) or 1.0))


def shared_rotation(spread: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim dim"]:
    """Return the rotation for all depths, after which the first coordinates carry most."""
    # Directions are sorted by how much of them shallow layers predict. The first fifth is then mixed at random, because in
    # sorted order the first few coordinates encode the topics of the fitted texts, and are poor for other texts.
    _, vectors = torch.linalg.eigh(spread)
    ordered = vectors.flip(1).T
    ordered = ordered * ordered.sum(1, keepdim=True).sign()  # fix the arbitrary signs of eigenvectors
    mixed = max(1, len(spread) // _MIXED)
    draw = torch.Generator().manual_seed(0)
    mix, _ = torch.linalg.qr(torch.randn(mixed, mixed, generator=draw, dtype=spread.dtype, device=draw.device))
    return torch.cat([mix @ ordered[:mixed], ordered[mixed:]])


def damped(readout: Affine, spread: Float[Tensor, "dim dim"], of_whole: Float[Tensor, " dim"]) -> Affine:
    """Scale down the coordinates that a depth predicts badly, because they add noise."""
    predicted = ((readout.weight.double() @ spread) * readout.weight.double()).sum(1) / of_whole.clamp(min=1e-12)
    known = predicted[: max(1, len(predicted) // _MIXED)].mean()
    factors = (predicted / known.clamp(min=1e-12)).clamp(1e-6, 1) ** _DAMPING
    return readout.then(factors.float().diag())


def refined(
    readouts: Mapping[int, Affine],
    states: Mapping[int, Float[Tensor, "texts dim"]],
    whole: Float[Tensor, "texts dim"],
    small: Mapping[int, Sequence[int]],
    steps: int,
    device: torch.device | str,
    show_progress_bar: bool,
) -> dict[int, Affine]:
    """Refine each readout by gradient descent, also for the given small dims."""
    made = {}
    with tqdm(total=steps * len(readouts), desc="Readouts", disable=not show_progress_bar) as bar:
        for depth, start in readouts.items():
            weight, bias = (nn.Parameter(values.to(device, copy=True)) for values in (start.weight, start.bias))
            optimizer = torch.optim.Adam([weight, bias], lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
            draw = torch.Generator().manual_seed(0)
            shuffled = partial(torch.randperm, generator=draw, device=draw.device)
            dims = small.get(depth, [])
            for _ in range(steps):
                batch = shuffled(len(whole))[:_BATCH]
                drawn = [dims[place] for place in shuffled(len(dims))[:_DIMS_PER_STEP]]
                embedded = F.linear(states[depth][batch].to(device), weight, bias)
                loss = _distance(embedded, whole[batch].to(device), drawn)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
            made[depth] = Affine(weight.detach().to(start.weight.device), bias.detach().to(start.bias.device))
    return made


def _distance(embedded: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts dim"], small: Sequence[int]) -> Tensor:
    # KL(s; t) + 6 KL(c; t) + 8 (1 - cos(a, z)): a is the embedding by the readout, z by the whole model; s, t and c are the
    # similarities of different texts by a, by z, and between a and z. With small dims, add the mean over the drawn d of
    # KL(s^d; t) + 1 - rho(s^d, t) + 0.4 (1 - cos(a^d, z^d)), with rho the correlation.
    full, large = F.normalize(whole, dim=1), F.normalize(embedded, dim=1)
    target = _to_others(full, full)
    within, across = (kl_divergence(_to_others(large, other), target, _TEMPERATURE) for other in (large, full))
    distance = within + _ACROSS * across + _ANCHOR * (1 - (large * full).sum(1).mean())
    parts = []
    for dim in small:
        short = F.normalize(prefix(embedded, dim), dim=1)
        scores = _to_others(short, short)
        to_own = 1 - (short * F.normalize(prefix(whole, dim), dim=1)).sum(1).mean()
        parts.append(kl_divergence(scores, target, _TEMPERATURE) + _uncorrelated(scores, target) + _SMALL_ANCHOR * to_own)
    return distance + torch.stack(parts).mean() if parts else distance


def _to_others(rows: Float[Tensor, "texts dim"], columns: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Compute the similarities of each text to the others, from unit vectors."""
    texts = len(rows)
    return (rows @ columns.T).flatten()[1:].view(texts - 1, texts + 1)[:, :-1].reshape(texts, texts - 1)


def _uncorrelated(scores: Float[Tensor, "texts others"], target: Float[Tensor, "texts others"]) -> Tensor:
    """Return 1 minus the correlation of each text's similarities with the target, averaged over texts."""
    rows, goal = (values - values.mean(1, keepdim=True) for values in (scores, target))
    return 1 - F.cosine_similarity(rows, goal, dim=1).mean()
