"""A small Hub that counts what it sends and misbehaves on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+?)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?")

# Response to a range request: (handler, content, start, stop) -> None.
Manners = Callable[["Handler", bytes, int, int], None]


class Handler(BaseHTTPRequestHandler):
    """Serves downloads like the Hub; a repository is a folder `org/name` of the root."""

    protocol_version = "HTTP/1.1"
    server: Hub  # type: ignore[assignment]

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := FILE.fullmatch(path):
            self._file(**match.groupdict())
        elif match := API.fullmatch(path):
            self._api(**match.groupdict())
        elif path == "/api/whoami-v2":
            self.answer(200, b'{"name": "me", "type": "user"}')
        else:
            self.answer(404, b"{}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _repository(self, repo: str, revision: str | None) -> tuple[Path, str] | None:
        folder = self.server.root / repo
        if repo.endswith("gated"):
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif not folder.is_dir():
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision in (None, "main", self.server.commit):
            return folder, self.server.commit
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _api(self, repo: str, what: str | None, revision: str | None) -> None:
        if found := self._repository(repo, revision):
            folder, commit = found
            files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
            answer: Any = {
                "id": repo,
                "sha": commit,
                "siblings": [{"rfilename": name} for name in [*files, *self.server.also_listed]],
            }
            if what == "tree":
                answer = [
                    {"type": "file", "path": name, "size": path.stat().st_size, "oid": _etag(path)}
                    for name, path in files.items()
                ]
            self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, revision: str, path: str) -> None:
        found = self._repository(repo, revision)
        if found is None:
            return
        file = found[0] / path
        if not file.is_file():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found[1]})
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": found[1]}
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.command == "GET":
            self.server.asked.append((path, self.headers.get("Range")))
        if not ranged:
            self.answer(200, content, headers)
        elif self.server.manners is not None:
            self.server.manners(self, content, int(ranged[1]), int(ranged[2]) + 1)
        else:
            self.part(content, int(ranged[1]), int(ranged[2]) + 1)

    def part(self, content: bytes, start: int, stop: int, **headers: str) -> None:
        """Send a correct response to a range request."""
        says = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}", **headers}
        self.answer(206, content[start:stop], says)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            path = unquote(urlsplit(self.path).path).rpartition("/")[2]
            self.server.sent[path] = self.server.sent.get(path, 0) + len(body)

    def log_message(self, *_: Any) -> None:
        pass


class Hub(ThreadingHTTPServer):
    """Serves the folder `root`; `sent` counts the bytes of each file, `asked` records each request."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.reset()

    def reset(self, manners: Manners | None = None, commit: str = "a" * 40, also_listed: tuple[str, ...] = ()) -> None:
        self.manners, self.commit, self.also_listed = manners, commit, also_listed
        self.sent: dict[str, int] = {}
        self.asked: list[tuple[str, str | None]] = []

    def handle_error(self, *_: Any) -> None:
        pass  # clients may hang up on a bad response


def broken_off(handler: Handler, content: bytes, start: int, stop: int) -> None:
    handler.part(content, start, max(start + 1, (start + stop) // 2), **_range(content, start, stop))
    handler.close_connection = True


def _silent(handler: Handler, content: bytes, start: int, stop: int) -> None:
    time.sleep(1.5)
    handler.close_connection = True


def _range(content: bytes, start: int, stop: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}", "Content-Length": str(stop - start)}


# Bad responses to range requests, with the expected error and words of its message.
MISBEHAVING: dict[str, tuple[Manners, str, str]] = {
    "another range": (lambda h, c, a, b: h.part(c, a + 1, b + 1), "ValueError", "was asked for"),
    "a shorter range": (lambda h, c, a, b: h.part(c, a, b - 1), "ValueError", "was asked for"),
    "a range of another file": (lambda h, c, a, b: h.part(c + b"x", a, b), "ValueError", "was asked for"),
    "no range named": (lambda h, c, a, b: h.answer(206, c[a:b]), "ValueError", "was asked for"),
    "compressed": (lambda h, c, a, b: h.part(c, a, b, **{"Content-Encoding": "gzip"}), "ValueError", "was asked for"),
    "nothing": (lambda h, c, a, b: h.answer(204, b""), "ValueError", "was asked for"),
    "fewer bytes than named": (
        lambda h, c, a, b: h.answer(206, c[a : b - 1], {"Content-Range": _range(c, a, b)["Content-Range"]}),
        "ValueError",
        "stopped 1 bytes before",
    ),
    "more bytes than named": (
        lambda h, c, a, b: h.answer(206, c[a:b] + b"x", {"Content-Range": _range(c, a, b)["Content-Range"]}),
        "ValueError",
        "sent more than",
    ),
    "broken off": (broken_off, "ValueError", "closed the connection before"),
    "silent": (_silent, "TimeoutException", "timed out"),
    "forbidden": (lambda h, c, a, b: h.answer(403, b""), "HfHubHTTPError", "403"),
    "broken itself": (lambda h, c, a, b: h.answer(500, b""), "HfHubHTTPError", "500"),
}


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    hub = Hub(root)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


def pieces_in(cache: Path) -> list[str]:
    """List all cached pieces, hidden files included, without locks and empty folders."""
    found = [path for folder in cache.rglob("st_matryoshka2d") for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(cache)) for path in found if path.suffix != ".lock")


def _etag(path: Path) -> str:
    status = path.stat()
    return hashlib.sha1(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def in_old_layout(folder: Path) -> None:
    """Change a saved pipeline into the layout from before sentence-transformers 1.

    The Transformer had a folder of its own, and a shorter name.
    """
    (folder / "0_Transformer").mkdir()
    for path in [*folder.glob("*.safetensors"), *folder.glob("token*"), folder / "config.json"]:
        path.rename(folder / "0_Transformer" / path.name)
    (folder / "sentence_bert_config.json").rename(folder / "0_Transformer" / "sentence_bert_config.json")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules))


def change(file: Path, how: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors of a safetensors file."""
    tensors = load_file(file)
    how(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file, {"format": "pt"})


def configure(folder: Path, file: str = "config.json", **entries: Any) -> None:
    """Change entries of a folder's config."""
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | entries))


def in_shards(folder: Path) -> None:
    """Divide the weights of a folder into small files."""
    hf.AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="12KB")
    (folder / "model.safetensors").unlink()
