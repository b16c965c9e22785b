"""Read what a saved folder says of its token table, without torch; its rows are mapped, not read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import Stored, parse_object, read_header, require_inside

if TYPE_CHECKING:
    from jaxtyping import Float

_TYPES = {"F16": "<f2", "F32": "<f4"}
_TABLES = ["StaticEmbedding"], ["StaticEmbedding", "Normalize"]
_HOSTS = "sentence_transformers."
_ROUTE = "query"


@dataclass(frozen=True)
class SavedTable:
    """The query side of a saved model that is a token table."""

    tokenizer: Path
    rows: Float[np.ndarray, "tokens dim"]
    is_normalized: bool  # whether embeddings have length 1, before dims are cut
    prompt: str  # that `encode` puts in front of each text
    query_prompt: str  # that `encode_query` does
    truncate_dim: int | None


def saved_table(folder: Path) -> SavedTable:
    """Read a folder; refuse one that is not a table."""
    modules, is_router = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds not in _TABLES:
        raise _no_table(folder, f"it embeds queries by {', '.join(kinds) or 'nothing'}")
    path = modules[0][1]
    about = folder / "config_sentence_transformers.json"
    config = parse_object(about.read_bytes(), str(about)) if about.exists() else {}
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name")) or ""
    query = prompts.get(_ROUTE, default)
    prompt = query if is_router else default
    return SavedTable(
        path / "tokenizer.json", _mapped(folder, path), kinds == _TABLES[1], prompt, query, config.get("truncate_dim")
    )


def _modules(folder: Path) -> tuple[list[tuple[str, Path]], bool]:
    """Return class and folder of each module that a query passes through, and whether there is a `Router`."""
    path = folder / "modules.json"
    if not path.is_file():
        known = f"there is no modules.json in {folder}" if folder.is_dir() else f"{folder} is not a folder"
        raise _no_table(folder, known)
    found, is_router = [], False
    try:
        for module in json.loads(path.read_bytes()):
            kind, inside = _inside(folder, module["type"], module["path"])
            if kind != "Router":
                found.append((kind, inside))
                continue
            is_router = True
            router = json.loads((inside / "router_config.json").read_bytes())
            found += [_inside(inside, router["types"][part], part) for part in router["structure"][_ROUTE]]
    except (OSError, TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise _no_table(folder, f"its modules have no route of queries ({type(error).__name__}: {error})") from error
    return found, is_router


def _inside(folder: Path, kind: str, path: str) -> tuple[str, Path]:
    """Return the class of a module, in short if sentence-transformers has it, and its folder."""
    short = kind.rpartition(".")[2] if kind.startswith(_HOSTS) else kind
    return short, folder / (path and require_inside(path, "modules.json"))


def _mapped(root: Path, folder: Path) -> Float[np.ndarray, "tokens dim"]:
    """Map the rows into memory: only those that texts need are ever read."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise _no_table(root, f"there is no {path}")

    def read(start: int, stop: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    stored = {tensor.name: tensor for tensor in read_header(read, path.stat().st_size, str(path)).tensors}

    def mapped(tensor: Stored) -> np.ndarray:
        return np.asarray(np.memmap(path, _TYPES[tensor.dtype], "r", tensor.start, tensor.shape))

    rows = stored.get("embedding.weight", stored.get("embeddings"))  # half rows have the second name, and weights of 1
    if rows is None or len(rows.shape) != 2 or 0 in rows.shape:
        raise _no_table(root, f"{path} has no rows named 'embedding.weight', only {', '.join(stored) or 'nothing'}")
    if "mapping" in stored or ("weights" in stored and (mapped(stored["weights"]) != 1).any()):
        raise _no_table(root, f"{path} is a model of model2vec, whose rows have weights")
    if rows.dtype not in _TYPES:
        raise UsageError(
            f"The rows in {path} are {rows.dtype}; F32 or F16 was expected. Load the folder with sentence-transformers, and "
            "save `model.float()` or `model.half()`."
        )
    return mapped(rows)


def _no_table(folder: Path, reason: str) -> UsageError:
    return UsageError(
        f"{folder} is no saved token table: {reason}. Save one where torch is, of a model that `fit_queries` returned: "
        "`truncate(fitted, num_layers=0).save_pretrained(folder)`, or `asymmetric(fitted, query=0).save_pretrained(folder)`."
    )
