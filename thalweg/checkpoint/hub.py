"""Resolves a model's name to a local directory or GGUF file. Only this module may use the network, and only for hub ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

from thalweg.checkpoint.gguf.names import first_part, is_gguf
from thalweg.checkpoint.native import PARAMS, WEIGHTS, is_native
from thalweg.errors import CheckpointError
from thalweg.options.model import BUNDLED_ADAPTERS, BUNDLED_FOLDERS

PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.model.v*", "*.jinja")
"""Files to download: weights, configuration, tokenizers, templates. Never code, never pickles."""
ADAPTER_FILES = ("adapter_config.json", "adapter_model*.safetensors", "*.gguf")
"""Files of an adapter to download."""
BESIDE = ("mmproj", "imatrix")
"""Words in names of GGUF files without a language model."""
_QUANT = re.compile(r"[A-Za-z0-9][\w.\-]{0,40}")
"""The suffix of a hub id after a colon: the part of a GGUF file's name for its quantisation."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}")
_STORE = re.compile(r"([a-z][a-z0-9+.-]{0,15})://")
_MOUNTS = {"s3": "mount-s3 or s3fs", "gs": "gcsfuse", "az": "blobfuse2", "abfs": "blobfuse2"}
"""Scheme of an object store -> the program that mounts it."""
_ELSEWHERE = "give a local directory, or use the bundled model (--model thalweg-nano)"


def resolve_model(
    name: str | Path, *, revision: str | None = None, download_dir: str | None = None, token: str | bool | None = None,
    ignore: Sequence[str] = (), native: bool | None = None,
) -> Path:  # fmt: skip
    """The path of a model. name: "thalweg-nano", a local directory or GGUF file, or a hub id "org/name". A hub id is downloaded
    unless cached, except files that match a pattern of `ignore`. "org/name:Q4_K_M" is the GGUF file in that repository (or
    directory) with this word in its name. CheckpointError gives the fault and the remedy.

    native: True = Mistral's format, by params.json, without a download of model*.safetensors. False = by config.json. None = by
    the files present, config.json first."""
    text = str(name)
    if text in BUNDLED_FOLDERS:
        return _found(Path(str(files("thalweg") / "nano" / BUNDLED_FOLDERS[text])))
    if not text.strip() or "\0" in text or len(text) > 4096:
        raise CheckpointError(f"model: {text[:80]!r} is neither a directory nor a hub id like org/name")
    if (store := _STORE.match(text)) is not None:
        how = _MOUNTS.get(store[1], "a file system for it")
        raise CheckpointError(
            f"model: {text[:200]!r} is an address, and models are read from directories: mount the store ({how}) and give the "
            "directory, copy its files, or give a hub id like org/name"
        )
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except OSError as e:  # a component longer than the file system allows, no permission
        raise CheckpointError(f"model: {text[:200]!r} cannot be looked up: {e.strerror or e}") from e
    if exists:
        return _found(path, native)
    place, colon, quant = text.rpartition(":")
    if colon and place and _QUANT.fullmatch(quant):
        if Path(place).expanduser().is_dir():
            return _find_gguf(Path(place).expanduser(), quant)
        if _HUB_ID.fullmatch(place) and ".." not in text:
            patterns = sorted({f"*{q}*.gguf" for q in (quant, quant.upper(), quant.lower())})
            return _find_gguf(_download(place, revision, download_dir, token, ignore, patterns), quant)
    if path.is_absolute() or not _HUB_ID.fullmatch(text) or ".." in text:
        raise CheckpointError(f"model: {text[:200]!r} does not exist, and is not a hub id like org/name; {_ELSEWHERE}")
    ours = [p for p in ignore if not fnmatch(f"{WEIGHTS}.safetensors", p)] + ["model*.safetensors*"]
    got = _download(text, revision, download_dir, token, ours if native else ignore, PATTERNS)
    if native is None and _only_native(got, downloaded=True):
        got, native = _download(text, revision, download_dir, token, ours, PATTERNS), True
    return _found(got, native, downloaded=True)


def resolve_adapter(
    path: str, *, download_dir: str | None = None, token: str | bool | None = None, ignore: Sequence[str] = ()
) -> Path:
    """The folder or file of an adapter. path: "thalweg-nano-shout", a local path, or a hub id "org/name" that is no local path.
    A hub id is downloaded unless cached. CheckpointError gives the fault and the remedy."""
    if path in BUNDLED_ADAPTERS:
        return Path(str(files("thalweg") / "nano" / BUNDLED_ADAPTERS[path]))
    local = Path(path).expanduser()
    try:
        exists = local.exists()
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{path!s:.300}: cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if exists or local.is_absolute() or not _HUB_ID.fullmatch(path) or ".." in path:
        return local.absolute()
    return _download(path, None, download_dir, token, ignore, ADAPTER_FILES, "lora_path")


def _found(path: Path, native: bool | None = None, downloaded: bool = False) -> Path:
    if path.is_file():
        if is_gguf(path):
            return first_part(path)
        if is_native(path) and native is not False:
            return path
        raise CheckpointError(f"model: {path} is a file, not a model directory; give the directory that holds it")
    if native and not (path / PARAMS).is_file():
        raise CheckpointError(f"model: {path} has no {PARAMS}, by which Mistral's own format is read; leave the format at auto")
    if native:
        return path / PARAMS
    if native is None and _only_native(path):
        return path / PARAMS
    if (path / "config.json").is_file():
        return path
    models = _models(path)
    if len(models) == 1:
        return models[0]
    if models:
        raise CheckpointError(
            f"model: {path} holds {len(models)} GGUF models: name one, as {path}:{models[0].stem} ({_list_names(models)})"
        )
    hint = "; of a repository of GGUF files name one, as org/name:Q4_K_M"
    raise CheckpointError(
        f"model: {path} is not a model directory: it has no config.json and no {PARAMS}{hint if downloaded else ''}"
    )


def _only_native(path: Path, downloaded: bool = False) -> bool:
    """Is params.json the only usable description: no config.json, or one without weights of its format? downloaded: Mistral's
    weights were not downloaded."""
    files = [f.name for f in path.glob("*.safetensors")]
    none = not files if downloaded else any(name.startswith(WEIGHTS) for name in files)
    ours = (path / "config.json").is_file() and (not none or any(name.startswith("model") for name in files))
    return (path / PARAMS).is_file() and not ours


def _models(path: Path) -> list[Path]:
    """GGUF files with language models, and the first file of split models. Excludes image projectors and calibration data."""
    files = sorted(f for f in path.rglob("*") if f.is_file() and is_gguf(f))
    return [f for f in files if first_part(f) == f and not any(word in f.name.lower() for word in BESIDE)]


def _find_gguf(path: Path, quant: str) -> Path:
    """The one model with `quant` as a whole word in its name."""
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
    models = _models(path)
    fit = [f for f in models if f.stem == quant] or [f for f in models if word.search(str(f.relative_to(path)))]
    if len(fit) == 1:
        return fit[0]
    have = f"it has {_list_names(fit or models)}" if fit or models else "no GGUF file was found there"
    raise CheckpointError(f"model: {quant!r} names {'several files' if fit else 'no file'} of {path}: {have}")


def _list_names(files: Sequence[Path], most: int = 8) -> str:
    return ", ".join(f.name for f in files[:most]) + (f" and {len(files) - most} more" if len(files) > most else "")


def _download(
    repo: str, revision: str | None, download_dir: str | None, token: str | bool | None, ignore: Sequence[str],
    patterns: Sequence[str], field: str = "model",
) -> Path:  # fmt: skip
    """field: what messages begin with."""
    from huggingface_hub import errors, snapshot_download

    if revision is not None and (".." in revision or "\0" in revision or not revision.strip()):
        raise CheckpointError(f"revision: {revision!r} is not a branch, tag or commit of {repo}")
    requested: dict[str, Any] = {"revision": revision, "cache_dir": download_dir, "token": token}
    try:
        return Path(snapshot_download(repo, allow_patterns=list(patterns), ignore_patterns=list(ignore), **requested))
    except errors.GatedRepoError as e:
        raise CheckpointError(
            f"{field}: {repo} is gated: accept its terms on the hub and pass a token (--hf-token); {_ELSEWHERE}"
        ) from e
    except errors.RepositoryNotFoundError as e:
        raise CheckpointError(
            f"{field}: the hub has no repository {repo}, or it is private; check the name, pass a token, or {_ELSEWHERE}"
        ) from e
    except errors.RevisionNotFoundError as e:
        raise CheckpointError(f"revision: {repo} has no revision {revision!r}") from e
    except errors.HFValidationError as e:
        raise CheckpointError(f"model: {repo!r} is not a hub id: {e}") from e
    except Exception as e:  # the hub library raises whatever its transport does: offline, DNS, proxy, TLS, timeouts
        raise CheckpointError(
            f"{field}: {repo} is not cached and the hub cannot be reached ({type(e).__name__}); {_ELSEWHERE}"
        ) from e
