"""Fit the maps of a model into the space of another model, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from st_matryoshka2d.aligning.agreement import agreement_into
from st_matryoshka2d.aligning.own_space import Fit
from st_matryoshka2d.aligning.ridge import Affine, Fitted, calibrated, left_out
from st_matryoshka2d.aligning.sample import Gathered
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.model.readout_files import linear_of
from st_matryoshka2d.sizes import Size

if TYPE_CHECKING:
    from jaxtyping import Float

# To try, from the strongest on, in units of the mean variance of the inputs.
_STRENGTHS = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_UNITS, _TEXTS_PER_UNIT = 4096, 4  # of the hidden layer: at most, and for how many texts each
_SHIFT = 0.5  # of these units, in standard deviations of the inputs
_CHUNK = 4096  # texts whose features are in memory at once
_FEW = 1000  # with fewer texts, less than two thirds of the search scores are kept
_CHANCE = 0.1  # an agreement that embeddings of other texts may have
_ROUNDING = 0.01  # of lengths in half precision
_KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults


def fit_other(route: Gathered, z: Float[Tensor, "texts out"], total: int, hide_progress_bar: bool | None) -> Fit:
    """Fit all depths to the other embeddings of the same texts."""
    told = []
    if total < _FEW:
        told = [
            f"{total:,} texts are too few to align a model with another one well: with 1,000, "
            "about two thirds of the search scores are kept. Pass some 10,000, those of the index "
            "and texts like the queries."
        ]
    with torch.device("cpu"):  # whatever the user's default
        hidden = Hidden(route.whole, min(_UNITS, max(1, len(z) // _TEXTS_PER_UNIT)))
        fitted = {}
        with progress("Fitting maps", route.num_layers, "depths", hide_progress_bar) as bar:
            for depth in range(1, route.num_layers + 1):
                fitted[depth] = fit_into(route.at(depth), z, hidden)
                bar.update()
        agreement = agreement_into(fitted, z)
        unit = bool(((z.norm(dim=1) - 1).abs() < _ROUNDING).all())
    if agreement[Size(route.num_layers, z.shape[1])] < _CHANCE:
        told.append("The embeddings hardly relate to the texts that were left out. Are they of these texts, in their order?")
    readouts = {depth: by_depth.readout for depth, by_depth in fitted.items()}
    return Fit({"": readouts}, agreement, told, hidden.linear, unit)


class Hidden:
    r"""The features of a text: its embedding, in two halves, and random units.

    .. math:: f(x) = \mathrm{relu}(V x + v), \quad V = [I; -I; W]

    The first two blocks contain x itself, as relu(x - m) - relu(m - x) = x - m, so a map of the
    features can be any linear one.
    """

    def __init__(self, x: Float[Tensor, "texts dim"], units: int) -> None:
        self.units, dim = units, x.shape[1]
        draw = torch.Generator().manual_seed(0)
        # All random units together have the variance of the two halves.
        random = torch.randn(units, dim, generator=draw, **_KIND) * math.sqrt(2 / units)
        shift = torch.randn(units, generator=draw, **_KIND) * math.sqrt(2 * dim / units)
        shift *= _SHIFT * x.std(0).square().mean().sqrt()
        eye = torch.eye(dim, **_KIND)
        weight = torch.cat([eye, -eye, random])
        shifts = torch.cat([torch.zeros(2 * dim, **_KIND), shift])
        self.linear = linear_of(weight, shifts - weight @ x.mean(0)).requires_grad_(False)

    def __call__(self, x: Float[Tensor, "texts dim"]) -> Float[Tensor, "texts features"]:
        """Compute the features."""
        return torch.relu(self.linear(x))

    def of_linear(self, weight: Float[Tensor, "out dim"]) -> Float[Tensor, "out features"]:
        """Write a linear map of x, up to a constant, as one of the features."""
        return torch.cat([weight, -weight, weight.new_zeros(len(weight), self.units)], 1)


def fit_into(x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Fitted:
    r"""Predict z from features f of x, with the strength that is best on texts left out.

    .. math:: \min_{B, b} \sum_i |z_i - c R x_i - B f(x_i) - b|^2 + \lambda |B|^2

    with R the rotation that brings x nearest to z (a projection, if one has more dims), and c its
    best scale. With few texts, lambda is large and little remains but the rotation. Then the
    deviations from the mean get back the spread that a regression takes from them: see
    `calibrated`.
    """
    parts = left_out(len(x))
    held = torch.cat(parts)
    moments = [Moments.of(x[part], z[part], hidden) for part in parts]
    rest = torch.ones(len(x), dtype=torch.bool)
    rest[held] = False
    whole = sum(moments, start=Moments.of(x[rest], z[rest], hidden))
    regressions = [_Regression(whole - of_part, hidden) for of_part in moments]
    best, strength, predicted = torch.inf, _STRENGTHS[0], z[held]
    for tried in _STRENGTHS:
        folds = zip(regressions, parts, strict=True)
        guess = torch.cat([fold.map(tried)(hidden(x[part])) for fold, part in folds])
        if (error := float((guess - z[held]).square().sum())) >= best:
            break
        best, strength, predicted = error, tried, guess
    # Of what was fitted, most is found: so fit all texts, which may be the documents of the index.
    return calibrated(Fitted(_Regression(whole, hidden).map(strength), held, predicted), z[held])


class _Regression:
    """Maps of all strengths, from the moments over the texts."""

    def __init__(self, moments: Moments, hidden: Hidden) -> None:
        n = moments.count
        self.mean_f, self.mean_z, mean_x = moments.f / n, moments.z / n, moments.x / n
        self.variance = float((moments.xx / n - mean_x.square().sum()) / len(mean_x))
        x_z = moments.xz / n - torch.outer(mean_x, self.mean_z)
        left, values, right = torch.linalg.svd(x_z, full_matrices=False)
        scale = float(values.sum()) / (self.variance * len(mean_x) or 1.0)
        self.rotation = hidden.of_linear(scale * (left @ right).T)
        self.f_f = moments.ff / n - torch.outer(self.mean_f, self.mean_f)
        self.f_z = moments.fz / n - torch.outer(self.mean_f, self.mean_z) - self.f_f @ self.rotation.T

    def map(self, strength: float) -> Affine:
        """Return the map of a strength, from features."""
        shift = strength * (self.variance or 1.0)
        root = torch.linalg.cholesky(self.f_f + shift * torch.eye(len(self.f_f)).to(self.f_f))
        weight = self.rotation + torch.cholesky_solve(self.f_z, root).T
        return Affine(weight.float(), (self.mean_z - weight @ self.mean_f).float())


@dataclass(frozen=True)
class Moments:
    """Moments over texts with embeddings x, features f and other embeddings z, in float64."""

    count: Float[Tensor, ""]
    x: Float[Tensor, " dim"]
    f: Float[Tensor, " features"]
    z: Float[Tensor, " out"]
    xx: Float[Tensor, ""]  # squares
    xz: Float[Tensor, "dim out"]
    ff: Float[Tensor, "features features"]
    fz: Float[Tensor, "features out"]

    @classmethod
    def of(cls, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Moments:
        """Sum over texts."""
        chunks = zip(x.split(_CHUNK), z.split(_CHUNK), strict=True)
        return sum((cls._of(*rows, hidden) for rows in chunks), start=cls._of(x[:0], z[:0], hidden))

    @classmethod
    def _of(cls, x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Moments:
        f, count = hidden(x), torch.tensor(float(len(x)))
        # Float32 is precise enough for the products of a chunk, and twice as fast as float64.
        parts = (count, x.sum(0), f.sum(0), z.sum(0), x.square().sum(), x.T @ z, f.T @ f, f.T @ z)
        return cls(*(part.double() for part in parts))

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(left + right for left, right in self._beside(other)))

    def __sub__(self, other: Moments) -> Moments:
        return Moments(*(left - right for left, right in self._beside(other)))

    def _beside(self, other: Moments) -> list[tuple[Tensor, Tensor]]:
        return [(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)]
