"""EXAONE 3 and 3.5: Llama's layers under other names, which files do not have. Rows of q and k are not interleaved."""

from __future__ import annotations

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture
from thalweg.checkpoint.gguf.architectures.internlm2 import config

EXAONE = Architecture(config=config, layer=LAYER)
