"""The ops: torch bodies that define them, each with samples for tests and benchmarks and the tolerance kernels must keep.

Bodies are traceable: no data-dependent shape or branch, no host synchronisation, no write through a view.
In a sample, a float16 array stands for the model's dtype, whichever is being tested. float32 stays float32.
"""

from __future__ import annotations

from thalweg.hal.op import Op
from thalweg.hal.ops.activation import act_and_mul, activation, sigmoid_mul
from thalweg.hal.ops.blocks import index_among, index_blocks
from thalweg.hal.ops.compressed import compressed_attention, pool_windows
from thalweg.hal.ops.conv import causal_conv
from thalweg.hal.ops.cross import cross_attention, cross_weights, cross_write
from thalweg.hal.ops.delta import channel_delta_gates, channel_delta_rule, delta_gates, delta_rule, gated_rms_norm
from thalweg.hal.ops.distances import distance_attention
from thalweg.hal.ops.drafts import draft_inputs, newest_tokens, owned_blocks, pair_inputs, verify_drafts
from thalweg.hal.ops.heads import head_linear
from thalweg.hal.ops.history import emit_tokens, enter_tokens, history_write, resolve_tokens
from thalweg.hal.ops.hyper import hyper_weights
from thalweg.hal.ops.indexer import block_attention, block_top, chosen_attention, index_top, index_write
from thalweg.hal.ops.joined import act_and_mul_linear, rms_norm_linear
from thalweg.hal.ops.logits import bad_words, logit_bias, penalties, token_mask
from thalweg.hal.ops.lora import lora_add, lora_experts, lora_rescale, lora_rows
from thalweg.hal.ops.matmul import embed, linear, linear_argmax
from thalweg.hal.ops.moe import experts, route
from thalweg.hal.ops.ngrams import hash_ngrams
from thalweg.hal.ops.norm import add_rms_norm, layer_norm, rms_norm
from thalweg.hal.ops.pool import max_pool, mean_pool
from thalweg.hal.ops.rope import rope
from thalweg.hal.ops.rounding import round_groups
from thalweg.hal.ops.rwkv import decaying_average, general_delta_rule
from thalweg.hal.ops.sampling import draw, logprobs, sample, truncate
from thalweg.hal.ops.ssm import gated_group_norm, linear_scan, selective_scan, ssd_scan
from thalweg.hal.ops.xlstm import matrix_lstm

__all__ = [
    "act_and_mul", "act_and_mul_linear",
    "activation", "add_rms_norm", "all_ops", "bad_words", "block_attention", "block_top", "causal_conv",
    "channel_delta_gates", "channel_delta_rule", "chosen_attention", "compressed_attention", "cross_attention",
    "cross_weights", "cross_write", "decaying_average", "delta_gates", "delta_rule",
    "distance_attention", "draft_inputs", "draw", "embed",
    "emit_tokens", "enter_tokens", "experts",
    "gated_group_norm", "gated_rms_norm",
    "general_delta_rule", "hash_ngrams", "head_linear", "history_write", "hyper_weights", "index_among",
    "index_blocks", "index_top", "index_write",
    "layer_norm", "linear", "linear_argmax", "linear_scan", "logit_bias", "logprobs", "lora_add", "lora_experts",
    "lora_rescale", "lora_rows", "matrix_lstm", "max_pool", "mean_pool", "newest_tokens", "owned_blocks", "pair_inputs",
    "penalties",
    "pool_windows", "resolve_tokens",
    "rms_norm", "rms_norm_linear",
    "rope", "round_groups", "route", "sample", "selective_scan", "sigmoid_mul", "ssd_scan", "token_mask", "truncate",
    "verify_drafts",
]  # fmt: skip


def all_ops() -> dict[str, Op]:
    """Every op by name."""
    found = (
        rms_norm_linear,
        act_and_mul_linear,
        enter_tokens,
        emit_tokens,
        embed, linear, linear_argmax, rms_norm, add_rms_norm, rope, act_and_mul, resolve_tokens, history_write, penalties,
        bad_words, logit_bias, token_mask, truncate, sample, draw, logprobs, route, experts, lora_rows,
        lora_add, lora_experts, lora_rescale, layer_norm, activation, mean_pool, max_pool, causal_conv, delta_gates, delta_rule,
        gated_rms_norm, sigmoid_mul, head_linear, selective_scan, ssd_scan, linear_scan, gated_group_norm,
        decaying_average, general_delta_rule, matrix_lstm,
        cross_write, cross_attention, cross_weights,
        index_write, index_top, chosen_attention, block_top, block_attention, channel_delta_gates, channel_delta_rule,
        verify_drafts,
        draft_inputs,
        pair_inputs,
        hyper_weights,
        pool_windows,
        compressed_attention,
        index_blocks, index_among, round_groups, hash_ngrams,
        distance_attention,
        newest_tokens,
        owned_blocks,
    )  # fmt: skip
    return {o.name: o for o in found}
