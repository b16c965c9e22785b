"""What tells the classes of models of sentence-transformers apart. No other file asks which class a model is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.sizes import Size

# A public function returns a model of the class that it was given.
Model = TypeVar("Model", SentenceTransformer, CrossEncoder, SparseEncoder, MultiVectorEncoder)


@dataclass(frozen=True)
class Kind:
    """A class of models."""

    cls: type[BaseModel]
    # arguments of the constructor that are attributes too, beside those that all classes have
    settings: Sequence[str]
    output: str  # the feature that a cut and the whole model are compared by
    # whether the network may end in a head, such as a classifier, which stays at every depth
    has_head: bool = False
    reads_pairs: bool = False  # (query, document), not texts
    no_dims: str = ""  # why no number of dims can be chosen; empty if one can

    def run(self, model: Any, texts: Sequence[Any], **settings: Any) -> Any:
        """Embed texts, or score pairs."""
        return (model.predict if self.reads_pairs else model.encode)(texts, **settings)

    def told(self, size: Size) -> str:
        """Write a size; without its dims if they say nothing."""
        return f"{size.num_layers}L" if self.no_dims else str(size)

    def require_dims(self, dim: object, full: Size) -> None:
        """Refuse a number of dims, but all, of a model that has none to choose from."""
        if dim not in (None, full.dim) and self.no_dims:
            raise UsageError(f"dim={dim}: {self.no_dims} Leave dim out, and pass num_layers alone.")

    def declared(self, declaration: Declaration) -> Declaration:
        """Say nothing of dims, which servers of embeddings read, if there are none to choose from."""
        return replace(declaration, dims=(), is_matryoshka=False) if self.no_dims else declaration


_KINDS = (
    Kind(SentenceTransformer, ("similarity_fn_name",), "sentence_embedding"),
    Kind(
        CrossEncoder,
        ("activation_fn", "keep_in_fp32_modules"),
        "scores",
        has_head=True,
        reads_pairs=True,
        no_dims="a CrossEncoder returns scores, which have no dims to leave out.",
    ),
    Kind(
        SparseEncoder,
        ("similarity_fn_name", "max_active_dims"),
        "sentence_embedding",
        has_head=True,
        no_dims="the dims of a SparseEncoder are tokens or features in no order; its `max_active_dims` keeps the largest.",
    ),
    Kind(
        MultiVectorEncoder,
        ("similarity_fn_name",),
        "token_embeddings",
        no_dims="a MultiVectorEncoder has no truncate_dim, and normalises the embedding of each token at its end.",
    ),
)


def kind_of(model: BaseModel) -> Kind:
    """Return the kind of a model."""
    return next(kind for kind in _KINDS if isinstance(model, kind.cls))


def kind_named(model_type: str | None) -> Kind:
    """Return the kind that a checkpoint names; an unknown one is that of sentence-transformers' first class."""
    return next((kind for kind in _KINDS if kind.cls.model_type == model_type), _KINDS[0])


def copied_settings(model: BaseModel) -> dict[str, Any]:
    """Return the arguments with which a model of the same class behaves like this one."""
    return {name: getattr(model, name) for name in kind_of(model).settings}
