"""A piece of a checkpoint: some blocks of a model as a checkpoint of their own, without any bytes of the other blocks."""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from huggingface_hub import snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

from st_matryoshka2d.cutting.exactness import check_written
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import (
    LONGEST,
    Header,
    read_header,
    require_inside,
    written_header,
)
from st_matryoshka2d.hub.checkpoint import INDEX, WEIGHTS, Checkpoint, is_pickle
from st_matryoshka2d.hub.tensors import Plan, Weights, names_kept, plan_of, rows_kept
from st_matryoshka2d.hub.weights_fit import block_lists, check_shapes, depth_of, described, shapes_in
from st_matryoshka2d.model.cut_config import Cut
from st_matryoshka2d.model.packed import find_packed
from st_matryoshka2d.model.readout_files import readout_file

# File suffixes of configurations, tokenizers and model cards.
_SMALL = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".vocab", ".bpe", ".codes"}

_READOUTS = readout_file("*")


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
    packed: dict[str, tuple[int, int]] = {}

    def select(names: Collection[str]) -> dict[str, str]:
        depth = depth_of(cut.whole, checkpoint.name, len(names))
        model = described(cut.whole, checkpoint.name)
        if not (found := block_lists(model)):
            return {name: name for name in names}
        check_written(type(model), cut.whole, cut.layers, [cut.num_layers])
        lists.extend(found)
        for path, parts in find_packed(model, found[0]).items():
            packed.update({f"{path}.{name}": place for name, place in parts.tensors.items()})
        return names_kept(names, lists, depth, cut.kept)

    def opened(file: str) -> tuple[Weights, Header]:
        weights = find(file)
        return weights, read_header(lambda start, stop: b"".join(weights.parts(start, stop)), weights.size, weights.path)

    plan = plan_of(_shards_of(checkpoint, find), select, opened)
    if not lists:
        return None
    what, places = checkpoint.name, list(range(cut.num_layers))
    plan = replace(
        plan, kept=tuple(part for file, tensor in plan.kept for part in rows_kept(file, tensor, packed, cut.kept))
    )
    if cut.kept != places:  # as an error names the latter
        what = f"{what} (with layers {cut.kept} as {places})"
    check_shapes({tensor.name: tensor.shape for tensor in plan.tensors}, cut.config, what)
    return Piece(checkpoint, cut, plan)


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
