"""DeciLM and Nemotron-NAS (Llama-3.x-Nemotron Super and Ultra): Llama with KV heads and MLP width per layer, and layers
without attention or MLP."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import MLP, Attention, Layer, ModelSpec, Norms

STEP = 256
"""Widths are multiples of this."""
_KNOWN = {
    "attention": {"no_op", "n_heads_in_group", "replace_with_linear", "unshifted_sink", "use_prefill_window_in_sink_attention"},
    "ffn": {"no_op", "ffn_mult", "replace_with_linear", "sparsify"},
}


def deci(config: Config) -> ModelSpec:
    blocks, layers, numbers = _blocks(config), [], []
    norms, inner = pre_norms(config), flag(config, "mlp_bias", False)
    bias = flag(config, "attention_bias", False)
    for i, block in enumerate(blocks):
        mixer: Attention | None = None
        ffn: MLP | None = None
        where = f"config.json: block_configs: {i}: "
        if not block["attention"].get("no_op"):
            read = {**config, "num_key_value_heads": _heads(config, block["attention"], where)}
            mixer = attention(read, bias=bias, out_bias=bias)
        if not block["ffn"].get("no_op"):
            ffn = mlp(config, inner=_width(config, block["ffn"], where), bias=inner)
        if mixer is not None or ffn is not None:
            layers.append(Layer(mixer, ffn, Norms(mixer=norms.mixer if mixer else None, ffn=norms.ffn if ffn else None)))
            numbers.append(i)
    return decoder(config, layers, numbers=tuple(numbers))


def _blocks(config: Config) -> list[dict[str, Any]]:
    """The configuration of each layer; for DeciLM 7B its KV heads only."""
    count, blocks, heads = layer_count(config), config.get("block_configs"), config.get("num_key_value_heads_per_layer")
    if blocks is None and isinstance(heads, list) and len(heads) == count:
        blocks = [{"attention": {"kv": n}, "ffn": {}} for n in heads]
    elif not isinstance(blocks, list) or len(blocks) != count:
        raise CheckpointError(f"config.json: block_configs: must be a list of {count} objects")
    else:
        for i, block in enumerate(blocks):
            for part, known in _KNOWN.items():
                section = block.get(part) if isinstance(block, dict) else None
                if not isinstance(section, dict):
                    raise CheckpointError(f"config.json: block_configs: {i}: {part}: must be an object")
                odd = sorted(
                    k for k, v in section.items() if v and (k not in known or k in ("replace_with_linear", "sparsify"))
                )
                if odd:
                    raise UnsupportedModelError(f"config.json: block_configs: {i}: {part}: {odd[0]} is not served")
    return blocks


def _heads(config: Config, section: Config, where: str) -> int:
    if "kv" in section:
        return integer(section, "kv", high=1 << 16, where="config.json: num_key_value_heads_per_layer")
    heads = integer(config, "num_attention_heads")
    return heads // integer(section, "n_heads_in_group", high=heads, where=f"{where}attention")


def _width(config: Config, section: Config, where: str) -> int:
    """Two thirds of so many hidden sizes times two, rounded up."""
    if not section:
        return integer(config, "intermediate_size")
    inner = int(2 * real(section, "ffn_mult", 1e-3, 1e3, where=f"{where}ffn") * hidden_size(config) / 3)
    return -(-inner // STEP) * STEP
