"""What a model says about itself, in entries of its config. No other file names them; imports no torch.

They are plain entries of `config.json`, which every save and load keeps, with this package or
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from st_matryoshka2d.sizes import Size, sizes_product

ALIGN = "align"  # the loss of a model that was aligned

# Names of the number of layers in the config.json of BERT and most others, of DistilBERT, and of
# T5.
_DEPTHS = ("num_hidden_layers", "n_layers", "num_layers")
_LISTED = 64  # longer lists of sizes are written as layers by dims, plus the others
_DIGITS = 4  # of agreement

_KEYS = {
    "sizes": "matryoshka_sizes",
    "loss": "matryoshka_loss",
    "dims": "matryoshka_dimensions",  # this and the next are read by vLLM and other servers
    "is_matryoshka": "is_matryoshka",
    "layers": "matryoshka_layers",
    "readouts": "matryoshka_readouts",
    "agreement": "matryoshka_agreement",
    "into": "matryoshka_into",
    "origin": "matryoshka_cut",
    "vocabulary": "matryoshka_vocabulary",
    "healed": "matryoshka_healed",
}


@dataclass(frozen=True)
class Declaration:
    """What a model was trained, aligned and cut for; each step returns the declaration after it."""

    sizes: Sequence[Size] = ()  # trained or aligned, ascending
    loss: str | None = None  # the one that trained last; of a loss and `align`, both
    dims: Sequence[int] = ()
    is_matryoshka: bool = False  # trained for several dims, by this package or another
    # of depths that skip some, as written; empty where all keep the first; None if nobody chose
    layers: Mapping[str, Any] | None = None
    # depths below the full one that have a readout; none in a cut of an aligned model, which has
    # only its own; None of a model that was not aligned
    readouts: Sequence[int] | None = None
    agreement: Mapping[Size, float] = field(default_factory=dict)  # with the whole model, or `into`
    into: str | None = None  # the model into whose space this one was mapped
    origin: Mapping[str, Any] | None = None  # of a cut: its size, and what it was cut from
    # of a smaller vocabulary: its rows, the texts that it was made of, and what it costs
    vocabulary: Mapping[str, Any] | None = None
    # of a cut whose layers were refitted: the number of texts, and the mean cosine to the whole
    # model's embeddings of texts left out, before and after
    healed: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, config: Any) -> Declaration:
        """Read a config, or the content of a config.json; entries of other programs count as absent."""
        entries = entries_of(config)
        values = {name: entries.get(key) for name, key in _KEYS.items()}
        told = {name: value for name, value in values.items() if value is not None}
        loss, readouts = told.get("loss"), told.get("readouts")
        sizes = _sizes_in(told.get("sizes"))
        if readouts == [] and str(loss).endswith(ALIGN):
            sizes = [size for size in sizes if size.num_layers == written_depth(entries)]
        read = {"sizes": sizes, "agreement": agreement_in(told.get("agreement"))}
        records = {"vocabulary": _vocabulary_in(told.get("vocabulary")), "healed": _healed_in(told.get("healed"))}
        return cls(**{**told, **read, **records})

    def write(self, config: Any) -> None:
        """Write all into a model's config."""
        for name, key in _KEYS.items():
            value: Any = getattr(self, name)
            if name in ("readouts", "layers") and value is not None:
                setattr(config, key, value)  # an empty one is not the same as no entry
            elif value or (name == "sizes" and hasattr(config, key)):
                setattr(config, key, _WRITTEN.get(name, lambda entry: entry)(value))
            else:
                vars(config).pop(key, None)

    @property
    def agrees_with(self) -> str:
        """What the sizes were compared with."""
        return self.into.removeprefix("local/") if self.into else "the whole model"

    def trained(self, sizes: Iterable[Size], loss: str) -> Declaration:
        """Add trained sizes and their dims; agreement was measured with other weights."""
        sizes = {*self.sizes, *sizes}
        dims = sorted({*self.dims, *(size.dim for size in sizes)})
        return replace(self, sizes=sorted(sizes), loss=loss, dims=dims, is_matryoshka=True, agreement={}, healed=None)

    def aligned(
        self, sizes: Iterable[Size], readouts: Sequence[int], agreement: Mapping[Size, float], into: str | None = None
    ) -> Declaration:
        """Add readouts and what they keep, in place of those of an earlier alignment; that of a table is of other texts."""
        before = self
        if into is not None:  # nothing holds that was said about the model's own dims
            before = replace(self, loss=None, dims=(), into=into)
        trained_by = (before.loss or "").removesuffix(ALIGN).removesuffix(", ")
        if not trained_by:
            before = replace(before, sizes=())
        trained = before.trained(sizes, f"{trained_by}, {ALIGN}" if trained_by else ALIGN)
        return replace(trained, readouts=list(readouts), agreement=dict(agreement))

    def with_table(self, agreement: Mapping[Size, float]) -> Declaration:
        """Add a token table, the readout of depth 0."""
        of_table = {size: value for size, value in agreement.items() if not size.num_layers}
        readouts = sorted({0, *(self.readouts or ())})
        return replace(self, readouts=readouts, agreement={**agreement, **self.agreement, **of_table})

    def with_vocabulary(self, vocabulary: Mapping[str, Any]) -> Declaration:
        """Tell of a smaller vocabulary; of one that was smaller before, also what was cut first."""
        before = {name: self.vocabulary[name] for name in ("of", "model")} if self.vocabulary else {}
        return replace(self, vocabulary={**vocabulary, **before})

    def after_healing(self, healed: Mapping[str, Any]) -> Declaration:
        """Tell what healing gave back; agreement was measured with other weights."""
        return replace(self, healed=healed, agreement={})

    def cut(self, size: Size, full: Size, kept: Sequence[int], name: str | None) -> Declaration:
        """Reduce to a cut of a model called `name`, which keeps some of its layers, counted from 0."""
        sizes = [smaller for smaller in self.sizes if smaller.num_layers <= size.num_layers and smaller.dim <= size.dim]
        dims = [*(dim for dim in self.dims if dim < size.dim), size.dim]
        cut = replace(self, sizes=sizes, dims=dims, is_matryoshka=True)
        if size != full:
            cut = replace(cut, origin=self._origin(size, full, kept, name))
        if size.num_layers == full.num_layers:
            within = {smaller: value for smaller, value in self.agreement.items() if smaller.dim <= size.dim}
            return replace(cut, agreement=within)
        cut = replace(cut, healed=None)
        # A shallower cut has no readout but that of its own depth, as a `Dense`.
        cut = cut.of_depth(size.num_layers, size.dim)
        if size.num_layers not in (self.readouts or ()):
            return replace(cut, readouts=None, layers=self._layers_within(kept))
        if str(self.loss).endswith(ALIGN):
            cut = replace(cut, sizes=[smaller for smaller in sizes if smaller.num_layers == size.num_layers])
        return cut

    def of_depth(self, num_layers: int, dim: int | None = None) -> Declaration:
        """Reduce to what holds of one depth alone."""
        agreement = {
            size: value
            for size, value in self.agreement.items()
            if size.num_layers == num_layers and (dim is None or size.dim <= dim)
        }
        readouts: list[int] | None = None if self.readouts is None else []
        return replace(self, layers=None if self.layers else self.layers, readouts=readouts, agreement=agreement)

    def _layers_within(self, kept: Sequence[int]) -> Mapping[str, Any] | None:
        """Return the layers of the depths of a cut, by their places in it."""
        places = {layer + 1: place for place, layer in enumerate(kept, start=1)}
        below = {depth: layers for depth, layers in (self.layers or {}).items() if int(depth) < len(kept)}
        there = {depth: [places[layer] for layer in layers] for depth, layers in below.items() if {*layers} <= {*places}}
        # where nothing was trained, the choice was of this cut alone
        return there if self.layers == {} or (there and self.sizes) else None

    def _origin(self, size: Size, full: Size, kept: Sequence[int], name: str | None) -> dict[str, Any]:
        """Tell what a cut was cut from; of a cut of a cut, the model that was cut first."""
        origin = {**(self.origin or {"of": str(full), "model": name}), "size": str(size)}
        before = origin.get("layers")
        if before or list(kept) != list(range(len(kept))):
            before = before or range(1, full.num_layers + 1)
            origin["layers"] = [before[layer] for layer in kept]
        return origin


def is_ours(key: str) -> bool:
    """Whether an entry of a config is one of these, none of which the model itself reads."""
    return key in _KEYS.values()


def own_entries(config: Any) -> dict[str, Any]:
    """Return these entries alone, of a config or of any other mapping that has them."""
    return {key: value for key, value in entries_of(config).items() if is_ours(key)}


def entries_of(config: Any) -> Mapping[str, Any]:
    """Return the entries of a config, or of the content of a config.json."""
    if isinstance(config, Mapping):
        return config
    return vars(config) if config else {}


def written_depth(config: Mapping[str, Any]) -> Any:
    """Return the number of layers in the content of a config.json; None if it has none."""
    of_text = entries_of(config.get("text_config"))  # of a model of texts, images and sounds
    return next((entries[name] for entries in (config, of_text) for name in _DEPTHS if name in entries), None)


def _sizes_in(entry: Any) -> list[Size]:
    try:
        if isinstance(entry, dict):
            others = [Size.parse(text) for text in entry.get("others", [])]
            return sorted([*sizes_product(entry["num_layers"], entry["dims"]), *others])
        return sorted(Size.parse(text) for text in entry or [])
    except (KeyError, TypeError, ValueError):
        return []  # an entry of another program


def agreement_in(entry: Any) -> dict[Size, float]:
    """Read how sizes agree with the whole model; an entry of another program counts as absent."""
    try:
        measured = sorted((Size.parse(text), float(value)) for text, value in (entry or {}).items())
    except (AttributeError, OverflowError, TypeError, ValueError):
        return {}  # an entry of another program
    return dict(measured) if all(-1 <= value <= 1 for _, value in measured) else {}


def _vocabulary_in(entry: Any) -> dict[str, Any] | None:
    try:
        kept = {"rows": int(entry["rows"]), "of": int(entry["of"]), "model": str(entry["model"])}
        start, stop = map(int, entry["spare"])
        measured = {name: {str(key): float(value) for key, value in entry[name].items()} for name in ("exact", "cosine")}
        texts = {str(key): int(value) for key, value in entry["texts"].items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None  # an entry of another program
    return {**kept, "spare": [start, stop], "texts": texts, **measured}


def _healed_in(entry: Any) -> dict[str, Any] | None:
    try:
        return {"texts": int(entry["texts"]), "before": float(entry["before"]), "after": float(entry["after"])}
    except (KeyError, OverflowError, TypeError, ValueError):
        return None  # an entry of another program


def _written_sizes(sizes: Iterable[Size]) -> list[str] | dict[str, list[int] | list[str]]:
    every = sorted(sizes)
    layers = sorted({size.num_layers for size in every})
    dims = sorted({size.dim for size in every})
    dims = [dim for dim in dims if {Size(layer, dim) for layer in layers} <= set(every)]
    if len(every) <= _LISTED or not dims:
        return [str(size) for size in every]
    others = [str(size) for size in every if size.dim not in dims]
    return {"num_layers": layers, "dims": dims} | ({"others": others} if others else {})


def _written_agreement(agreement: Mapping[Size, float]) -> dict[str, float]:
    return {str(size): round(agreement[size], _DIGITS) for size in sorted(agreement)}


_WRITTEN: dict[str, Callable[[Any], Any]] = {"sizes": _written_sizes, "agreement": _written_agreement}
