"""What a checkpoint says of itself, as the user wants it read. The one way to it for whoever plans, serves or builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import read_config
from thalweg.config import EngineArgs
from thalweg.models import registry
from thalweg.quantization import registry as formats


def read(args: EngineArgs, path: Path) -> dict[str, Any]:
    """`read_config` of a local model. CheckpointError or UnsupportedModelError, naming the key."""
    windows = registry.windows if args.disable_sliding_window else None
    return read_config(path, args.hf_overrides, formats.check, windows=windows, tail=args.tail)
