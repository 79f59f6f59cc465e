"""One spelling of config.json. A model of several modalities keeps the settings of its text part in an object of their own, and
leaves out what its class takes for granted. Older families have names of their own for sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OUTER = (
    "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "quantization_config",
    "compression_config", "tie_word_embeddings", "torch_dtype", "transformers_version",
)  # fmt: skip
"""Keys that speak of the whole model, and so count where they stand beside the text part."""
_GPT = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}  # fmt: skip
_WHISPER = {
    "d_model": "hidden_size", "decoder_attention_heads": "num_attention_heads", "decoder_layers": "num_hidden_layers",
    "max_target_positions": "max_position_embeddings",
}  # fmt: skip
NAMES: Mapping[str, Mapping[str, str]] = {"gpt2": _GPT, "gptj": _GPT, "whisper": _WHISPER}
"""By model_type: names that mean what others call so."""
ABSENT: Mapping[str, Mapping[str, Any]] = {
    "falcon": {"max_position_embeddings": 2048},
    "gemma3_text": {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "rope_local_base_freq": 1e4,
    },
}  # fmt: skip
"""By model_type: sizes that published files leave out, as the family's configuration class has them."""


def settled(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with its text part in place of it, common names for sizes, and the sizes that its class has."""
    text = config.get("text_config")
    if isinstance(text, dict):
        config = text | {key: config[key] for key in OUTER if config.get(key) is not None}
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return config
    for theirs, common in NAMES.get(kind, {}).items():
        if theirs in config:
            config.setdefault(common, config[theirs])
    return {**ABSENT.get(kind, {}), **config}
