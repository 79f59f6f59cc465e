"""--enable-ssl-refresh: certificate and key read again when their files change, for connections made from then on."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from thalweg.server.settings import ServerSettings

log = logging.getLogger(__name__)
EVERY = 5.0
"""Seconds between looks at the files."""


async def refresh(context: ssl.SSLContext, settings: ServerSettings, every: float = EVERY) -> None:
    """Runs until cancelled. Files that do not belong together yet (one of two is written) are tried again at the next look,
    and the certificate in force stays."""
    seen = _stamps(settings)
    while True:
        await asyncio.sleep(every)
        now = _stamps(settings)
        if now == seen:
            continue
        try:
            assert settings.ssl_certfile is not None, "checked with the settings"
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
            if settings.ssl_ca_certs:
                context.load_verify_locations(settings.ssl_ca_certs)
        except (OSError, ssl.SSLError) as e:
            log.warning("--enable-ssl-refresh: %s cannot be used yet: %s", settings.ssl_certfile, e)
            continue
        seen = now
        log.info("--enable-ssl-refresh: %s was read again", settings.ssl_certfile)


def _stamps(settings: ServerSettings) -> list[tuple[int, int, int] | None]:
    return [_stamp(Path(f)) for f in (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs) if f]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """None while the file is away."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
