"""A checkpoint of a sentence-transformers pipeline, on the Hub or in a folder: its modules and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.file_download import repo_folder_name
from sentence_transformers.util import load_file_path

from st_matryoshka2d.pieces.shards import parse_index, require_inside

__all__ = ["INDEX", "PLAIN_TRANSFORMERS", "WEIGHTS", "Checkpoint"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# How `modules.json` calls sentence-transformers' own Transformer, today and before version 6.
PLAIN_TRANSFORMERS = (
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.models.Transformer",
)


@dataclass(frozen=True)
class Checkpoint:
    """Where a pipeline's files are.

    Attributes:
        name: A folder, or the id of a repository on the Hub.
        commit: The commit of the repository; None for a folder.
        token: As everywhere in `huggingface_hub`.
        cache_folder: Where files of the Hub are kept; None for the Hub client's own place.
        local_files_only: Ask nobody.
    """

    name: str
    commit: str | None = None
    token: bool | str | None = None
    cache_folder: str | None = None
    local_files_only: bool = False

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """Type and folder of each module; a plain Hugging Face checkpoint is a Transformer in the root."""
        path = load_file_path(
            self.name,
            "modules.json",
            token=self.token,
            cache_folder=self.cache_folder,
            revision=self.commit,
            local_files_only=self.local_files_only,
        )
        if path is None:
            return [(PLAIN_TRANSFORMERS[0], "")]
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        try:
            found = [(str(module["type"]), str(module["path"])) for module in json.loads(text)]
        except (TypeError, KeyError, ValueError, RecursionError):
            found = []
        if not found:
            raise ValueError(
                f"modules.json of {self.name} must be a list of modules with a type and a path, found {text[:200]!r}."
            )
        return [(kind, path and require_inside(path, "modules.json")) for kind, path in found]

    @property
    def transformer(self) -> str:
        """Folder of the first module, the Transformer; empty for the root."""
        return self.modules[0][1]

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Paths of all files; of a repository those in the cache, where it has the weights or nobody may be asked."""
        if not self.is_here:
            return self.files_on_hub
        folders = [path for _, path in self.modules]
        if self.modules[0][0] not in PLAIN_TRANSFORMERS and self.root.is_dir():
            folders += [path.name for path in self.root.iterdir() if path.is_dir()]  # a Router keeps its modules there
        return _files_under(self.root, folders)

    @cached_property
    def files_on_hub(self) -> tuple[str, ...]:
        """Paths of all files of a repository, with one request, which is not repeated where the Hub is not in reach."""
        found = HfApi(token=self.token).model_info(self.name, revision=self.commit).siblings or []
        return tuple(file.rfilename for file in found)

    @property
    def cache(self) -> Path:
        """Folder that the Hub client keeps for this repository."""
        root = Path(constants.HF_HUB_CACHE if self.cache_folder is None else self.cache_folder)
        return root.expanduser() / repo_folder_name(repo_id=self.name, repo_type="model")

    @property
    def is_offline(self) -> bool:
        """Whether the repository cannot be asked for what is not here."""
        return self.commit is not None and (self.local_files_only or constants.is_offline_mode())

    @property
    def has_plain_weights(self) -> bool:
        """Whether its weights are safetensors under the usual name, and not those of an adapter to another model."""
        here = {self.within_transformer(file) for file in (WEIGHTS, INDEX)} & set(self.files)
        return bool(here) and self.within_transformer("adapter_config.json") not in self.files

    @cached_property
    def is_cached(self) -> bool:
        """Whether the weights of the whole Transformer need not be fetched any more."""
        return self.commit is not None and self._has_weights(self.root)

    def within_transformer(self, file: str) -> str:
        """Path of a file of the Transformer."""
        return f"{self.transformer}/{file}" if self.transformer else file

    @property
    def root(self) -> Path:
        """The folder with those of its files that are here."""
        return Path(self.name) if self.commit is None else self.cache / "snapshots" / self.commit

    @property
    def is_here(self) -> bool:
        """Whether nothing is fetched any more, be it that everything is here or that nobody may be asked."""
        return self.commit is None or self.is_offline or self.is_cached

    def fetch(self, path: str) -> Path:
        """Where a file is; it is fetched into the Hub client's cache, if it is not there yet."""
        if self.commit is None:
            return self.root / path
        return Path(
            hf_hub_download(
                self.name,
                path,
                revision=self.commit,
                cache_dir=self.cache_folder,
                token=self.token,
                local_files_only=self.is_offline,
            )
        )

    def download(self, file: str) -> Path:
        """Where a file of the Transformer is, as by `fetch`."""
        return self.fetch(self.within_transformer(file))

    def _has_weights(self, snapshot: Path) -> bool:
        folder = snapshot / self.transformer
        if not (folder / INDEX).is_file() or (folder / WEIGHTS).is_file():
            return (folder / WEIGHTS).is_file()
        shards = parse_index((folder / INDEX).read_bytes(), INDEX)
        return all((folder / shard).is_file() for shard in set(shards.values()))


def _files_under(root: Path, folders: Iterable[str]) -> tuple[str, ...]:
    """Files in the root and anywhere under these folders of it."""
    found = [path for path in root.iterdir() if path.is_file()] if root.is_dir() else []
    for folder in folders:
        if folder:
            found += [path for path in (root / folder).rglob("*") if path.is_file()]
    return tuple(sorted({PurePosixPath(path.relative_to(root)).as_posix() for path in found}))
