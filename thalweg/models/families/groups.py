"""Groups of settings inside config.json. All of their keys must be known: an unread one may change the model's results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from thalweg.checkpoint.spelling import BESIDE
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
LAYER_TYPES = frozenset(
    {
        "chunked_attention", "compressed_sparse_attention", "conv", "full_attention", "heavily_compressed_attention", "hybrid",
        "hybrid_sliding", "indexed_attention", "linear_attention", "minimax_m3_sparse", "moe", "reference_sliding_attention",
        "sliding_attention", "window_attention",
    }
)  # fmt: skip
"""Names of layer types that transformers allows, and so of groups inside `rope_parameters`."""
_ROPE_GROUPS = LAYER_TYPES | {"compress", "main"}
"""Those of DeepSeek V4 have other names than its layers."""

_REMOVE = "remove it from config.json, or serve text only by --language-model-only"
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


def check_rope(config: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """UnsupportedModelError names an unknown key of a group of rotary settings in the configuration, read by a layer or not.
    Checked: the text part, and the vision and audio encoders unless they are switched off. more: keys that the family
    reads."""
    known, types = ROPE_KEYS | set(more), _layer_types(config)
    groups = dict(_rope_groups(config, types))
    for name, group in groups.items():
        check_keys(group, known, name)
    if groups.get("rope_scaling") and any(name.startswith("rope_parameters: ") for name in groups):
        raise UnsupportedModelError(
            "config.json: rope_scaling: not supported with rope_parameters per layer type; write it into the groups of "
            "rope_parameters, and set rope_scaling to null"
        )
    if config.get("language_model_only"):
        return
    for part, holder in _parts_with_groups(config):
        for name, group in _rope_groups(holder, types):
            check_keys(group, known, f"{part}: {name}" if part else name, _REMOVE)


def _parts_with_groups(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, keys and values) of the configuration around the text part, of encoders, and of the parts of encoders. Some files
    have no separate text part."""
    around = config.get(BESIDE)
    if isinstance(around, Mapping):
        yield "", around
    else:
        around = config
    for part in ("vision_config", "audio_config", "encoder"):
        holder = around.get(part)
        if isinstance(holder, Mapping):
            yield part, holder
            yield from ((f"{part}: {key}", each) for key, each in holder.items() if isinstance(each, Mapping))


def _rope_groups(config: Mapping[str, Any], types: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, keys and values) of each group of rotary settings, and of each layer type's group in it."""
    for name in ("rope_parameters", "rope_scaling"):
        group = config.get(name)
        if not isinstance(group, Mapping):
            continue  # its reader raises the error
        inner = {key: value for key, value in group.items() if key in types and isinstance(value, Mapping)}
        yield name, _without_neutral({key: value for key, value in group.items() if key not in inner})
        yield from ((f"{name}: {key}", _without_neutral(value)) for key, value in inner.items())


def _layer_types(config: Mapping[str, Any]) -> frozenset[str]:
    """Those of transformers, and those that the configuration names."""
    named = config.get("layer_types")
    return _ROPE_GROUPS | {each for each in named if isinstance(each, str)} if isinstance(named, list) else _ROPE_GROUPS


def _without_neutral(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if not (key in _NEUTRAL and value == 1)}


def check_keys(group: Mapping[str, Any], known: Collection[str], name: str, fix: str = "") -> None:
    """UnsupportedModelError names an unknown key of a group of config.json with a value other than null. name: of the group,
    after its parents' names. fix: the remedy for the user. Default: override the group."""
    odd = sorted(str(key) for key, value in group.items() if value is not None and key not in known)
    if odd:
        fix = fix or f"give {name.partition(': ')[0]} without it by --hf-overrides"
        raise UnsupportedModelError(
            f"config.json: {name}: {odd[0]!r:.80} is not known to this version, and may change the model's results; if it "
            f"does not, {fix}"
        )
