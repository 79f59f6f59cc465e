"""Cohere's client, version 2 of its chat."""

from __future__ import annotations

from clients.client import ASK, STRICT, Client


def _words(url: str, model: str) -> list[str]:
    return ["run_cohere.py", url, model, ASK]


CLIENTS = (Client("cohere", "cohere", "python", _words, ("cohere",), script=STRICT),)
