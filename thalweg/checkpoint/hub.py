"""From what a user calls a model to a local directory. The only module that may touch the network, and only for hub ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from thalweg.config import BUNDLED_FOLDERS
from thalweg.errors import CheckpointError

PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Files that are downloaded: weights, configuration, tokenizers, templates. Never code, never pickles."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}")
_ELSEWHERE = "give a local directory, or use the bundled model (--model thalweg-nano)"


def resolve_model(
    name: str | Path, *, revision: str | None = None, download_dir: str | None = None, token: str | bool | None = None,
    ignore: Sequence[str] = (),
) -> Path:  # fmt: skip
    """The directory of the model called `name`: "thalweg-nano", a local directory, or a hub id "org/name". A hub id
    is downloaded unless cached, except files that match a pattern of `ignore`. CheckpointError says what is wrong
    with the name or the place, and what to do."""
    text = str(name)
    if text in BUNDLED_FOLDERS:
        return _directory(Path(str(files("thalweg") / "nano" / BUNDLED_FOLDERS[text])))
    if not text.strip() or "\0" in text or len(text) > 4096:
        raise CheckpointError(f"model: {text[:80]!r} is neither a directory nor a hub id like org/name")
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except OSError as e:  # a component longer than the file system allows, no permission
        raise CheckpointError(f"model: {text[:200]!r} cannot be looked up: {e.strerror or e}") from e
    if exists:
        return _directory(path)
    if path.is_absolute() or not _HUB_ID.fullmatch(text) or ".." in text:
        raise CheckpointError(f"model: {text[:200]!r} does not exist, and is not a hub id like org/name; {_ELSEWHERE}")
    return _directory(_download(text, revision, download_dir, token, ignore))


def _directory(path: Path) -> Path:
    if not path.is_dir():
        hint = "GGUF files are not supported yet" if path.suffix == ".gguf" else "give the directory that holds it"
        raise CheckpointError(f"model: {path} is a file, not a model directory; {hint}")
    if not (path / "config.json").is_file():
        raise CheckpointError(f"model: {path} is not a model directory: it has no config.json")
    return path


def _download(
    repo: str, revision: str | None, download_dir: str | None, token: str | bool | None, ignore: Sequence[str]
) -> Path:
    from huggingface_hub import errors, snapshot_download

    if revision is not None and (".." in revision or "\0" in revision or not revision.strip()):
        raise CheckpointError(f"revision: {revision!r} is not a branch, tag or commit of {repo}")
    asked: dict[str, Any] = {"revision": revision, "cache_dir": download_dir, "token": token}
    try:
        return Path(snapshot_download(repo, allow_patterns=list(PATTERNS), ignore_patterns=list(ignore), **asked))
    except errors.GatedRepoError as e:
        raise CheckpointError(
            f"model: {repo} is gated: accept its terms on the hub and pass a token (--hf-token); {_ELSEWHERE}"
        ) from e
    except errors.RepositoryNotFoundError as e:
        raise CheckpointError(
            f"model: the hub has no repository {repo}, or it is private; check the name, pass a token, or {_ELSEWHERE}"
        ) from e
    except errors.RevisionNotFoundError as e:
        raise CheckpointError(f"revision: {repo} has no revision {revision!r}") from e
    except errors.HFValidationError as e:
        raise CheckpointError(f"model: {repo!r} is not a hub id: {e}") from e
    except Exception as e:  # the hub library raises whatever its transport does: offline, DNS, proxy, TLS, timeouts
        raise CheckpointError(
            f"model: {repo} is not cached and the hub cannot be reached ({type(e).__name__}); {_ELSEWHERE}"
        ) from e
