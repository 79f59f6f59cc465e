"""Open WebUI's server. It needs an environment of its own, so it is run alone."""

from __future__ import annotations

from clients.client import ASK, Client

CLIENTS = (
    Client(
        "open-webui",
        "open-webui",
        "program",
        lambda url, model: ["open-webui", url, model, ASK],
        driver="open_webui.py",
        once=False,
    ),
)
