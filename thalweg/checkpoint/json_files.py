"""Reads JSON files of models whole, up to a size limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thalweg.checkpoint.safetensors import strict_json
from thalweg.errors import CheckpointError

MAX_JSON = 16_000_000
"""Most bytes of a configuration file."""


def read_object(file: Path, infinite: bool = False) -> dict[str, Any]:
    """As `read_json`, with CheckpointError for values other than objects too."""
    content = read_json(file, infinite)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, not {type(content).__name__}")
    return content


def read_json(file: Path, infinite: bool = False) -> Any:
    """The content of a JSON file. CheckpointError names a file that is missing, unreadable, too long, or malformed. infinite:
    accept Infinity, which Python writes."""
    try:
        if file.stat().st_size > MAX_JSON:
            raise CheckpointError(f"{file}: larger than {MAX_JSON} bytes; not a configuration file")
        content = strict_json(file, file.read_bytes(), infinite)
    except FileNotFoundError as e:
        raise CheckpointError(f"{file}: does not exist") from e
    except OSError as e:
        raise CheckpointError(f"{file}: cannot be read: {e.strerror or e}") from e
    return content
