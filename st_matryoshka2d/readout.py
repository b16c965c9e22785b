"""The readout: one affine map for each depth, into the space of the whole model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers.base.modules import Dense
from torch import nn

from st_matryoshka2d.readout_files import StoredReadouts, read_readouts, readout_file, write_readouts

__all__ = [
    "AT_DEPTH",
    "Readout",
    "declare_readouts",
    "expect_readouts",
    "require_readouts",
]

AT_DEPTH = "num_layers"  # by this name the features say how many layers made the token embeddings; without it, all did


class Readout(Dense):
    r"""A `Dense` that knows one affine map for each depth, and applies that of the depth that the features come from.

    .. math:: z = M_n h_n + b_n

    For the whole model, n = N, it is nothing but its `linear`. Checkpoints call it `Dense`, so that plain
    sentence-transformers loads them at the full depth; the maps of the other depths lie beside its weights, each in a file
    of its own.

    Args:
        num_layers: N, the depth that `linear` is for.
        linear: M_N, b_N.
        shallower: M_n, b_n by depth.
    """

    linear: nn.Linear
    shallower: nn.ModuleDict

    def __init__(self, num_layers: int, linear: nn.Linear, shallower: Mapping[int, nn.Linear]) -> None:
        with torch.device("meta"):  # what `Dense` draws would be replaced at once
            super().__init__(linear.in_features, linear.out_features, activation_function=nn.Identity())
        self.num_layers = num_layers
        self.linear = linear
        self.shallower = nn.ModuleDict({str(depth): shallower[depth] for depth in sorted(shallower)})
        self._told: set[int] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unmade, (), dict(vars(self))

    @property
    def depths(self) -> list[int]:
        """Depths below N that have a map."""
        return [int(depth) for depth in self.shallower]

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Apply the map of the depth that the features name."""
        readout = self.at(features.get(AT_DEPTH, self.num_layers))
        features[self.module_output_name] = readout(features[self.module_input_name])
        return features

    def at(self, num_layers: int) -> nn.Linear:
        """The map of a depth; that of the whole model, with a warning, where none was fitted."""
        if num_layers == self.num_layers:
            return self.linear
        if str(num_layers) in self.shallower:
            return cast("nn.Linear", self.shallower[str(num_layers)])
        if num_layers not in self._told:
            self._told.add(num_layers)
            warnings.warn(
                f"No readout was fitted for {num_layers} layers, only for {[*self.depths, self.num_layers]}: embeddings of "
                f"{num_layers} layers are not in the space of the others. Align the model again: that fits all depths.",
                stacklevel=2,
            )
        return self.linear

    def cut(self, num_layers: int) -> Readout:
        """The readout of the model cut to a depth, with the maps of the depths below; weights are shared."""
        below = {depth: self.at(depth) for depth in self.depths if depth < num_layers}
        made = copy.copy(self)
        made._modules = {**self._modules, "linear": self.at(num_layers)}
        made._modules["shallower"] = nn.ModuleDict({str(depth): linear for depth, linear in below.items()})
        made.num_layers = num_layers
        return made

    def plain(self) -> Dense:
        """The map of the whole model, as a module that needs nothing of this package; weights are shared."""
        made = Dense.__new__(Dense)
        kept = {name: value for name, value in vars(self).items() if name not in ("num_layers", "_told")}
        made.__dict__.update(kept, _modules={name: part for name, part in self._modules.items() if name != "shallower"})
        return made

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the whole model's map as `Dense` does, and each of the others into its file."""
        self.plain().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        folder = Path(output_path)
        for of_another in set(folder.glob(readout_file("*"))) - {folder / readout_file(depth) for depth in self.depths}:
            of_another.unlink()
        write_readouts(folder, self.linear, self.num_layers, {depth: self.at(depth) for depth in self.depths})

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Any:  # type: ignore[override]  # a Dense too
        """What `save` wrote into a folder; a plain `Dense` where it was one."""
        dense = Dense.load(model_name_or_path, subfolder=subfolder, **kwargs)
        files = list((Path(model_name_or_path) / subfolder).glob(readout_file("*")))
        return cls.around(dense, read_readouts(files, dense.linear)) if files else dense

    @classmethod
    def around(cls, dense: Dense, readouts: StoredReadouts) -> Readout:
        """The whole model's map with those of the other depths, as it is kept in memory."""
        like = dense.linear.weight
        shallower = {depth: linear.to(like.device, like.dtype) for depth, linear in readouts.by_depth.items()}
        return cls(readouts.num_layers, dense.linear, shallower)


# Under the name of the class that it extends a checkpoint loads everywhere: sentence-transformers writes it into
# modules.json, and trusts no other. The Trainer reads its own checkpoints with the classes of the model that it trains.
Readout.__module__, Readout.__name__, Readout.__qualname__ = Dense.__module__, Dense.__name__, Dense.__qualname__


def _unmade() -> Readout:
    """What a pickle fills: it could not find the class by its name."""
    return Readout.__new__(Readout)


def declare_readouts(config: Any, depths: Iterable[int]) -> None:
    """Write into a model's config for which depths there are readouts."""
    config.matryoshka_readouts = sorted(depths)


def expect_readouts(transformer: nn.Module, are_there: bool) -> None:
    """Note at a Transformer whether readouts follow: it sees no other module, and no file says so."""
    vars(transformer)["has_readouts"] = are_there


def require_readouts(model: nn.Module, config: Any, depths: Iterable[int]) -> None:
    """Refuse a model whose config declares readouts that are not there; warn where it cannot have them."""
    said = getattr(config, "matryoshka_readouts", None)
    below = sorted(depth for depth in depths if depth < getattr(config, "num_hidden_layers", 0))
    if said is None or not below or any(isinstance(module, Readout) for module in model.modules()):
        return
    if said:
        raise ValueError(
            f"This model is aligned, with readouts for {said} layers, but was loaded without them, as plain "
            "sentence-transformers does. Load it with `st_matryoshka2d.load(folder_or_hub_id)`."
        )
    warnings.warn(
        f"This model is a cut of an aligned one, and has a readout for its {config.num_hidden_layers} layers alone: "
        f"embeddings of {', '.join(map(str, below))} layers are not in the same space. Cut the whole model instead.",
        stacklevel=4,
    )
