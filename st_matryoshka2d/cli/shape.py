"""The largest size of a model, from its JSON files alone: a wrong size is refused before torch is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from posixpath import join
from typing import Any

from st_matryoshka2d.model.kept_layers import written_depth
from st_matryoshka2d.sizes import Size

_FIRST, _AFTER = {"Transformer", "TruncatedTransformer"}, {"Pooling", "Dense", "Normalize", "Dropout", "LayerNorm"}
_UNKNOWN = sys.maxsize  # refuses nothing; the library knows more models than this file


def largest_size(read: Callable[[str], Any]) -> Size:
    """Return an upper limit for the sizes of a model; `read` returns the content of one of its JSON files, or None."""
    modules = read("modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        return Size(_UNKNOWN, _UNKNOWN)
    kinds = {str(module.get("type")).rpartition(".")[2]: str(module.get("path")) for module in modules}
    names = [*kinds]
    if not names or names[0] not in _FIRST or not set(names[1:]) <= _AFTER or len(names) < len(modules):
        return Size(_UNKNOWN, _UNKNOWN)  # a `Router`, a module of someone else, or several of a kind
    config = read(join(kinds[names[0]], "config.json"))
    depth = written_depth(config) if isinstance(config, dict) else None
    last = next((name for name in ("Dense", "Pooling") if name in kinds), None)
    return Size(_known(depth), _known(last and _width(last, read(join(kinds[last], "config.json")))))


def _width(kind: str, config: Any) -> Any:
    if not isinstance(config, dict):
        return None
    if kind == "Dense":
        return config.get("out_features")
    older = [name for name, wanted in config.items() if name.startswith("pooling_mode_") and wanted is True]
    modes = config.get("pooling_mode") or older
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    return width if isinstance(modes, str) or len(modes) == 1 else None


def _known(number: Any) -> int:
    return number if type(number) is int and number > 0 else _UNKNOWN
