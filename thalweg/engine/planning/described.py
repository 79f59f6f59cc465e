"""What a checkpoint says of itself, as the user wants it read. The one way to it for whoever plans, serves or builds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import read_config
from thalweg.config import EngineArgs
from thalweg.quantization import registry as formats


def read(args: EngineArgs, path: Path) -> dict[str, Any]:
    """`read_config` of a local model. CheckpointError or UnsupportedModelError, naming the key."""
    return read_config(
        path, args.hf_overrides, formats.check, windows=_windows if args.disable_sliding_window else None, tail=args.tail
    )


def _windows(config: Mapping[str, Any]) -> list[int]:
    from thalweg.models import registry  # servers start without it

    return registry.windows(config)
