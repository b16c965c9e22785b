"""Check that a model can be cut exactly; refuse others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.adapters import adapter_layers
from st_matryoshka2d.model.backbone import Backbone, architecture, find_backbone, refusal, settings, shallow_view
from st_matryoshka2d.model.copies import same, skeleton, trial
from st_matryoshka2d.model.depths import recorded, state_at
from st_matryoshka2d.model.layers import ENDS, Layers

# What was found exact: an architecture with some of its layers. Threads may check the same at once,
# each on copies of its own.
_EXACT: set[tuple[str, tuple[int, ...]]] = set()


def check_depths(model: PreTrainedModel, backbone: Backbone, depths: Iterable[int]) -> None:
    """Check on a few tokens that the model can be cut at these depths, once for models that are built alike."""
    known = architecture(model)
    kept = {depth: (known, tuple(backbone.layers.kept(depth))) for depth in depths}
    unknown = sorted(depth for depth, cut in kept.items() if cut not in _EXACT)
    if not unknown:
        return
    try:
        _check(model, backbone, unknown)
    except Exception as error:
        free = ' Perhaps its first layers can be: pass layers="first".' if backbone.layers.by_depth == ENDS else ""
        raise refusal(model, f"{type(error).__name__}: {error}{free}") from error
    _EXACT.update(kept.values())


def check_merged(plain: PreTrainedModel, model: PreTrainedModel) -> None:
    """Check that a model with merged adapters equals the one with adapters, and can be rebuilt from its config."""
    try:
        (now, inputs), (live, _) = trial(plain), trial(model)
        with torch.no_grad():
            merged, wanted = now(**inputs).last_hidden_state, live(**inputs).last_hidden_state
        # Other products are rounded than before, with TF32 to three digits.
        _require_close(merged, wanted, "the merged adapters and the live ones", 1e-2, in_half_precision=0.1)
    except Exception as error:
        raise refusal(model, f"{type(error).__name__}: {error}") from error
    check_depths(plain, find_backbone(plain), [plain.config.num_hidden_layers])


def check_loaded(model: PreTrainedModel, full_config: PreTrainedConfig, layers: Layers) -> None:
    """Check that a model loaded with fewer layers equals that part of the full one, without its other weights."""
    cut = find_backbone(model)
    full = Backbone(layers, cut.blocks, cut.tail)
    view = shallow_view(skeleton(type(model), full_config), full, cut.num_layers)
    view.load_state_dict(model.state_dict(), assign=True)
    nn.Module.to(view, model.device)  # buffers that no checkpoint has, such as positions
    try:
        loaded, inputs = trial(model)
        with torch.no_grad():
            _require_close(view.train(False)(**inputs).last_hidden_state, loaded(**inputs).last_hidden_state, "the two")
        _require_same_settings(model, view, full.blocks)
    except Exception as error:
        raise refusal(model, f"{type(error).__name__}: {error}") from error


@torch.no_grad()
def _check(model: PreTrainedModel, backbone: Backbone, depths: list[int]) -> None:
    # For each depth n three things must agree: the state of n blocks from one pass through the full
    # model, the view of n blocks, and a model rebuilt from the cut config with the view's tensors
    # in it, which is what loading a saved cut does. The blocks that the cut config makes must also
    # be set up like those of the full model.
    whole, inputs = trial(model)
    pristine = skeleton(type(model), model.config)
    with recorded(whole, backbone) as calls:
        states = whole(**inputs, output_hidden_states=True).hidden_states
    for depth in depths:
        view = shallow_view(whole, backbone, depth)
        cut = view(**inputs).last_hidden_state
        finished = states[depth] if depth == backbone.num_layers else state_at(whole, backbone, depth, states, calls)
        _require_close(finished, cut, f"the state after block {depth} and the model cut there")
        if adapter_layers(model):
            continue  # its config does not tell of adapters; they are merged before a cut is saved
        rebuilt = rebuilt_from(view)
        _require_close(rebuilt(**inputs).last_hidden_state, cut, f"the cut at {depth} and its config alone")
        _require_same_settings(rebuilt, shallow_view(pristine, backbone, depth), backbone.blocks)


def rebuilt_from(view: PreTrainedModel) -> PreTrainedModel:
    """Rebuild a model as loading a saved cut does: from its config alone, then with its tensors."""
    rebuilt = skeleton(type(view), view.config)
    for name, _ in list(rebuilt.named_children()):
        if getattr(view, name, None) is None:
            # built without it, such as the encoder of a masked LM without its pooler
            setattr(rebuilt, name, None)
    rebuilt.load_state_dict(view.state_dict(), assign=True)
    nn.Module.to(rebuilt, view.device)
    rebuilt.train(False)
    return rebuilt


def _require_close(
    left: Tensor, right: Tensor, what: str, tolerance: float = 1e-5, *, in_half_precision: float = 2e-2
) -> None:
    if not same(left, right, in_half_precision if right.dtype in (torch.float16, torch.bfloat16) else tolerance):
        raise UsageError(f"{what} differ by up to {float((left - right).abs().max()):.1e}.")


def _require_same_settings(cut: nn.Module, full: nn.Module, blocks: str | None) -> None:
    """Compare the blocks' plain attributes, as a few tokens do not show everything, such as a sliding window."""
    pairs = zip(cut.get_submodule(blocks or "").named_modules(), full.get_submodule(blocks or "").modules(), strict=True)
    for (path, new), old in pairs:
        actual, wanted = settings(new), settings(old)
        if actual != wanted:
            raise UsageError(f"{path} is set up as {actual} in the cut, as {wanted} in the full model.")
