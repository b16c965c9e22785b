"""The scores of a reranker at every depth, from one pass: its head runs once more for each depth, its layers do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import around, parts, put
from st_matryoshka2d.model.backbone import shallow_view
from st_matryoshka2d.model.depths import recorded, returning_states, state_before_tail
from st_matryoshka2d.model.pipeline import Pipeline


class EveryScore:
    """Scores pairs at several depths.

    Args:
        pipeline: The reranker, without adapters, in evaluation mode.
        depths: The depths, each 1..N.
    """

    def __init__(self, pipeline: Pipeline, depths: Iterable[int]) -> None:
        self._pipeline, self.depths = pipeline, sorted(set(depths))
        self._network, self._backbone = pipeline.transformer.model, pipeline.backbones[""]
        self._state: Any = None
        if self._backbone.blocks is None:  # one layer, which runs again and again
            self._cuts = {depth: self._around(shallow_view(self._network, self._backbone, depth)) for depth in self.depths}
            return
        # the head is the same at each depth: all layers hand on a state that they are given
        view = shallow_view(self._network, self._backbone, self._backbone.num_layers)
        blocks = view.get_submodule(self._backbone.blocks)
        for name, block in parts(blocks).items():
            put(blocks, name, self._handing_on(block))
        self._head = self._around(view)

    def __call__(self, features: Mapping[str, Any]) -> dict[int, Tensor]:
        """Return the scores (pairs, labels) of a batch by depth, before the activation function."""
        if self._backbone.blocks is None:
            return {depth: cut(dict(features))["scores"] for depth, cut in self._cuts.items()}
        last: list[Any] = []
        *_, block = self._backbone.blocks_of(self._network)
        config = self._network.config
        with (
            block.register_forward_hook(lambda _, __, out: last.append(out)),
            returning_states(config),
            recorded(self._network, self._backbone) as calls,
        ):
            outputs = self._pipeline.model(dict(features))
        form = last[0]  # before other depths run the last layer again
        scores: dict[int, Tensor] = {}
        for depth in self.depths:
            if depth == self._backbone.num_layers:
                scores[depth] = outputs["scores"]
                continue
            states = outputs["all_layer_embeddings"]
            state = state_before_tail(self._network, self._backbone, depth, states, calls)
            self._state = (state, *form[1:]) if isinstance(form, tuple) else state
            scores[depth] = self._head(dict(features))["scores"]
        return scores

    def _around(self, network: PreTrainedModel) -> nn.Module:
        """Return the reranker with another network."""
        (place, first), *after = self._pipeline.model.named_children()
        return around(self._pipeline.model, {place: around(first, {**parts(first), "model": network}), **dict(after)})

    def _handing_on(self, block: Any) -> nn.Module:
        """Copy a block, which keeps its attributes, but computes nothing."""
        copied: nn.Module = around(block, parts(block))
        vars(copied)["forward"] = lambda *args, **kwargs: self._state
        return copied
