"""Task adapters of models trained for several tasks: one LoRA per task, in the model's folder `adapters`. The chosen one is
merged when the matrices are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError

FOLDER, FILE, USUAL = "adapters", "adapter_config.json", "retrieval"
PLAIN: Mapping[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
    "fan_in_fan_out": False,
}  # fmt: skip
"""Fields of the adapter's file that support only one value."""


def describe_task(path: Path, config: Mapping[str, Any], read: Callable[[Path], Any]) -> dict[str, Any] | None:
    """{"folder", "scale"} of the adapter for `jina_task` among `task_names`. None: no such folder, as the adapter was merged.
    read: reads a JSON file, or raises CheckpointError."""
    tasks, task = config["task_names"], config.get("jina_task", USUAL)
    if not isinstance(tasks, list) or task not in tasks or not re.fullmatch(r"\w[\w.-]*", str(task)):
        raise CheckpointError(f"config.json: jina_task: {task!r:.80} is not one of task_names, {tasks!r:.200}")
    folder = path / FOLDER / task
    if not folder.is_dir():
        return None
    content = read(folder / FILE)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{folder / FILE}: must hold a JSON object")
    for key, plain in PLAIN.items():
        if (value := content.get(key, plain)) != plain and value:
            raise UnsupportedModelError(f"{folder / FILE}: {key}: {value!r:.80}: this version supports only plain LoRA")
    rank, alpha = content.get("r"), content.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(f"{folder / FILE}: r, lora_alpha: must be numbers, the first an integer from 1")
    return {"folder": f"{FOLDER}/{task}", "scale": alpha / (rank**0.5 if content.get("use_rslora") else rank)}
