"""The tokenizer of a table: that of the model without special tokens, and of a large vocabulary only what the texts need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

Vocabulary = Mapping[str, Any]


def table_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Copy a tokenizer without special tokens, truncation and padding; tokens keep their ids."""
    settings = json.loads(tokenizer.to_str())
    settings |= {"truncation": None, "padding": None, "post_processor": None}
    # A special token that is written out in a text is text there.
    settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]
    return Tokenizer.from_str(json.dumps(settings))


def shrunk(tokenizer: Tokenizer, tokens: Iterable[int]) -> tuple[Tokenizer, list[int]]:
    """Keep the tokens that occur, and those that make them up; return their former ids in the new order.

    Texts of these tokens alone are split as before; other words are made of the tokens that are
    left.
    """
    settings = json.loads(tokenizer.to_str())
    model = settings["model"]
    kind = model.get("type")
    if kind not in _KEPT:
        return tokenizer, list(range(tokenizer.get_vocab_size()))
    by_name = tokenizer.get_vocab()
    names = {token: name for name, token in by_name.items()}
    wanted = _KEPT[kind](model, {names[token] for token in tokens})
    wanted |= {token["content"] for token in settings["added_tokens"]}
    former = sorted(by_name[name] for name in wanted)
    new = {names[token]: place for place, token in enumerate(former)}
    for token in settings["added_tokens"]:
        token["id"] = new[token["content"]]
    if kind == "Unigram":
        pieces = dict(map(tuple, model["vocab"]))
        unknown = model["vocab"][model["unk_id"]][0] if model["unk_id"] is not None else None
        model["vocab"] = [[name, pieces.get(name, 0.0)] for name in new]
        model["unk_id"] = None if unknown is None else new[unknown]
    else:
        model["vocab"] = new
    if kind == "BPE":
        model["merges"] = [merge for merge in model["merges"] if {*_parts(merge), "".join(_parts(merge))} <= wanted]
    return Tokenizer.from_str(json.dumps(settings)), former


def _of_unigram(model: Vocabulary, names: set[str]) -> set[str]:
    pieces = dict(map(tuple, model["vocab"]))
    single = {name for name in pieces if len(name) == 1 or (model.get("byte_fallback") and name.startswith("<0x"))}
    # An unknown character costs a little more than the rarest piece, so that one stays too.
    rarest = min(pieces, key=lambda name: float(pieces[name]))
    unknown = {model["vocab"][model["unk_id"]][0]} if model["unk_id"] is not None else set()
    return names | single | unknown | {rarest}


def _of_wordpiece(model: Vocabulary, names: set[str]) -> set[str]:
    inside = model["continuing_subword_prefix"]
    single = {name for name in model["vocab"] if len(name.removeprefix(inside)) == 1}
    return names | single | ({model["unk_token"]} & set(model["vocab"]))


def _of_bpe(model: Vocabulary, names: set[str]) -> set[str]:
    made_of: dict[str, list[tuple[str, str]]] = {}
    for merge in model["merges"]:
        made_of.setdefault("".join(_parts(merge)), []).append(_parts(merge))
    wanted = names | {name for name in model["vocab"] if name not in made_of}  # the alphabet
    more = list(names)
    while more:
        parts = {part for merge in made_of.get(more.pop(), []) for part in merge} - wanted
        wanted |= parts
        more += parts
    return wanted


def _of_words(model: Vocabulary, names: set[str]) -> set[str]:
    return names | ({model["unk_token"]} & set(model["vocab"]))


def _parts(merge: Any) -> tuple[str, str]:
    """Return the two tokens of a merge, which older files write as one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


_KEPT: dict[str, Callable[[Vocabulary, set[str]], set[str]]] = {
    "Unigram": _of_unigram,
    "WordPiece": _of_wordpiece,
    "BPE": _of_bpe,
    "WordLevel": _of_words,
}
