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


def reachable(model: Vocabulary, words: Callable[[str], list[str]]) -> Vocabulary:
    """Return the model without tokens that no text can have, if texts are split into these words before."""
    if model.get("type") != "WordPiece":
        return model
    inside, vocabulary = model["continuing_subword_prefix"], _vocabulary(model)
    characters = {character for name in vocabulary for character in name.removeprefix(inside)}
    # such as punctuation or a Chinese character, which no other stands beside in a word
    alone = {character for character in characters if _is_alone(character, words)}
    stays = {*alone, model["unk_token"]}
    return {**model, "vocab": {n: i for n, i in vocabulary.items() if n in stays or not alone & {*n.removeprefix(inside)}}}


def _is_alone(character: str, words: Callable[[str], list[str]]) -> bool:
    """Tell whether a character is a word wherever it stands."""
    found = {word for word in words(f"a{character}a{character}{character}1{character}1") if character in word}
    return found == {character}


def missing(model: Vocabulary, name: str) -> str | None:
    """Return a part of a token that is no token of its own, without which nothing stays exact; None if there is none."""
    if model.get("type") != "WordPiece" or name == model["unk_token"]:
        return None
    inside, vocabulary = model["continuing_subword_prefix"], model["vocab"]
    start = inside if name.startswith(inside) else ""
    letters = [inside + letter for letter in name.removeprefix(start)]
    letters[:1] = [letter.removeprefix("" if start else inside) for letter in letters[:1]]
    return next((letter for letter in letters if letter not in vocabulary), None)


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
    for name in names & vocabulary.keys():
        if part := missing(model, name):
            raise _refusal(f"the token {name!r} contains {part!r}, which is no token of its own")
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
