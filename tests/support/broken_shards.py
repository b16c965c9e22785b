"""Random sharded checkpoints with invalid indices, or with invalid shards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import save

from tests.support.broken_files import BROKEN, apart, joined

INDEX = "model.safetensors.index.json"
DEPTH = 4
KEPT = 2
Files = dict[str, bytes]
Change = Callable[[random.Random, Files, dict[str, str]], Any]


def sound(rng: random.Random) -> tuple[Files, dict[str, str]]:
    """Return shards and index of a model of four blocks, distributed at random; each shard has a tensor that a cut keeps."""
    names = [f"encoder.layer.{block}.{part}" for block in range(DEPTH) for part in ("weight", "bias")]
    files = {f"model-{number}.safetensors": {} for number in range(1, rng.randint(2, 4) + 1)}
    homes = {f"embeddings.{number}": file for number, file in enumerate(files)}
    homes |= {name: rng.choice(list(files)) for name in names}
    for name, file in homes.items():
        files[file][name] = np.ones((rng.randint(1, 4), 3), rng.choice(["float32", "float16"]))
    return {file: save(tensors, {"format": "pt"}) for file, tensors in files.items()}, homes


def with_index(files: Files, homes: Any, **others: Any) -> Files:
    return {**files, INDEX: json.dumps({"metadata": {"total_size": 1}, "weight_map": homes, **others}).encode()}


def a_shard(rng: random.Random, files: Files) -> str:
    return rng.choice(sorted(files))


def index(text: Callable[[random.Random, bytes], bytes]) -> Change:
    """Change the text of the index."""
    return lambda rng, files, homes: {**files, INDEX: text(rng, with_index({}, homes)[INDEX])}


def home(path: Callable[[random.Random], Any]) -> Change:
    """Change the path of a tensor in the index."""
    return lambda rng, files, homes: with_index(files, {**homes, rng.choice(sorted(homes)): path(rng)})


def shard(change: Callable[[random.Random, bytes], bytes]) -> Change:
    """Change the bytes of a shard."""

    def broken(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
        name = a_shard(rng, files)
        return with_index({**files, name: change(rng, files[name])}, homes)

    return broken


def missing(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    gone = a_shard(rng, files)
    return with_index({name: content for name, content in files.items() if name != gone}, homes)


def swapped(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    one, other = rng.sample(sorted(files), 2)
    return with_index({**files, one: files[other], other: files[one]}, homes)


def another_header(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    """Join the header of one shard with the data of another."""
    one, other = rng.sample(sorted(files), 2)
    return with_index({**files, one: joined(apart(files[one])[0], apart(files[other])[1] + b"x")}, homes)


def twice(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    """Put a tensor that a cut keeps into two shards."""
    name = f"embeddings.{rng.choice(range(len(files)))}"
    other = rng.choice([file for file in sorted(files) if file != homes[name]])
    header, data = apart(files[other])
    header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    return with_index({**files, other: joined(header, data + bytes(4))}, homes)


def not_in_it(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    name = rng.choice(["embeddings.nowhere", "n" * rng.randint(1, 50_000), "", "../../name", "\0"])
    return with_index(files, {**homes, name: a_shard(rng, files)})


def wrong_place(rng: random.Random, files: Files, homes: dict[str, str]) -> Files:
    name = rng.choice(sorted(homes))
    return with_index(files, {**homes, name: rng.choice([file for file in sorted(files) if file != homes[name]])})


OUTSIDE = ["../{}", "a/../../{}", "/{}", "/etc/{}", "..\\{}", "C:{}", "C:\\{}", "\\\\host\\{}", "{}\n.safetensors"]

SHARDED: dict[str, Change] = {
    "a missing shard": missing,
    "shards that are swapped": swapped,
    "the header of another": another_header,
    "a tensor in two shards": twice,
    "a tensor that is in no shard": not_in_it,
    "a tensor in another shard": wrong_place,
    "a shard without bytes": shard(lambda rng, file: b""),
    "a shard cut off": shard(lambda rng, file: file[: rng.randrange(len(file))]),
    "a shard that goes on": shard(lambda rng, file: file + rng.randbytes(rng.randint(1, 99))),
    "a shard with a wrong length": shard(lambda rng, file: rng.randint(0, 2**64 - 1).to_bytes(8, "little") + file[8:]),
    "a shard of noise": shard(lambda rng, file: rng.randbytes(len(file))),
    "a shard that is a page": shard(lambda rng, file: b"<!doctype html>" + file),
    "a path that leads out": home(lambda rng: rng.choice(OUTSIDE).format("model-1.safetensors")),
    "a path that is another": home(lambda rng: rng.choice(["./", "a/", "a//", "x.safetensors/"]) + "model-1.safetensors"),
    "a pickle": home(lambda rng: rng.choice(["pytorch_model.bin", "model.pkl", "model-1.safetensors.bin"])),
    "no path": home(lambda rng: rng.choice([None, 1, True, [], ["model-1.safetensors"], {}, "", " "])),
    "a path without end": home(lambda rng: "a" * rng.randint(300, 90_000) + ".safetensors"),
    "a cut off index": index(lambda rng, text: text[: rng.randrange(len(text) - 1)]),
    "an index of noise": index(lambda rng, text: rng.randbytes(rng.randint(0, 200))),
    "an index that goes on": index(lambda rng, text: text + text),
    "an index of another kind": index(lambda rng, text: rng.choice([b"[]", b"1", b"null", b"[" + text + b"]", b'"text"'])),
    "an index without end": index(lambda rng, text: b'{"weight_map":' * rng.randint(2_000, 50_000)),
    "an index that names one twice": index(lambda rng, text: text.replace(b'{"emb', b'{"embeddings.0": "x", "emb')),
    "an index with half a character": index(lambda rng, text: text.replace(b"embeddings", b"\\ud800", 1)),
    "no map": lambda rng, files, homes: with_index(files, rng.choice([None, [], {}, 3, list(homes), "model-1.safetensors"])),
    "two maps": index(lambda rng, text: text[:-1] + b', "weight_map": {"w": "model-1.safetensors"}}'),
}  # fmt: skip


def broken_checkpoints(count: int, seed: int) -> list[tuple[str, Files]]:
    """Return checkpoints of every kind in turn, including shards with each fault of a single file."""
    rng = random.Random(seed)
    kinds: dict[str, Change] = SHARDED | {
        f"a shard with {kind}": shard(lambda rng, file, change=change: change(rng, *renamed(file)))
        for kind, change in BROKEN.items()
    }
    names = list(kinds)
    return [(name, kinds[name](rng, *sound(rng))) for name in (names[number % len(names)] for number in range(count))]


def renamed(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and data of a shard, with one tensor renamed to the name that `BROKEN` changes."""
    header, data = apart(file)
    name = next(name for name in header if name.startswith("embeddings"))
    return {"encoder.layer.0.weight": header.pop(name), **header}, data
