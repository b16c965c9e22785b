"""Cut a model to a size and a vocabulary; the result is a plain model of the same class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from st_matryoshka2d.cutting.cut import cut_of
from st_matryoshka2d.cutting.untrained import warn_if_untrained
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.identity import name_apart
from st_matryoshka2d.model.kind import Model, kind_of
from st_matryoshka2d.model.layers import depth_of_choice
from st_matryoshka2d.sizes import Size, full_size, resolve_size
from st_matryoshka2d.vocabulary.watch import watch
from st_matryoshka2d.vocabulary.with_vocabulary import with_vocabulary


def truncate(
    model: Model,
    size: Size | str | None = None,
    *,
    num_layers: int | None = None,
    dim: int | None = None,
    layers: str | Sequence[int] | None = None,
    vocabulary: Iterable[str] | Mapping[str, Iterable[str]] | None = None,
    max_tokens: int | None = None,
) -> Model:
    """Cut a model to a size, and to the vocabulary of texts.

    The cut is a plain model of the same class: once saved, it loads anywhere without this package.
    The full model does not change, but both share their weights, so training one trains the other;
    for an independent cut, use `copy.deepcopy(cut)` or `load`. In mteb the cut has its own name,
    such as `org/name-3L-64d`.

    `dim` sets the pipeline's `truncate_dim`: `encode` returns the first coordinates of the full
    embeddings, not normalised again. `forward` returns all of them, so a plain loss trains all
    dims. To train the first 64, use `MultiSizeLoss(cut, loss, ["3L-64d"])`.

    `vocabulary` keeps the rows of the tokens that these texts have, of others that look like them,
    and of all that any text is made of, such as single characters. A text that has no other token
    has the same embedding as by the whole vocabulary, bit for bit, and an index stays valid; other
    words are split into more tokens. Those rows are a copy.

    Args:
        model: Any `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`
            that starts with a `Transformer`, or with a `Router` over several of the same depth. Of
            an `asymmetric` model or a token table, only the dims can
            be cut.
        size: `Size(3, 64)` or `"3L-64d"`, in place of numbers; `"3L"` for all dims.
        num_layers: Transformer layers to keep, 1..N; None for all. 0 of a model that `fit_queries`
            gave a token table: the cut is that table, a `StaticEmbedding`, and has no prompts,
            because its rows contain what they do.
        dim: Dimensions to keep, 1..D; None for all. Only a `SentenceTransformer` has some to choose from.
        layers: Which layers to keep: `"first"`; `"ends"`, half of them from the start and half from
            the end; `"spread"`, evenly spread ones with the last, such as 2, 4 and 6; or a list,
            counted from 1, such as `[1, 5, 6]`. None for those that the model was aligned or
            trained with, otherwise `"ends"`, which scores far better than `"first"` if nothing was,
            and runs as fast. A model that another package trained for its first layers does not say
            so: pass `"first"`. For a reranker, `"spread"` may be far better.
        vocabulary: Texts like those that will be embedded, ten thousand or more of each language: a
            list, a column or a generator, or a dict of languages with their texts, which count
            alike and are measured each. A tenth of them tells what the cut costs, before its
            vocabulary is made of all: the model card and `cut.config.matryoshka_vocabulary` have
            the share of these texts that were exact, and the cosine of the others with themselves.
        max_tokens: Tokens to keep in all, the most frequent ones; None for all that the texts have
            and as many that look like them.

    Raises:
        TypeError: `model` is none of these classes, or a number is not an integer.
        ValueError: No size is given, or both a size and numbers; a number is out of range, the text
            is not a size, the model has no token table for 0 layers, the architecture cannot be cut
            exactly, or `layers` are not as many as `num_layers`, or others than an aligned model
            has readouts for; there are no texts, the tokenizer cannot be cut exactly, or
            `max_tokens` is less than what always stays.

    Warns:
        DataWarning: The model lists its trained sizes, and this is not one of them; or nothing says
            that it was aligned or trained for fewer layers, or for less than a fifth of its dims.
            Fewer than eight in ten of the texts that were left out are exact. Later, once: an
            embedded text has many tokens that the cut has no word for, as in another language.

    Example:
        >>> small = truncate(model, "3L-64d")  # or Size(3, 64), or num_layers=3, dim=64
        >>> small.encode(["a text", "another"]).shape
        (2, 64)
        >>> small.save_pretrained("small")

        It has the first layer and the last two, as nothing was aligned or trained:

        >>> small.config.matryoshka_cut["layers"]
        [1, 5, 6]

        It has the words of these texts:

        >>> german = [f"Der {thing} steht auf dem Tisch" for thing in ("Topf", "Teller", "Krug")]
        >>> small = truncate(model, "6L-384d", vocabulary={"de": german}, max_tokens=5000)
        >>> small[0].model.get_input_embeddings().num_embeddings <= 5000
        True
    """
    depth, width = resolve_size(size, num_layers, dim)
    if layers is not None:
        depth = depth_of_choice(layers, depth)
    if vocabulary is None and max_tokens is not None:
        raise UsageError("max_tokens needs texts to choose the tokens by: pass vocabulary too.")
    if depth is None and width is None and vocabulary is None:
        raise UsageError("There is nothing to cut. Pass a size, num_layers, dim or vocabulary.")
    cut, declared = cut_of(model, depth, width, layers)
    what, size_of_cut, full, kind = [], full_size(cut), full_size(model), kind_of(model)
    if size_of_cut != full:
        what.append(kind.told(size_of_cut))
    if vocabulary is not None:
        cut, rows = with_vocabulary(cut, vocabulary, max_tokens)
        what.append(f"{rows}v")
    if what:
        name_apart(cut, model, "-".join(what))
    warn_if_untrained(declared, size_of_cut, full)
    watch(cut)
    return cut
