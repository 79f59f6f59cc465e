"""LangChain's ChatOpenAI: streamed chunks merged by its own rules, as LibreChat does."""

from __future__ import annotations

from clients.client import ASK, Client

CLIENTS = (
    Client(
        "langchain",
        "langchain",
        "python",
        lambda url, model: ["run_langchain.py", url, model, ASK],
        ("langchain_openai",),
    ),
)
