"""Cut the vocabulary of a model to that of texts, and measure on a part of them what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.errors import DataWarning, UsageError, warn
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.identity import model_name
from st_matryoshka2d.model.kind import kind_of
from st_matryoshka2d.model.pipeline import transformers_of
from st_matryoshka2d.sizes import positive_int
from st_matryoshka2d.texts import filled_texts
from st_matryoshka2d.vocabulary.choice import chosen, tokens_of
from st_matryoshka2d.vocabulary.rows import Holder, holders_of, tokenizer_of, vocabulary_of, with_rows
from st_matryoshka2d.vocabulary.shrink import Shrunk

_HELD = 10  # every so many texts tell what the cut costs
_COMPARED = 200  # those of a language that are embedded
_ENOUGH = 0.8  # share of them that are exact
_NO_LANGUAGE = "texts"  # where no languages were given

Tokens = Mapping[str, Sequence[NDArray[np.int64]]]  # by language, of each text


def with_vocabulary(
    model: Any, texts: Iterable[str] | Mapping[str, Iterable[str]], max_tokens: int | None
) -> tuple[Any, int]:
    """Copy a model with the vocabulary of texts alone; also return its number of rows."""
    most = None if max_tokens is None else positive_int(max_tokens, "max_tokens")
    read = _read(texts)
    prompts = list(dict.fromkeys(["", *filter(None, model.prompts.values())]))
    some: dict[Holder, Shrunk] = {}
    every: dict[Holder, Shrunk] = {}
    exact = {language: np.ones(len(_held(of)), dtype=bool) for language, of in read.items()}
    for holder in holders_of(model):
        vocabulary, tokenizer = vocabulary_of(holder), tokenizer_of(holder)
        tokens = {language: tokens_of(tokenizer, of, prompts) for language, of in read.items()}
        always = np.concatenate(tokens_of(tokenizer, prompts, [""])).tolist()
        learned = {language: _learned(of) for language, of in tokens.items()}
        some[holder], every[holder] = (
            vocabulary.shrunk({*chosen(vocabulary, of, always, most), *always}) for of in (learned, tokens)
        )
        kept = np.zeros(1 + max(tokenizer.get_vocab().values()), dtype=bool)
        kept[some[holder].former] = True
        for language, of_language in tokens.items():
            exact[language] &= np.array([kept[row].all() for row in _held(of_language)], dtype=bool)
    cost = _cost(model, with_rows(model, some), {language: _held(of) for language, of in read.items()}, exact)
    small = with_rows(model, every)
    _declare(small, model, every, {language: len(of) for language, of in read.items()}, cost)
    return small, max(len(made.former) for made in every.values())


def _read(texts: Iterable[str] | Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Read the texts of each language."""
    by_language = texts if isinstance(texts, Mapping) else {_NO_LANGUAGE: texts}
    read = {str(language): filled_texts(of) for language, of in by_language.items()}
    if empty := [language for language, of in read.items() if not of] or (not read and [_NO_LANGUAGE]):
        raise UsageError(f"vocabulary: there are no texts in {empty[0]!r}. Pass texts like those that will be embedded.")
    return read


def _held(texts: Sequence[Any]) -> Sequence[Any]:
    """Return the texts, or the tokens of them, that tell what the cut costs."""
    return texts[_HELD - 1 :: _HELD]


def _learned(texts: Sequence[Any]) -> list[Any]:
    """Return the others."""
    return [text for place, text in enumerate(texts) if place % _HELD != _HELD - 1]


def _cost(
    whole: SentenceTransformer,
    small: SentenceTransformer,
    held: Mapping[str, Sequence[str]],
    exact: Mapping[str, NDArray[np.bool_]],
) -> dict[str, dict[str, float]]:
    """Return the share of held-out texts that stay exact, and the mean cosine of others before and after."""
    shares = {language: round(float(marks.mean()), 4) for language, marks in exact.items() if marks.size}
    cosines = {}
    # of other classes, a smaller vocabulary changes the dims, or the number of embeddings
    for language, marks in exact.items() if not kind_of(whole).no_dims else ():
        others = [held[language][place] for place in np.flatnonzero(~marks)[:_COMPARED]]
        if others:
            settings: dict[str, Any] = {"convert_to_numpy": True, "show_progress_bar": False, "normalize_embeddings": True}
            before, after = (np.float64(each.encode(others, **settings)) for each in (whole, small))
            cosines[language] = round(float((before * after).sum(1).mean()), 4)
    if few := [
        f"{share:.0%} of {language!r}" + (f" (cosine of the others {told:.3f})" if (told := cosines.get(language)) else "")
        for language, share in shares.items()
        if share < _ENOUGH
    ]:
        warn(
            f"Of texts that were left out of a first vocabulary, few are embedded as before: {', '.join(few)}. Pass more "
            "texts, like those that will be embedded, and a larger max_tokens if you gave one.",
            DataWarning,
        )
    if unknown := [language for language, of in held.items() if not of]:
        warn(
            f"Nothing tells what this vocabulary costs: fewer than {_HELD} texts in {', '.join(map(repr, unknown))}. "
            "Words that are not in them are split into more tokens. Pass some thousand, like those that will be embedded.",
            DataWarning,
        )
    return {"exact": shares, "cosine": cosines}


def _declare(
    small: SentenceTransformer,
    whole: SentenceTransformer,
    made: Mapping[Holder, Shrunk],
    counts: Mapping[str, int],
    cost: Mapping[str, Any],
) -> None:
    """Write into the configs what the vocabulary was made of, and what it costs."""
    for transformer, before in zip(transformers_of(small), transformers_of(whole), strict=True):
        spare = made[before].spare
        rows = int(transformer.model.config.vocab_size)
        entry = {"rows": rows, "of": int(before.model.config.vocab_size), "spare": [spare.start, spare.stop]}
        told = {**entry, "model": model_name(whole), "texts": dict(counts), **cost}
        Declaration.of(transformer.model.config).with_vocabulary(told).write(transformer.model.config)
