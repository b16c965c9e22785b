"""Download some blocks of a model on the Hub as a checkpoint, without any bytes of the other blocks."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.utils import WeakFileLock, build_hf_headers, tqdm  # type: ignore[attr-defined]  # lazy
from transformers import AutoConfig, PreTrainedConfig

from st_matryoshka2d.hub.checkpoint import INDEX, WEIGHTS, Checkpoint, is_pickle
from st_matryoshka2d.hub.safetensors_header import (
    BITS,
    LONGEST,
    Header,
    RemoteFile,
    Stored,
    WholeFileNeededError,
    read_header,
    require_inside,
    short,
    written_header,
)
from st_matryoshka2d.hub.weights_fit import blank_model, block_lists, check_shapes, depth_of, shapes_in
from st_matryoshka2d.model.kept_layers import cut_config, kept_layers
from st_matryoshka2d.model.readout_files import readout_file

# File suffixes of configurations, tokenizers and model cards.
_SMALL = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".vocab", ".bpe", ".codes"}

_READOUTS = readout_file("*")


@dataclass(frozen=True)
class Plan:
    """The tensors of a piece under their new names, in its order, with the file of each; and the metadata of the first."""

    kept: tuple[tuple[RemoteFile, Stored], ...]
    metadata: dict[str, str] | None

    @property
    def tensors(self) -> list[Stored]:
        """The tensors without their files."""
        return [tensor for _, tensor in self.kept]

    def ranges(self) -> list[tuple[RemoteFile, int, int]]:
        """List file, start and stop of each request; adjacent tensors share one."""
        ranges: list[tuple[RemoteFile, int, int]] = []
        for file, tensor in self.kept:
            start = tensor.start
            if ranges and ranges[-1][0] is file and ranges[-1][2] == start:
                _, start, _ = ranges.pop()
            ranges.append((file, start, tensor.stop))
        return ranges


def fetch_piece(checkpoint: Checkpoint, num_layers: int, allow_bin: bool = False) -> Path | None:
    """Download the blocks of a depth, and all but the blocks, as a complete checkpoint; None if there is no list of them."""
    config_path = checkpoint.fetch(checkpoint.within_transformer("config.json"))
    config = AutoConfig.from_pretrained(config_path.parent)
    lists: list[str] = []

    def select(names: Collection[str]) -> dict[str, str]:
        depth = depth_of(config, checkpoint.name, len(names))
        lists.extend(block_lists(blank_model(config)))
        return names_kept(names, lists, depth, kept_layers(config, num_layers)) if lists else {name: name for name in names}

    plan = plan_of(_shards_of(checkpoint), select, lambda file: _opened(checkpoint, file))
    if not lists:
        return None
    check_shapes({tensor.name: tensor.shape for tensor in plan.tensors}, cut_config(config, num_layers), checkpoint.name)
    folder = checkpoint.piece_folder(num_layers)
    with made_once(folder) as unfinished:
        if unfinished is not None:
            _copy_small_files(checkpoint, allow_bin, unfinished)
            home = unfinished / checkpoint.transformer
            (home / "config.json").write_text(_config_of_piece(config_path, config, num_layers), encoding="utf-8")
            _fetch_tensors(plan, home / WEIGHTS)
    return folder


def plan_of(
    shards: Mapping[str, str],
    select: Callable[[Collection[str]], dict[str, str]],
    open_file: Callable[[str], tuple[RemoteFile, Header]],
) -> Plan:
    """Plan the download of the tensors that `select` maps to their names in the piece; read no more headers than needed."""
    headers: list[tuple[RemoteFile, Header]] = []
    if shards:
        kept_as = select(shards)
        names: dict[str, set[str]] = {}
        for name, shard in shards.items():
            names.setdefault(shard, set()).add(name)
        for shard in sorted(shard for shard, of_shard in names.items() if of_shard & kept_as.keys()):
            headers.append(open_file(shard))
            if absent := names[shard] - {tensor.name for tensor in headers[-1][1].tensors}:
                raise ValueError(f"{INDEX} puts {short(min(absent))} into {short(shard)}, which does not have it.")
    else:
        headers.append(open_file(WEIGHTS))
        kept_as = select([tensor.name for tensor in headers[0][1].tensors])
    kept: dict[str, tuple[RemoteFile, Stored]] = {}
    for file, header in headers:
        for tensor in header.tensors:
            if tensor.name not in kept_as:
                continue
            if (name := kept_as[tensor.name]) in kept:
                both = f"{short(kept[name][0].path)} and {short(file.path)}"
                raise ValueError(f"{short(name)} is in more than one file: {both}.")
            kept[name] = file, replace(tensor, name=name)
    # Wide dtypes first, as in files of the safetensors library, so that every tensor is aligned to its dtype.
    return Plan(tuple(sorted(kept.values(), key=lambda pair: -BITS[pair[1].dtype])), headers[0][1].metadata)


def names_kept(names: Collection[str], lists: Collection[str], depth: int, kept: Sequence[int]) -> dict[str, str]:
    """Select all tensors but those of other blocks, and renumber the blocks; a prefix such as `bert.` is allowed."""
    pattern = re.compile(rf"((?:.+?\.)??(?:{'|'.join(map(re.escape, lists))}))\.(0|[1-9][0-9]{{0,5}})\.")
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if match := pattern.match(name):
            found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(name)
    whole = [(path, blocks) for path, blocks in found.items() if set(blocks) == set(range(depth))]
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


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """Create a folder atomically, under a lock: yield a temporary folder to fill, or None if the folder exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            yield None
            return
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # left behind by a killed process
        unfinished.mkdir()
        try:
            yield unfinished
            for path in [*unfinished.rglob("*"), unfinished]:
                _to_disk(path)
            unfinished.rename(folder)
            _to_disk(folder.parent)
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise  # a network error, or one that names its path
            words = "Make room there, or choose another place with cache_folder=... The piece was not kept"
            raise OSError(error.errno, f"{error.strerror}. {words}", str(folder)) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _shards_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Read the shard of each of the Transformer's tensors; empty if one file has them all."""
    if checkpoint.within_transformer(WEIGHTS) in checkpoint.files:
        return {}
    if (size := _remote_file(checkpoint, INDEX).size) > LONGEST:
        raise ValueError(f"{INDEX} of {checkpoint.name} has {size} bytes; no more than {LONGEST} are read.")
    return checkpoint.index(checkpoint.within_transformer(INDEX))


def _opened(checkpoint: Checkpoint, file: str) -> tuple[RemoteFile, Header]:
    remote = _remote_file(checkpoint, file)
    return remote, read_header(lambda start, stop: b"".join(remote.parts(start, stop)), remote.size, remote.path)


def _remote_file(checkpoint: Checkpoint, file: str) -> RemoteFile:
    """Find a file of the Transformer on the Hub, with one request."""
    path, token = checkpoint.within_transformer(file), checkpoint.token
    url = hf_hub_url(checkpoint.name, path, revision=checkpoint.commit)
    size = get_hf_file_metadata(url, token=token).size
    if size is None:
        raise ValueError(f"{path}: the server does not report the size of the file.")
    return RemoteFile(path, url, build_hf_headers(token=token, library_name="st_matryoshka2d"), size)


def _fetch_tensors(plan: Plan, path: Path) -> None:
    total = sum(tensor.stop - tensor.start for tensor in plan.tensors)
    bar = tqdm(total=total, unit="B", unit_scale=True, desc=path.name)  # type: ignore[no-untyped-call]
    with path.open("wb") as out, bar:
        out.write(written_header(plan.tensors, plan.metadata))
        for file, start, stop in plan.ranges():
            for part in file.parts(start, stop):
                bar.update(out.write(part))


def _config_of_piece(path: Path, config: PreTrainedConfig, num_layers: int) -> str:
    """Change only the depth in the repository's config.json: tokenizers depend on its `transformers_version`."""
    cut = cut_config(config, num_layers)
    changed = {name: value for name, value in vars(cut).items() if vars(config).get(name) != value}
    other_names = {name: own for name, own in config.attribute_map.items() if own in changed}
    written = json.loads(path.read_text(encoding="utf-8"))
    changed |= {name: changed[own] for name, own in other_names.items() if name in written}
    return json.dumps(written | changed, indent=2)


def _copy_small_files(checkpoint: Checkpoint, allow_bin: bool, target: Path) -> None:
    """Copy the files that the pipeline needs, without the Transformer's weights."""
    heads = [folder for _, folder in checkpoint.modules[1:] if folder]
    safe = {str(PurePosixPath(path).parent) for path in checkpoint.files if path.endswith(".safetensors")}

    def is_needed(path: str) -> bool:
        suffix, parents = PurePosixPath(path).suffix, list(map(str, PurePosixPath(path).parents))
        if head := next((head for head in heads if head in parents), None):
            if suffix == ".safetensors":
                return not PurePosixPath(path).match(_READOUTS)  # only one is needed, and fetched later
            return suffix in _SMALL or (allow_bin and head not in safe and is_pickle(path))
        beside = parents == ["."] or checkpoint.transformer in parents or path.startswith("additional_chat_templates/")
        return beside and suffix in _SMALL and path != checkpoint.within_transformer(INDEX)

    files = filter(is_needed, checkpoint.files)
    names = [require_inside(path, f"The list of files of {checkpoint.name}") for path in files]
    snapshot = snapshot_download(checkpoint.name, allow_patterns=list(map(glob.escape, names)), **checkpoint.access)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(snapshot) / name, target / name)
        if name.endswith((".safetensors", ".bin")):
            shapes_in(target / name)  # refuses a broken one


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and writes its entries with the files
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
