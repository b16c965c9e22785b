"""Healing: a cut whose layers are refitted in closed form, to stand in for those that left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sentence_transformers.base.model import BaseModel

from st_matryoshka2d.aligning.sample import Part, Text, Texts, drawn, parts_of, warn_without_prompts
from st_matryoshka2d.cutting.cut import without_adapters
from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.healing.descend import descended
from st_matryoshka2d.healing.judge import Judge
from st_matryoshka2d.healing.outputs import OutputJudge
from st_matryoshka2d.healing.pairs import Pairs, without_queries
from st_matryoshka2d.healing.pieces import in_precision, own_cut, precision_of, reference, with_map
from st_matryoshka2d.healing.repair import fits, repair
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import name_apart
from st_matryoshka2d.model.kind import Kind, Model
from st_matryoshka2d.model.layers import depth_of_choice, of_depth
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import Size, full_size, positive_int, resolve_size, within
from st_matryoshka2d.texts import chosen_prompt
from st_matryoshka2d.vocabulary.watch import watch

_SAMPLE = 20_000  # texts that are fitted; more hardly improve the fit
_FEW = {False: 300, True: 1000}  # texts, or pairs: fewer change the layers little
_HELD = 10  # one of so many texts is left out, and tells what healing does


def heal(
    model: Model,
    texts: Texts | Iterable[tuple[str, str]],
    size: Size | str | None = None,
    *,
    num_layers: int | None = None,
    dim: int | None = None,
    layers: str | Sequence[int] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    steps: int = 0,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> Model:
    r"""Cut a model, and refit the layers that stay, so that they also do what the others did.

    No labels, no training. In order, each kept layer gets the state as its goal from which the next
    kept layer started in the whole model. Its last linear map and that of its attention are
    refitted by ridge regression over the tokens of the texts, towards what they were:

    .. math:: \min_{W, b} \sum_i w_i |r_i + W z_i + b - t_i|^2 + \lambda |W - W_0|^2

    with z_i the input of the map at token i, as the refitted layers before it give it; r_i what is
    added to its output; t_i the goal; and w_i = 1 / (n_i |t_i|^2), with n_i the number of tokens of
    the text. Where a norm reads the sum, it gets the weights of the norm before the goal, and t_i is
    what that norm read, normalised. The strength is chosen on texts that are left out. Last, an
    affine map of the embedding is fitted as `align` does. It becomes a `Dense` if texts that are left
    out and search the others then keep half a point or more of nDCG@10: right is what the whole model
    finds first.

    Of a reranker, the last linear map of the head is refitted instead, towards the whole model's
    scores. `SparseEncoder` and `MultiVectorEncoder` get no such map.

    The result has weights of its own, and loads anywhere without this package. Its embeddings are in
    the space of the given model, so they search its index: `asymmetric(model, query=healed)` puts
    both into one checkpoint. `align` gives all depths a map, and changes no layer; `heal` is for the
    one size that you ship.

    Args:
        model: A `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder` that
            starts with a `Transformer`; aligned or not. It does not change. Of an aligned model, the
            layers of that depth and the coordinates stay.
        texts: About 10,000 texts like those that will be embedded, mostly like the queries: a list, a
            column of a `datasets.Dataset`, or a generator. Of many, a random sample of at most 20,000
            is used. Empty ones are left out. A dict has the texts of several prompts by their names,
            such as `{"query": queries, "document": documents}`. For a reranker, pairs of a query
            and a document: a list of them, or a table with these two columns.
        size: `Size(3, 384)` or `"3L-384d"`, in place of numbers.
        num_layers: Layers to keep, 1..N; None for all.
        dim: Dimensions to keep, 1..D; None for all. Layers are refitted for all dims.
        layers: Which layers to keep, as for `truncate`; for a reranker, try `"spread"` first.
        prompt: Put in front of each text, as by `SentenceTransformer.encode`.
        prompt_name: Name of the prompt to put in front of each text, unless `prompt` is given. None:
            the default prompt of the model, if any.
        steps: Steps of gradient descent that follow, each of 64 texts, towards the whole model's
            embeddings or scores; 0 for none. What they made is returned only if it is better on texts left out.
        batch_size: Texts per forward pass.
        show_progress_bar: Show progress bars. None: on a terminal or in a notebook.

    Returns:
        A plain model of the same class. `healed.config.matryoshka_healed` has the number of texts and
        the mean cosine to the whole model's embeddings of texts left out, before and after; of a
        reranker, the correlation with its scores. With all layers, nothing is refitted.

    Raises:
        TypeError: `model` is none of these classes, a text is not a string, or a row is no pair.
        ValueError: No size is given, or both a size and numbers; a number is out of range; `layers`
            are no choice of them, or others than an aligned model has readouts for; there are fewer
            than three different texts, or only pairs of one query; there is no prompt of that name;
            both a dict and a prompt are given; embeddings are not finite; the model has a
            `truncate_dim`, starts with a `Router`, or has layers that cannot be refitted, such as
            ALBERT, which runs one again and again.

    Warns:
        DataWarning: Texts are empty or few. A model declares prompts, and the texts have none.

    References:
        - ReplaceMe, https://arxiv.org/abs/2505.02819, GRAIL, https://arxiv.org/abs/2602.23795, and
          CORP, https://arxiv.org/abs/2602.05243: linear maps in place of layers of language and
          vision models.

    Example:
        >>> things = ["a cat", "my car", "rain", "the piano", "soup", "a tall tree"]
        >>> texts = [f"{thing} {end}" for thing in things for end in ("at home", "in town", "today")]
        >>> healed = heal(model, texts, "3L-384d")
        >>> queries = healed.encode(texts[::6])
        >>> model.similarity(queries, model.encode(texts[::6])).argmax(dim=1)
        tensor([0, 1, 2])
        >>> healed.save_pretrained("small")
    """
    # Gradient descent needs gradients even if the caller is in no_grad or inference_mode.
    with torch.inference_mode(False), torch.no_grad():
        start, depth, width = _start(Pipeline.of(model, BaseModel), size, num_layers, dim, layers)
        steps = positive_int(steps, "steps", least=0)
        hidden = None if show_progress_bar is None else not show_progress_bar  # None: `progress` decides
        kind = start.kind
        parts = _parts(start, texts, prompt, prompt_name)
        cut: Any = own_cut(start, depth)
        precision = precision_of(cut)
        whole = reference(start)
        healed: Any = cut.float()
        if depth < start.full.num_layers:
            # on a copy in evaluation mode, which shares the weights
            copies = {name: share_memory(part) for name, part in healed.named_children()}
            planned = fits(whole, Pipeline.of(healed, BaseModel).remade(copies).model.train(False), start.layers.kept(depth))
            sample, _ = drawn(parts, _SAMPLE, 4 if kind.no_dims else 4 * start.full.dim)
            warn_without_prompts(model, sample)
            seen, held = without_queries(sample) if kind.reads_pairs else _left_out(sample)
            judge: Judge | OutputJudge = (
                OutputJudge(kind, whole, seen, held, batch_size)
                if kind.no_dims
                else Judge(whole, seen, held, batch_size, hidden)
            )
            before = judge.agreement(healed)
            repair(planned, whole, seen, held, batch_size, hidden)
            if isinstance(judge, OutputJudge):
                judge.refit_scores(healed)
            elif (readout := judge.readout(healed, unit=bool(start.trailing_normalize()))) is not None:
                healed = with_map(healed, start, readout)
            if steps:
                healed = judge.better(healed, descended(healed, seen, judge.loss, steps, hidden))
            _declare(healed, kind, len(sample), before, judge.agreement(healed))
        healed = in_precision(healed, precision)
        if not kind.no_dims:
            healed.truncate_dim = width
        name_apart(healed, model, f"{kind.told(full_size(healed))}-healed")
        watch(healed)
        result: Model = healed
        return result


def _parts(pipeline: Pipeline, texts: Any, prompt: str | None, prompt_name: str | None) -> Sequence[Part]:
    """Read pairs for a reranker, or texts."""
    if pipeline.kind.reads_pairs:
        return [Pairs(texts, chosen_prompt(pipeline.model, prompt, prompt_name))]
    return parts_of(pipeline.model, texts, prompt, prompt_name)


def _left_out(sample: Sequence[Text]) -> tuple[Sequence[Text], Sequence[Text]]:
    """Part texts in random order into those that are fitted, and others that tell how well."""
    count = max(1, len(sample) // _HELD)
    return sample[count:], sample[:count]


def _start(
    pipeline: Pipeline, size: Size | str | None, num_layers: int | None, dim: int | None, layers: str | Sequence[int] | None
) -> tuple[Pipeline, int, int | None]:
    """Return the model with the layers that its depths keep, and the layers and dims that are asked for; refuse others."""
    depth, width = resolve_size(size, num_layers, dim)
    if layers is not None:
        depth = depth_of_choice(layers, depth)
    if depth is None:
        raise UsageError("heal needs a number of layers: pass a size such as '3L-384d', num_layers, or a list of layers.")
    pipeline.kind.require_dims(width, pipeline.full)
    if (narrow := getattr(pipeline.model, "truncate_dim", None)) is not None:
        raise UsageError(
            f"The model has truncate_dim={narrow}, but layers are healed for all of its dims. Set truncate_dim = None, and "
            f"pass dim={narrow}."
        )
    if pipeline.has_router:
        raise UsageError(
            "The model starts with a Router. Heal one route, as a SentenceTransformer of its modules: "
            'load(folder, route="query") returns it.'
        )
    full = pipeline.full
    depth = within(depth, full.num_layers, "num_layers")
    width = None if width is None else within(width, full.dim, "dim")
    start = without_adapters(pipeline)
    return (start if layers is None else start.keeping(of_depth(layers, depth), [depth])), depth, width


def _declare(healed: Any, kind: Kind, texts: int, before: float, after: float) -> None:
    """Write into the config what healing gave back, and warn if that is little."""
    told = {"texts": texts, "before": round(before, 4), "after": round(after, 4)}
    Declaration.of(healed.config).after_healing(told).write(healed.config)
    if texts < _FEW[kind.reads_pairs]:
        measure = "the correlation of scores" if kind.reads_pairs else "the cosine to the whole model"
        warn(
            f"{texts:,} different texts or pairs are few: {measure} on those left out of the fit was {before:.3f}, and is "
            f"{after:.3f}. More usually give more; 10,000 are plenty.",
            DataWarning,
        )
