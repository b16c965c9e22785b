"""Download some blocks of a model as a checkpoint of their own, without any bytes of the other blocks."""

from __future__ import annotations

import glob
import json
import shutil
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.utils import build_hf_headers, tqdm  # type: ignore[attr-defined]  # lazy

from st_matryoshka2d.cutting.exactness import check_written
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import LONGEST, Header, read_header, require_inside, written_header
from st_matryoshka2d.hub.checkpoint import INDEX, WEIGHTS, Checkpoint, is_pickle
from st_matryoshka2d.hub.made_once import made_once
from st_matryoshka2d.hub.remote_file import RemoteFile
from st_matryoshka2d.hub.tensors import Plan, names_kept, plan_of
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

    def write(self, folder: Path, allow_bin: bool) -> None:
        """Write a complete checkpoint into an empty folder."""
        _copy_small_files(self.checkpoint, allow_bin, folder)
        home = folder / self.checkpoint.transformer
        written = self.checkpoint.fetch(self.checkpoint.within_transformer("config.json"))
        (home / "config.json").write_text(_config_of_piece(written, self.cut), encoding="utf-8")
        total = sum(tensor.stop - tensor.start for tensor in self.plan.tensors)
        bar = tqdm(total=total, unit="B", unit_scale=True, desc=WEIGHTS)  # type: ignore[no-untyped-call]
        with (home / WEIGHTS).open("wb") as out, bar:
            out.write(written_header(self.plan.tensors, self.plan.metadata))
            for file, start, stop in self.plan.ranges():
                for part in file.parts(start, stop):
                    bar.update(out.write(part))


def fetch_piece(checkpoint: Checkpoint, cut: Cut, allow_bin: bool = False) -> Path | None:
    """Download the blocks of a cut, and all but the blocks, as a complete checkpoint; None if there is no list of them."""
    piece = _piece_of(checkpoint, cut)
    if piece is None:
        return None
    folder = checkpoint.piece_folder(cut.kept)
    with made_once(folder) as unfinished:
        if unfinished is not None:
            piece.write(unfinished, allow_bin)
    return folder


def _piece_of(checkpoint: Checkpoint, cut: Cut) -> Piece | None:
    """Plan the piece of a cut, from as few headers as possible, and check its shapes; None if blocks have no list."""
    opened = cache(partial(_opened, checkpoint))
    shards = _shards_of(checkpoint) or {tensor.name: WEIGHTS for tensor in opened(WEIGHTS)[1].tensors}
    depth = depth_of(cut.whole, checkpoint.name, len(shards))
    model = described(cut.whole, checkpoint.name)
    if not (lists := block_lists(model)):
        return None
    check_written(type(model), cut.whole, cut.layers, [cut.num_layers])
    inside = {path: parts.tensors for path, parts in find_packed(model, lists[0]).items()}
    packed = {f"{path}.{name}": place for path, tensors in inside.items() for name, place in tensors.items()}
    plan = plan_of(shards, names_kept(shards, lists, depth, cut.kept), opened).with_rows(packed, cut.kept)
    what, places = checkpoint.name, list(range(cut.num_layers))
    if cut.kept != places:  # as an error names the latter
        what = f"{what} (with layers {cut.kept} as {places})"
    check_shapes({tensor.name: tensor.shape for tensor in plan.tensors}, cut.config, what)
    return Piece(checkpoint, cut, plan)


def _shards_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Read the shard of each of the Transformer's tensors; empty if one file has them all."""
    if checkpoint.within_transformer(WEIGHTS) in checkpoint.files:
        return {}
    if (size := _remote_file(checkpoint, INDEX).size) > LONGEST:
        raise UsageError(f"{INDEX} of {checkpoint.name} has {size} bytes; no more than {LONGEST} are read.")
    return checkpoint.index(checkpoint.within_transformer(INDEX))


def _opened(checkpoint: Checkpoint, file: str) -> tuple[RemoteFile, Header]:
    """Read the header of a file of the Transformer."""
    weights = _remote_file(checkpoint, file)
    return weights, read_header(lambda start, stop: b"".join(weights.parts(start, stop)), weights.size, weights.path)


def _remote_file(checkpoint: Checkpoint, file: str) -> RemoteFile:
    """Find a file of the Transformer on the Hub, with one request."""
    path, token = checkpoint.within_transformer(file), checkpoint.token
    url = hf_hub_url(checkpoint.name, path, revision=checkpoint.commit)
    size = get_hf_file_metadata(url, token=token).size
    if size is None:
        raise UsageError(f"{path}: the server does not report the size of the file.")
    return RemoteFile(path, url, build_hf_headers(token=token, library_name="st_matryoshka2d"), size)


def _config_of_piece(path: Path, cut: Cut) -> str:
    """Change only the depth in the repository's config.json: tokenizers depend on its `transformers_version`."""
    changed = cut.changed
    other_names = {name: own for name, own in cut.whole.attribute_map.items() if own in changed}
    written = json.loads(path.read_text(encoding="utf-8"))
    changed |= {name: changed[own] for name, own in other_names.items() if name in written}
    return json.dumps(written | changed, indent=2)


def _copy_small_files(checkpoint: Checkpoint, allow_bin: bool, target: Path) -> None:
    """Copy the files that the pipeline needs, without the Transformer's weights."""
    files = checkpoint.files_on_hub
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
    source = Path(snapshot_download(checkpoint.name, allow_patterns=list(map(glob.escape, names)), **checkpoint.access))
    for name in names:
        if name.endswith((".safetensors", ".bin")):
            shapes_in(source / name)  # refuses a broken one
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
