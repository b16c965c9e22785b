"""Compare a cut with the whole model by what both make of the texts, where that is no embedding of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from st_matryoshka2d.aligning.sample import Text
from st_matryoshka2d.healing.regress import Sums, best_change
from st_matryoshka2d.healing.states import Batches
from st_matryoshka2d.model.kind import Kind
from st_matryoshka2d.model.network import core

if TYPE_CHECKING:
    from jaxtyping import Float


class OutputJudge:
    """The outputs of the whole model, such as scores of pairs, made batch by batch as they are needed."""

    def __init__(self, kind: Kind, whole: Any, seen: Sequence[Text], held: Sequence[Text], batch_size: int) -> None:
        self.seen, self.held, self._kind, self._whole, self._batch_size = seen, held, kind, whole, batch_size

    def agreement(self, model: Any) -> float:
        """Return the correlation of scores, or the mean cosine of embeddings, on what was left out of the fit."""
        ours, theirs = [], []
        for features in Batches(self._whole, self.held, self._batch_size):
            ours.append(self._made(model, features))
            theirs.append(self._made(self._whole, features))
        one, other = torch.cat(ours).double(), torch.cat(theirs).double()
        if self._kind.reads_pairs:  # of each score
            one, other = (one - one.mean(0)).T, (other - other.mean(0)).T
        return float(F.cosine_similarity(one, other).mean())

    def better(self, one: Any, other: Any) -> Any:
        """Return the one of two models whose outputs are nearer to the whole model's."""
        return max(one, other, key=self.agreement)

    def loss(self, outputs: dict[str, Any], features: dict[str, Any], places: Sequence[int]) -> Tensor:
        """Return how far the outputs of a batch are from the whole model's: squared for scores, 1 - cos for embeddings."""
        with torch.no_grad():
            goal = self._made(self._whole, features)
        ours = self._read(outputs)
        return F.mse_loss(ours, goal) if self._kind.reads_pairs else 1 - F.cosine_similarity(ours, goal).mean()

    def refit_scores(self, cut: Any) -> None:
        """Refit the last linear map of a reranker's head towards the whole model's scores, in place; others have none."""
        if not self._kind.reads_pairs:
            return
        last = _last_linear(cut[0].model, next(iter(Batches(cut, self.held, 1))))
        if last is None:
            return
        has_bias = last.bias is not None
        found: list[Tensor] = []
        with _noting(last, found):
            sums = [Sums(last.in_features + has_bias, last.out_features) for _ in range(2)]
            for of_part, texts in zip(sums, (self.seen, self.held), strict=True):
                for features in Batches(cut, texts, self._batch_size):
                    missing = self._made(self._whole, features) - self._made(cut, features)
                    (z,) = found
                    found.clear()
                    of_part.add(torch.cat([z, z.new_ones(len(z), 1)], 1) if has_bias else z, missing)
        change = best_change(*sums, has_bias=has_bias).to(last.weight)
        last.weight.add_(change[: last.in_features].T)
        if has_bias:
            last.bias.add_(change[-1])

    def _made(self, model: Any, features: dict[str, Any]) -> Float[Tensor, "rows dim"]:
        return self._read(model(dict(features)))

    def _read(self, outputs: dict[str, Any]) -> Float[Tensor, "rows dim"]:
        """Return what is compared, a row for each text, or for each token that has an embedding of its own."""
        made: Tensor = outputs[self._kind.output]
        made = made.to_dense() if made.is_sparse else made
        return (made[outputs["attention_mask"].bool()] if made.ndim == 3 else made).float()


def _last_linear(network: Any, features: dict[str, Any]) -> nn.Linear | None:
    """Find the linear map of the head whose output is the score; None if there is none, as in a decoder."""
    if core(network) is network:
        return None
    below = {*core(network).modules()}
    made: dict[nn.Module, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, _, out: made.__setitem__(module, out))
        for module in network.modules()
        if isinstance(module, nn.Linear) and module not in below
    ]
    given = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in features}
    logits = network(**given).logits
    for hook in hooks:
        hook.remove()
    return next((module for module, out in made.items() if isinstance(module, nn.Linear) and out is logits), None)


def _noting(linear: nn.Linear, found: list[Tensor]) -> Any:
    """Note what a map reads, within a context."""
    return linear.register_forward_pre_hook(lambda _, args: found.append(args[0].float()))
