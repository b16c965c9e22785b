"""Sizes of a model and their validation. Pure Python: importing this does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from st_matryoshka2d.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from jaxtyping import Float
    from sentence_transformers import SentenceTransformer
    from torch import Tensor, nn

_NO_LAYERS = (
    "0 layers mean a token table. `fit_queries(model, documents)` gives a model one; `truncate`, `encode_sizes` and "
    "`evaluate` then take that size. Nothing else does: a table is neither trained nor aligned."
)


def positive_int(value: object, name: str, least: int = 1) -> int:
    """Check an integer of at least `least`; NumPy integers are accepted and converted."""
    # bool is a subclass of int, but `Size(True, 128)` is always a mistake.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageTypeError(f"{name} must be an integer of {least} or more, got {value!r} ({type(value).__name__}).")
    if value < least:
        raise UsageError(f"{name} must be {least} or more, got {value}.")
    return int(value)


def within(value: object, limit: int, name: str, least: int = 1) -> int:
    """Check a number of layers or dims against that of the model."""
    if name == "num_layers" and least and isinstance(value, Integral) and value == 0 and not isinstance(value, bool):
        raise UsageError(f"num_layers=0: {_NO_LAYERS}")
    number = positive_int(value, name, least)
    if number > limit:
        unit = "layers" if name == "num_layers" else "dimensions"
        raise UsageError(f"{name}={number}: the model has {limit} {unit}. Choose at most {limit}.")
    return number


def all_within(values: object, limit: int, name: str, least: int = 1) -> list[int]:
    """Check one or several numbers of layers or dims; refuse repeated ones."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [within(values, limit, name, least)]
    numbers = [within(value, limit, name, least) for value in values]
    if twice := {number for number in numbers if numbers.count(number) > 1}:
        raise UsageError(f"{name}: {', '.join(map(str, sorted(twice)))} is given more than once.")
    if not numbers:
        raise UsageError(f"{name} is empty; at least one number from 1 to {limit} is needed.")
    return numbers


@dataclass(frozen=True, order=True)
class Size:
    """A sub-model: `num_layers` transformer blocks and the first `dim` coordinates of the embedding.

    The blocks are those that the model was aligned or trained with, otherwise as many from the
    start as from the end. Without blocks, it is the token table that `fit_queries` fits.

    Args:
        num_layers: Number of transformer blocks, 0..N. The embedding layer does not count.
        dim: Number of leading coordinates of the pipeline's output, 1..D.

    Raises:
        TypeError: A value is not an integer (`True` is refused).
        ValueError: `num_layers` is below 0, or `dim` below 1.

    Example:
        >>> Size(6, 128)
        Size(num_layers=6, dim=128)
        >>> str(Size(6, 128)), Size.parse("6L-128d") == Size(6, 128)
        ('6L-128d', True)
        >>> Size(2, 256) < Size(6, 128)
        True
    """

    num_layers: int
    dim: int

    def __post_init__(self) -> None:
        for name, least in (("num_layers", 0), ("dim", 1)):
            # the class is frozen
            object.__setattr__(self, name, positive_int(getattr(self, name), name, least))

    def __str__(self) -> str:
        return f"{self.num_layers}L-{self.dim}d"

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse the output of `str(size)`.

        Args:
            text: For example `"6L-128d"`; case does not matter.

        Raises:
            ValueError: The text has another form.
        """
        match = re.fullmatch(r"(\d+)l-(\d+)d", text.strip().lower()) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f"A size must look like '6L-128d' (layers, then dimensions), got {text!r}.")
        return cls(int(match[1]), int(match[2]))


def as_size(given: object, name: str) -> Size:
    """Convert a `Size` or its text to a `Size`."""
    size = Size.parse(given) if isinstance(given, str) else given
    if not isinstance(size, Size):
        raise UsageTypeError(f"{name} must be a Size such as Size(6, 128) or text such as '6L-128d', got {given!r}.")
    return size


def resolve_size(size: object, num_layers: object, dim: object) -> tuple[int | None, int | None]:
    """Return layers and dims from a size, its text, or numbers; None means all, as in `"3L"`, which has all dims."""
    if isinstance(size, str) and num_layers is None and (alone := re.fullmatch(r"(\d+)l", size.strip().lower())):
        size, num_layers = None, int(alone[1])
    if size is None:
        depth = None if num_layers is None else positive_int(num_layers, "num_layers", least=0)
        return depth, None if dim is None else positive_int(dim, "dim")
    if isinstance(size, Integral):
        raise UsageTypeError(f"{size} may mean layers or dims: pass num_layers={size} or dim={size}.")
    whole = as_size(size, "size")
    if num_layers is not None or dim is not None:
        numbers = {name: value for name, value in (("num_layers", num_layers), ("dim", dim)) if value is not None}
        raise UsageError(f"Give a size or numbers, not both: got {whole} and {numbers}.")
    return whole.num_layers, whole.dim


def prefix(embeddings: Float[Tensor, "*batch full"], dim: int) -> Float[Tensor, "*batch dim"]:
    """Keep the first `dim` coordinates, as `SentenceTransformer(truncate_dim=dim)` does."""
    # Training, evaluation and saved cuts all use this, and none normalises again: that changes no
    # cosine, but dot products and distances. `encode(normalize_embeddings=True)` does it.
    if dim > embeddings.shape[-1]:
        width = embeddings.shape[-1]
        raise UsageError(f"dim={dim} is wider than the embeddings, which have {width} coordinates.")
    return embeddings[..., :dim]


def layered(config: Any) -> Any:
    """Return the config that counts the layers: that of the text model in a model of texts, images and sounds."""
    # such as EmbeddingGemma 2, whose config has one for each kind of input
    if hasattr(config, "num_hidden_layers") or getattr(config, "text_config", None) is None:
        return config
    return config.text_config


def full_size(model: Any) -> Size:
    """Return the full size of a model, `Size(N, D)`; a reranker has a dim for each score of a pair."""
    if not hasattr(model, "get_embedding_dimension") and not hasattr(model, "num_labels"):
        raise UsageTypeError(f"Expected a SentenceTransformer, got {type(model).__name__}.")
    num_layers = getattr(layered(model.config), "num_hidden_layers", None)
    if model.config is None and type(next(iter(model.children()), None)).__name__ == "StaticEmbedding":
        num_layers = 0
    if not isinstance(num_layers, int):
        raise UsageError(
            f"{type(model).__name__} has no known number of layers (no `num_hidden_layers` in its config), so it cannot be "
            "cut in depth. Use a model that starts with a Transformer module; to reduce only the dims, `truncate_dim`."
        )
    dim = model.get_embedding_dimension() if hasattr(model, "get_embedding_dimension") else model.num_labels
    if dim is None and hasattr(model, "max_active_dims"):  # one for each token, as it finds out when it first runs
        dim = model.config.vocab_size
    if dim is None:
        raise UsageError(f"{type(model).__name__}.get_embedding_dimension() is None, so the full dim is unknown.")
    return Size(num_layers, dim)


def megabytes(weights: Iterable[nn.Parameter], *, int8: bool = False) -> float:
    """Return what weights take in a checkpoint, in millions of bytes; `int8`: in a graph, matrices in 8 bits."""
    return sum(weight.numel() if int8 and weight.ndim > 1 else weight.nbytes for weight in weights) / 1e6


def sizes_ladder(model: SentenceTransformer) -> list[Size]:
    r"""Starbucks' ladder of sizes, from the smallest to the full model, for any depth and width.

    For N layers and D dimensions there are :math:`m = \min(6, N, \lfloor\log_2(D-1)\rfloor + 2)`
    sizes. Size j has :math:`\lceil Nj/m \rceil` layers, and its dim is a power of two; the last is
    the full size. Starbucks, section 3.1, lists the sizes for 12 x 768.

    Args:
        model: A `SentenceTransformer`.

    Returns:
        Sizes in ascending order.

    Example:
        >>> from types import SimpleNamespace
        >>> bert_base = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=12), get_embedding_dimension=lambda: 768)
        >>> print(*sizes_ladder(bert_base))
        2L-32d 4L-64d 6L-128d 8L-256d 10L-512d 12L-768d
    """
    return ladder_to(full_size(model))


def ladder_to(full: Size) -> list[Size]:
    """Return the ladder for a full size."""
    if full.dim == 1:
        return [full]
    exponent = (full.dim - 1).bit_length() - 1  # floor(log2(D - 1)), exact for every D
    rungs = min(6, full.num_layers, exponent + 2)
    lower = [Size(math.ceil(full.num_layers * j / rungs), 2 ** (exponent - (rungs - 1 - j))) for j in range(1, rungs)]
    return [*lower, full]


def mrl_dims(dim: int) -> list[int]:
    """Return the dims 8, 16, 32, ... below `dim` (2DMSE, section 3.2: base 8, ratio 2)."""
    return [2**exponent for exponent in range(3, max(dim - 1, 1).bit_length())]


def sizes_product(num_layers: Iterable[int], dims: Iterable[int]) -> list[Size]:
    """Return all pairs of layers and dims."""
    dims = list(dims)
    return [Size(layers, dim) for layers in num_layers for dim in dims]


def validate_sizes(sizes: Iterable[Size | str], full: Size, where: str = "sizes", least: int = 1) -> list[Size]:
    """Parse sizes; refuse sizes that exceed the model or have fewer layers than `least`, and repeated ones."""
    if isinstance(sizes, (str, Size)):
        sizes = [sizes]
    if not isinstance(sizes, Iterable):
        raise UsageTypeError(f"{where} must be a list of sizes such as [Size(6, 128)] or ['6L-128d'], got {sizes!r}.")
    checked: list[Size] = []
    for given in sizes:
        size = as_size(given, f"each of {where}")
        for asked, limit, what in ((size.num_layers, full.num_layers, "layers"), (size.dim, full.dim, "dimensions")):
            if asked > limit:
                raise UsageError(f"{where}: {size} has {asked} {what}, but the model has {limit}.")
        if size.num_layers < least:
            raise UsageError(f"{where}: {size}. {_NO_LAYERS}")
        if size in checked:
            raise UsageError(f"{where}: {size} is given more than once.")
        checked.append(size)
    if not checked:
        raise UsageError(f"{where} is empty; at least one Size is needed, for example Size({full.num_layers}, {full.dim}).")
    return checked
