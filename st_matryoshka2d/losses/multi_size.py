"""The engine: the wrapped loss at many sizes from one forward pass, and terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from sentence_transformers.util import cos_sim, is_dist_initialized
from torch import Tensor, distributed, nn
from torch.autograd.graph import register_multi_grad_hook

from st_matryoshka2d.cutting.exactness import check_routes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.losses.checks import (
    check_columns,
    check_finite,
    check_mini_batches,
    check_not_inside,
    check_wrapped_loss,
    inside,
    warn_of_untrained,
)
from st_matryoshka2d.losses.distillation import teacher_columns
from st_matryoshka2d.losses.distributed import average_gradient
from st_matryoshka2d.losses.one_pass import CachedStep, Representation
from st_matryoshka2d.losses.sampling import SizeSampler, averaged, sampler_of
from st_matryoshka2d.losses.saved_state import own_parameters, warn_of_unsaved
from st_matryoshka2d.losses.similarities import matrix_similarity
from st_matryoshka2d.losses.step import Parts, Step, Term, check_parts, check_terms
from st_matryoshka2d.model.adapters import declare_in_adapters
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.layers import Choice
from st_matryoshka2d.model.pipeline import Pipeline, transformers_of, unwrap
from st_matryoshka2d.model.readout import require_readouts
from st_matryoshka2d.sizes import Size, prefix

# Embeddings are checked in the first batch and in every so many: a check waits for the GPU. NaN
# does not go away, because a step with it makes the weights NaN.
CHECKED_EVERY = 100


class MultiSizeLoss(nn.Module):
    r"""Train a model at many sizes with any sentence-transformers loss, in one forward pass per text column.

    .. math:: L = \sum_{(n,d) \in S} w_{n,d}\, loss(v_n^d) + \sum_i term_i

    A list of sizes is averaged, as in Starbucks (Eq. 4); a sampler draws new sizes in each step, as
    in 2DMSE. If the model is in evaluation mode or gradients are disabled, nothing is drawn: the
    loss is the mean over all draws, so that the same weights give the same number. A depth trains
    the layers that `truncate` keeps, and from the first step on the config says which. The
    published recipes are built from this class.
    Embeddings at (n, d) are exactly those of `truncate(model, n, d)`: the final norm of pre-norm
    models is applied to every layer, and cut embeddings are not normalised again. Pass this loss to
    the Trainer directly, not inside `MatryoshkaLoss`, `AdaptiveLayerLoss` or `Matryoshka2dLoss`.

    A step returns named parts that sum to the loss, each logged by the Trainer: `task` (or
    `task_<key>` for each part of a wrapped loss that returns several) and the parts of each term.
    They have a `backward` method, for custom training loops.

    Args:
        model: The model to train. It starts with a `Transformer`, or a `Router` over several of the
            same depth.
        loss: The wrapped loss, built on the same model. It needs `compute_loss_from_embeddings`,
            which most losses have. With `gather_across_devices=True`, it and the terms compare
            texts across all processes.
        sizes: The sizes to train, as `Size` or text such as `"6L-128d"`, or a `SizeSampler`. Warns
            without the full size.
        terms: Terms to add to the loss, for example `KLAlignment()`.
        size_weights: One factor per size of a list; None for 1 each. The mean over the sizes is
            taken after weighting.
        mini_batch_size: Texts per mini-batch of gradient caching, which gives the gradients of the
            whole batch in the memory of one mini-batch. None disables caching.
        mini_batch_num_tokens: Tokens per mini-batch, without padding, instead of texts; also
            enables gradient caching.
        layers: Which layers each depth keeps, as for `align`. None: those that the model was
            aligned or trained with, otherwise `"ends"`, half from the start and half from the end,
            whose last ones run again for each depth of a step. `"first"` is the papers' setting, for
            which one pass serves all depths. It suits a model that was only pre-trained; one that
            is good already loses far more.

    Raises:
        TypeError: `loss` is not a loss, cannot be computed at several sizes, or is wrapped in one
            that chooses sizes too.
        ValueError: Sizes are outside the model, weights do not fit, the loss was built on another
            model, or the model cannot be cut exactly. In training: a batch has a wrong number of
            columns, or the first or every hundredth batch has non-finite embeddings.

    Example:
        >>> from sentence_transformers.sentence_transformer.losses import CoSENTLoss
        >>> from st_matryoshka2d.losses import SIA, KLAlignment
        >>> loss = MultiSizeLoss(model, CoSENTLoss(model), ["2L-32d", Size(6, 384)], terms=[KLAlignment(), SIA()])
        >>> loss.get_config_dict()["sizes"]
        ['2L-32d', '6L-384d']
    """

    loss: Any  # a Module with `compute_loss_from_embeddings`
    terms: Any  # a ModuleList of Term
    task_name = "task"
    uses_gradient_cache = True  # tells sentence-transformers' wrappers not to patch the model
    state_is_saved = False  # set by LossStateCallback
    started_alike = False
    batches = 0

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module,
        sizes: Sequence[Size | str] | SizeSampler,
        terms: Iterable[Term] = (),
        size_weights: Sequence[float] | None = None,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        layers: Choice | None = None,
    ) -> None:
        super().__init__()
        pipeline = Pipeline.of(model)
        self.full = pipeline.full
        check_wrapped_loss(loss, model)
        self.sampler = sampler_of(sizes, self.full, size_weights)
        self.model, self.loss = model, loss
        self.terms = nn.ModuleList(check_terms(terms))
        check_mini_batches(mini_batch_size, mini_batch_num_tokens)
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.is_cached = mini_batch_size is not None or mini_batch_num_tokens is not None
        self.similarity = matrix_similarity(loss) if any(term.uses_similarity for term in self.terms) else cos_sim
        for term in self.terms:
            term.attach(model)
        self.own = own_parameters(self)
        for parameter in () if self.is_cached else self.own.values():  # the cached step averages
            parameter.register_hook(average_gradient)
        self.raw = any(term.uses_raw for term in self.terms) and bool(pipeline.trailing_normalize())
        depths = self._layers(dict.fromkeys(self.sampler.candidates, 1.0))
        if not 1 <= depths[0] <= depths[-1] <= self.full.num_layers:
            raise UsageError(f"The terms need layers {depths}, but the model has layers 1 to {self.full.num_layers}.")
        if layers is not None:
            pipeline = pipeline.keeping(layers, depths)
        self.kept = pipeline.layers if depths[0] < self.full.num_layers else None  # nothing else trains layers
        require_readouts(model, pipeline.declaration, self.full.num_layers, depths)
        check_routes(pipeline, depths)
        self.backbones = pipeline.backbones
        warn_of_untrained(type(self).__name__, pipeline, self.sampler.candidates)

    @property
    def calculate_loss(self) -> Any:
        """Always raise: `MatryoshkaLoss` and `Matryoshka2dLoss` read this when they wrap a loss."""
        raise inside(self, "MatryoshkaLoss or Matryoshka2dLoss")

    @property
    def signature(self) -> str:
        """Names of this class and of the wrapped loss, for the config of the trained model."""
        return f"{type(self).__name__}({type(self.loss).__name__})"

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Parts:
        """Compute the named parts of the loss from the features of each text column and the wrapped loss's labels."""
        columns = list(sentence_features)
        check_not_inside(self, self.model)
        check_columns(self.loss, len(columns), labels)
        is_training = unwrap(self.model).training and torch.is_grad_enabled()
        if is_training:
            if self.own and not self.state_is_saved:
                self.state_is_saved = True  # warn only once
                warn_of_unsaved(type(self).__name__, self.own)
            # each process drew its own projections
            if is_dist_initialized() and not self.started_alike:
                for parameter in self.own.values():
                    distributed.broadcast(parameter.data, src=0)
                self.started_alike = True
        weights, shares = averaged([self.sampler.draw()] if is_training else self.sampler.every_draw())
        plan = Representation(self._layers(weights), [term for term in self.terms if term.observes], self.raw)
        embed: Any = partial(plan.embed, self.model, backbones=self.backbones)
        score = partial(self._parts, plan=plan, weights=weights, shares=shares, inputs=columns)
        if self.is_cached:
            # a token limit replaces the text limit
            at_once = self.mini_batch_size or 1, self.mini_batch_num_tokens
            parts = Parts(CachedStep(self.model, embed, score, self.own.values(), *at_once).parts(columns, labels))
        else:
            parts = Parts(score(embed_columns(embed, columns), labels))
        if trained := [part for part in parts.values() if part.requires_grad]:
            register_multi_grad_hook(trained, lambda _: self._declare(), mode="any")
        return parts

    def get_config_dict(self) -> dict[str, object]:
        """Settings for the model card."""
        config: dict[str, object] = {"loss": type(self.loss).__name__, **self.sampler.get_config_dict()}
        for term in self.terms:
            config.update(term.get_config_dict())
        at_once = {"mini_batch_size": self.mini_batch_size, "mini_batch_num_tokens": self.mini_batch_num_tokens}
        return config | {name: number for name, number in at_once.items() if number is not None}

    def _declare(self) -> None:
        """Write the trained sizes into the model's configs, unless the model is frozen."""
        model, sizes = unwrap(self.model), self.sampler.candidates
        if any(parameter.requires_grad for parameter in model.parameters()):
            for transformer in transformers_of(model):
                declared = Declaration.of(transformer.model.config).trained(sizes, self.signature)
                if self.kept is not None:
                    declared = replace(declared, layers=self.kept.written())
                declared.write(transformer.model.config)
                declare_in_adapters(transformer.model)

    def _layers(self, weights: Mapping[Size, float]) -> list[int]:
        """Return every depth that a step with these sizes needs."""
        needed = set(weights).union(*(term.sizes_needed(weights, self.full) for term in self.terms))
        return sorted({size.num_layers for size in needed}.union(*(term.layers_observed() for term in self.terms)))

    def _parts(
        self,
        texts: Sequence[Tensor],
        labels: Tensor | None,
        plan: Representation,
        weights: Mapping[Size, float],
        shares: Mapping[Size, float],
        inputs: Sequence[Mapping[str, Any]],
    ) -> dict[str, Tensor]:
        if self.batches % CHECKED_EVERY == 0:
            check_finite(texts)
        self.batches += 1
        split = [plan.split(column) for column in texts]
        raw = {layer: [embeddings[layer] for embeddings, _ in split] for layer in plan.layers}
        step = Step(
            columns={layer: [plan.finish(self.model, column) for column in raw[layer]] for layer in plan.layers},
            raw=raw,
            observed={term: [observed[term] for _, observed in split] for term in plan.observers},
            weights=weights,
            shares=shares,
            full=self.full,
            similarity=self.similarity,
            gather=bool(getattr(self.loss, "gather_across_devices", False)),
            inputs=inputs,
            labels=labels,
        )
        parts: dict[str, Tensor] = {}
        for size, weight in weights.items():
            for name, value in self._task(step, size).items() if weight else ():
                parts[name] = parts.get(name, 0) + weight * value
        for term in self.terms:
            for name, value in check_parts(term, term(step)).items():
                parts[name] = parts.get(name, 0) + value
        return parts

    def _task(self, step: Step, size: Size) -> dict[str, Tensor]:
        targets: Any = step.labels
        if isinstance(self.loss, EmbedDistillLoss):
            teachers = teacher_columns(step.labels, len(step.inputs), self.full.dim, shared=True)
            targets = [prefix(teacher, size.dim) for teacher in teachers]
        value = self.loss.compute_loss_from_embeddings(step.embeddings(size), targets)
        if isinstance(value, dict):
            return {f"{self.task_name}_{key}": part for key, part in value.items()}
        return {self.task_name: value}
