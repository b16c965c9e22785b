"""The checkpoint of a sentence-transformers pipeline, on the Hub or in a folder, and its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from posixpath import join
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.file_download import repo_folder_name
from sentence_transformers.base.modules import Router
from sentence_transformers.util import load_file_path
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import parse_index, require_inside
from st_matryoshka2d.model.kind import Kind, kind_named

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"
ROUTER = Router.config_file_name
ABOUT = "config_sentence_transformers.json"
_CLASSIFIER = "ForSequenceClassification"
# File suffixes of weights, in any format.
SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5"} | {".msgpack", ".ot", ".onnx", ".gguf", ".pkl", ".npz"}

# Names of sentence-transformers' own Transformer in `modules.json`: from version 6, and before.
_PLAIN = "sentence_transformers.base.modules.transformer.Transformer", "sentence_transformers.models.Transformer"


@dataclass(frozen=True)
class Checkpoint:
    """A folder (`commit` is None), or a repository at a commit; the other fields are as in `huggingface_hub`."""

    name: str
    commit: str | None = None
    token: bool | str | None = None
    cache_folder: str | None = None
    local_files_only: bool = False
    route: str | None = None  # the only route of a `Router` that is read

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """Type and folder of each module; a plain Hugging Face checkpoint is a Transformer in the root."""
        if (path := self._find("modules.json")) is None:
            return [(_PLAIN[0], "")]
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            listed = [(str(module["type"]), str(module["path"])) for module in json.loads(text)]
        except (TypeError, KeyError, ValueError, RecursionError):
            listed = []
        if not listed:
            wanted = "a list of modules with a type and a path"
            raise UsageError(f"modules.json of {self.name} must be {wanted}, found {text[:200]!r}.")
        return [(kind, path and require_inside(path, "modules.json")) for kind, path in listed]

    @cached_property
    def kind(self) -> Kind:
        """The class that it names; if there is nothing of sentence-transformers, a classifier is a reranker."""
        about = self.read(ABOUT)
        if about is None and self._find("modules.json") is None:
            first = str((self.read("config.json") or {}).get("architectures") or "")
            return kind_named("CrossEncoder" if _CLASSIFIER in first else None)
        return kind_named((about or {}).get("model_type"))

    def _find(self, name: str) -> Path | None:
        """Return the local path of a small file, which is downloaded if necessary; None if there is none."""
        path = load_file_path(self.name, name, "", self.token, self.cache_folder, self.commit, self.local_files_only)
        return None if path is None else Path(path)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read the entries of a JSON file; None if there is none, or it is broken, which is reported when it is needed."""
        if (path := self._find(name)) is None:
            return None
        try:
            entries = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (ValueError, RecursionError):
            return None
        return entries if isinstance(entries, dict) else None

    @cached_property
    def module_folders(self) -> list[str]:
        """Folder of each module; of a single route, its modules and those outside of a `Router`."""
        if self.route is None:
            return [folder for _, folder in self.modules]
        return [path for kind, folder in self.modules for path in self._routes(kind, folder).get(self.route, [folder])]

    def _routes(self, kind: str, folder: str) -> dict[str, list[str]]:
        """Folders of the modules of each route of a module; none if it is no `Router`."""
        if not kind.endswith(".Router"):
            return {}
        structure = json.loads(self.fetch(join(folder, ROUTER)).read_text(encoding="utf-8"))["structure"]
        return {name: [join(folder, require_inside(part, ROUTER)) for part in parts] for name, parts in structure.items()}

    @property
    def access(self) -> dict[str, Any]:
        """Arguments that select this checkpoint in the Hub's libraries."""
        return {"revision": self.commit, "cache_dir": self.cache_folder, "token": self.token}

    def check_route(self) -> None:
        """Refuse a checkpoint that lacks the wanted route."""
        if self.route is None:
            return
        if self.route not in (routes := self._routes(*self.modules[0])):
            has = f"only {', '.join(map(repr, routes))}" if routes else "as it has no Router: leave route out"
            raise UsageError(f"{self.name} has no route {self.route!r}, {has}.")

    @property
    def transformer(self) -> str:
        """Folder of the first module, the Transformer; empty for the root."""
        return self.modules[0][1]

    @property
    def is_plain(self) -> bool:
        """Whether the first module is sentence-transformers' own Transformer, rather than a Router or another module."""
        return self.modules[0][0] in _PLAIN

    @property
    def is_table(self) -> bool:
        """Whether it is a token table, which has no layers."""
        return self.modules[0][0].endswith(".StaticEmbedding")

    @property
    def cache(self) -> Path:
        """Folder of this repository in the Hub client's cache."""
        root = Path(constants.HF_HUB_CACHE if self.cache_folder is None else self.cache_folder)
        return root.expanduser() / repo_folder_name(repo_id=self.name, repo_type="model")

    @property
    def root(self) -> Path:
        """Folder of the local files: the checkpoint itself, or its snapshot in the cache."""
        return Path(self.name) if self.commit is None else self.cache / "snapshots" / self.commit

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Paths of all files; of a repository only those in the cache, if its weights are there or it is offline."""
        if self.commit is not None and not self.is_offline and not self.is_cached:
            return self.files_on_hub
        folders = [path for _, path in self.modules if path]
        if not self.is_plain:
            # a Router keeps its modules there
            folders += [path.name for path in self.root.glob("*") if path.is_dir()]
        paths = [*self.root.glob("*"), *(path for folder in folders for path in (self.root / folder).rglob("*"))]
        return tuple(sorted({path.relative_to(self.root).as_posix() for path in paths if path.is_file()}))

    @cached_property
    def files_on_hub(self) -> tuple[str, ...]:
        """Paths of all files of a repository; one request, which is not retried if the Hub cannot be reached."""
        siblings = HfApi(token=self.token).model_info(self.name, revision=self.commit).siblings or []
        return tuple(file.rfilename for file in siblings)

    @property
    def is_offline(self) -> bool:
        """Whether files that are not cached cannot be downloaded."""
        return self.commit is not None and (self.local_files_only or constants.is_offline_mode())

    @cached_property
    def is_cached(self) -> bool:
        """Whether the weights of the whole Transformer are in the Hub client's cache."""
        if self.commit is None:
            return False
        folder = self.root / self.transformer
        if (folder / ADAPTER_SAFE_WEIGHTS_NAME).is_file():
            return True
        if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
            return (folder / WEIGHTS).is_file()
        shards = parse_index((folder / INDEX).read_bytes(), INDEX)
        return all((folder / shard).is_file() for shard in set(shards.values()))

    @cached_property
    def transformer_folders(self) -> list[str]:
        """Folders of the Transformers of a pipeline, several with a Router; without adapters."""
        folders = [self.transformer]
        if not self.is_plain:
            configs = [PurePosixPath(path) for path in self.files if PurePosixPath(path).name == "config.json"]
            folders = ["" if path.parent.name == "" else path.parent.as_posix() for path in configs]
            folders = [folder for folder in folders if self._is_read(folder) and self._is_transformer(folder)]
        return [folder for folder in folders if not self.is_adapter(folder)]

    @cached_property
    def adapter_folders(self) -> list[str]:
        """Folders of the Transformers that are saved as a PEFT adapter, without their base model."""
        folders = [self.transformer] if self.is_plain else sorted({str(PurePosixPath(path).parent) for path in self.files})
        folders = ["" if folder == "." else folder for folder in folders]
        return [folder for folder in folders if self.is_adapter(folder) and self._is_read(folder)]

    def is_adapter(self, folder: str) -> bool:
        """Whether a folder has the config of a PEFT adapter."""
        return join(folder, ADAPTER_CONFIG_NAME) in self.files

    def _is_read(self, folder: str) -> bool:
        return self.route is None or folder in self.module_folders

    def _is_transformer(self, folder: str) -> bool:
        if self.weights_in(folder) is None:
            return False
        try:
            config = json.loads(self.fetch(join(folder, "config.json")).read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            return False  # reported when it is read as a config
        return isinstance(config, dict) and "model_type" in config

    def weights_in(self, folder: str) -> str | None:
        """Path of the weights that will be read, or of the index of shards; None if no file has a usual name."""
        paths = (join(folder, file) for file in (WEIGHTS, INDEX, BIN, f"{BIN}.index.json"))
        return next((path for path in paths if path in self.files), None)

    def shards_in(self, folder: str) -> list[str]:
        """Paths of all files with the weights that will be read; an index of shards is downloaded if necessary."""
        first = self.weights_in(folder)
        if first is None or not first.endswith(".json"):
            return [first] if first else []
        return sorted({join(folder, shard) for shard in self.index(first).values()})

    def index(self, path: str) -> dict[str, str]:
        """Read an index, downloaded if necessary: the shard of each tensor, relative to the index."""
        folder, files = PurePosixPath(path).parent, map(PurePosixPath, self.files)
        below = {file.relative_to(folder).as_posix() for file in files if file.is_relative_to(folder)}
        file, ending = self.fetch(path), ".safetensors" if path.endswith(INDEX) else ".bin"
        return parse_index(file.read_bytes(), str(file), below, ending)

    def within_transformer(self, file: str) -> str:
        """Path of a file in the Transformer's folder."""
        return join(self.transformer, file)

    def piece_folder(self, kept: Sequence[int]) -> Path:
        """Folder for the piece with some layers, counted from 0, in the repository's folder of the Hub client's cache."""
        which = [] if list(kept) == list(range(len(kept))) else [str(layer + 1) for layer in kept]
        return self.cache / "st_matryoshka2d" / str(self.commit) / "-".join([str(len(kept)), "layers", *which])

    def fetch(self, path: str) -> Path:
        """Return the local path of a file, which is downloaded to the Hub client's cache if necessary."""
        if self.commit is None:
            return self.root / path
        return Path(hf_hub_download(self.name, path, local_files_only=self.is_offline, **self.access))


def is_pickle(path: str) -> bool:
    """Whether a file has pickled weights, as older versions of transformers save them."""
    name = PurePosixPath(path).name
    return name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json"))
