"""Every text model of transformers: a cut that is saved and loaded is the network that was cut, or there is none."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from st_matryoshka2d.cutting.exactness import check_depths
from st_matryoshka2d.model.backbone import find_backbone, shallow_view
from st_matryoshka2d.model.copies import share_memory
from st_matryoshka2d.model.layers import Layers
from tests.support import families

pytestmark = pytest.mark.slow

LAYERS = 6
# By the usual names; a config that has others, or other limits, is left out.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"), 48),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 40),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_global_key_value_heads"), 1),
    **dict.fromkeys(("num_key_value_heads", "index_n_heads"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("embedding_size", "embedding_rank", "embedding_dim", "word_embed_proj_dim", "global_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input", "index_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_d_ssm", "mamba_d_inner"), 64),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_chunk_size"), 8),
    "index_topk": 64,
    "sliding_window": 4,
    "attention_window": 4,
    "num_kv_shared_layers": 0,
    "initializer_range": 0.3,
}
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
OTHERS = {"neomme": {"head_dim": 16}}


def tiny(kind: type[PreTrainedConfig]) -> PreTrainedModel | None:
    """Build a small random model of a config class; None if the usual sizes are not enough, or it reads no text."""
    known = {*vars(kind()), *kind.attribute_map, "global_head_dim", "num_global_key_value_heads"}
    aliases = {kind.attribute_map.get(name, name) for name in known}
    sizes = {**SIZES, **SPECIAL, **OTHERS.get(kind.model_type, {})}
    config = kind(**{name: value for name, value in sizes.items() if name in known and name in aliases})
    if config.num_hidden_layers != LAYERS:
        return None
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in AutoModel.from_config(config).parameters())
    if weights > 1e7:
        return None
    model = families.build(config)
    with torch.no_grad():
        finite = model(**inputs()).last_hidden_state.isfinite().all()
    return model if finite else None


def inputs() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    return {"input_ids": torch.arange(4, 36).view(2, 16), "attention_mask": mask}


def one_config(name: str, layers: str, folder: Path) -> list[str]:
    """Cut at five depths; say of each whether it is refused, or equals the whole model with the other blocks taken out."""
    try:
        model = tiny(CONFIG_MAPPING[name])
    except Exception:
        model = None
    if model is None:
        return ["not built"]
    try:
        backbone = find_backbone(model, Layers(LAYERS, layers))
    except ValueError:
        return ["refused"]
    found: list[str] = []
    for depth in range(1, LAYERS):
        try:
            check_depths(model, backbone, [depth])
        except ValueError:
            found.append("refused")
            continue
        share_memory(shallow_view(model, backbone, depth)).save_pretrained(folder)
        with torch.no_grad():
            loaded = type(model).from_pretrained(folder).eval()(**inputs()).last_hidden_state
            wanted = families.without_blocks(model, backbone.blocks, backbone.layers.kept(depth))(**inputs())
        same = torch.allclose(loaded, wanted.last_hidden_state, atol=1e-4 * float(wanted.last_hidden_state.abs().max()))
        found.append("exact" if same else "WRONG")
    return found


@pytest.mark.parametrize("layers", ["first", "ends"])
def test_every_config_is_cut_right_or_refused(layers: str, tmp_path: Path) -> None:
    logging.disable(logging.WARNING)
    try:
        of_each = {
            kind.model_type: one_config(kind.model_type, layers, tmp_path / kind.model_type)
            for kind in MODEL_MAPPING
            if kind.model_type in CONFIG_MAPPING
        }
    finally:
        logging.disable(logging.NOTSET)
    wrong = {name: found for name, found in of_each.items() if "WRONG" in found}
    assert not wrong
    counts = Counter(found for each in of_each.values() for found in set(each))
    assert counts["exact"] > 100, counts
