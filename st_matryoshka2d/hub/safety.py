"""What a file of unknown origin may not do: say a thing twice, lead out of its folder, or run code."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

__all__ = ["LONGEST", "parse_object", "pickled_shapes", "require_inside", "short"]

LONGEST = 100_000_000  # bytes of JSON; the limit of the safetensors library itself


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object that no other reader could read in another way."""
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")  # escapes can spell half characters, which no file can hold
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not usable JSON. {type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{what} must be a JSON object, found a {type(parsed).__name__}.")
    return parsed


def short(value: Any) -> str:
    """Any value of the file, for an error that stays readable."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def require_inside(path: str, what: str) -> str:
    """The path, if it stays inside the folder that it is relative to, on this system and on others."""
    other = PureWindowsPath(path)  # knows backslashes, drives, and everything that a POSIX path knows
    if not path or path.startswith("/") or other.anchor or ".." in other.parts or not path.isprintable():
        raise ValueError(f"{what} names the path {path[:100]!r}, which is not inside the repository.")
    return PurePosixPath(path).as_posix()


def pickled_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a `pytorch_model.bin` that holds tensors and nothing else."""
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: tuple(tensor.shape) for name, tensor in found.items()}
    except Exception as error:
        raise ValueError(  # in our own words, because those of torch suggest to run the code
            f"{path} is broken, or holds more than tensors, which could run code when it is opened "
            f"({type(error).__name__}). Ask whoever made it for a safetensors file; do not open this one in another way."
        ) from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:100]!r} is there more than once.")
    return found


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number.")
