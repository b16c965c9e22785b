"""The readout: an affine map for each depth into the space of the whole model, and the token table of depth 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d._hosts.torch import around, parts
from st_matryoshka2d.errors import UsageError, warn
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.readout_files import StoredReadouts, read_readouts, readout_file, write_readouts
from st_matryoshka2d.model.table import Table

AT_DEPTH = "num_layers"  # feature with the depth of the token embeddings; absent at the full depth


class Readout(Dense):
    r"""A `Dense` with an affine map for each depth; it applies the map of the depth of its input.

    .. math:: z = M_n h_n + b_n

    At the full depth N it equals a `Dense` with `linear`. Checkpoints name it `Dense`, so that
    plain sentence-transformers loads them at the full depth. The maps of the other depths,
    `shallower`, are in separate files in the same folder, and so is the table of depth 0, which has
    a row in that space for each token. A model that is not aligned has no other maps.
    """

    linear: nn.Linear
    shallower: nn.ModuleDict
    table: Table | None

    def __init__(
        self, num_layers: int, linear: nn.Linear, shallower: Mapping[int, nn.Linear], table: Table | None = None
    ) -> None:
        with torch.device("meta"):  # the initial weights of `Dense` are not used
            super().__init__(linear.in_features, linear.out_features, activation_function=nn.Identity())
        self.num_layers = num_layers
        self.linear = linear
        self.shallower = nn.ModuleDict({str(depth): shallower[depth] for depth in sorted(shallower)})
        # No loss trains it, and distributed training stops at weights that have no gradient.
        self.register_module("table", None if table is None else table.requires_grad_(False))
        self._warned: set[int] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unmade, (), dict(vars(self))

    @property
    def depths(self) -> list[int]:
        """Depths below N that have a map."""
        return [int(depth) for depth in self.shallower]

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Apply the map of the depth that is in the features."""
        readout = self.at(features.get(AT_DEPTH, self.num_layers))
        features[self.module_output_name] = readout(features[self.module_input_name])
        return features

    def at(self, num_layers: int) -> nn.Linear:
        """Return the map of a depth; if none was fitted, warn and return that of the whole model."""
        if num_layers == self.num_layers or not self.shallower:
            return self.linear
        if str(num_layers) in self.shallower:
            return cast("nn.Linear", self.shallower[str(num_layers)])
        if num_layers not in self._warned:
            self._warned.add(num_layers)
            warn(
                f"No readout was fitted for {num_layers} layers, only for {[*self.depths, self.num_layers]}, so embeddings "
                f"of {num_layers} layers are not in the space of the others. Align the model again to fit all depths."
            )
        return self.linear

    def cut(self, num_layers: int) -> Readout:
        """Cut to a depth and the maps of the depths below; weights are shared."""
        shallower = nn.ModuleDict({depth: linear for depth, linear in self.shallower.items() if int(depth) < num_layers})
        readout = around(self, {**parts(self), "linear": self.at(num_layers), "shallower": shallower})
        readout.num_layers = num_layers
        return readout

    def plain(self) -> Dense:
        """Convert the map of the full depth to a plain `Dense`, which does not need this package; weights are shared."""
        whole = around(self, {name: part for name, part in parts(self).items() if name not in ("shallower", "table")})
        dense = Dense.__new__(Dense)
        vars(dense).update({name: value for name, value in vars(whole).items() if name not in ("num_layers", "_warned")})
        return dense

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the map of the full depth as `Dense` does, and each other map and the table into its own file."""
        self.plain().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        stored = StoredReadouts(self.num_layers, {depth: self.at(depth) for depth in self.depths}, self.table)
        write_readouts(Path(output_path), self.linear, stored)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Any:  # type: ignore[override]  # a Dense too
        """Read what `save` wrote; return a plain `Dense` if there are no other maps."""
        dense = Dense.load(model_name_or_path, subfolder=subfolder, **kwargs)
        files = list((Path(model_name_or_path) / subfolder).glob(readout_file("*")))
        return cls.around(dense, read_readouts(files, dense.linear)) if files else dense

    @classmethod
    def around(cls, dense: Dense, readouts: StoredReadouts) -> Readout:
        """Combine the map of the full depth with those of the other depths and the table."""
        alike = dense.linear.weight
        shallower = {depth: linear.to(alike) for depth, linear in readouts.by_depth.items()}
        table = readouts.table and readouts.table.to(alike)
        return cls(readouts.num_layers, dense.linear, shallower, table)


# sentence-transformers writes the class name into modules.json, and only trusts its own classes, so
# this class uses the name of its base class. The Trainer reads its own checkpoints with the classes
# of the model that it trains.
Readout.__module__, Readout.__name__, Readout.__qualname__ = Dense.__module__, Dense.__name__, Dense.__qualname__


def _unmade() -> Readout:
    """Create an empty object for unpickling, which cannot find the class by its name."""
    return Readout.__new__(Readout)


def tell_of_readouts(model: nn.Module) -> None:
    """Tell each Transformer whether readouts follow, because it does not see the other modules."""
    are_there = any(isinstance(module, Readout) and module.depths for module in model.modules())
    for module in model.modules():
        if isinstance(module, Transformer):
            vars(module)["has_readouts"] = are_there


def own_weights(model: nn.Module) -> list[nn.Parameter]:
    """List the weights that a model needs at its full size: without the maps of other depths and the table."""
    readouts = [module for module in model.modules() if isinstance(module, Readout)]
    others = [part for readout in readouts for part in (readout.shallower, readout.table) if part is not None]
    left_out = {id(weight) for part in others for weight in part.parameters()}
    return [weight for weight in model.parameters() if id(weight) not in left_out]


def is_rotated(model: nn.Module) -> bool | None:
    """Whether alignment rotated the coordinates of the whole model; None of a model that is not aligned."""
    for module in model.modules():
        if isinstance(module, Readout) and module.shallower:
            whole = module.linear.weight
            return not torch.equal(whole, torch.eye(*whole.shape).to(whole))
    return None


def require_readouts(model: nn.Module, declaration: Declaration, num_layers: int, depths: Iterable[int]) -> None:
    """Refuse a model that declares readouts and lacks them; warn if it is a cut, which cannot have them."""
    declared = declaration.readouts
    below = sorted(depth for depth in depths if depth < num_layers)
    if declared == [0] and 0 not in below:
        return  # it has a table, and was not aligned
    if declared is None or not below or any(isinstance(module, Readout) for module in model.modules()):
        return
    if declared:
        raise UsageError(
            f"This model has readouts for {declared} layers, but they were not loaded, because plain "
            "sentence-transformers ignores them. Load it with `st_matryoshka2d.load(folder_or_hub_id)`."
        )
    warn(
        f"This model was cut from an aligned one and only has the readout of its {num_layers} layers, so "
        f"embeddings of {', '.join(map(str, below))} layers are not in the same space. Cut the whole model instead."
    )


def is_table(model: object) -> bool:
    """Whether a model is a token table alone, such as the cut of depth 0."""
    return isinstance(model, SentenceTransformer) and isinstance(next(model.children()), StaticEmbedding)


def token_table(model: nn.Module) -> StaticEmbedding | None:
    """Return the table of a model, or None."""
    if is_table(model):
        return next(module for module in model.modules() if isinstance(module, StaticEmbedding))
    tables = (module.table for module in model.modules() if isinstance(module, Readout))
    return next((table for table in tables if table is not None), None)


def least_depth(model: nn.Module) -> int:
    """Return the smallest depth of a model: 0 with a table, otherwise 1."""
    return 1 if token_table(model) is None else 0


def require_table(model: nn.Module) -> StaticEmbedding:
    """Return the table of a model; refuse one without."""
    table = token_table(model)
    if table is None:
        raise UsageError(
            "This model has no token table, which 0 layers mean. `fit_queries` or the command `fit-queries` gives "
            "it one; a saved one is only read by `st_matryoshka2d.load`."
        )
    return table
