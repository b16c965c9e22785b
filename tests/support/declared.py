"""Write what a model declares, as training, alignment or another program would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.sizes import Size


def declare(config: Any, **entries: Any) -> None:
    """Replace entries, by the names that `Declaration` has for them."""
    replace(Declaration.of(config), **entries).write(config)


def declare_training(config: Any, sizes: Iterable[Size], loss: str) -> None:
    """Add trained sizes."""
    Declaration.of(config).trained(sizes, loss).write(config)


def declare_layers(config: Any, chosen: Mapping[int, Sequence[int]]) -> None:
    """Set the layers of depths, without a check."""
    declare(config, layers={str(depth): list(layers) for depth, layers in chosen.items()})
