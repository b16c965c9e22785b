"""Check that a model can be cut exactly; refuse others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from st_matryoshka2d._hosts.transformers import as_read
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.adapters import adapter_layers
from st_matryoshka2d.model.backbone import Backbone, architecture, find_backbone, shallow_view
from st_matryoshka2d.model.copies import rebuilt_from, same, settings, share_memory, skeleton, trial
from st_matryoshka2d.model.cut_config import cut_config, per_layer
from st_matryoshka2d.model.depths import recorded, state_at
from st_matryoshka2d.model.layers import ENDS, Layers
from st_matryoshka2d.model.network import core, made_by, refusal
from st_matryoshka2d.model.packed import find_packed
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import layered

# What was found exact: an architecture with some of its layers. Threads may check the same at once,
# each on copies of its own.
_EXACT: set[tuple[str, tuple[int, ...]]] = set()

_FIRST = 'Its first layers can be: pass layers="first".'


def check_depths(model: PreTrainedModel, backbone: Backbone, depths: Iterable[int]) -> None:
    """Check on a few tokens that the model can be cut at these depths, once for models that are built alike."""
    known = architecture(model)
    kept = {depth: (known, tuple(backbone.layers.kept(depth))) for depth in depths}
    unknown = sorted(depth for depth, cut in kept.items() if cut not in _EXACT)
    if not unknown:
        return
    check_written(type(model), model.config, backbone.layers, unknown)
    try:
        _check(model, backbone, unknown)
    except Exception as error:
        raise refusal(model, _reason(model, error) + _advice(model, backbone, unknown)) from error
    _EXACT.update(kept.values())


def check_routes(pipeline: Pipeline, depths: Iterable[int]) -> None:
    """Check that all routes of a model can be cut at these depths."""
    depths = list(depths)
    for name, backbone in pipeline.backbones.items():
        check_depths(pipeline.routes[name].transformer.model, backbone, depths)


def check_written(kind: type[PreTrainedModel], config: PreTrainedConfig, layers: Layers, depths: Iterable[int]) -> None:
    """Check that the config of a cut is read as it is written: some families change it, or refuse to read it."""
    for depth in depths:
        if why := _misread(config, layers, depth):
            raise refusal(kind, why if _misread(config, Layers(layers.total), depth) else f"{why} {_FIRST}")


def _misread(config: PreTrainedConfig, layers: Layers, depth: int) -> str | None:
    """Say how transformers reads the config of a cut otherwise than it is written, if it does."""
    if depth == layers.total:
        return None
    cut, kept = cut_config(config, layers, depth), [layer + 1 for layer in layers.kept(depth)]
    try:
        read = per_layer(as_read(cut))
    except Exception as error:
        return f"transformers could not read the config of a cut with layers {kept}: {' '.join(str(error).split())}"
    changed = {name: entries for name, entries in per_layer(cut).items() if read.get(name) != entries}
    return next((_changed(name, entries, read.get(name), kept, config) for name, entries in changed.items()), None)


def check_merged(plain: PreTrainedModel, model: PreTrainedModel) -> None:
    """Check that a model with merged adapters equals the one with adapters, and can be rebuilt from its config."""
    try:
        (now, inputs), (live, _) = trial(plain), trial(model)
        with torch.no_grad():
            pairs = zip(made_by(now, inputs), made_by(live, inputs), strict=True)
        # Other products are rounded than before, with TF32 to three digits.
        for merged, wanted in pairs:
            _require_close(merged, wanted, "the merged adapters and the live ones", 1e-2, in_half_precision=0.1)
    except Exception as error:
        raise refusal(model, _reason(model, error)) from error
    check_depths(plain, find_backbone(plain), [layered(plain.config).num_hidden_layers])


def check_loaded(model: PreTrainedModel, full_config: PreTrainedConfig, layers: Layers) -> None:
    """Check that a model loaded with fewer layers equals that part of the full one, without its other weights."""
    cut, whole = find_backbone(model), skeleton(type(model), full_config)
    full = Backbone(layers, cut.blocks, cut.tail, find_packed(whole, cut.blocks))
    view = share_memory(shallow_view(whole, full, cut.num_layers))
    view.load_state_dict(model.state_dict(), assign=True)
    nn.Module.to(view, model.device)  # buffers that no checkpoint has, such as positions
    check_written(type(model), full_config, layers, [cut.num_layers])
    try:
        loaded, inputs = trial(model)
        with torch.no_grad():
            rebuilt, wanted = rebuilt_from(loaded), made_by(view.train(False), inputs)
            for made, other, what in ((loaded, view, "the two"), (rebuilt, view, "the same, once saved")):
                for one, goal in zip(made_by(made, inputs), wanted, strict=True):
                    _require_close(one, goal, what, of=(made, other))
        _require_same_settings(model, view, full.blocks)
    except Exception as error:
        raise refusal(model, _reason(model, error)) from error


@torch.no_grad()
def _check(model: PreTrainedModel, backbone: Backbone, depths: list[int]) -> None:
    # For each depth n three things must agree: the state of n blocks from one pass through the full
    # model, the view of n blocks, and a model rebuilt from the cut config, written and read, with
    # the view's tensors in it, which is what loading a saved cut does. The blocks that the cut
    # config makes must also be set up like those of the full model.
    whole, inputs = trial(model)
    pristine = skeleton(type(model), model.config)
    with recorded(whole, backbone) as calls:
        states = core(whole)(**inputs, output_hidden_states=True).hidden_states
    for depth in depths:
        view = shallow_view(whole, backbone, depth)
        cut, *by_head = made_by(view, inputs)
        finished = states[depth] if depth == backbone.num_layers else state_at(whole, backbone, depth, states, calls)
        _require_close(finished, cut, f"the state after block {depth} and the model cut there")
        if adapter_layers(model):
            continue  # its config does not tell of adapters; they are merged before a cut is saved
        rebuilt = rebuilt_from(view)
        for alone, wanted in zip(made_by(rebuilt, inputs), [cut, *by_head], strict=True):
            _require_close(alone, wanted, f"the cut at {depth} and its config alone", of=(rebuilt, view))
        _require_same_settings(rebuilt, shallow_view(pristine, backbone, depth), backbone.blocks)


def _require_close(
    left: Tensor,
    right: Tensor,
    what: str,
    tolerance: float = 1e-5,
    *,
    in_half_precision: float = 2e-2,
    of: tuple[nn.Module, nn.Module] | None = None,
) -> None:
    if same(left, right, in_half_precision if right.dtype in (torch.float16, torch.bfloat16) else tolerance):
        return
    why = (
        f" No checkpoint has these buffers, and they differ: {', '.join(names)}." if of and (names := _unsaved(*of)) else ""
    )
    raise UsageError(f"{what} differ by up to {float((left - right).abs().max()):.1e}.{why}")


def _unsaved(left: nn.Module, right: nn.Module) -> list[str]:
    """Name the buffers that no checkpoint holds, and that two models have with other values."""
    others, saved = dict(right.named_buffers()), right.state_dict().keys()
    pairs = {name: (value, others[name]) for name, value in left.named_buffers() if name in others and name not in saved}
    return [name for name, pair in pairs.items() if not torch.equal(*pair)]


def _require_same_settings(cut: nn.Module, full: nn.Module, blocks: str | None) -> None:
    """Compare the blocks' plain attributes, as a few tokens do not show everything, such as a sliding window."""
    pairs = zip(cut.get_submodule(blocks or "").named_modules(), full.get_submodule(blocks or "").modules(), strict=True)
    for (path, new), old in pairs:
        actual, wanted = settings(new), settings(old)
        for name in sorted(name for name in {*actual, *wanted} if actual.get(name) != wanted.get(name)):
            found, expected = actual.get(name), wanted.get(name)
            raise UsageError(f"{name} of block {path} would be {found!r} in the cut, but is {expected!r} in the full model.")


def _changed(name: str, cut: Any, read: Any, layers: list[int], config: PreTrainedConfig) -> str:
    """Say which setting of a layer transformers reads otherwise, and which layers have it as it is read."""
    told = f"transformers would read the config of a cut with layers {layers} as another network"
    if not (isinstance(cut, list) and isinstance(read, list) and len(cut) == len(read)):
        return f"{told}: {name} is {cut}, and would be {read}."
    place = next(place for place, pair in enumerate(zip(cut, read, strict=True)) if pair[0] != pair[1])
    fitting = [layer for layer, entry in enumerate(per_layer(config)[name], 1) if entry == read[place]]
    return (
        f"{told}: {name} of its layer {place + 1} is {cut[place]!r}, and would be {read[place]!r}. "
        f"Pass `layers` with one in that place that is so: {fitting}{_such_as(config, layers, place, fitting)}."
    )


def _such_as(config: PreTrainedConfig, layers: list[int], place: int, fitting: list[int]) -> str:
    """Give an example of layers with a fitting one in a place, if the others can stay."""
    if getattr(layered(config), "num_kv_shared_layers", None):
        return ""  # others must fit too
    others = ([*layers[:place], layer, *layers[place + 1 :]] for layer in fitting)
    return next((f", such as layers={choice}" for choice in others if choice == sorted({*choice})), "")


def _reason(model: PreTrainedModel, error: Exception) -> str:
    """Say why a model cannot be cut."""
    told = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    if shared := getattr(layered(model.config), "num_kv_shared_layers", None):
        told = (
            f"Its last {shared} layers take keys and values from layers before them (`num_kv_shared_layers`), so a cut "
            f"must keep some that give and some that take. {told}"
        )
    return told


def _advice(model: PreTrainedModel, backbone: Backbone, depths: list[int]) -> str:
    """Recommend the first layers if they can be cut, and others were not asked for."""
    if backbone.layers.by_depth != ENDS:
        return ""
    first = replace(backbone, layers=Layers(backbone.num_layers))
    try:
        check_written(type(model), model.config, first.layers, depths)
        _check(model, first, depths)
    except Exception:
        return ""
    return f" {_FIRST}"
