"""One file per architecture of GGUF files: the configuration and the names that transformers has for it, and what llama.cpp's
converter changed in its values. `TABLE` is the list of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.checkpoint.gguf.architectures.bert import BERT
from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.deepseek2 import DEEPSEEK2
from thalweg.checkpoint.gguf.architectures.gemma import GEMMA
from thalweg.checkpoint.gguf.architectures.gemma2 import GEMMA2
from thalweg.checkpoint.gguf.architectures.gemma3 import GEMMA3
from thalweg.checkpoint.gguf.architectures.gemma3n import GEMMA3N
from thalweg.checkpoint.gguf.architectures.gemma4 import GEMMA4
from thalweg.checkpoint.gguf.architectures.glm4 import GLM4
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.architectures.gpt_oss import GPT_OSS
from thalweg.checkpoint.gguf.architectures.llama import LLAMA
from thalweg.checkpoint.gguf.architectures.llama4 import LLAMA4
from thalweg.checkpoint.gguf.architectures.phi3 import PHI3
from thalweg.checkpoint.gguf.architectures.qwen2 import QWEN2
from thalweg.checkpoint.gguf.architectures.qwen2moe import QWEN2MOE
from thalweg.checkpoint.gguf.architectures.qwen3 import QWEN3
from thalweg.checkpoint.gguf.architectures.qwen3moe import QWEN3MOE
from thalweg.checkpoint.gguf.architectures.qwen3next import QWEN3NEXT, QWEN35, QWEN35MOE

TABLE: Mapping[str, Architecture] = {
    "bert": BERT,
    "deepseek2": DEEPSEEK2,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3n": GEMMA3N,
    "gemma4": GEMMA4,
    "glm4": GLM4,
    "glm4moe": GLM4MOE,
    "gpt-oss": GPT_OSS,
    "llama": LLAMA,
    "llama4": LLAMA4,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen2moe": QWEN2MOE,
    "qwen3": QWEN3,
    "qwen35": QWEN35,
    "qwen35moe": QWEN35MOE,
    "qwen3moe": QWEN3MOE,
    "qwen3next": QWEN3NEXT,
}
"""By `general.architecture`. Mistral's models are of the architecture llama."""
