"""What a call may choose to score: sizes, layers and sizes of documents, as far as the model and the tasks allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.sts import AbsTaskSTS

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.evaluation.tasks import parts_of
from st_matryoshka2d.model.layers import Choice, of_depth
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import Size, all_within, mrl_dims, sizes_product, validate_sizes

# Tasks with two sides: a query and a document, or the first and the second text of a pair.
_COMPARING = (AbsTaskRetrieval, AbsTaskSTS, AbsTaskPairClassification)


def sizes_to_score(
    num_layers: int | Iterable[int] | None,
    dims: int | Iterable[int] | None,
    sizes: Iterable[Size | str] | None,
    full: Size,
    least: int,
    choice: object,
) -> list[Size]:
    """Return the sizes, or all pairs of layers and dims; refuse both together, and what exceeds the model."""
    if sizes is None:
        if num_layers is None and isinstance(choice, Sequence) and not isinstance(choice, str):
            num_layers = len(choice)
        layers = range(least, full.num_layers + 1) if num_layers is None else num_layers
        widths = [*mrl_dims(full.dim), full.dim] if dims is None else dims
        depths = all_within(layers, full.num_layers, "num_layers", least)
        return sizes_product(depths, all_within(widths, full.dim, "dims"))
    if num_layers is None and dims is None:
        return validate_sizes(sizes, full, least=least)
    raise UsageError("Give sizes, or num_layers and dims (all their pairs are scored); both were given.")


def keeping(pipeline: Pipeline, layers: Choice | Sequence[int] | None, sizes: Iterable[Size]) -> Pipeline:
    """Return the pipeline with the layers that were chosen for all depths, or for one."""
    if layers is None:
        return pipeline
    choice = of_depth(layers, len(layers)) if isinstance(layers, Sequence) else layers
    return pipeline.keeping(choice, sorted({size.num_layers for size in sizes}))


def require_none(**sizes: object) -> None:
    """Refuse depths for an asymmetric model, which has its own."""
    if given := [name for name, value in sizes.items() if value is not None]:
        raise UsageError(
            f"The depths of an asymmetric model are fixed, so {', '.join(given)} cannot be chosen; give dims alone. To "
            "compare depths, score the aligned model that it was made of."
        )


def require_search(tasks: list[AbsTask]) -> None:
    """Refuse tasks on which an asymmetric model would embed all texts as documents."""
    for part in (part for task in tasks for part in parts_of(task)):
        if not isinstance(part, AbsTaskRetrieval):
            raise UsageError(
                f"An asymmetric model is scored on tasks with queries and documents; {part.metadata.name} is of the type "
                f'{part.metadata.type}. Score one side on it: load(folder, route="document").'
            )


def require_whole_documents(tasks: list[AbsTask], sides: Sequence[Size | None], full: Size) -> None:
    """Refuse what embeddings of one corpus by all layers do not serve."""
    parts = [part for task in tasks for part in parts_of(task)]
    whole = all(side is not None and side.num_layers == full.num_layers for side in sides)
    if len(parts) > 1 or not isinstance(parts[0], AbsTaskRetrieval) or not whole:
        raise UsageError(f"embeddings are those of one retrieval task by all layers. Give one, and documents='{full}'.")


def document_sizes(
    documents: Size | str | Iterable[Size | str] | None,
    full: Size,
    least: int,
    tasks: list[AbsTask],
    sizes: list[Size],
    all_dims: bool,
) -> Sequence[Size | None]:
    """Validate the document sizes; None stands for the size of the query."""
    if documents is None:
        return [None]
    chosen = validate_sizes([documents] if isinstance(documents, Size | str) else documents, full, least=least)
    for part in (part for task in tasks for part in parts_of(task)):
        if not isinstance(part, _COMPARING):
            raise UsageError(
                f"documents={', '.join(map(str, chosen))} needs tasks that compare two texts (retrieval, reranking, STS, "
                f"pair classification); {part.metadata.name} is of the type {part.metadata.type}. Score it without."
            )
    widest, narrowest = max(side.dim for side in chosen), min(size.dim for size in sizes)
    # Of the default dims, those that are too wide are left out.
    unpaired = [] if all_dims else [size for size in sizes if size.dim > widest]
    if unpaired := [*unpaired, *(side for side in chosen if side.dim < narrowest)]:
        raise UsageError(
            f"{min(unpaired)} has no partner: queries can have at most as many dims as the documents. "
            f"Query sizes: {', '.join(map(str, sizes))}; document sizes: {', '.join(map(str, chosen))}."
        )
    return chosen
