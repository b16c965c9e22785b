"""Put a smaller vocabulary into the modules of a model: its tokenizer, its rows, and the ids in its config."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from st_matryoshka2d._hosts.torch import around, parts
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.model.copies import rebuilt_from, same, settled, share_memory
from st_matryoshka2d.model.kind import kind_of
from st_matryoshka2d.model.network import core, made_by
from st_matryoshka2d.model.sides import with_modules
from st_matryoshka2d.model.table import Table
from st_matryoshka2d.sizes import layered
from st_matryoshka2d.vocabulary.shrink import Shrunk, Vocabulary

Holder = Transformer | StaticEmbedding


def holders_of(model: nn.Module) -> list[Holder]:
    """List the modules of a model that have a vocabulary."""
    return [module for module in model.modules() if isinstance(module, Transformer | StaticEmbedding)]


def tokenizer_of(holder: Holder) -> Tokenizer:
    """Return the fast tokenizer of a module; refuse another."""
    tokenizer = holder.tokenizer
    fast = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(fast, Tokenizer):
        raise UsageError(
            "The vocabulary can only be cut with a fast tokenizer, of the `tokenizers` library, but the model has a "
            f"{type(tokenizer).__name__}."
        )
    return fast


def vocabulary_of(holder: Holder) -> Vocabulary:
    """Read the vocabulary of a module; tokens that its config names stay."""
    tokenizer = tokenizer_of(holder)
    if isinstance(holder, StaticEmbedding):
        return Vocabulary(tokenizer)
    around_it: Any = holder.tokenizer
    padding = [around_it.pad_token_id, words_of(holder.model).padding_idx, _padding(holder.model)]
    fixed = [token for token in padding if token is not None]
    return Vocabulary(tokenizer, [*_ids(holder.model.config), *fixed, *around_it.all_special_ids], fixed)


def with_rows(model: BaseModel, made: Mapping[Holder, Shrunk]) -> Any:
    """Copy a model with these vocabularies; other weights are shared."""
    new: dict[nn.Module, nn.Module] = {}  # a module that routes share stays shared

    def remade(module: nn.Module) -> nn.Module:
        if module in new:
            return new[module]
        if isinstance(module, Transformer):
            new[module] = _transformer(module, made[module])
        elif isinstance(module, StaticEmbedding):
            new[module] = _table(module, made[module])
        elif any(holder in made for holder in module.modules()):
            inside = {name: part and remade(part) for name, part in parts(module).items()}
            new[module] = around(module, inside)
        return new.setdefault(module, _beside(module))

    # a caller's inference_mode would be in the rows, which could not be trained
    with torch.inference_mode(False):
        modules = {name: remade(part) for name, part in model.named_children()}
    whole: Any = with_modules(model, modules, kind_of(model).cls)
    if not kind_of(model).no_dims:
        whole.truncate_dim = model.truncate_dim
    return whole


def _beside(module: nn.Module) -> nn.Module:
    """Copy a module that has no tokens of its own, but may know of them; refuse one that names some by their ids."""
    copied = share_memory(module)
    for part in copied.modules():
        if named := [name for name, value in vars(part).items() if name.endswith(_IDS) and value is not None]:
            raise UsageError(
                f"{type(part).__name__} of this model names tokens by their ids ({named[0]}), which would change. Its "
                "vocabulary is not cut."
            )
        if isinstance(part, SpladePooling):
            part.embedding_dimension = None  # it counts them when it first runs
    return copied


def words_of(network: PreTrainedModel) -> nn.Embedding:
    """Return the embedding of tokens; refuse a model of images too, whose processor marks their places by ids of tokens."""
    if layered(network.config) is not network.config:
        raise UsageError(
            f"The vocabulary of {type(network).__name__} is not cut: it reads more than texts, and its processor marks the "
            "places of images in a text by the ids of tokens, which a smaller vocabulary would change."
        )
    words = network.get_input_embeddings()
    if not isinstance(words, nn.Embedding):
        raise UsageError(f"{type(network).__name__} embeds tokens by a {type(words).__name__}, not by rows of an Embedding.")
    return words


def _table(table: StaticEmbedding, made: Shrunk) -> Table:
    rows = table.embedding.weight
    kept = Table(made.tokenizer, embedding_weights=_rows(rows, made.former))
    kept.embedding.weight.requires_grad_(rows.requires_grad)
    kept.train(table.training)
    return Table.of(kept, table.fit) if isinstance(table, Table) else kept


def _transformer(module: Transformer, made: Shrunk) -> Transformer:
    cut = copy.copy(module)
    cut.processor = settled(copy.deepcopy(module.processor, {id(tokenizer_of(module)): made.tokenizer}))
    network = share_memory(module.model)
    rows = words_of(network).weight
    # rows that a config names, but no token of the tokenizer has
    former = [*made.former, *sorted({*_ids(network.config)} & {*range(len(rows))} - {*made.former})]
    cut_rows(network, former)
    _check(network, module.model, former)
    return around(cut, {**parts(module), "model": network})


def cut_rows(network: PreTrainedModel, former: list[int]) -> None:
    """Keep some rows of the embedding of tokens and of what is tied to it, and renumber the config."""
    words, new = words_of(network), {token: place for place, token in enumerate(former)}
    old, padding = words.weight, {words.padding_idx, _padding(network)}
    below = {*core(network).modules()}
    kept = {id(old): nn.Parameter(_rows(old, former), old.requires_grad)}
    for module in network.modules():
        for name, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            # a head has a row for each token, and a bias
            if id(weight) not in kept and module not in below and len(weight) == len(old) != network.config.hidden_size:
                kept[id(weight)] = nn.Parameter(_rows(weight, former), weight.requires_grad)
            if id(weight) in kept:
                setattr(module, name, kept[id(weight)])
                vars(module).update(dict.fromkeys(_SIZES & vars(module).keys(), len(former)))
        before = getattr(module, "padding_idx", None)
        if isinstance(before, int) and before in padding:
            vars(module)["padding_idx"] = new.get(before, before)
    for config in {id(config): config for config in (network.config, network.config.get_text_config())}.values():
        config.vocab_size = len(former)
        for name, value in list(vars(config).items()):
            if name.endswith(_ID):
                setattr(config, name, _changed(value, new))
    if getattr(network, "vocab_size", None) == len(old):
        network.vocab_size = len(former)


_ID = "_token_id"
_IDS = ("_token_id", "_token_ids")
_SIZES = {"num_embeddings", "out_features"}


def _padding(network: PreTrainedModel) -> int | None:
    return getattr(network.config, "pad_token_id", None)


def _ids(config: Any) -> list[int]:
    """List the ids that a config names."""
    named = [value for name, value in vars(config).items() if name.endswith(_ID)]
    flat = [number for value in named for number in (value if isinstance(value, list) else [value])]
    return [number for number in flat if isinstance(number, int)]


def _changed(value: Any, new: Mapping[int, int]) -> Any:
    """Renumber an entry of a config; one that names no row stays."""
    if isinstance(value, list):
        return [new.get(number, number) for number in value]
    return new.get(value, value)


def _rows(rows: torch.Tensor, former: list[int]) -> torch.Tensor:
    """Select rows; a token that had none, such as one that was added to a tokenizer alone, gets zeros."""
    places = torch.tensor(former, device=rows.device)
    kept = rows.detach()[places.clamp(max=len(rows) - 1)]
    kept[places >= len(rows)] = 0
    return kept


@torch.no_grad()
def _check(small: PreTrainedModel, whole: PreTrainedModel, former: list[int]) -> None:
    """Refuse a network that does more with the ids of tokens than to look up rows."""
    known = [place for place, token in enumerate(former) if token < len(words_of(whole).weight)]
    places = torch.tensor(known)[torch.linspace(0, len(known) - 1, 16).long().view(2, 8)]
    mask = torch.ones_like(places)
    mask[1, 5:] = 0
    padding = _padding(small)
    if padding in known:
        places[1, 5:] = padding

    def run(network: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
        given = {"input_ids": ids.to(network.device), "attention_mask": mask.to(network.device)}
        state, *_ = made_by(share_memory(network).train(False), given)
        return state

    # as it will be when it is loaded
    now, before = run(rebuilt_from(small), places), run(whole, torch.tensor(former)[places])
    if not same(now, before, 2e-2 if now.dtype in (torch.float16, torch.bfloat16) else 1e-5):
        raise UsageError(
            f"{type(whole).__name__} does not embed the tokens that are left as before: it does more with their ids than to "
            "look up rows, such as counting positions from the padding token, whose id "
            f"{_padding(whole)} could not stay. Its vocabulary is not cut."
        )
