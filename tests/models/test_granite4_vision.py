"""Granite 4 Vision: settings that are refused, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import seeing

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("downsample_rate", None, "downsample_rate: must be two numbers"),
        ("downsample_rate", "3/4", "downsample_rate: 3/4 must divide 8 patches, and be 1/2"),
        ("downsample_rate", "3/6", "must divide 8 patches"),
        ("deepstack_layer_map", [[1, 2, 3]], "deepstack_layer_map: must be pairs of layers"),
        ("deepstack_layer_map", [[9, 2]], "layers of the encoder must be within 4"),
        ("deepstack_layer_map", [[1, 6]], "must be different layers of 7"),
        ("spatial_target_layers", [1, 2, 3], "4 of them in spatial_target_layers"),
        ("spatial_target_layers", [1, 3, 5, 7], "must be different layers of 7"),
    ],
)
def test_odd_settings_are_refused_by_name(key: str, value: Any, said: str, tmp_path: Path) -> None:
    seeing.settings("granite4-vision", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    config = read_config(tmp_path)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=said):
        registry.family(config)(config)
