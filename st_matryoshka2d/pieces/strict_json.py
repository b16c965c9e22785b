"""JSON that somebody else wrote: one object, no key twice, nothing that another reader could read in another way."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

__all__ = ["LONGEST", "parse_object", "short"]

LONGEST = 100_000_000  # bytes; the limit of the safetensors library itself


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        text: The bytes of the object, in UTF-8.
        what: What it is, for the errors.

    Raises:
        ValueError: It is not UTF-8, not JSON, not an object, or names something twice.
    """
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_not_json)
        json.dumps(parsed, ensure_ascii=False).encode(
            "utf-8"
        )  # escapes can spell halves of characters, which no file can hold
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not usable JSON. {type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{what} must be a JSON object, found a {type(parsed).__name__}.")
    return parsed


def short(value: Any) -> str:
    """What somebody else wrote, for an error that stays readable.

    Args:
        value: Any of it.
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:100]!r} is there more than once.")
    return found


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number.")
