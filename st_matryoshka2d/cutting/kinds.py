"""What each kind of tokenizer needs beside the tokens of texts, so that these texts are split as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from st_matryoshka2d.errors import UsageError

Vocabulary = Mapping[str, Any]  # the model of a `tokenizer.json`


def needed(model: Vocabulary, names: set[str]) -> set[str]:
    """Return tokens with all that makes them up, and all of which other texts are made; refuse what cannot be exact."""
    kind = model.get("type")
    if kind not in _KINDS:
        raise _refusal(f"{kind} is not one of {', '.join(_KINDS)}")
    return _KINDS[kind](model, names)


def _of_unigram(model: Vocabulary, names: set[str]) -> set[str]:
    # The best path through a text stays the best when pieces beside it go. That holds of equal
    # paths too: the leftmost wins, and none comes anew.
    pieces = dict(map(tuple, model["vocab"]))
    if len(pieces) < len(model["vocab"]):
        raise _refusal("it lists a piece twice")
    single = {name for name in pieces if len(name) == 1 or (model.get("byte_fallback") and name.startswith("<0x"))}
    # An unknown character costs a little more than the rarest piece, so that one stays too.
    rarest = min(pieces, key=lambda name: float(pieces[name]))
    unknown = {model["vocab"][model["unk_id"]][0]} if model["unk_id"] is not None else set()
    return names | single | unknown | {rarest}


def _of_wordpiece(model: Vocabulary, names: set[str]) -> set[str]:
    # The longest piece is taken, and stays the longest when others go. An unknown word stays
    # unknown if it has a character that no piece contains: so every character must be a piece.
    inside, vocabulary = model["continuing_subword_prefix"], _vocabulary(model)
    single = {name for name in vocabulary if len(name.removeprefix(inside)) == 1}
    for name in names & vocabulary.keys() - {model["unk_token"]}:
        start = inside if name.startswith(inside) else ""
        for letter in name.removeprefix(start):
            if start + letter not in vocabulary:
                raise _refusal(f"the token {name!r} contains {start + letter!r}, which is no token of its own")
            start = inside
    return names | single | ({model["unk_token"]} & vocabulary.keys())


def _of_bpe(model: Vocabulary, names: set[str]) -> set[str]:
    # A text is made by merges in their order, and each merge that it takes lies within one of its
    # tokens. With all merges that can make its tokens, it takes the same ones.
    if model.get("dropout"):
        raise _refusal("it leaves out merges at random (dropout)")
    made_of: dict[str, list[tuple[str, str]]] = {}
    for left, right, whole in merges(model):
        made_of.setdefault(whole, []).append((left, right))
    wanted = names | {name for name in model["vocab"] if name not in made_of}  # the alphabet
    more = list(names)
    while more:
        parts = {part for merge in made_of.get(more.pop(), []) for part in merge} - wanted
        wanted |= parts
        more += parts
    return wanted


def _of_words(model: Vocabulary, names: set[str]) -> set[str]:
    return names | ({model["unk_token"]} & _vocabulary(model).keys())


def _vocabulary(model: Vocabulary) -> dict[str, int]:
    return dict(model["vocab"])


def merges(model: Vocabulary) -> Iterator[tuple[str, str, str]]:
    """Yield both sides and the result of each merge of a BPE, which older files write as one text."""
    inside = len(model.get("continuing_subword_prefix") or "")
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right, left + right[inside:]


def _refusal(reason: str) -> UsageError:
    return UsageError(
        f"The vocabulary of this tokenizer cannot be cut so that texts stay as they are, so it is not cut at all: {reason}."
    )


_KINDS: dict[str, Callable[[Vocabulary, set[str]], set[str]]] = {
    "Unigram": _of_unigram,
    "WordPiece": _of_wordpiece,
    "BPE": _of_bpe,
    "WordLevel": _of_words,
}
