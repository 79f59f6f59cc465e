"""Groups of settings inside config.json, whose keys must all be known: an unread one may change what a model computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError

SCALINGS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim", "truncate",
        }
    ),
    "longrope": frozenset({"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"}),
    "proportional": frozenset({"factor"}),
}  # fmt: skip
"""rope_type -> keys of `rope_parameters` that its frequencies are computed of."""
_ALWAYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_HARMLESS = frozenset({"mrope_section", "mrope_interleaved", "interleaved", "max_position_embeddings", "finetuned"})
"""Transformers writes or ignores these. Text has the same position along every axis of `mrope_section`, the context is
config.json's own `max_position_embeddings`, and `finetuned` tells how a model was made."""
_NEUTRAL = frozenset({"attn_factor", "extrapolation_factor"})
"""Other engines read these. At 1 they change nothing."""
ROPE_KEYS = frozenset().union(_ALWAYS, _HARMLESS, *SCALINGS.values())
"""Known keys of `rope_parameters`. One that belongs to another rope_type is ignored, as transformers does."""

ANY_CONFIG = frozenset(
    {
        "_name_or_path", "add_cross_attention", "architectures", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
        "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
        "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty",
        "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder", "is_encoder_decoder",
        "label2id", "length_penalty", "max_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups",
        "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "pad_token_id",
        "prefix", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict",
        "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
        "tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
        "transformers_version", "typical_p", "use_bfloat16",
    }
)  # fmt: skip
"""Keys that transformers writes into every group that it has a configuration class for. They change no layer."""


def check_rope(parameters: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """UnsupportedModelError names a key of `rope_parameters` that is not known. more: keys that the family reads."""
    left = {key: value for key, value in parameters.items() if not (key in _NEUTRAL and value == 1)}
    check_keys(left, ROPE_KEYS | set(more), "rope_parameters")


def check_keys(group: Mapping[str, Any], known: Collection[str], name: str) -> None:
    """UnsupportedModelError names a key of a group of config.json that is not known and not null. name: of the group."""
    odd = sorted(str(key) for key, value in group.items() if value is not None and key not in known)
    if odd:
        raise UnsupportedModelError(
            f"config.json: {name}: {odd[0]!r:.80} is not known to this version, and may change what the model computes; if it "
            f"does not, give {name} without it by --hf-overrides"
        )
