"""Fit maps of a model into the space of another model, in closed form."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from st_matryoshka2d.aligning.calibration import calibrated
from st_matryoshka2d.aligning.hidden import Hidden
from st_matryoshka2d.aligning.ridge import Affine, Fitted, left_out
from st_matryoshka2d.aligning.sums import Sums

# To try, from the strongest on, in units of the mean variance of the inputs.
_STRENGTHS = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


def fit_into(x: Float[Tensor, "texts dim"], z: Float[Tensor, "texts out"], hidden: Hidden) -> Fitted:
    r"""Predict z from features f of x: a rotation and a correction, with the strength that is best on texts left out.

    .. math:: \min_{B, b} \sum_i |z_i - c R x_i - B f(x_i) - b|^2 + \lambda |B|^2

    with R the rotation that brings x nearest to z (a projection, if one has more dims), and c its best scale. With few
    texts, lambda is large and little remains but the rotation. Then the deviations from the mean get back the spread that a
    regression takes from them: see `calibrated`.
    """
    parts = left_out(len(x))
    held = torch.cat(parts)
    sums = [Sums.of(x[part], z[part], hidden) for part in parts]
    rest = torch.ones(len(x), dtype=torch.bool)
    rest[held] = False
    whole = sum(sums, start=Sums.of(x[rest], z[rest], hidden))
    regressions = [_Regression(whole - each, hidden) for each in sums]
    best, strength, predicted = torch.inf, _STRENGTHS[0], z[held]
    for tried in _STRENGTHS:
        found = torch.cat([each.map(tried)(hidden(x[part])) for each, part in zip(regressions, parts, strict=True)])
        if (error := float((found - z[held]).square().sum())) >= best:
            break
        best, strength, predicted = error, tried, found
    # Of what was fitted, most is found: so fit all texts, which may be the documents of the index.
    return calibrated(Fitted(_Regression(whole, hidden).map(strength), held, predicted), z[held])


class _Regression:
    """Maps of all strengths, from the sums over the texts."""

    def __init__(self, sums: Sums, hidden: Hidden) -> None:
        n = sums.count
        self.mean_f, self.mean_z, mean_x = sums.f / n, sums.z / n, sums.x / n
        self.variance = float((sums.xx / n - mean_x.square().sum()) / len(mean_x))
        x_z = sums.xz / n - torch.outer(mean_x, self.mean_z)
        left, values, right = torch.linalg.svd(x_z, full_matrices=False)
        scale = float(values.sum()) / (self.variance * len(mean_x) or 1.0)
        self.rotation = hidden.of_linear(scale * (left @ right).T)
        self.f_f = sums.ff / n - torch.outer(self.mean_f, self.mean_f)
        self.f_z = sums.fz / n - torch.outer(self.mean_f, self.mean_z) - self.f_f @ self.rotation.T

    def map(self, strength: float) -> Affine:
        """Return the map of a strength, from features."""
        shift = strength * (self.variance or 1.0)
        root = torch.linalg.cholesky(self.f_f + torch.diag(self.f_f.new_full((len(self.f_f),), shift)))
        weight = self.rotation + torch.cholesky_solve(self.f_z, root).T
        return Affine(weight.float(), (self.mean_z - weight @ self.mean_f).float())
