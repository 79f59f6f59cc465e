"""One file per architecture of GGUF files: the configuration and the names that transformers has for it, and what llama.cpp's
converter changed in its values. `TABLE` is the list of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.checkpoint.gguf.architectures.bert import BERT
from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.deepseek2 import DEEPSEEK2
from thalweg.checkpoint.gguf.architectures.gemma3 import GEMMA3
from thalweg.checkpoint.gguf.architectures.glm4 import GLM4
from thalweg.checkpoint.gguf.architectures.llama import LLAMA
from thalweg.checkpoint.gguf.architectures.qwen2 import QWEN2
from thalweg.checkpoint.gguf.architectures.qwen3 import QWEN3
from thalweg.checkpoint.gguf.architectures.qwen3moe import QWEN3MOE

TABLE: Mapping[str, Architecture] = {
    "bert": BERT, "deepseek2": DEEPSEEK2, "gemma3": GEMMA3, "glm4": GLM4, "llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3,
    "qwen3moe": QWEN3MOE,
}  # fmt: skip
"""By `general.architecture`. Mistral's models are of the architecture llama."""
