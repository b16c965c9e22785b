"""Depth as a call-time argument: one model in memory, any number of layers per call."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from sentence_transformers.base.modules import Transformer
from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import around, parts
from st_matryoshka2d._hosts.transformers import forget_adapters
from st_matryoshka2d.cutting.exactness import check_depths, check_merged
from st_matryoshka2d.errors import UsageTypeError
from st_matryoshka2d.model.adapters import adapter_layers, declare_from_adapters
from st_matryoshka2d.model.backbone import Backbone, find_backbone, shallow_view
from st_matryoshka2d.model.copies import own_tokenizer, share_memory
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.layers import Layers
from st_matryoshka2d.model.network import refusal
from st_matryoshka2d.model.readout import AT_DEPTH, require_readouts
from st_matryoshka2d.sizes import Size, within


class TruncatedTransformer(Transformer):
    """A `Transformer` module with the depth as an argument of each call; layers above it are not computed.

    A pipeline that starts with this module takes `num_layers` in `encode`, next to `truncate_dim`.
    A depth keeps the layers that `truncate` would keep. Its checkpoint has all weights and the
    default depth. `load` reads it; plain sentence-transformers also does if this package is
    installed, but asks for `trust_remote_code=True`, though no code is downloaded. To ship a model
    that needs neither, save a plain cut: `truncate(model, num_layers=4).save_pretrained(...)`.

    Args:
        model_name_or_path: Hub id or folder, as for `Transformer`.
        num_layers: Default depth; None for all layers. It is not a limit: losses, `truncate` and
            `evaluate` use all layers.
        **kwargs: Keywords of `Transformer`.

    Raises:
        ValueError: The depth exceeds the model, or the model cannot be cut exactly.

    Example:
        >>> model[0] = TruncatedTransformer.from_transformer(model[0])
        >>> model.encode(["a text", "another"], num_layers=4, truncate_dim=64).shape
        (2, 64)
    """

    config_keys: list[str] = [*Transformer.config_keys, "num_layers"]
    forward_kwargs: set[str] = {"num_layers"}
    has_readouts: bool = False

    def __init__(self, model_name_or_path: str, *, num_layers: int | None = None, **kwargs: Any) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._set_depth(num_layers)

    @classmethod
    def from_transformer(cls, module: Transformer, num_layers: int | None = None) -> TruncatedTransformer:
        """Convert a module; weights are shared.

        Args:
            module: First module of a pipeline.
            num_layers: Default depth; None for all layers.
        """
        if not isinstance(module, Transformer):
            raise UsageTypeError(f"Expected a Transformer module, got {type(module).__name__}.")
        elastic = cls.__new__(cls)
        # without what torch.compile made of the module
        vars(elastic).update(vars(copy.copy(module)))
        elastic._set_depth(num_layers)
        return elastic

    def to_transformer(self, num_layers: int | None = None) -> Transformer:
        """Cut to a plain `Transformer`, which saves and loads without this package; weights are shared, or adapters merged.

        Args:
            num_layers: Layers to keep; None for the default depth.
        """
        return cut_transformer(self, self._as_declared().layers, self._depth(num_layers))

    def forward(self, features: dict[str, Any], num_layers: int | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run `num_layers` layers.

        Args:
            features: Output of `preprocess`.
            num_layers: Depth of this call; None for the default depth.
            **kwargs: As for `Transformer.forward`.

        Raises:
            ValueError: The depth exceeds the model, or an aligned model was loaded without its
                readouts.
        """
        depth = self._depth(num_layers)
        if depth == self._backbone.num_layers:
            whole: dict[str, Any] = super().forward(features, **kwargs)
            return whole
        if not self.has_readouts:
            require_readouts(self, Declaration.of(self.model.config), self._backbone.num_layers, [depth])
        shallow = around(self, {**parts(self), "model": shallow_view(self.model, self._as_declared(), depth)})
        outputs: dict[str, Any] = Transformer.forward(shallow, features, **kwargs)
        return {**outputs, AT_DEPTH: depth} if self.has_readouts else outputs

    def __repr__(self) -> str:
        return super().__repr__().replace("Transformer(", "TruncatedTransformer(", 1)

    def _set_depth(self, num_layers: int | None) -> None:
        declare_from_adapters(self.model)
        self._backbone = find_backbone(self.model)
        check_depths(self.model, self._as_declared(), list(range(1, self._backbone.num_layers + 1)))
        self.num_layers: int | None = None if num_layers is None else self._depth(num_layers)

    def _as_declared(self) -> Backbone:
        """Return the layers with those that each depth keeps now: the model may be aligned or trained meanwhile."""
        return replace(self._backbone, layers=Layers.of(self.model.config))

    def _depth(self, num_layers: Size | str | int | None) -> int:
        if isinstance(num_layers, (Size, str)):
            raise UsageTypeError(
                f"TruncatedTransformer cuts layers, not dimensions: it takes a number of layers, got {str(num_layers)!r}. "
                "Give both to encode: model.encode(texts, num_layers=3, truncate_dim=64)."
            )
        depth, total = self.num_layers if num_layers is None else num_layers, self._backbone.num_layers
        return total if depth is None else within(depth, total, "num_layers")


# sentence-transformers writes module path and class name into every checkpoint; this path must not
# change.
TruncatedTransformer.__module__ = "st_matryoshka2d"


def cut_transformer(module: Transformer, layers: Layers, num_layers: int, *, merge: bool = True) -> Transformer:
    """Cut a Transformer module to a plain one with fewer layers; weights are shared, unless adapters are merged."""
    model = module.model
    backbone = find_backbone(model, layers)
    check_depths(model, backbone, [num_layers])
    cut = copy.copy(module)  # without what torch.compile made of the module
    if isinstance(module, TruncatedTransformer):
        state = {name: value for name, value in vars(cut).items() if name != "num_layers"}
        cut = Transformer.__new__(Transformer)
        vars(cut).update(state)
    cut.processor = own_tokenizer(module.processor)
    cut = around(cut, {**parts(module), "model": share_memory(shallow_view(model, backbone, num_layers))})
    return with_merged_adapters(cut) if merge else cut


def with_merged_adapters(module: Transformer) -> Transformer:
    """Return a module whose PEFT adapters are merged into a copy of its weights; the module itself if it has none."""
    if not adapter_layers(module.model):
        return module
    plain = around(module, {**parts(module), "model": merged(module.model)})
    check_merged(plain.model, module.model)
    return plain


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model with its active adapters in its weights; nothing of PEFT is left, and no weight is shared."""
    backbone = find_backbone(model)
    # a view has none of the model's hooks
    plain = copy.deepcopy(shallow_view(model, backbone, backbone.num_layers))
    replaced: dict[int, nn.Module] = {}  # a layer that a model holds twice stays one
    for path, layer in adapter_layers(plain).items():
        try:
            replaced[id(layer)] = replaced.get(id(layer)) or _as_plain(layer)
        except Exception as error:
            why = f"Its adapter layer {path} cannot be merged into the weights. {type(error).__name__}: {error}"
            raise refusal(model, why) from error
        plain.set_submodule(path, replaced[id(layer)])
    forget_adapters(plain)
    plain.disable_input_require_grads()  # a hook for gradient checkpointing of frozen weights
    for weight in plain.parameters():
        weight.requires_grad_(weight.is_floating_point())  # PEFT had frozen them
    return plain


def _as_plain(layer: Any) -> Any:
    """Return a module without adapters that computes what an adapter layer does; the weights of the layer change."""
    is_used = not layer.disable_adapters
    # such as a module that is trained whole
    if hasattr(layer, "unload_and_optionally_merge_module"):
        if not is_used and hasattr(layer, "original_module"):
            return layer.original_module
        return layer.unload_and_optionally_merge_module(merge=is_used, safe_merge=False, adapter_names=None)
    if is_used:
        layer.merge()
    return layer.get_base_layer()
