"""The value of --weight-transfer-config: how a trainer sends new weights."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from thalweg.errors import ConfigError

BACKENDS = ("gloo",)


class WeightTransferConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """backend: of torch.distributed. staging_directory: holds the new checkpoint. timeout: seconds to join, and of a batch."""

    backend: str = "gloo"
    staging_directory: str = ""
    timeout: float = 300.0

    @property
    def folder(self) -> Path:
        return Path(self.staging_directory or tempfile.gettempdir())


def read_transfer_config(settings: dict[str, Any] | None) -> WeightTransferConfig | None:
    """None: trainers send no weights. ConfigError names the field."""
    if settings is None:
        return None
    try:
        result = msgspec.convert(settings, WeightTransferConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(WeightTransferConfig.__struct_fields__)
        raise ConfigError(f"weight_transfer_config: {e}; supported: {known}") from None
    if result.backend not in BACKENDS:
        raise ConfigError(
            f"weight_transfer_config: backend: {result.backend!r:.40}: use gloo, which sends tensors of any device"
        )
    if not 0 < result.timeout <= 86400:
        raise ConfigError(f"weight_transfer_config: timeout: {result.timeout} is not a number of seconds up to 86400")
    if not result.folder.is_dir() or not os.access(result.folder, os.W_OK | os.X_OK):
        raise ConfigError(f"weight_transfer_config: staging_directory: nothing can be written into {str(result.folder)!r}")
    return result
