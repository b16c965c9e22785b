"""How readouts are fitted: ridge regression, one rotation for all depths, and a refinement for small dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from st_matryoshka2d.dims import prefix
from st_matryoshka2d.losses.alignment import kl_divergence

__all__ = ["Affine", "Sums", "damped", "fit_readout", "refined", "shared_rotation"]

_STRENGTHS = [10.0**exponent for exponent in range(-5, 1)]  # of the ridge, in units of the mean variance
_MIXED = 5  # the first D / 5 directions are mixed
_TEXTS_AT_ONCE = 512  # compared with each other in a step
_DIMS_AT_ONCE = 2  # of the small dims, drawn for a step
_LEARNING_RATE = 1e-3
_TEMPERATURE = 0.05
_TO_ITSELF = 0.4  # weight of a text's distance to itself in the whole model, at the drawn dims
_ACROSS, _ANCHOR = 6.0, 8.0  # at all dims: of the divergence across depths, and of that distance
_DAMPING = 0.3  # of the coordinates that a depth predicts badly


@dataclass(frozen=True)
class Affine:
    """x goes to `weight` x + `bias`."""

    weight: Float[Tensor, "out dim"]
    bias: Float[Tensor, " out"]

    def __call__(self, rows: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts out"]:
        """All rows."""
        return F.linear(rows, self.weight, self.bias)

    def then(self, matrix: Float[Tensor, "out out"]) -> Affine:
        """This map, and a matrix after it."""
        return Affine(matrix @ self.weight, matrix @ self.bias)

    def after(self, linear: nn.Linear) -> Affine:
        """This map behind another one."""
        weight, bias = linear.weight.detach().float().cpu(), linear.bias.detach().float().cpu()
        return Affine(self.weight @ weight, self.weight @ bias + self.bias)

    def times(self, factor: float) -> Affine:
        """This map, longer or shorter."""
        return Affine(factor * self.weight, factor * self.bias)


class Sums:
    """Running sums of pairs of vectors, x of a depth and z of the whole model: all that a regression needs of any number."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.x, self.z = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
        self.xx, self.xz = torch.zeros(dim, dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> None:
        """Count some pairs in."""
        # Products in float32: their rounding is far below the noise, and float64 would take twice as long.
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
        """Of x and of z."""
        return self.x / self.count, self.z / self.count

    @property
    def covariance(self) -> Tensor:
        """Of x."""
        return self.about(self.means)[0]

    def about(self, centre: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean products of x with x, and of x with z, as deviations from a centre of both."""
        (x, z), (mean_x, mean_z) = centre, self.means
        xx = self.xx / self.count - torch.outer(x, mean_x) - torch.outer(mean_x - x, x)
        xz = self.xz / self.count - torch.outer(x, mean_z) - torch.outer(mean_x - x, z)
        return xx, xz


def fit_readout(fitted: Sums, held_out: Sums) -> Affine:
    """Ridge regression in closed form, of the strength that predicts held-out texts best; fitted on both."""
    strength = _best_strength(fitted, held_out) if held_out.count and fitted.count > 1 else _STRENGTHS[-2]
    both = fitted + held_out
    covariance, with_z = both.about(both.means)
    values, basis = torch.linalg.eigh(covariance)
    slope = basis @ ((basis.T @ with_z) * _factors(values, strength).unsqueeze(1))
    x, z = both.means
    return Affine(slope.T.float().contiguous(), (z - x @ slope).float())


def _best_strength(fitted: Sums, held_out: Sums) -> float:
    """The strength whose map errs least on held-out texts; one decomposition serves all of them."""
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
    """By what a ridge divides along each direction; rounding may have made a variance of 0 negative."""
    variances = variances.clamp(min=0)
    return 1 / (variances + strength * (float(variances.mean()) or 1.0))


def shared_rotation(spread: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim dim"]:
    """An orthogonal matrix for all depths, after which few coordinates are worth most."""
    # The directions come in the order of what shallow layers can predict. The first fifth is then mixed at random: left in
    # order, the first few coordinates hold what divides the fitted texts into topics, and are poor for other texts.
    _, vectors = torch.linalg.eigh(spread)
    ordered = vectors.flip(1).T
    ordered = ordered * ordered.sum(1, keepdim=True).sign()  # a direction has no sign of its own
    mixed = max(1, len(spread) // _MIXED)
    draw = torch.Generator().manual_seed(0)
    mix, _ = torch.linalg.qr(torch.randn(mixed, mixed, generator=draw, dtype=spread.dtype))
    return torch.cat([mix @ ordered[:mixed], ordered[mixed:]])


def damped(readout: Affine, spread: Float[Tensor, "dim dim"], of_whole: Float[Tensor, " dim"]) -> Affine:
    """A readout with smaller coordinates where its depth predicts badly: those add noise to all dims."""
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
    """Improve each readout by gradient descent on how it relates texts, also at the small dims that are given."""
    made = {}
    with tqdm(total=steps * len(readouts), desc="Readouts", disable=not show_progress_bar) as bar:
        for depth, readout in readouts.items():
            made[depth] = _descend(readout, states[depth], whole, small.get(depth, []), steps, device, bar)
    return made


def _descend(
    start: Affine,
    state: Tensor,
    whole: Tensor,
    small: Sequence[int],
    steps: int,
    device: torch.device | str,
    bar: tqdm[Any],
) -> Affine:
    weight, bias = (nn.Parameter(values.to(device, copy=True)) for values in (start.weight, start.bias))
    optimizer = torch.optim.Adam([weight, bias], lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, max(steps, 1))
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randperm(len(whole), generator=draw)[:_TEXTS_AT_ONCE]
        drawn = [small[place] for place in torch.randperm(len(small), generator=draw)[:_DIMS_AT_ONCE]]
        embedded = F.linear(state[batch].to(device), weight, bias)
        loss = _distance(embedded, whole[batch].to(device), drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.update()
    return Affine(weight.detach().to(start.weight.device), bias.detach().to(start.bias.device))


def _distance(embedded: Float[Tensor, "texts dim"], whole: Float[Tensor, "texts dim"], small: Sequence[int]) -> Tensor:
    # KL(s; t) + 6 KL(c; t) + 8 (1 - cos(a, z)), with a the embedding by the readout and z by the whole model, s and t the
    # similarities of the texts to each other by a and by z, c those of a to z. With small dims, the mean over the drawn d of
    # KL(s^d; t) + 1 - rho(s^d, t) + 0.4 (1 - cos(a^d, z^d)) besides, rho the correlation.
    full, large = F.normalize(whole, dim=1), F.normalize(embedded, dim=1)
    target = _to_others(full, full)
    within, across = (kl_divergence(_to_others(large, other), target, _TEMPERATURE) for other in (large, full))
    distance = within + _ACROSS * across + _ANCHOR * (1 - (large * full).sum(1).mean())
    parts = []
    for dim in small:
        short = F.normalize(prefix(embedded, dim), dim=1)
        scores = _to_others(short, short)
        to_itself = 1 - (short * F.normalize(prefix(whole, dim), dim=1)).sum(1).mean()
        parts.append(kl_divergence(scores, target, _TEMPERATURE) + _uncorrelated(scores, target) + _TO_ITSELF * to_itself)
    return distance + torch.stack(parts).mean() if parts else distance


def _to_others(rows: Float[Tensor, "texts dim"], columns: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts others"]:
    """Similarities of each text to the others, as unit vectors."""
    texts = len(rows)
    return (rows @ columns.T).flatten()[1:].view(texts - 1, texts + 1)[:, :-1].reshape(texts, texts - 1)


def _uncorrelated(scores: Float[Tensor, "texts others"], target: Float[Tensor, "texts others"]) -> Tensor:
    """One less the correlation of what each text is compared to, mean over the texts."""
    rows, goal = (values - values.mean(1, keepdim=True) for values in (scores, target))
    return 1 - F.cosine_similarity(rows, goal, dim=1).mean()
