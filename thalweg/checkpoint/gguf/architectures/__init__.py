"""The architectures of GGUF files, one per file: transformers' configuration and names, and the changes that llama.cpp's
converter made to the values. `TABLE` lists the architectures.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.checkpoint.gguf.architectures.afmoe import AFMOE
from thalweg.checkpoint.gguf.architectures.apertus import APERTUS
from thalweg.checkpoint.gguf.architectures.arcee import ARCEE
from thalweg.checkpoint.gguf.architectures.bailingmoe2 import BAILINGMOE2
from thalweg.checkpoint.gguf.architectures.bert import BERT
from thalweg.checkpoint.gguf.architectures.bloom import BLOOM
from thalweg.checkpoint.gguf.architectures.cohere import COHERE2, COMMAND_R
from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.deepseek import DEEPSEEK
from thalweg.checkpoint.gguf.architectures.deepseek2 import DEEPSEEK2
from thalweg.checkpoint.gguf.architectures.dots1 import DOTS1
from thalweg.checkpoint.gguf.architectures.ernie4_5 import ERNIE4_5, ERNIE4_5_MOE
from thalweg.checkpoint.gguf.architectures.exaone import EXAONE
from thalweg.checkpoint.gguf.architectures.exaone4 import EXAONE4
from thalweg.checkpoint.gguf.architectures.exaone_moe import EXAONE_MOE
from thalweg.checkpoint.gguf.architectures.falcon import FALCON
from thalweg.checkpoint.gguf.architectures.falcon_h1 import FALCON_H1
from thalweg.checkpoint.gguf.architectures.gemma import GEMMA
from thalweg.checkpoint.gguf.architectures.gemma2 import GEMMA2
from thalweg.checkpoint.gguf.architectures.gemma3 import GEMMA3
from thalweg.checkpoint.gguf.architectures.gemma3n import GEMMA3N
from thalweg.checkpoint.gguf.architectures.gemma4 import GEMMA4
from thalweg.checkpoint.gguf.architectures.gemma_embedding import GEMMA_EMBEDDING
from thalweg.checkpoint.gguf.architectures.glm4 import GLM4
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.architectures.gpt2 import GPT2
from thalweg.checkpoint.gguf.architectures.gpt_oss import GPT_OSS
from thalweg.checkpoint.gguf.architectures.gptneox import GPTNEOX
from thalweg.checkpoint.gguf.architectures.granite import GRANITE, GRANITEHYBRID, GRANITEMOE
from thalweg.checkpoint.gguf.architectures.hunyuan import HUNYUAN_DENSE
from thalweg.checkpoint.gguf.architectures.hunyuan_moe import HUNYUAN_MOE
from thalweg.checkpoint.gguf.architectures.internlm2 import INTERNLM2
from thalweg.checkpoint.gguf.architectures.jamba import JAMBA
from thalweg.checkpoint.gguf.architectures.lfm2 import LFM2, LFM2MOE
from thalweg.checkpoint.gguf.architectures.llama import LLAMA
from thalweg.checkpoint.gguf.architectures.llama4 import LLAMA4
from thalweg.checkpoint.gguf.architectures.mamba import MAMBA
from thalweg.checkpoint.gguf.architectures.mamba2 import MAMBA2
from thalweg.checkpoint.gguf.architectures.minicpm import MINICPM
from thalweg.checkpoint.gguf.architectures.minicpm3 import MINICPM3
from thalweg.checkpoint.gguf.architectures.minimax_m2 import MINIMAX_M2
from thalweg.checkpoint.gguf.architectures.mistral3 import MISTRAL3
from thalweg.checkpoint.gguf.architectures.modern_bert import MODERN_BERT
from thalweg.checkpoint.gguf.architectures.mpt import MPT
from thalweg.checkpoint.gguf.architectures.nemotron import NEMOTRON
from thalweg.checkpoint.gguf.architectures.nemotron_h import NEMOTRON_H
from thalweg.checkpoint.gguf.architectures.nomic_bert import NOMIC_BERT
from thalweg.checkpoint.gguf.architectures.olmo import OLMO
from thalweg.checkpoint.gguf.architectures.olmo2 import OLMO2
from thalweg.checkpoint.gguf.architectures.olmoe import OLMOE
from thalweg.checkpoint.gguf.architectures.phi2 import PHI2
from thalweg.checkpoint.gguf.architectures.phi3 import PHI3
from thalweg.checkpoint.gguf.architectures.qwen2 import QWEN2
from thalweg.checkpoint.gguf.architectures.qwen2moe import QWEN2MOE
from thalweg.checkpoint.gguf.architectures.qwen3 import QWEN3
from thalweg.checkpoint.gguf.architectures.qwen3moe import QWEN3MOE
from thalweg.checkpoint.gguf.architectures.qwen3next import QWEN3NEXT, QWEN35, QWEN35MOE
from thalweg.checkpoint.gguf.architectures.seed_oss import SEED_OSS
from thalweg.checkpoint.gguf.architectures.smollm3 import SMOLLM3
from thalweg.checkpoint.gguf.architectures.stablelm import STABLELM
from thalweg.checkpoint.gguf.architectures.starcoder2 import STARCODER2

TABLE: Mapping[str, Architecture] = {
    "afmoe": AFMOE,
    "apertus": APERTUS,
    "arcee": ARCEE,
    "bailingmoe2": BAILINGMOE2,
    "bert": BERT,
    "bloom": BLOOM,
    "cohere2": COHERE2,
    "command-r": COMMAND_R,
    "deepseek": DEEPSEEK,
    "deepseek2": DEEPSEEK2,
    "dots1": DOTS1,
    "ernie4_5": ERNIE4_5,
    "ernie4_5-moe": ERNIE4_5_MOE,
    "exaone": EXAONE,
    "exaone-moe": EXAONE_MOE,
    "exaone4": EXAONE4,
    "falcon": FALCON,
    "falcon-h1": FALCON_H1,
    "gemma": GEMMA,
    "gemma-embedding": GEMMA_EMBEDDING,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3n": GEMMA3N,
    "gemma4": GEMMA4,
    "glm4": GLM4,
    "glm4moe": GLM4MOE,
    "gpt-oss": GPT_OSS,
    "gpt2": GPT2,
    "gptneox": GPTNEOX,
    "granite": GRANITE,
    "granitehybrid": GRANITEHYBRID,
    "granitemoe": GRANITEMOE,
    "hunyuan-dense": HUNYUAN_DENSE,
    "hunyuan-moe": HUNYUAN_MOE,
    "internlm2": INTERNLM2,
    "jamba": JAMBA,
    "lfm2": LFM2,
    "lfm2moe": LFM2MOE,
    "llama": LLAMA,
    "llama4": LLAMA4,
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "minicpm": MINICPM,
    "minicpm3": MINICPM3,
    "minimax-m2": MINIMAX_M2,
    "mistral3": MISTRAL3,
    "modern-bert": MODERN_BERT,
    "mpt": MPT,
    "nemotron": NEMOTRON,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "nomic-bert": NOMIC_BERT,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmoe": OLMOE,
    "phi2": PHI2,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen2moe": QWEN2MOE,
    "qwen3": QWEN3,
    "qwen35": QWEN35,
    "qwen35moe": QWEN35MOE,
    "qwen3moe": QWEN3MOE,
    "qwen3next": QWEN3NEXT,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
    "xverse": INTERNLM2,
}
"""`general.architecture` -> architecture. Mistral's first models have the architecture llama."""
