"""Shapes of published models, which the scripts here run with made-up weights, and the names that their figures have.

Configurations have the values of the published config.json files. What no launch depends on is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
    "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0, "vocab_size": 201088, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "attention_bias": True, "swiglu_limit": 7.0, "tie_word_embeddings": False, "bos_token_id": 199998,
    "eos_token_id": 200002,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    },
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **LLAMA, "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True, "eos_token_id": 1,
        "bos_token_id": 0,
    },
    "tiny-moe": {
        **QWEN3_MOE, "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 192, "moe_intermediate_size": 32,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8,
        "num_experts_per_tok": 2, "eos_token_id": 1, "bos_token_id": 0,
    },
    "llama-1b": {
        **LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "llama-8b": {
        **LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": QWEN3_MOE,
    "gpt-oss-20b": GPT_OSS,
}  # fmt: skip
"""Llama 3.2 1B, Llama 3.1 8B, Qwen3-30B-A3B, gpt-oss-20b, and small ones for try-outs. gpt-oss's layers alternate between a
window and all tokens, from the first on; its family says so where the configuration does not."""
QUANTIZATIONS = ("fp8", "int4", "mxfp4")
"""Methods of --quantization that figures may have."""
SETTINGS: dict[str, dict[str, bool]] = {
    "scaled": {"scaled_codes": True}, "variant": {}, "dependent": {"dependent_launch": True},
    "joined": {"joined_attention": True}, "unfused": {"fused_rounding": False},
    "flash4": {"flash_attn_4": True},
}  # fmt: skip
"""Fields of a case that are on or off, in the order of labels -> their options in `additional_config`."""


@dataclass(frozen=True, slots=True)
class Case:
    """What figures are of. layers: as many as run, 0 for all. variant: with kernels that need not be batch-invariant too.
    scaled: with `scaled_codes`, which int4 has two ways for. dependent: with `dependent_launch`.
    joined: with `joined_attention`. unfused: without `fused_rounding`.
    flash4: with `flash_attn_4`, which also requires `variant`."""

    shape: str
    layers: int = 0
    quantization: str = ""
    variant: bool = False
    scaled: bool = False
    dependent: bool = False
    joined: bool = False
    unfused: bool = False
    flash4: bool = False

    @property
    def all_layers(self) -> int:
        return int(SHAPES[self.shape]["num_hidden_layers"])

    @property
    def label(self) -> str:
        """ "qwen3-30b-a3b 12/48 layers", "llama-8b fp8": the beginning of the names of all its figures."""
        cut = [f"{self.layers}/{self.all_layers} layers"] if self.layers else []
        words = [self.quantization, *(name for name in SETTINGS if getattr(self, name))]
        return " ".join([self.shape, *cut, *filter(None, words)])

    @property
    def options(self) -> dict[str, Any]:
        """`additional_config` of an engine of this case."""
        return {k: v for name, each in SETTINGS.items() if getattr(self, name) for k, v in each.items()}

    def config(self) -> dict[str, Any]:
        """The configuration, with as many layers as run. ValueError if the shape has fewer."""
        config = SHAPES[self.shape]
        if not 0 <= self.layers <= self.all_layers:
            raise ValueError(f"{self.shape} has {self.all_layers} layers, of which {self.layers} cannot run")
        return {**config, "num_hidden_layers": self.layers or self.all_layers}

    def named(self, figure: str) -> str:
        return f"{self.label}: {figure}"


def parse(label: str) -> Case | None:
    """The case of a label. None: it is no case's."""
    shape, *words = label.split()
    if shape not in SHAPES:
        return None
    cut = re.fullmatch(r"(\d+)/\d+", words[0]) if words[1:2] == ["layers"] else None
    layers, words = (int(cut[1]), words[2:]) if cut else (0, words)
    quantization = next((w for w in words if w in QUANTIZATIONS), "")
    case = Case(shape, layers, quantization, **{name: name in words for name in SETTINGS})
    return case if case.label == label else None


def group_by_case(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Label -> figure -> value, of figures that are named "label: figure". Others are left out."""
    out: dict[str, dict[str, Any]] = {}
    for name, value in figures.items():
        label, colon, figure = name.partition(": ")
        if colon:
            out.setdefault(label, {})[figure] = value
    return out
