"""Give what a readout predicts the spread that search needs."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from st_matryoshka2d.aligning.ridge import Affine, Fitted

_MOST = 2.0  # times the true spread


def calibrated(fitted: Fitted, z: Float[Tensor, "held dim"]) -> Fitted:
    r"""Scale the deviations from the mean until, along the true ones, they are as large as these.

    .. math:: \hat z \leftarrow k \bar{\hat z} + s (\hat z - \bar{\hat z}), \quad
        s = \frac{\sum_i |z_i - \bar z|^2}{\sum_i (z_i - \bar z) \cdot (\hat z_i - \bar{\hat z})}, \quad
        k = |\bar z| / |\bar{\hat z}|

    over texts left out of the fit. A regression shrinks what it cannot predict towards the mean of all embeddings. Where
    that mean is large, it then ranks documents by itself, the same for every query.
    """
    mean, true_mean = fitted.predicted.mean(0), z.mean(0)
    found, true = fitted.predicted - mean, z - true_mean
    spread = float(true.norm() / found.norm()) if true.any() and found.any() else 1.0
    along = float((true * found).sum())
    factor = min(float(true.square().sum()) / along, _MOST * spread) if along > 0 else spread
    length = float(true_mean.norm() / mean.norm()) if mean.any() and true_mean.any() else 1.0
    moved = (length - factor) * mean
    readout = Affine(factor * fitted.readout.weight, factor * fitted.readout.bias + moved)
    return Fitted(readout, fitted.held, factor * fitted.predicted + moved)
