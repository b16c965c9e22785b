"""Download byte ranges of a file on the Hub.

`HfFileSystem` reads ranges too, but does not check that the server sent the range, nor report that it sent the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
    httpx,
)

from st_matryoshka2d.hub.checkpoint import Checkpoint

_REFUSED = (200, 405, 416, 501)  # the whole file, no such method, no such range, not implemented
_ATTEMPTS = 3


class RangesRefusedError(Exception):
    """The server does not support range requests."""


@dataclass(frozen=True)
class RemoteFile:
    """A file: its path in the repository, its URL, the headers of each request (token, user agent), its size in bytes."""

    path: str
    url: str
    headers: dict[str, str]
    size: int

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to `stop`."""
        parts: list[bytes] = []
        self.copy(start, stop, parts.append)
        return b"".join(parts)

    def copy(self, start: int, stop: int, write: Callable[[bytes], Any]) -> None:
        """Stream the bytes from `start` up to `stop`; a broken connection is resumed where it broke."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                for part in self._parts(start, stop):
                    write(part)
                    start += len(part)
            except httpx.TransportError as error:
                if attempt < _ATTEMPTS:
                    time.sleep(attempt / 2)
                elif isinstance(error, httpx.RemoteProtocolError):
                    raise ValueError(f"{self.path}: the server closed the connection before byte {stop}. {error}") from error
                else:
                    raise
            else:
                return

    def _parts(self, start: int, stop: int) -> Iterator[bytes]:
        """Stream the answer to one request; refuse anything but the requested bytes."""
        if start == stop:
            return
        # ranges of compressed content would be other bytes
        headers = {**self.headers, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with http_stream_backoff(
            "GET",
            self.url,
            headers=headers,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),
            retry_on_status_codes=429,
        ) as response:
            status = response.status_code
            if status in _REFUSED:
                raise RangesRefusedError(f"The server does not support range requests for {self.path} (status {status}).")
            hf_raise_for_status(response)
            expected = (206, f"bytes {start}-{stop - 1}/{self.size}", "identity")
            encoding = response.headers.get("Content-Encoding", "identity")
            if (answer := (status, response.headers.get("Content-Range"), encoding)) != expected:
                raise ValueError(f"{self.path}: the server was asked for {expected} and answered {answer}.")
            for part in response.iter_bytes():
                start += len(part)
                if start > stop:
                    raise ValueError(f"{self.path}: the server sent more than the requested bytes up to {stop}.")
                yield part
        if start < stop:
            raise ValueError(f"{self.path}: the server stopped {stop - start} bytes before byte {stop}.")


def remote_file(checkpoint: Checkpoint, file: str) -> RemoteFile:
    """Find a file of the Transformer on the Hub, with one request."""
    path, token = checkpoint.within_transformer(file), checkpoint.token
    url = hf_hub_url(checkpoint.name, path, revision=checkpoint.commit)
    size = get_hf_file_metadata(url, token=token).size
    if size is None:
        raise ValueError(f"{path}: the server does not report the size of the file.")
    return RemoteFile(path, url, build_hf_headers(token=token, library_name="st_matryoshka2d"), size)
