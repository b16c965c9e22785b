"""Model families: a table of tiny random models, built here and never downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SENTENCE = "the a cat dog bird sat ran flew on under over mat road house tree river quickly slowly red blue old new"
WORDS = SENTENCE.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL, *WORDS])}
TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "the old bird flew slowly over the red house under a blue tree",
    "the river ran",
    "new",
]

_TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_ENCODER = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_DECODER = {**_ENCODER, **_TOKENS, "num_key_value_heads": 2, "head_dim": 8}

_MIXED = {
    **_DECODER,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 2,
    "initializer_range": 0.3,
}

# As many layers as the text model beside it has.
_IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
}

CONFIGS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "bert": lambda: hf.BertConfig(**_ENCODER),
    "roberta": lambda: hf.RobertaConfig(**_ENCODER),
    "xlm-roberta": lambda: hf.XLMRobertaConfig(**_ENCODER),
    "mpnet": lambda: hf.MPNetConfig(**_ENCODER),
    "distilbert": lambda: hf.DistilBertConfig(
        vocab_size=len(VOCABULARY), dim=32, n_layers=4, n_heads=4, hidden_dim=48, max_position_embeddings=64
    ),
    "electra": lambda: hf.ElectraConfig(embedding_size=16, **_ENCODER),
    "deberta-v2": lambda: hf.DebertaV2Config(
        **_ENCODER,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        conv_kernel_size=3,
        norm_rel_ebd="layer_norm",
    ),
    "modernbert": lambda: hf.ModernBertConfig(
        **_ENCODER,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
        global_attn_every_n_layers=3,
        local_attention=4,
    ),
    "nomic-bert": lambda: hf.NomicBertConfig(**_ENCODER),
    "jina-v3": lambda: hf.JinaEmbeddingsV3Config(**_ENCODER),
    "eurobert": lambda: hf.EuroBertConfig(**_DECODER, mask_token_id=4),
    "t5-encoder": lambda: hf.T5Config(
        vocab_size=len(VOCABULARY), d_model=32, d_kv=8, d_ff=48, num_layers=4, num_heads=4, is_encoder_decoder=False
    ),
    "qwen3": lambda: hf.Qwen3Config(**_DECODER),
    "gemma3-text": lambda: hf.Gemma3TextConfig(**_DECODER, sliding_window=4, sliding_window_pattern=3),
    "llama": lambda: hf.LlamaConfig(**_DECODER),
    "mistral": lambda: hf.MistralConfig(**_DECODER, sliding_window=4),
    "albert": lambda: hf.AlbertConfig(embedding_size=16, **_ENCODER),
}

# Families that the package has no special code for: it must find their layers by structure.
UNNAMED: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "camembert": lambda: hf.CamembertConfig(**_ENCODER),
    "ernie": lambda: hf.ErnieConfig(**_ENCODER),
    "rembert": lambda: hf.RemBertConfig(**_ENCODER, input_embedding_size=16),
    "megatron-bert, pre-norm": lambda: hf.MegatronBertConfig(**_ENCODER),
    "roberta, pre-norm": lambda: hf.RobertaPreLayerNormConfig(**_ENCODER),
    "xlm-roberta-xl": lambda: hf.XLMRobertaXLConfig(**_ENCODER),
    "mt5-encoder": lambda: hf.MT5Config(
        vocab_size=len(VOCABULARY), d_model=32, d_kv=8, d_ff=48, num_layers=4, num_heads=4, is_encoder_decoder=False
    ),
    "roformer": lambda: hf.RoFormerConfig(**_ENCODER),
    "nystromformer": lambda: hf.NystromformerConfig(**_ENCODER, segment_means_seq_len=64, num_landmarks=64),
    "gpt2": lambda: hf.GPT2Config(vocab_size=len(VOCABULARY), n_embd=32, n_layer=4, n_head=4, n_positions=64),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**_ENCODER),
    "opt": lambda: hf.OPTConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=32,
    ),
    "qwen2, mixed windows": lambda: hf.Qwen2Config(
        **_DECODER, use_sliding_window=True, sliding_window=4, max_window_layers=2
    ),
    "gemma2": lambda: hf.Gemma2Config(**_DECODER, sliding_window=4),
    "qwen3, mixture of experts": lambda: hf.Qwen3MoeConfig(
        **_DECODER, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, mlp_only_layers=[0]
    ),
}

# Layers of two kinds, the last of the second kind, which transformers demands; and what of six layers a cut can keep.
MIXED: dict[str, tuple[Callable[[], hf.PreTrainedConfig], list[list[int]]]] = {
    "embedding-gemma2": (lambda: hf.EmbeddingGemma2TextConfig(**_MIXED, embedding_dim=32), [[1, 3, 4, 6], [1, 2, 3], [3]]),
    "embedding-gemma2, images too": (
        lambda: hf.EmbeddingGemma2Config(
            text_config={**_MIXED, "embedding_dim": 32},
            vision_config={**_IMAGES, "model_type": "gemma4_vision", "patch_size": 4, "pooling_kernel_size": 2},
            **dict(zip(("image_token_id", "video_token_id", "audio_token_id"), (20, 21, 22), strict=True)),
        ),
        [[1, 3, 4, 6], [1, 2, 3]],
    ),
    "gemma4": (lambda: hf.Gemma4TextConfig(**_MIXED | {"hidden_size_per_layer_input": 0}), [[1, 3, 4, 6], [1, 2, 3], [3]]),
    "gemma4, inputs of each layer": (
        lambda: hf.Gemma4TextConfig(**_MIXED, vocab_size_per_layer_input=len(VOCABULARY), use_bidirectional_attention="all"),
        [[1, 3, 4, 6], [1, 2, 3], [3]],
    ),
    # the last two layers take keys and values from layers 3 and 4
    "gemma4, shared keys": (
        lambda: hf.Gemma4TextConfig(**_MIXED, vocab_size_per_layer_input=len(VOCABULARY), num_kv_shared_layers=2),
        [[1, 3, 4, 5, 6], [3, 4, 6]],
    ),
}

REFUSED: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "albert with two groups": lambda: hf.AlbertConfig(embedding_size=16, num_hidden_groups=2, **_ENCODER),
    "albert with a group per layer": lambda: hf.AlbertConfig(embedding_size=16, num_hidden_groups=4, **_ENCODER),
    "encoder-decoder": lambda: hf.BartConfig(
        vocab_size=len(VOCABULARY),
        d_model=32,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    "four parallel lists": lambda: hf.XLMConfig(vocab_size=len(VOCABULARY), emb_dim=32, n_layers=4, n_heads=4),
    "decay rates that depend on the depth": lambda: hf.MiniMaxConfig(**_DECODER, num_local_experts=2),
    "recurrent": lambda: hf.MambaConfig(vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=4),
}


# The blocks that a model of four keeps at each depth if nothing was aligned or trained, counted from 0.
ENDS = {1: [0], 2: [0, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}

BLOCKS = {"bert": "encoder.layer", "modernbert": "layers", "qwen3": "layers"}


def build(config: hf.PreTrainedConfig, seed: int = 0) -> hf.PreTrainedModel:
    """Build a random model, norms included, so that a missing norm changes the output."""
    torch.manual_seed(seed)
    encoder = {"t5": hf.T5EncoderModel, "mt5": hf.MT5EncoderModel}.get(config.model_type)
    model = hf.AutoModel.from_config(config) if encoder is None else encoder(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def text_layers(model: hf.PreTrainedModel) -> str:
    """Return the path of the blocks of a model of `MIXED`."""
    return "language_model.layers" if hasattr(model, "language_model") else "layers"


def without_blocks(model: hf.PreTrainedModel, blocks: str | None, kept: Sequence[int]) -> hf.PreTrainedModel:
    """Copy a model, and put the identity in the place of every block but those; one that runs again runs less often."""
    by_hand = copy.deepcopy(model)
    if blocks is None:
        by_hand.config.num_hidden_layers = len(kept)
        return by_hand
    for layer, block in enumerate(by_hand.get_submodule(blocks).children()):
        if layer not in kept:
            block.register_forward_hook(_hand_on)
    return by_hand


def _hand_on(
    block: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor | tuple[torch.Tensor, ...]
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]


def set_dropout(model: torch.nn.Module, share: float) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share


@contextmanager
def cut_by_hand(model: SentenceTransformer, num_layers: int, kept: Sequence[int] | None = None) -> Iterator[None]:
    """Keep the first blocks of a model, or others, counted from 0, within this context; in all routes, with adapters."""
    taken: list[tuple[torch.nn.Module, str, torch.nn.ModuleList]] = []
    try:
        for transformer in {module for module in model.modules() if isinstance(module, Transformer)}:
            *path, name = BLOCKS[transformer.model.config.model_type].split(".")
            parent = transformer.model.get_submodule(".".join(path))
            blocks = getattr(parent, name)
            taken.append((parent, name, blocks))
            setattr(parent, name, torch.nn.ModuleList(blocks[place] for place in kept or range(num_layers)))
        yield
    finally:
        for parent, name, blocks in taken:
            setattr(parent, name, blocks)


def tokenizer(vocabulary: dict[str, int] = VOCABULARY) -> hf.PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word."""
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=48,
    )


def pipeline(
    config: hf.PreTrainedConfig,
    folder: Path,
    pooling: str | tuple[str, ...] = ("cls", "mean", "lasttoken"),
    dense: int | None = 24,
    normalize: bool = True,
) -> SentenceTransformer:
    """Build a tiny pipeline with every module after the Transformer that a cut could get wrong."""
    build(config).save_pretrained(folder)
    tokens = tokenizer()
    if hasattr(config, "text_config"):  # its own processor needs torchvision
        tokens._set_processor_class(type(tokens).__name__)
    tokens.save_pretrained(folder)
    transformer = Transformer(str(folder))
    modules: list[torch.nn.Module] = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)]
    if dense is not None:
        torch.manual_seed(1)
        modules.append(Dense(modules[-1].get_embedding_dimension(), dense))
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device="cpu").eval()
