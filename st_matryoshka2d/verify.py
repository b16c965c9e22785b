"""Check that a model can be cut exactly, and has all its weights; others are refused, never cut approximately."""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from st_matryoshka2d.backbone import Backbone, find_backbone, probing, refusal, same, shallow_view, skeleton
from st_matryoshka2d.hub.header import some
from st_matryoshka2d.recorded import recorded, state_at


def check_depths(model: PreTrainedModel, backbone: Backbone, depths: list[int]) -> None:
    """Check on a few tokens that the model can be cut at these depths."""
    # For each depth n three things must agree: the state of n blocks from one pass through the full model, the view of n
    # blocks, and a model rebuilt from the cut config with the view's tensors in it, which is what loading a saved cut does.
    # The blocks that the cut config makes must also be set up like those of the full model.
    total = backbone.num_layers
    with probing(model) as inputs:
        try:
            whole = shallow_view(model, backbone, total)  # so that the model itself gets no hooks
            with recorded(whole, backbone) as calls:
                states = whole(**inputs).hidden_states
            pristine = skeleton(type(model), model.config)
            for depth in depths:
                view = shallow_view(model, backbone, depth)
                cut = view(**inputs).last_hidden_state
                finished = states[depth] if depth == total else state_at(whole, backbone, depth, states, calls)
                _require_close(finished, cut, f"the state after block {depth} and the model cut there")
                if getattr(model, "_hf_peft_config_loaded", False):
                    continue  # with an unmerged adapter, a model can be trained, but its cuts are never saved
                rebuilt = _rebuild(view)
                _require_close(rebuilt(**inputs).last_hidden_state, cut, f"the cut at {depth} and its config alone")
                _require_same_settings(rebuilt, shallow_view(pristine, backbone, depth), backbone.blocks)
        except Exception as error:
            raise refusal(model, f"{type(error).__name__}: {error}") from error


def check_loaded(model: PreTrainedModel, full_config: PreTrainedConfig) -> None:
    """Check that a model loaded with fewer layers equals that part of the full one, without its other weights."""
    cut = find_backbone(model)
    full = Backbone(full_config.num_hidden_layers, cut.blocks, cut.tail)
    view = shallow_view(skeleton(type(model), full_config), full, cut.num_layers)
    view.load_state_dict(model.state_dict(), assign=True)
    with probing(model) as inputs:
        try:
            _require_close(view.train(False)(**inputs).last_hidden_state, model(**inputs).last_hidden_state, "the two")
            _require_same_settings(model, view, full.blocks)
        except Exception as error:
            raise refusal(model, f"{type(error).__name__}: {error}") from error


def check_complete(pipeline: SentenceTransformer, where: str) -> None:
    """Refuse a model whose token embeddings depend on missing weights, which transformers filled with random values."""
    for module in pipeline.modules():
        network = module.model if isinstance(module, Transformer) else None
        # a quantizer replaces the parameters, and loads them itself
        if not isinstance(network, PreTrainedModel) or getattr(network, "hf_quantizer", None) is not None:
            continue
        if absent := _absent(network):
            raise ValueError(
                f"{where} lacks weights of {type(network).__name__}, or has them in other shapes: {some(absent)}. They are "
                "not replaced by random values: download the checkpoint again, or ask its author to save it again."
            )


def _absent(network: PreTrainedModel) -> list[str]:
    """List missing weights in the blocks, or that token embeddings depend on, unlike those of a pooling head."""
    # Transformers marks the weights that it has loaded or tied, and initialises the rest.
    made_up = {n: value for n, value in network.named_parameters() if not getattr(value, "_is_hf_initialized", False)}
    if not made_up:
        return []
    blocks = find_backbone(network).blocks
    with probing(network) as inputs, torch.enable_grad():
        state = network(**inputs).last_hidden_state
        used = torch.autograd.grad(state.sum(), list(made_up.values()), allow_unused=True)
    reached = {name for name, gradient in zip(made_up, used, strict=True) if gradient is not None}
    # A block may have experts that these few tokens do not reach.
    return [name for name in made_up if name in reached or (blocks and name.startswith(f"{blocks}."))]


def _rebuild(view: PreTrainedModel) -> PreTrainedModel:
    """Rebuild a view as loading a saved cut does: from its config alone, then with its tensors."""
    rebuilt = skeleton(type(view), view.config)
    for name, _ in list(rebuilt.named_children()):
        if getattr(view, name, None) is None:
            setattr(rebuilt, name, None)  # built without it, such as the encoder of a masked LM without its pooler
    rebuilt.load_state_dict(view.state_dict(), assign=True)
    nn.Module.to(rebuilt, view.device)
    rebuilt.train(False)
    return rebuilt


def _require_close(left: Tensor, right: Tensor, what: str) -> None:
    if not same(left, right, tolerance=2e-2 if right.dtype in (torch.float16, torch.bfloat16) else 1e-5):
        raise ValueError(f"{what} differ by up to {float((left - right).abs().max()):.1e}.")


def _require_same_settings(cut: nn.Module, full: nn.Module, blocks: str | None) -> None:
    """Compare the blocks' plain attributes, as a few tokens do not show everything, such as a sliding window."""

    def settings(module: nn.Module) -> dict[str, object]:
        plain = (bool, int, float, str, type(None))
        return {k: v for k, v in vars(module).items() if isinstance(v, plain) and not k.startswith("_") and k != "training"}

    pairs = zip(cut.get_submodule(blocks or "").named_modules(), full.get_submodule(blocks or "").modules(), strict=True)
    for (path, new), old in pairs:
        if settings(new) != settings(old):
            raise ValueError(f"{path} is set up as {settings(new)} in the cut, as {settings(old)} in the full model.")
