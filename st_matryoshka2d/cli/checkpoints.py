"""Open models, and grids in their place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from st_matryoshka2d.cli.hub_errors import LOG_IN, explained

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_matryoshka2d.grid.grid_result import GridResult


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
            errors.GatedRepoError: f"{name} is gated: accept its conditions on the Hub, and {LOG_IN}.",
            errors.RepositoryNotFoundError: f"There is no model {name} on the Hub{nor}. If it is private, {LOG_IN}.",
            errors.RevisionNotFoundError: (
                f"{name} has no revision {self.revision}; --revision takes a branch, a tag or a commit."
            ),
        }
        with explained(reasons, f"{name} is neither a folder nor in the cache, and"):
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


def _json(path: Path) -> Any:
    """Read a JSON file, or return None."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
