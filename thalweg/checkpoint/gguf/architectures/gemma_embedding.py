"""EmbeddingGemma: Gemma 3 with bidirectional attention. Files may have the two dense layers after pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import WHOLE
from thalweg.checkpoint.gguf.architectures.gemma3 import GEMMA3
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.vectors import DENSE


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {**GEMMA3.config(keys, files), "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}


GEMMA_EMBEDDING = replace(GEMMA3, config=_config, whole={**WHOLE, **{name: f"model.{name}" for name in DENSE}}, dense=DENSE)
