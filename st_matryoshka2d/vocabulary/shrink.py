"""Make a tokenizer of a part of its tokens: a text that has no others is split as before."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.vocabulary.kinds import merges, missing, needed, reachable

_UNREADABLE = "\ufffd"  # a part of a character's bytes


@dataclass(frozen=True)
class Shrunk:
    """A smaller tokenizer, and what its tokens were before."""

    tokenizer: Tokenizer
    former: list[int]  # the former id of each token
    spare: range  # tokens that nobody asked for: others are made of them, or other texts fall back on them


class Vocabulary:
    """The tokens of a tokenizer, to choose from."""

    def __init__(self, tokenizer: Tokenizer, named: Iterable[int] = (), fixed: Iterable[int] = ()) -> None:
        """Read a tokenizer; `named` tokens always stay, and `fixed` ones keep their ids, if there are enough others."""
        try:
            self._settings: dict[str, Any] = json.loads(tokenizer.to_str())
        except Exception as error:  # as the library raises
            raise UsageError(
                f"A part of this tokenizer is written in Python, so it cannot be made again: {error}"
            ) from error
        self._model = self._settings["model"]
        self._ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
        self.names = {token: name for name, token in self._ids.items()}
        added = {token["content"]: token["id"] for token in self._settings["added_tokens"]}
        # an added token is found before the others, so nothing is made of it
        self._added = added.keys()
        self._outer = sorted(token for name, token in added.items() if name not in self._ids)
        of_template: dict[int, int] = {}
        _around(self._settings["post_processor"], lambda token: of_template.setdefault(token, token))
        # what no text has, and what could not stay exact, only stays if it is asked for
        self._reachable = reachable(self._model, lambda text: _words(tokenizer, text))
        free = {name for name in dict(self._reachable["vocab"]) if missing(self._reachable, name) is None} - self._added
        texts = {self._ids[name]: _written(tokenizer, self._model, name) for name in free}
        self.free = texts.keys()
        signs = {token for token, text in texts.items() if _is_sign(text)}
        self._letters = {self.names[token] for token, text in texts.items() if _is_letter(text)}
        self.front = sorted({*added.values(), *named, *of_template, *signs} & self.names.keys())
        unknown = self._model.get("unk_id")
        self._fixed = sorted({*fixed, *([] if unknown is None else [unknown])} & self.names.keys())

    def spare(self, tokens: Iterable[int]) -> list[int]:
        """List the tokens that stay beside these, ascending: what they, and other texts, are made of."""
        listed = {self.names[token] for token in [*tokens, *self.front] if token in self.names}
        wanted = (listed | self._letters) - self._added
        return sorted(self._ids[name] for name in needed(self._reachable, wanted) - listed)

    def size(self, tokens: Iterable[int]) -> int:
        """Count the tokens of a smaller tokenizer."""
        wanted = {*tokens, *self.front} & self.names.keys()
        return len(wanted) + len(self.spare(wanted)) + len(self._outer)

    def shrunk(self, tokens: Iterable[int]) -> Shrunk:
        """Keep some tokens: first come added and named ones, then these, then the spare ones."""
        wanted = [token for token in dict.fromkeys([*self.front, *sorted(tokens)]) if token in self.names]
        order = [*wanted, *self.spare(wanted)]
        for token in self._fixed:
            if token in order and token < len(order):
                order.remove(token)
                order.insert(token, token)
        new = {token: place for place, token in enumerate([*order, *self._outer])}
        settings = self._renumbered({self.names[token]: new[token] for token in order}, new)
        return Shrunk(Tokenizer.from_str(json.dumps(settings)), list(new), range(len(wanted), len(order)))

    def _renumbered(self, vocabulary: dict[str, int], new: Mapping[int, int]) -> dict[str, Any]:
        """Write the tokens that are left, and their new ids, wherever they stand."""
        model = dict(self._model)
        if model["type"] == "Unigram":
            scores = dict(map(tuple, model["vocab"]))
            model["vocab"] = [[name, scores[name]] for name in vocabulary]
            model["unk_id"] = None if model["unk_id"] is None else new[model["unk_id"]]
        else:
            model["vocab"] = vocabulary
        if model["type"] == "BPE":
            made = merges(self._model)
            model["merges"] = [[left, right] for left, right, whole in made if {left, right, whole} <= vocabulary.keys()]
        added = [{**token, "id": new[token["id"]]} for token in self._settings["added_tokens"]]
        settings = {**self._settings, "model": model, "added_tokens": sorted(added, key=lambda token: int(token["id"]))}
        settings["post_processor"] = _around(settings["post_processor"], new.__getitem__)
        if padding := settings["padding"]:
            settings["padding"] = {**padding, "pad_id": new.get(padding["pad_id"], padding["pad_id"])}
        return settings


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Split a text into the words that a tokenizer makes pieces of."""
    text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if tokenizer.pre_tokenizer else [text]


def _around(processor: Any, new: Callable[[int], int]) -> Any:
    """Copy a post-processor with the new ids of the tokens that it puts around a text."""
    match processor and processor["type"]:
        case "Sequence":
            return {**processor, "processors": [_around(part, new) for part in processor["processors"]]}
        case "TemplateProcessing":
            special = processor["special_tokens"]
            changed = {name: {**token, "ids": [new(number) for number in token["ids"]]} for name, token in special.items()}
            return {**processor, "special_tokens": changed}
        case "BertProcessing" | "RobertaProcessing":
            return {**processor, **{side: [processor[side][0], new(processor[side][1])] for side in ("sep", "cls")}}
    return processor


def _written(tokenizer: Tokenizer, model: Mapping[str, Any], name: str) -> str:
    """Return what a token stands for in a text, without the mark of a word's start, inside or end."""
    # a decoder knows the mark of a start and of an end, and how bytes are written
    text = tokenizer.decoder.decode([name]) if tokenizer.decoder else name
    return text.removeprefix(model.get("continuing_subword_prefix") or "").strip()


def _is_sign(text: str) -> bool:
    """Tell whether a text has nothing but punctuation, quotes, currency and symbols, or is a digit."""
    kinds = {unicodedata.category(character)[0] for character in text}
    return bool(text) and _UNREADABLE not in text and (kinds <= {"P", "S"} or (len(text) == 1 and kinds == {"N"}))


def _is_letter(text: str) -> bool:
    """Tell whether a text is a letter of an alphabet with capitals; in other scripts thousands are words of their own."""
    return len(text) == 1 and unicodedata.category(text) in ("Lu", "Ll")
