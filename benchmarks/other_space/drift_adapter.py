"""The kinds of maps of Drift-Adapter (https://arxiv.org/abs/2509.23471): Procrustes, low-rank affine, a residual MLP.

Written from the paper, for inputs and targets of length 1: a low-rank affine map U V x + t of rank
64, whose least squares have a closed form, and S (x + W2 GELU(W1 x)) with 256 hidden units, trained
for the squared error with AdamW until texts left out no longer improve. S is the scale per
coordinate that the paper calls DSM.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

__all__ = ["affine", "low_rank", "mlp", "procrustes"]

_RANK, _UNITS, _BATCH, _RATE, _DECAY, _EPOCHS, _PATIENCE = 64, 256, 256, 1e-3, 0.01, 30, 2


class Procrustes(nn.Module):
    """z = R x."""

    def __init__(self, x: Tensor, z: Tensor) -> None:
        super().__init__()
        left, _, right = torch.linalg.svd(x.T @ z, full_matrices=False)
        self.rotation = left @ right

    def forward(self, x: Tensor) -> Tensor:
        """Rotate unit vectors."""
        turned: Tensor = normalize(x) @ self.rotation
        return turned


class Centred(nn.Module):
    """z = R (x - mean) + mean of z."""

    def __init__(self, x: Tensor, z: Tensor) -> None:
        super().__init__()
        self.mean_x, self.mean_z = x.mean(0), z.mean(0)
        left, _, right = torch.linalg.svd((x - self.mean_x).T @ (z - self.mean_z), full_matrices=False)
        self.map = left @ right * ((z - self.mean_z).norm() / (x - self.mean_x).norm())

    def forward(self, x: Tensor) -> Tensor:
        """Rotate the deviations from the mean."""
        turned: Tensor = (normalize(x) - self.mean_x) @ self.map + self.mean_z
        return turned


class Affine(nn.Module):
    """z = M x + b by least squares, of a rank."""

    def __init__(self, x: Tensor, z: Tensor, rank: int | None = None) -> None:
        super().__init__()
        rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
        ridge = 1e-6 * len(x) * torch.eye(rows.shape[1], dtype=torch.float64)
        found = torch.linalg.solve(rows.T @ rows + ridge, rows.T @ z.double()).float()
        mean, weight = x.mean(0), found[:-1]
        # the least squares of a lower rank keep the first principal components of what is predicted
        if rank is not None:
            _, _, components = torch.linalg.svd((x - mean) @ weight, full_matrices=False)
            weight = weight @ components[:rank].T @ components[:rank]
        self.map = torch.cat([weight, (z.mean(0) - mean @ weight)[None]])

    def forward(self, x: Tensor) -> Tensor:
        """Map unit vectors."""
        return normalize(x) @ self.map[:-1] + self.map[-1]


class MLP(nn.Module):
    """z = S (x + W2 GELU(W1 x)); if the widths differ, the residual is a linear map."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.residual = nn.Identity() if dim == out else nn.Linear(dim, out, bias=False)
        self.inner = nn.Sequential(nn.Linear(dim, _UNITS), nn.GELU(), nn.Linear(_UNITS, out))
        self.scale = nn.Parameter(torch.ones(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map unit vectors."""
        x = normalize(x)
        mapped: Tensor = self.scale * (self.residual(x) + self.inner(x))
        return mapped


def procrustes(x: Tensor, z: Tensor, centred: bool) -> nn.Module:
    """Fit a rotation, of the embeddings as they are or of their deviations from the mean."""
    return Centred(normalize(x), z) if centred else Procrustes(normalize(x), z)


def affine(x: Tensor, z: Tensor) -> nn.Module:
    """Fit an affine map by least squares."""
    return Affine(normalize(x), z)


def low_rank(x: Tensor, z: Tensor) -> nn.Module:
    """Fit an affine map of rank 64."""
    return Affine(normalize(x), z, _RANK)


def mlp(x: Tensor, z: Tensor, rotated: bool) -> nn.Module:
    """Train a residual MLP; `rotated`, on what Procrustes makes of the embeddings: unlike the paper, a good start."""
    if not rotated:
        return _trained(MLP(x.shape[1], z.shape[1]), x, z)
    start = procrustes(x, z, centred=True)
    return nn.Sequential(start, _trained(MLP(z.shape[1], z.shape[1]), start(x), z))


def _trained(model: nn.Module, x: Tensor, z: Tensor) -> nn.Module:
    """Train for the squared error; return the best epoch on a tenth of the texts."""
    draw = torch.Generator().manual_seed(0)
    held, seen = torch.randperm(len(x), generator=draw).tensor_split([len(x) // 10])
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
    best, kept, since = math.inf, copy.deepcopy(model.state_dict()), 0
    for _ in range(_EPOCHS):
        for batch in seen[torch.randperm(len(seen), generator=draw)].split(_BATCH):
            loss = (model(x[batch]) - z[batch]).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = float((model(x[held]) - z[held]).square().sum(1).mean())
        since = 0 if error < best else since + 1
        if error < best:
            best, kept = error, copy.deepcopy(model.state_dict())
        if since == _PATIENCE:
            break
    model.load_state_dict(kept)
    return model
