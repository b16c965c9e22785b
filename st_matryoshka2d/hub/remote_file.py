"""Bytes of a file on a server: exactly those that were asked for.

The `HfFileSystem` of `huggingface_hub` does not check that the server sent the requested range, nor
report that it sent the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from huggingface_hub import constants
from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff, httpx  # type: ignore[attr-defined]  # lazy

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import WholeFileNeededError

_REFUSED = (200, 405, 416, 501)  # the whole file, no such method, no such range, not implemented
_ATTEMPTS = 3


@dataclass(frozen=True)
class RemoteFile:
    """A file: its path in the repository, its URL, the headers of each request (token, user agent), its size in bytes."""

    path: str
    url: str
    headers: dict[str, str]
    size: int

    def parts(self, start: int, stop: int) -> Iterator[bytes]:
        """Stream the bytes from `start` up to `stop`; a broken connection is resumed where it broke."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                for part in self._answer(start, stop):
                    start += len(part)
                    yield part
                return
            except httpx.TransportError as error:
                if attempt < _ATTEMPTS:
                    time.sleep(attempt / 2)
                elif isinstance(error, httpx.RemoteProtocolError):
                    raise UsageError(f"{self.path}: the server closed the connection before byte {stop}. {error}") from error
                else:
                    raise

    def _answer(self, start: int, stop: int) -> Iterator[bytes]:
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
                raise WholeFileNeededError(f"The server does not support range requests for {self.path} (status {status}).")
            hf_raise_for_status(response)
            expected = (206, f"bytes {start}-{stop - 1}/{self.size}", "identity")
            encoding = response.headers.get("Content-Encoding", "identity")
            if (answer := (status, response.headers.get("Content-Range"), encoding)) != expected:
                raise UsageError(f"{self.path}: the server was asked for {expected} and answered {answer}.")
            for part in response.iter_bytes():
                start += len(part)
                if start > stop:
                    raise UsageError(f"{self.path}: the server sent more than the requested bytes up to {stop}.")
                yield part
        if start < stop:
            raise UsageError(f"{self.path}: the server stopped {stop - start} bytes before byte {stop}.")
