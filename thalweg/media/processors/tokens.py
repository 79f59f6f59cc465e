"""Ids and texts of placeholders that configurations do not name, from the tokenizer's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError


def token_id(where: Path, text: str) -> int:
    """The id that the tokenizer's files give an added token of this text. CheckpointError if they do not."""
    for id, content in load_tokens(where).items():
        if content == text:
            return id
    raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder: has no {text}, which stands for images")


def load_tokens(where: Path) -> dict[int, str]:
    """Id -> text of the added tokens in the tokenizer's files."""
    found: dict[int, str] = {}
    if (where / "tokenizer_config.json").is_file():
        added = read_object(where / "tokenizer_config.json").get("added_tokens_decoder")
        for id, each in added.items() if isinstance(added, dict) else ():
            if isinstance(each, dict) and isinstance(each.get("content"), str) and str(id).isdecimal():
                found[int(id)] = each["content"]
    if (where / "tokenizer.json").is_file():
        for each in read_object(where / "tokenizer.json").get("added_tokens") or ():
            if isinstance(each, dict) and isinstance(each.get("content"), str) and type(each.get("id")) is int:
                found.setdefault(each["id"], each["content"])
    return found


def first_token(where: Path, texts: Sequence[str]) -> int:
    """The id of the first of these added tokens that the tokenizer's files have. CheckpointError if they have none."""
    known = {content: id for id, content in load_tokens(where).items()}
    found = next((text for text in texts if text in known), None)
    if found is None:
        raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder: must have one of {', '.join(texts)}")
    return known[found]
