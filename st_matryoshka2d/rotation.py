"""A rotation behind a model, after which its first coordinates are worth most: small sizes without training the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.util import cos_sim
from torch import Tensor, nn
from tqdm.auto import trange

from st_matryoshka2d.backbone import share_memory
from st_matryoshka2d.dims import declare_dims, declared_dims, prefix
from st_matryoshka2d.encode import encode_sizes
from st_matryoshka2d.identity import name_apart
from st_matryoshka2d.layers import trailing_normalize, transformer_of
from st_matryoshka2d.losses.alignment import kl_divergence, score_logits
from st_matryoshka2d.model_card.inherited import inherit_card
from st_matryoshka2d.sizes import Size, full_size, mrl_dims, positive_int, sizes_product, validate_sizes
from st_matryoshka2d.submodel import with_modules
from st_matryoshka2d.trained import ROTATE, declare_training

__all__ = ["rotate"]

_TEXTS_AT_ONCE = 1000  # compared with each other in a step
_SIZES_AT_ONCE = 3  # fewer a step and more steps: that learns many sizes as well as all at once, in a fraction of the time
_LEARNING_RATE = 1e-2
_TEMPERATURE = 0.05


def rotate(
    model: SentenceTransformer,
    texts: Iterable[str],
    sizes: Sequence[Size | str] | None = None,
    *,
    steps: int = 400,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> SentenceTransformer:
    r"""Make a model's first coordinates worth most, by a rotation that changes nothing at the full width. No labels.

    .. math::
        R = \arg\min_{R^\top R = I} \frac{1}{|S|} \sum_{(n,d) \in S} \frac{1}{B} \sum_{i=1}^{B}
        KLDiv(softmax_{j \ne i}(\cos((R z_i^n)_{1:d}, (R z_j^n)_{1:d}) / \tau); softmax_{j \ne i}(\cos(z_i^N, z_j^N) / \tau))

    with z^n the embedding of a text after n layers, B = 1000 texts in a step, of S three sizes in a step, and
    :math:`\tau = 0.05`: the relational distillation of `RelationalDistillLoss`, of one matrix. Each text goes through the
    model once. With the full width, at any depth, cosine similarities, dot products and Euclidean distances are what they
    were.

    The rotation is a `Dense` module in front of the final `Normalize`, or goes into the one that is there if that is linear.
    It is saved, loaded, cut and trained like any other. It helps before training and again after it.

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`. It is not changed; the result shares its weights'
            memory.
        texts: A sample of what will be embedded; some thousands.
        sizes: S, what the rotation is for, such as `["3L-64d"]`; None for all layers, each with 8, 16, 32, ... dims, those
            that `evaluate` scores. The fewer there are, the better it is for these; others get what is left. Sizes of the
            full width do not depend on it.
        steps: How often it is improved.
        batch_size: Texts in a batch of the model.
        show_progress_bar: Show one while texts are embedded, and one for the steps.

    Returns:
        A plain `SentenceTransformer`, whose config lists S among the trained sizes. Vectors that the model made before
        cannot be compared with those it makes now.

    Raises:
        TypeError: `texts` is not a list of strings, or the model is not a `SentenceTransformer`.
        ValueError: There are not even three different texts, no size is narrower than the model, the model has a
            `truncate_dim`, or its embeddings are not finite.

    Example:
        >>> texts = [f"{n} cats and {n % 7} dogs" for n in range(40)]
        >>> rotated = rotate(model, texts, [Size(3, 64), Size(6, 32)], steps=5)
        >>> print(*(type(module).__name__ for module in rotated))
        Transformer Pooling Dense Normalize
    """
    transformer_of(model)
    sample, narrow = _checked(model, texts, sizes)
    positive_int(steps, "steps")
    full = full_size(model)
    depths = sorted({full.num_layers, *(size.num_layers for size in narrow)})
    whole = {num_layers: Size(num_layers, full.dim) for num_layers in depths}
    embedded = encode_sizes(model, sample, whole.values(), batch_size=batch_size, show_progress_bar=show_progress_bar)
    device = model.device if model.device.type == "cuda" else "cpu"  # other accelerators lack the decompositions
    by_layer = {n: torch.from_numpy(embedded[size]) for n, size in whole.items()}
    rotation = _best_rotation(by_layer, narrow, steps, device, show_progress_bar).to(model.device, model.dtype)
    modules = [share_memory(module) for module in model.children()]
    end = len(modules) - len(trailing_normalize(model))
    names = [name for name, _ in model.named_children()][:end]  # by which a pipeline knows what its modules are called with
    _place(rotation, modules, end)
    named = {(names[place] if place < end else str(place)): module for place, module in enumerate(modules)}
    rotated = with_modules(model, named, SentenceTransformer)
    inherit_card(rotated, model)
    rotated.model_card_data.add_tags("rotated")
    config: Any = rotated.config
    declare_dims(config, {*declared_dims(model.config), *(size.dim for size in narrow), full.dim})
    before = getattr(model.config, "matryoshka_loss", None) or ROTATE
    if before == ROTATE:
        config.matryoshka_sizes = []  # what was rotated for them is turned away
    trained_by = before.removesuffix(ROTATE).removesuffix(", ")
    declare_training(config, [*narrow, full], f"{trained_by}, {ROTATE}" if trained_by else ROTATE)
    name_apart(rotated, model, "rotated")
    return rotated


def _checked(
    model: SentenceTransformer, texts: Iterable[str], sizes: Sequence[Size | str] | None
) -> tuple[list[str], list[Size]]:
    """Different texts, and the sizes that a rotation makes a difference to."""
    if isinstance(texts, str | Mapping) or getattr(texts, "ndim", 1) != 1:  # a table would be read as its columns' names
        raise TypeError(f"texts must be a list of texts, such as one column of a table; got a {type(texts).__name__}.")
    if model.truncate_dim is not None:
        raise ValueError(
            f"The model has truncate_dim={model.truncate_dim}, which cuts off what a rotation chooses from. "
            "Rotate the whole model, with truncate_dim = None, and cut it afterwards."
        )
    given = list(texts)
    if wrong := [(place, text) for place, text in enumerate(given) if not isinstance(text, str)]:
        (place, text), others = wrong[0], len(wrong) - 1
        raise TypeError(
            f"texts must be strings, but number {place} is {text!r} ({type(text).__name__}); {others} more are none."
        )
    sample = list(dict.fromkeys(given))
    if len(sample) < 3:
        raise ValueError(f"A rotation needs at least 3 different texts, better some thousand; got {len(sample)}.")
    full = full_size(model)
    every = sizes_product(range(1, full.num_layers + 1), mrl_dims(full.dim))
    narrow = every if sizes is None else [size for size in validate_sizes(sizes, full) if size.dim < full.dim]
    if not narrow:
        raise ValueError(f"All sizes have the full width, {full.dim}, which no rotation changes: name narrower ones.")
    return sample, narrow


def _place(rotation: Float[Tensor, "dim dim"], modules: list[nn.Module], end: int) -> None:
    """As a module before the end, or as part of the one that is there, if that is linear."""
    last: Any = modules[end - 1]
    names = ("module_input_name", "module_output_name", "use_residual")
    as_usual = [getattr(last, name, None) for name in names] == ["sentence_embedding", "sentence_embedding", False]
    if isinstance(last, Dense) and as_usual and isinstance(last.activation_function, nn.Identity):
        last.linear.weight = nn.Parameter(rotation @ last.linear.weight.detach())
        if last.bias:
            last.linear.bias = nn.Parameter(rotation @ last.linear.bias.detach())
        return
    with torch.random.fork_rng([]):  # its own weights are replaced at once
        dense = Dense(len(rotation), len(rotation), bias=False, activation_function=nn.Identity(), init_weight=rotation)
    modules.insert(end, dense.train(last.training))


def _best_rotation(
    by_layer: Mapping[int, Float[Tensor, "texts dim"]],
    sizes: Sequence[Size],
    steps: int,
    device: torch.device | str,
    show_progress_bar: bool,
) -> Float[Tensor, "dim dim"]:
    """The orthogonal matrix of least divergence, found by gradient descent from the identity.

    Of the embeddings, which many layers make large, only what a step compares goes to the device.
    """
    full = by_layer[max(by_layer)]
    if not all(embeddings.isfinite().all() for embeddings in by_layer.values()):
        raise ValueError("The model's embeddings of the texts are not all finite.")
    with torch.random.fork_rng([]):  # as above
        turn = nn.Linear(full.shape[1], full.shape[1], bias=False, device=device)
    nn.utils.parametrizations.orthogonal(turn, orthogonal_map="cayley")
    turn.weight = torch.eye(full.shape[1], device=device)
    optimizer = torch.optim.Adam(turn.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    draw = torch.Generator().manual_seed(0)
    for _ in trange(steps, desc="Rotation", disable=not show_progress_bar):
        batch = torch.randperm(len(full), generator=draw)[:_TEXTS_AT_ONCE]
        target = score_logits([full[batch].to(device)], cos_sim)
        weight = turn.weight.T
        drawn = [sizes[place] for place in torch.randperm(len(sizes), generator=draw)[:_SIZES_AT_ONCE]]
        cuts = [by_layer[size.num_layers][batch].to(device) @ prefix(weight, size.dim) for size in drawn]
        students = [score_logits([cut], cos_sim) for cut in cuts]
        loss = torch.stack([kl_divergence(student, target, _TEMPERATURE) for student in students]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    left, _, right = torch.linalg.svd(turn.weight.detach().double())  # rounding is gone: as orthogonal as can be
    best: Tensor = left @ right
    return best.float().contiguous()
