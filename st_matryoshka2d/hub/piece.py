"""A piece of a checkpoint: some blocks of a model as a checkpoint of their own, without any bytes of the other blocks."""

from __future__ import annotations

import glob
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from huggingface_hub import snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import INDEX, WEIGHTS, Checkpoint, is_pickle
from st_matryoshka2d.hub.safetensors_header import (
    BITS,
    LONGEST,
    Header,
    Stored,
    WholeFileNeededError,
    read_header,
    require_inside,
    short,
    written_header,
)
from st_matryoshka2d.hub.weights_fit import check_shapes, depth_of, lists_of, shapes_in
from st_matryoshka2d.model.layers import Cut
from st_matryoshka2d.model.readout_files import readout_file

# File suffixes of configurations, tokenizers and model cards.
_SMALL = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".vocab", ".bpe", ".codes"}

_READOUTS = readout_file("*")


class Weights(Protocol):
    """A file of weights, of which parts can be read."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def parts(self, start: int, stop: int) -> Iterator[bytes]:
        """Read the bytes from `start` up to `stop`."""


@dataclass(frozen=True)
class Plan:
    """The tensors of a piece under their new names, in its order, with the file of each; and the metadata of the first."""

    kept: tuple[tuple[Weights, Stored], ...]
    metadata: dict[str, str] | None

    @property
    def tensors(self) -> list[Stored]:
        """The tensors without their files."""
        return [tensor for _, tensor in self.kept]

    def ranges(self) -> list[tuple[Weights, int, int]]:
        """List file, start and stop of each request; adjacent tensors share one."""
        ranges: list[tuple[Weights, int, int]] = []
        for file, tensor in self.kept:
            start = tensor.start
            if ranges and ranges[-1][0] is file and ranges[-1][2] == start:
                _, start, _ = ranges.pop()
            ranges.append((file, start, tensor.stop))
        return ranges


@dataclass(frozen=True)
class Piece:
    """The blocks of a depth, and all but the blocks: what is read of a checkpoint, and how it is written."""

    checkpoint: Checkpoint
    cut: Cut
    plan: Plan

    def write(self, folder: Path, allow_bin: bool, show_progress_bar: bool) -> None:
        """Write a complete checkpoint into an empty folder."""
        _copy_small_files(self.checkpoint, allow_bin, folder)
        home = folder / self.checkpoint.transformer
        written = self.checkpoint.fetch(self.checkpoint.within_transformer("config.json"))
        (home / "config.json").write_text(_config_of_piece(written, self.cut), encoding="utf-8")
        total = sum(tensor.stop - tensor.start for tensor in self.plan.tensors)
        settings = {"total": total, "unit": "B", "unit_scale": True, "desc": WEIGHTS, "disable": not show_progress_bar}
        bar = tqdm(**settings)  # type: ignore[no-untyped-call]
        with (home / WEIGHTS).open("wb") as out, bar:
            out.write(written_header(self.plan.tensors, self.plan.metadata))
            for file, start, stop in self.plan.ranges():
                for part in file.parts(start, stop):
                    bar.update(out.write(part))


def piece_of(checkpoint: Checkpoint, cut: Cut, find: Callable[[str], Weights]) -> Piece | None:
    """Plan the piece of a cut, from the headers that `find` opens, and check its shapes; None if blocks have no list."""
    lists: list[str] = []

    def select(names: Collection[str]) -> dict[str, str]:
        depth = depth_of(cut.whole, checkpoint.name, len(names))
        lists.extend(lists_of(cut.whole, checkpoint.name))
        return names_kept(names, lists, depth, cut.kept) if lists else {name: name for name in names}

    def opened(file: str) -> tuple[Weights, Header]:
        weights = find(file)
        return weights, read_header(lambda start, stop: b"".join(weights.parts(start, stop)), weights.size, weights.path)

    plan = plan_of(_shards_of(checkpoint, find), select, opened)
    if not lists:
        return None
    what, places = checkpoint.name, list(range(cut.num_layers))
    if cut.kept != places:  # as an error names the latter
        what = f"{what} (with layers {cut.kept} as {places})"
    check_shapes({tensor.name: tensor.shape for tensor in plan.tensors}, cut.config, what)
    return Piece(checkpoint, cut, plan)


def plan_of(
    shards: Mapping[str, str],
    select: Callable[[Collection[str]], dict[str, str]],
    open_file: Callable[[str], tuple[Weights, Header]],
) -> Plan:
    """Plan the piece of the tensors that `select` maps to their names in the piece; read no more headers than needed."""
    headers: list[tuple[Weights, Header]] = []
    if shards:
        kept_as = select(shards)
        names: dict[str, set[str]] = {}
        for name, shard in shards.items():
            names.setdefault(shard, set()).add(name)
        for shard in sorted(shard for shard, of_shard in names.items() if of_shard & kept_as.keys()):
            headers.append(open_file(shard))
            if absent := names[shard] - {tensor.name for tensor in headers[-1][1].tensors}:
                raise UsageError(f"{INDEX} puts {short(min(absent))} into {short(shard)}, which does not have it.")
    else:
        headers.append(open_file(WEIGHTS))
        kept_as = select([tensor.name for tensor in headers[0][1].tensors])
    kept: dict[str, tuple[Weights, Stored]] = {}
    for file, header in headers:
        for tensor in header.tensors:
            if tensor.name not in kept_as:
                continue
            if (name := kept_as[tensor.name]) in kept:
                both = f"{short(kept[name][0].path)} and {short(file.path)}"
                raise UsageError(f"{short(name)} is in more than one file: {both}.")
            kept[name] = file, replace(tensor, name=name)
    # Wide dtypes first, as in files of the safetensors library, so that every tensor is aligned to
    # its dtype.
    return Plan(tuple(sorted(kept.values(), key=lambda pair: -BITS[pair[1].dtype])), headers[0][1].metadata)


def names_kept(names: Collection[str], lists: Collection[str], depth: int, kept: Sequence[int]) -> dict[str, str]:
    """Select all tensors but those of other blocks, and renumber the blocks; a prefix such as `bert.` is allowed."""
    pattern = re.compile(rf"((?:.+?\.)??(?:{'|'.join(map(re.escape, lists))}))\.(0|[1-9][0-9]{{0,5}})\.")
    numbered: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if match := pattern.match(name):
            numbered.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(name)
    whole = [(path, blocks) for path, blocks in numbered.items() if set(blocks) == set(range(depth))]
    if len(whole) != 1:
        raise WholeFileNeededError("The names of its tensors do not show which belong to which layer.")
    [(path, blocks)] = whole
    inside = set().union(*blocks.values())
    renumbered = {
        name: f"{path}.{place}.{name.removeprefix(f'{path}.{layer}.')}"
        for place, layer in enumerate(kept)
        for name in blocks[layer]
    }
    return {name: name for name in names if name not in inside} | renumbered


def _shards_of(checkpoint: Checkpoint, find: Callable[[str], Weights]) -> dict[str, str]:
    """Read the shard of each of the Transformer's tensors; empty if one file has them all."""
    if checkpoint.within_transformer(WEIGHTS) in checkpoint.files:
        return {}
    if (size := find(INDEX).size) > LONGEST:
        raise UsageError(f"{INDEX} of {checkpoint.name} has {size} bytes; no more than {LONGEST} are read.")
    return checkpoint.index(checkpoint.within_transformer(INDEX))


def _config_of_piece(path: Path, cut: Cut) -> str:
    """Change only the depth in the repository's config.json: tokenizers depend on its `transformers_version`."""
    changed = cut.changed
    other_names = {name: own for name, own in cut.whole.attribute_map.items() if own in changed}
    written = json.loads(path.read_text(encoding="utf-8"))
    changed |= {name: changed[own] for name, own in other_names.items() if name in written}
    return json.dumps(written | changed, indent=2)


def _copy_small_files(checkpoint: Checkpoint, allow_bin: bool, target: Path) -> None:
    """Copy the files that the pipeline needs, without the Transformer's weights."""
    # The cache may have the weights without the tokenizer.
    files = checkpoint.files if checkpoint.commit is None or checkpoint.is_offline else checkpoint.files_on_hub
    heads = [folder for _, folder in checkpoint.modules[1:] if folder]
    weights = [PurePosixPath(path) for path in files if path.endswith(".safetensors")]
    safe = {str(path.parent) for path in weights if not path.match(_READOUTS)}

    def is_needed(path: str) -> bool:
        suffix, parents = PurePosixPath(path).suffix, list(map(str, PurePosixPath(path).parents))
        if head := next((head for head in heads if head in parents), None):
            if suffix == ".safetensors":
                # only one is needed, and fetched later
                return not PurePosixPath(path).match(_READOUTS)
            return suffix in _SMALL or (allow_bin and head not in safe and is_pickle(path))
        beside = parents == ["."] or checkpoint.transformer in parents or path.startswith("additional_chat_templates/")
        return beside and suffix in _SMALL and path != checkpoint.within_transformer(INDEX)

    where = f"The list of files of {checkpoint.name}"
    names = [require_inside(path, where) for path in filter(is_needed, files)]
    source = checkpoint.root
    if checkpoint.commit is not None:
        wanted = list(map(glob.escape, names))
        access = {**checkpoint.access, "local_files_only": checkpoint.is_offline}
        source = Path(snapshot_download(checkpoint.name, allow_patterns=wanted, **access))
    for name in names:
        if name.endswith((".safetensors", ".bin")):
            shapes_in(source / name)  # refuses a broken one
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


@contextmanager
def telling_of_a_full_disk(folder: Path, advice: str) -> Iterator[None]:
    """Name the folder in an error of the disk that names no path, and tell what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise  # a network error, or one that names its path
        raise OSError(error.errno, f"{error.strerror}. Make room there, or {advice}", str(folder)) from error
