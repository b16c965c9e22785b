"""Affine maps from one depth to the whole model: ridge regression in closed form, towards the plain cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# to try, in units of the mean variance
_STRENGTHS = [10.0 ** (exponent / 2) for exponent in range(-10, 9)]
_ENOUGH = 0.9  # share of the best strength's gain, for which the strongest is taken
_FOLDS = 4  # parts of few texts that are left out in turn
MANY = 2000  # of more texts, one part of a tenth is enough
_MOST = 2.0  # times the true spread, to which predictions are calibrated
_KIND: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}  # whatever the user's defaults


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


@dataclass(frozen=True)
class Fitted:
    """The map of a depth, and what it does to texts that were left out of a fit.

    Attributes:
        readout: The map, fitted on all texts, or of many on nine tenths.
        held: Places of the texts that were left out in turn.
        predicted: These texts, each mapped by a readout that was fitted on others; of many texts by
            `readout` itself.
    """

    readout: Affine
    held: Int[Tensor, " held"]
    predicted: Float[Tensor, "held dim"]


def left_out(count: int) -> list[Int[Tensor, " part"]]:
    """Return the parts of the texts that are left out in turn: of many texts a tenth, of few each quarter."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    if count > MANY:
        return [shuffled[: count // 10].sort().values]
    return [part.sort().values for part in shuffled.tensor_split(_FOLDS) if len(part)]


def fit_readout(x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> Fitted:
    r"""Predict z from x, towards the plain cut, with the strength that is best on texts left out.

    .. math::

        A, b = \operatorname{argmin} \sum_i |z_i - A x_i - b|^2 + \lambda |A - c I|^2, \quad
        c^2 = |z - \bar z|^2 / |x - \bar x|^2

    With few texts, lambda is large and A near the plain cut, which only gets the mean and the
    spread of z. With many, it is the largest that gains nine tenths of what the best does: what a
    smaller one adds holds of texts like these alone, and worsens others. Then the deviations from
    the mean are scaled to their spread in z: a regression shrinks what it cannot predict, and where
    all embeddings share a large mean, that mean would then rank texts by itself.
    """
    parts = left_out(len(x))
    paths = [_Path(*_without(x, z, part)) for part in parts]
    errors = torch.stack([path.errors(x[part], z[part]) for path, part in zip(paths, parts, strict=True)])
    strength = _strongest(-errors.sum(0))
    held = torch.cat(parts)
    by_part = [path.deviations(x[part], strength) for path, part in zip(paths, parts, strict=True)]
    means = torch.cat([path.z.expand(len(part), -1) for path, part in zip(paths, parts, strict=True)])
    true, found = float((z[held] - means).norm()), float(torch.cat(by_part).norm())
    spread = true / found if true and found else 1.0
    # Of many texts a tenth adds nothing to the fit, and left out of it, it can tell what the
    # refined map does.
    every = _Path(x, z) if len(parts) > 1 else paths[0]
    slope = spread * every.slope(strength)
    predicted = means + spread * torch.cat(by_part)
    return Fitted(Affine(slope.T.contiguous(), every.z - every.x @ slope), held, predicted)


def _strongest(gains: Float[Tensor, " strengths"]) -> float:
    """Return the strongest regression that gains enough over the plain cut, on texts left out."""
    best = gains.max()
    enough = torch.minimum(_ENOUGH * best, best)  # where all lose, the one that loses least
    strongest: float = _STRENGTHS[int((gains >= enough).nonzero()[-1])]
    return strongest


def _without(
    x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"], part: Int[Tensor, " part"]
) -> Iterator[Float[Tensor, "rest dim"]]:
    seen = torch.ones(len(x), dtype=torch.bool)
    seen[part] = len(part) == len(x)  # a single text cannot be left out
    return (rows[seen] for rows in (x, z))


class _Path:
    """Regressions of all strengths, from one decomposition."""

    def __init__(self, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> None:
        self.x, mean = x.mean(0), z.mean(0)
        # Float32 is precise enough for the products, and twice as fast as float64.
        x, z = x - self.x, z - mean
        self.scale = float(z.norm() / x.norm() if x.any() else mean.norm() / self.x.norm().clamp(min=1e-12))
        # The mean of few texts is mostly chance, so it only moves the plain cut as far as it is not
        # (James and Stein).
        moved = mean - self.scale * self.x
        chance = (z - self.scale * x).square().sum() / ((len(x) - 1) * len(x)) if len(x) > 1 else moved.square().sum()
        self.z = self.scale * self.x + moved * float((1 - chance / moved.square().sum().clamp(min=1e-12)).clamp(min=0))
        covariance, with_z = (x.T @ x).double() / len(x), (x.T @ z).double() / len(x)
        variances, self.basis = torch.linalg.eigh(covariance)
        self.variances = variances.clamp(min=0)  # rounding may make a variance of 0 negative
        self.turned = self.basis.T @ (with_z - self.scale * covariance)

    def slope(self, strength: float) -> Float[Tensor, "dim dim"]:
        """The transposed matrix of a strength."""
        plain = self.scale * torch.eye(len(self.x), **_KIND)
        slope: Tensor = (self.basis * self._factors(strength)) @ self.turned + plain
        return slope.float()

    def deviations(self, x: Float[Tensor, "texts dim"], strength: float) -> Float[Tensor, "texts dim"]:
        """Predict the deviations of z from its mean."""
        return (x - self.x) @ self.slope(strength)

    def errors(self, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts dim"]) -> Float[Tensor, " strengths"]:
        """The squared error of each strength on other texts, up to a constant."""
        # With slopes basis @ diag(f) @ turned + scale * I, the error is a constant + f Q f - 2 q f.
        along, missing = (x - self.x) @ self.basis.float(), (z - self.z) - self.scale * (x - self.x)
        square = (along.T @ along).double() * (self.turned @ self.turned.T)
        line = (self.turned * (along.T @ missing).double()).sum(1)
        factors = [self._factors(strength) for strength in _STRENGTHS]
        return torch.stack([f @ square @ f - 2 * line @ f for f in factors])

    def _factors(self, strength: float) -> Tensor:
        shifted: Tensor = self.variances + strength * (float(self.variances.mean()) or 1.0)
        return shifted.reciprocal()


def calibrated(fitted: Fitted, z: Float[Tensor, "held dim"]) -> Fitted:
    r"""Scale the deviations from the mean until, along the true ones, they are as large as these.

    .. math:: \hat z \leftarrow k \bar{\hat z} + s (\hat z - \bar{\hat z}), \quad
        s = \frac{\sum_i |z_i - \bar z|^2}{\sum_i (z_i - \bar z) \cdot (\hat z_i - \bar{\hat z})},
        \quad k = |\bar z| / |\bar{\hat z}|

    over texts left out of the fit. A regression shrinks what it cannot predict towards the mean of
    all embeddings. Where that mean is large, it then ranks documents by itself, the same for every
    query.
    """
    mean, true_mean = fitted.predicted.mean(0), z.mean(0)
    deviations, true = fitted.predicted - mean, z - true_mean
    spread = float(true.norm() / deviations.norm()) if true.any() and deviations.any() else 1.0
    along = float((true * deviations).sum())
    factor = min(float(true.square().sum()) / along, _MOST * spread) if along > 0 else spread
    length = float(true_mean.norm() / mean.norm()) if mean.any() and true_mean.any() else 1.0
    moved = (length - factor) * mean
    readout = Affine(factor * fitted.readout.weight, factor * fitted.readout.bias + moved)
    return Fitted(readout, fitted.held, factor * fitted.predicted + moved)


def less_shifted(fitted: Fitted, z: Float[Tensor, "held dim"]) -> Fitted:
    r"""Shift less where the shift is small beside what the map is off: texts of another kind have another mean.

    .. math:: b \leftarrow \frac{|b|^2}{|b|^2 + \frac{1}{n} \sum_i |z_i - \hat z_i|^2} \, b

    over texts left out of the fit. They are all of one kind, and their mean alone tells the shift, so it counts as
    one draw (James and Stein). At few layers it is large, and all texts have it: the first layers have a mean that
    the last ones lack. At many it is what the texts of the fit have in common, and worsens similarities of others.
    """
    bias, off = fitted.readout.bias, (z - fitted.predicted).square().sum(1).mean()
    length = bias.square().sum()
    kept = length / (length + off).clamp(min=1e-12)
    readout = Affine(fitted.readout.weight, kept * bias)
    return Fitted(readout, fitted.held, fitted.predicted - (1 - kept) * bias)
