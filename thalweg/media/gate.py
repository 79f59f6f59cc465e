"""The one way by which bytes of media come in. `data:` URLs always, other sources only where the operator allows them.

    --allowed-media-domains HOST ...       http and https URLs of these hosts, or of HOST:PORT
    --allowed-local-media-path DIRECTORY   file:// URLs of files in it

Errors are RequestError, and name the place in the request. They quote nothing that a server or a library said.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from thalweg.errors import ConfigError, RequestError
from thalweg.media.fetch import Fetcher

MOST_BYTES = 20 << 20
"""Bytes of one item, as its file has them."""
SHOWN = 60
"""Characters of a URL that an error shows."""


class MediaConnector:
    """Thread-safe. A source is read by whichever thread asks, and may take as long as `Fetcher` allows."""

    def __init__(self, domains: Sequence[str] = (), folder: str | None = None) -> None:
        """domains: hosts from which URLs may be fetched, as `Fetcher` has them. folder: files in it may be read. ConfigError
        if it is not a directory."""
        self._fetcher = Fetcher(domains, MOST_BYTES)
        self._folder = None if folder is None else Path(folder).resolve()
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"allowed_local_media_path: {folder!r} is not a directory")

    def host(self, url: str, at: str) -> str:
        """The host that `read` asks for the bytes. "": none, they are here. RequestError if it refuses to ask."""
        return self._fetcher.host(url, at) if is_remote(url) else ""

    def read(self, url: str, at: str) -> bytes:
        """at: the place in the request, for errors."""
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "data":
            return _inline(url, at)
        if is_remote(url):
            return self._fetcher.get(url, at)
        if scheme == "file":
            return self._file(url, at)
        raise RequestError(f"{at}: {url[:SHOWN]!r} is no data:, http, https or file URL; send data:image/png;base64,...", at)

    def _file(self, url: str, at: str) -> bytes:
        if self._folder is None:
            raise RequestError(
                f"{at}: files are not read; send the bytes as a data: URL, or start the server with "
                "--allowed-local-media-path DIRECTORY", at,
            )  # fmt: skip
        refused = RequestError(f"{at}: no such file in the directory of --allowed-local-media-path", at)
        try:
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost") or "\0" in (path := unquote(parts.path)):
                raise refused
            # Links are followed first, and the file that was opened must be the one that was checked.
            real = Path(path).resolve(strict=True)
            if not real.is_relative_to(self._folder):
                raise refused
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError, RuntimeError):
            raise refused from None
        try:
            opened = Path(f"/proc/self/fd/{descriptor}")
            moved = opened.exists() and not Path(os.readlink(opened)).is_relative_to(self._folder)
            if moved or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise refused
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return check_size(file.read(MOST_BYTES + 1), at)
        finally:
            os.close(descriptor)


def is_remote(url: str) -> bool:
    return url[:16].partition(":")[0].lower() in ("http", "https")


def check_size(data: bytes, at: str) -> bytes:
    """The same bytes. RequestError if there are none, or too many."""
    if not data:
        raise RequestError(f"{at}: is empty", at)
    if len(data) > MOST_BYTES:
        raise RequestError(f"{at}: more than {MOST_BYTES >> 20} MiB; send a smaller file", at)
    return data


def decode_base64(text: str, at: str) -> bytes:
    """Base64. White space between the letters is allowed."""
    if len(text) > 2 * MOST_BYTES:
        raise RequestError(f"{at}: more than {MOST_BYTES >> 20} MiB; send a smaller file", at)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"{at}: is not valid base64", at) from None
    return check_size(data, at)


def _inline(url: str, at: str) -> bytes:
    """RFC 2397. The type in the URL is ignored: the format is detected from the bytes."""
    head, comma, body = url.partition(",")
    if not comma or len(head) > 1024:
        raise RequestError(f"{at}: a data: URL reads data:image/png;base64,...", at)
    if head.lower().rstrip().endswith(";base64"):
        return decode_base64(unquote(body) if "%" in body else body, at)
    if len(body) > 3 * MOST_BYTES:
        raise RequestError(f"{at}: more than {MOST_BYTES >> 20} MiB; send a smaller file", at)
    return check_size(unquote_to_bytes(body), at)
