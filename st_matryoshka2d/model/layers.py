"""Which layers each depth of a model keeps: a value that is read once and handed on. The heart of cutting; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from st_matryoshka2d.errors import UsageError, UsageTypeError
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.sizes import layered, positive_int

LayersByDepth: TypeAlias = Mapping[int, Sequence[int]]  # counted from 1, ascending
Choice: TypeAlias = "str | LayersByDepth"

FIRST, ENDS, SPREAD = "first", "ends", "spread"


@dataclass(frozen=True)
class Layers:
    """The layers that each depth of a model with `total` layers keeps: one of `RULES`, or those of each depth."""

    total: int
    by_depth: Choice = FIRST

    @classmethod
    def of(cls, config: Any, declared: Declaration | None = None) -> Layers:
        """Read those that a model declares; `ENDS` if nobody chose, trained or aligned layers for it."""
        return cls.declared(declared or Declaration.of(config), getattr(layered(config), "num_hidden_layers", 0))

    @classmethod
    def declared(cls, declared: Declaration, total: int) -> Layers:
        """Read those of a declaration by a model with `total` layers."""
        if declared.layers is not None:
            return cls(total, _read(declared.layers, total) or FIRST)
        shallower = any(0 < size.num_layers < total for size in declared.sizes)
        # a token table is no layer
        return cls(total, FIRST if shallower or declared.readouts not in (None, [0]) else ENDS)

    def chosen(self, choice: Choice) -> Layers:
        """Return the layers that a user chose; depths that a dict lacks keep the first ones."""
        if isinstance(choice, str) and choice in RULES:
            return Layers(self.total, choice)
        if not isinstance(choice, Mapping):
            kind = UsageError if isinstance(choice, str) else UsageTypeError
            raise kind(f"layers must be {_NAMED} or a dict such as {{3: [1, 5, 6]}}, got {choice!r}.")
        others = {depth: first(depth, self.total) for depth in range(1, self.total)}
        given = {depth: _checked(depth, numbers, self.total) for depth, numbers in choice.items()}
        return Layers(self.total, {**others, **given})

    @property
    def skips(self) -> bool:
        """Whether some depth keeps other layers than the first."""
        return self.by_depth != FIRST

    @property
    def named(self) -> str | list[list[int]]:
        """What a call has to pass as `layers` to keep these; if it is not one word for all depths, the list of each."""
        written = self.written()
        alike = (choice for choice in RULES if written == Layers(self.total, choice).written())
        return next(alike, list(written.values()))

    @property
    def told(self) -> str:
        """Say which layers the depths keep."""
        words = {
            FIRST: "the first ones",
            ENDS: "half of them from the start and half from the end",
            SPREAD: "evenly spread ones, with the last",
        }
        listed = "those in `matryoshka_layers` of its config"
        return f"A size with fewer layers keeps {words.get(self.named, listed) if isinstance(self.named, str) else listed}."

    def kept(self, num_layers: int) -> list[int]:
        """Return the layers of a depth, counted from 0."""
        if num_layers in (0, self.total) or self.by_depth == FIRST:
            return list(range(num_layers))
        if isinstance(self.by_depth, str):
            return [layer - 1 for layer in RULES[self.by_depth](num_layers, self.total)]
        if not self.tells(num_layers):
            raise UsageError(
                f"`matryoshka_layers` in the model's config does not say which {num_layers} layers to keep, only those of "
                f"{', '.join(map(str, self.by_depth))}. Pass them as `layers`, or align the model again."
            )
        return [layer - 1 for layer in self.by_depth[num_layers]]

    def tells(self, num_layers: int) -> bool:
        """Whether it is known which layers a depth keeps: of a cut, some may have left."""
        return isinstance(self.by_depth, str) or num_layers in self.by_depth

    def written(self) -> dict[str, list[int]]:
        """Return the layers of all depths as a config has them; empty if all keep the first."""
        if not self.skips:
            return {}
        depths = range(1, self.total) if isinstance(self.by_depth, str) else self.by_depth
        return {str(depth): [layer + 1 for layer in self.kept(depth)] for depth in depths}

    def within(self, num_layers: int) -> Layers:
        """Return the layers of the depths of a cut, by their places in it; of those that it has all layers of."""
        if num_layers == self.total or not self.skips:
            return Layers(num_layers, self.by_depth)
        kept, below = self.kept(num_layers), {}
        for depth in range(1, num_layers):
            if set(layers := self.kept(depth)) <= set(kept):
                below[depth] = [1 + kept.index(layer) for layer in layers]
        return Layers(num_layers, below)

    def smallest_depth_with(self, depths: Sequence[int]) -> int:
        """Return the smallest depth that has the layers of all given depths: the deepest of them, or the full one."""
        deepest = set(self.kept(max(depths)))
        return max(depths) if all(set(self.kept(depth)) <= deepest for depth in depths) else self.total

    def shared(self, num_layers: int) -> int:
        """Return how many layers of a depth follow from the start without a gap: one pass serves these at all depths."""
        return next((place for place, layer in enumerate(self.kept(num_layers)) if layer != place), num_layers)

    def passes(self) -> float:
        """Return how many passes through the whole model it takes to run it at every depth."""
        return 1 + sum(depth - self.shared(depth) for depth in range(1, self.total)) / self.total


def rechosen(layers: Layers, declaration: Declaration, choice: Choice, depths: Iterable[int]) -> tuple[Layers, Declaration]:
    """Choose other layers for a model; of these depths, none may have a readout that was fitted to others."""
    chosen = layers.chosen(choice)
    below = [depth for depth in depths if 0 < depth < layers.total]  # others leave no layer out
    moved = [depth for depth in below if not layers.tells(depth) or chosen.kept(depth) != layers.kept(depth)]
    if fitted := [depth for depth in moved if depth in (declaration.readouts or ())]:
        before, other = ([layer + 1 for layer in one.kept(fitted[0])] for one in (layers, chosen))
        raise UsageError(
            f"layers: at {fitted[0]} layers this aligned model keeps {before}, which its readout was fitted to, "
            f"not {other}. Leave `layers` out, or align the model with them."
        )
    declaration = replace(declaration, layers=chosen.written())
    if moved:  # they were trained with other layers
        sizes = [size for size in declaration.sizes if size.num_layers == layers.total]
        declaration = replace(declaration, sizes=sizes)
    return chosen, declaration


def first(num_layers: int, total: int) -> list[int]:
    """Return the layers of a depth, counted from 1: the first ones."""
    return list(range(1, num_layers + 1))


def ends(num_layers: int, total: int) -> list[int]:
    """Return half from the start and half from the end, the odd one at the end."""
    # the first block of some families has parts that the others lack, so it always stays
    last = (num_layers + 1) // 2 if num_layers > 1 else 0
    return [*range(1, num_layers - last + 1), *range(total - last + 1, total + 1)]


def spread(num_layers: int, total: int) -> list[int]:
    """Return evenly spread layers, the last one among them: 2, 4 and 6 of six."""
    return [place * total // num_layers for place in range(1, num_layers + 1)]


RULES = {FIRST: first, ENDS: ends, SPREAD: spread}
_NAMED = ", ".join(map(repr, RULES))


def depth_of_choice(layers: object, num_layers: int | None) -> int:
    """Return the depth that one choice of layers is for; refuse a list of another length, and a choice for no depth."""
    if isinstance(layers, str) and layers in RULES:
        if num_layers is None:
            raise UsageError(f"layers={layers!r} needs a number of layers: pass num_layers too.")
        return num_layers
    if isinstance(layers, (str, Mapping)) or not isinstance(layers, Sequence):
        raise UsageError(f"layers must be {_NAMED} or a list such as [1, 5, 6], got {layers!r}.")
    if num_layers not in (None, len(layers)):
        raise UsageError(f"layers lists {len(layers)} layers, {list(layers)}, but num_layers is {num_layers}.")
    return len(layers)


def of_depth(layers: str | Sequence[int], depth: int) -> Choice:
    """Return a choice of layers for one depth as a choice for several."""
    return layers if isinstance(layers, str) else {depth: layers}


def _read(written: Mapping[str, Any], total: int) -> dict[int, list[int]]:
    """Read the layers that a config lists; refuse a config that someone else may have broken."""
    try:
        return {int(depth): _checked(int(depth), numbers, total) for depth, numbers in written.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"`matryoshka_layers` in the model's config does not say which layers to keep: {error} Align the model again."
        ) from error


def _checked(depth: object, layers: Iterable[object], num_layers: int) -> list[int]:
    if positive_int(depth, "layers: the number of layers") >= num_layers:
        raise UsageError(f"layers has an entry for {depth} layers, but only 1 to {num_layers - 1} leave any out.")
    given = [positive_int(layer, f"layers of {depth}: a layer") for layer in layers]
    if max(given, default=0) > num_layers:
        raise UsageError(f"layers of {depth}: there is no layer {max(given)}, as the model has {num_layers}.")
    if len(set(given)) != depth or given != sorted(given):
        raise UsageError(f"layers: {depth} different layers in ascending order are needed, got {given}.")
    return given
