"""Open models, save and upload cuts, and explain the Hub's errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d.files.atomic import check_writable_folder, share_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.grid.grid_result import GridResult

_LOG_IN = "log in with `hf auth login`, or give --token"
_NOTHING = "Nothing was uploaded"


def _known_place(name: str) -> str:
    """Refuse a path that does not exist instead of looking for it on the Hub."""
    path = Path(name)
    if (name.startswith((".", "~")) or path.is_absolute()) and not path.is_dir():
        raise typer.BadParameter(f"There is no folder {name}.")
    return name


def _grid_or_model(name: str) -> str:
    """Refuse a grid that does not exist instead of looking for a model of that name."""
    path = Path(name)
    if not path.is_file() and path.suffix.lower() in (".parquet", ".json"):
        raise typer.BadParameter(f"The file {name} does not exist.")
    if path.is_file() and path.suffix.lower() not in (".parquet", ".json"):
        how = "`st-matryoshka2d grid MODEL --out grid.parquet` writes one"
        raise typer.BadParameter(f"{name} is not a grid, which is a .parquet or .json file: {how}.")
    return name if path.is_file() else _known_place(name)


def _empty_or_new(folder: Path | None) -> Path | None:
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; name a new folder.")
    return folder


def _name_of_repository(name: str | None) -> str | None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        validate_repo_id(name)  # accepts None
    except HFValidationError as error:
        raise typer.BadParameter(f"A repository name is ORG/NAME, or NAME alone for your own. {error}") from error
    return name


_MODEL = typer.Argument(help="Hub id or folder of a sentence-transformers model.", show_default=False, callback=_known_place)
_CHOICE = "A grid that was saved as .parquet or .json; or, without labels, the Hub id or folder of an aligned model."
_GRID_OR_MODEL = typer.Argument(help=_CHOICE, show_default=False, callback=_grid_or_model, metavar="GRID_OR_MODEL")
_OF_MODEL: dict[str, Any] = {"rich_help_panel": "Loading the model"}
_DEVICE = typer.Option(help="Such as cpu, cuda or mps.", show_default="the fastest available", **_OF_MODEL)
_TRUST = typer.Option("--trust-remote-code", help="Run code that comes with the model.", **_OF_MODEL)
# An empty text, which scripts pass if a variable is not set, is None.
_TOKEN = typer.Option(
    help="Token for the Hub.", show_default="that of `hf auth login`", callback=lambda text: text or None, **_OF_MODEL
)
_REVISION = typer.Option(help="Branch, tag or commit of the model on the Hub.", show_default="main", **_OF_MODEL)
_OUT = typer.Option("--out", help="Folder to save the model in, new or empty.", file_okay=False, callback=_empty_or_new)
_PUSH = "Hub id of a new repository to upload it to, such as me/small."


@dataclass(frozen=True)
class Source:
    """A model to open, with the options for that."""

    model: Annotated[str, _MODEL]
    device: Annotated[str | None, _DEVICE] = None
    trust_remote_code: Annotated[bool, _TRUST] = False
    revision: Annotated[str | None, _REVISION] = None
    token: Annotated[str | None, _TOKEN] = None

    def require(self) -> Callable[[str], Any]:
        """Refuse a model that does not exist before any slow import; return a reader of its JSON files, None for no file."""
        folder = Path(self.model)
        if folder.exists():
            if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
                raise ValueError(f"{self.model} is not a model folder: it has neither modules.json nor config.json.")
            return lambda path: _json(folder / path)
        from huggingface_hub import errors, hf_hub_download, resolve_revision

        cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        where: dict[str, Any] = {"revision": self.revision, "token": self.token, "cache_dir": cache}
        with self.fetching() as (name, _):
            # a name without organisation is one of sentence-transformers, or an early model
            names = [name] if "/" in name else [f"sentence-transformers/{name}", name]
            for found in names[:-1]:
                with suppress(errors.RepositoryNotFoundError, errors.RevisionResolutionError):
                    resolve_revision(found, **where)
                    break
            else:
                found = names[-1]
                resolve_revision(found, **where)

        def read(path: str) -> Any:
            with suppress(errors.EntryNotFoundError, errors.HfHubHTTPError), self.fetching():
                return _json(Path(hf_hub_download(found, path, **where)))

        return read

    def open(self) -> SentenceTransformer:
        """Load the whole model."""
        # `within_reach` fails at the first request if the model is missing or the Hub cannot be reached.
        from sentence_transformers import SentenceTransformer

        from st_matryoshka2d.hub.reach import opened, within_reach
        from st_matryoshka2d.hub.readouts import add_readouts

        with self.fetching() as (name, keywords):
            checkpoint, keywords = within_reach(*opened(name, keywords), None)
            model = SentenceTransformer(checkpoint.name, **keywords)
            add_readouts(model, checkpoint, model.config, getattr(model.config, "num_hidden_layers", 0))
            return model

    @contextmanager
    def fetching(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the keywords for opening; turn errors of a download into messages for the command line."""
        from huggingface_hub import errors

        keywords = asdict(self)
        name = keywords.pop("model")
        nor = "" if "/" in name else f", and no folder {name}"
        reasons = {
            errors.GatedRepoError: f"{name} is gated: accept its conditions on the Hub, and {_LOG_IN}.",
            errors.RepositoryNotFoundError: f"There is no model {name} on the Hub{nor}. If it is private, {_LOG_IN}.",
            errors.RevisionNotFoundError: (
                f"{name} has no revision {self.revision}; --revision takes a branch, a tag or a commit."
            ),
        }
        with _explained(reasons, f"{name} is neither a folder nor in the cache, and"):
            yield name, keywords


@dataclass(frozen=True)
class GridOrModel(Source):
    """A grid, or a model whose config has the agreement of its sizes."""

    model: Annotated[str, _GRID_OR_MODEL]

    def grid(self) -> GridResult:
        """Read the grid, or make one of the agreement."""
        from st_matryoshka2d.grid.grid_result import GridResult

        if Path(self.model).is_file():
            return GridResult.load(self.model)
        self.require()
        return GridResult.from_agreement(self.open())


@dataclass(frozen=True)
class Places:
    """Where a model goes: a folder, a repository on the Hub, or both."""

    out: Annotated[Path | None, _OUT] = None
    push: Annotated[str | None, typer.Option("--push", help=_PUSH, callback=_name_of_repository)] = None
    private: Annotated[bool, typer.Option("--private", help="Make that repository private.")] = False

    def check(self, token: str | None) -> None:
        """Check, before any work, that the model can be saved or uploaded."""
        if self.out is None and self.push is None:
            raise typer.BadParameter("Say where the model goes: --out FOLDER, --push ORG/NAME or both.")
        if self.private and self.push is None:
            raise typer.BadParameter("--private needs --push.")
        if self.push is not None:
            _check_new(self.push, token)
        if self.out is not None:
            is_new = not self.out.exists()
            check_writable_folder(self.out)
            if is_new:
                self.out.rmdir()  # until there is a model to save

    def save(self, model: SentenceTransformer, token: str | None) -> tuple[dict[str, str], list[str]]:
        """Save a model with a card of its sizes and origin; return where, as data and as lines."""
        from st_matryoshka2d import add_sizes_to_model_card

        places: dict[str, str] = {}
        with TemporaryDirectory() as temporary:
            folder = str(self.out or temporary)
            if self.push is not None:
                model.model_card_data.set_model_id(self.push)
            model.save_pretrained(folder)
            share_weights(folder)
            if getattr(model.config, "matryoshka_cut", None) or getattr(model.config, "matryoshka_sizes", None):
                add_sizes_to_model_card(folder)
            if self.out is not None:
                places["saved"] = str(self.out)
            if self.push is not None:
                places["pushed"] = _uploaded(model, folder, self.push, token=token, private=self.private)
        return places, [f"{what.capitalize()}: {where}" for what, where in places.items()]


def _check_new(repository: str, token: str | None) -> None:
    """Refuse an upload without a token, and one to a repository that exists."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    if "authorization" not in build_hf_headers(token=token):
        raise ValueError(f"An upload to {repository} needs a token: {_LOG_IN}.")
    api = HfApi(token=token)
    with _uploading(repository):
        name = repository if "/" in repository else f"{api.whoami()['name']}/{repository}"
        if api.repo_exists(name):
            raise ValueError(f"{_NOTHING}. {_taken(repository)}")


def _uploaded(model: SentenceTransformer, folder: str, repository: str, **settings: Any) -> str:
    with _uploading(repository):
        return model.push_to_hub(repository, local_model_path=folder, **settings)


def _uploading(repository: str) -> AbstractContextManager[None]:
    """Explain why the Hub refuses an upload."""
    refusals = {
        401: f"The Hub rejected the token for {repository}: {_LOG_IN}.",
        403: f"The token has no write access to {repository}; choose a repository and a token that has.",
        409: _taken(repository),
    }
    reasons = {status: f"{_NOTHING}. {refusal}" for status, refusal in refusals.items()}
    return _explained(reasons, f"{_NOTHING}:")


def _taken(repository: str) -> str:
    return f"{repository} already exists on the Hub; name a new repository."


def _json(path: Path) -> Any:
    """Read a JSON file, or return None."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


@contextmanager
def _explained(reasons: Mapping[Any, str], otherwise: str) -> Iterator[None]:
    """Turn the Hub's errors into messages for the command line, by their class or HTTP status."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see

    try:
        yield
    except errors.HfHubHTTPError as error:
        if (reason := reasons.get(type(error)) or reasons.get(error.response.status_code)) is None:
            raise
        raise ValueError(reason) from error
    except (errors.RevisionResolutionError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else str(error.__cause__ or error)
        raise ValueError(f"{otherwise} the Hub at {constants.ENDPOINT} cannot be reached: {why}.") from error
