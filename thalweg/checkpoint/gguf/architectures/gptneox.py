"""GPT-NeoX, Pythia and Dolly: transformers groups q, k and v by head, and files do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, Make, head_width, inner, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece, group_qkv

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
}  # fmt: skip
_WHOLE = {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu",
        "intermediate_size": inner(files),
        "use_parallel_residual": keys.flag("use_parallel_residual", default=True),
        "attention_bias": "blk.0.attn_qkv.bias" in files.tensors, "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def together(name: str) -> Make:
    """q, k and v of all heads, grouped by KV head. name: of the joint tensor."""

    def make(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
        kv, size = config["num_key_value_heads"], config["head_dim"]
        order = group_qkv(kv, config["num_attention_heads"] // kv, size)
        fits = tensor.shape[0] == (config["num_attention_heads"] + 2 * kv) * size
        return [(name, GGUFPiece(tensor.name, tensor.shape, order=order))] if fits else []

    return make


GPTNEOX = Architecture(
    config=_config, layer=_LAYER, whole=_WHOLE, layers="gpt_neox.layers.{}.{}", layer_norm=True,
    special={f"attn_qkv.{kind}": together(f"attention.query_key_value.{kind}") for kind in ("weight", "bias")},
)  # fmt: skip
