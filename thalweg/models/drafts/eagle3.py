"""The layers of EAGLE-3 and P-EAGLE, in the form of their authors and in that of `speculators`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.drafts.checkpoint import DraftFiles, check_hidden, check_kind, own_embedding, read_draft_files
from thalweg.models.drafts.declared import DraftModel, DraftTarget
from thalweg.models.drafts.taps import default_places, places_before
from thalweg.models.families.common import (
    attention,
    eps,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    pre_norms,
    sliding_window,
)
from thalweg.models.spec import HeadNorm, Layer, Names, Norm, Norms, PairNorm
from thalweg.models.spec.eagle import EagleSpec

TAPS = "eagle_aux_hidden_state_layer_ids"
MASKS = ("mask_token_id", "ptd_token_id")
"""Keys of the id of masks."""
UNREAD = ("t2d", "d2t", "verifier_norm.", "verifier_lm_head.")
"""Tensors that are read elsewhere, or hold nothing of the drafter."""
NAMES = Names(replace=(("midlayer.", "layers.0."),), skip=UNREAD)


def declare_eagle3(path: Path, target: DraftTarget) -> DraftModel:
    """Raises CheckpointError for faulty files or another target's drafter, UnsupportedModelError for layers that are not
    Llama's or Qwen 3's."""
    return _declare(path, target, "eagle3")


def declare_peagle(path: Path, target: DraftTarget) -> DraftModel:
    """As `declare_eagle3`, with masks."""
    draft = _declare(path, target, "peagle")
    mask = next((integer(draft.hf, key, low=0) for key in MASKS if draft.hf.get(key) is not None), None)
    if mask is None:
        raise CheckpointError(f"config.json: lacks {' and '.join(MASKS)}, and a drafter of P-EAGLE needs one of them")
    assert isinstance(draft.spec, EagleSpec)
    if mask >= (draft.spec.embedded or target.spec.vocab):
        raise CheckpointError(f"config.json: mask_token_id: {mask} is no token of the drafter's")
    return replace(draft, spec=replace(draft.spec, mask=mask))


def _declare(path: Path, target: DraftTarget, kind: str) -> DraftModel:
    files = read_draft_files(path, "eagle_config", NAMES.replace)
    config = files.config
    check_kind(config, kind)
    if not flag(config, "use_aux_hidden_state", True):
        raise UnsupportedModelError("config.json: use_aux_hidden_state: false is not supported by this version")
    hidden, wide, layers = hidden_size(config), check_hidden(config, target), len(target.spec.layers)
    taps_key = config.get(TAPS)
    taps = default_places(layers) if taps_key is None else places_before(taps_key, layers, TAPS)
    e = eps(config)
    fc_norm, before = flag(config, "fc_norm", False), flag(config, "norm_before_fc", False)
    vocab = integer(config, "draft_vocab_size", default=target.spec.vocab)
    spec = EagleSpec(
        vocab=vocab, hidden=hidden, layers=_layers(config, files, flag(config, "norm_before_residual", False)),
        norm=Norm("norm", hidden, e), taps=taps, target_hidden=wide, paired=True,
        tap_norms=tuple(Norm(f"fc_norm.{i}", wide, e) for i in range(len(taps))) if fc_norm else (),
        joined_norm=Norm("input_norm", wide * len(taps), e) if before else None,
        feeds_normed=flag(config, "norm_output", False), has_head="lm_head.weight" in files.names or vocab != target.spec.vocab,
        embedded=own_embedding(files, path, target),
        mapped=vocab != target.spec.vocab, names=NAMES,
    )  # fmt: skip
    return DraftModel(path, config, spec)


def _layers(config: Mapping[str, Any], files: DraftFiles, normed: bool) -> tuple[Layer, ...]:
    """normed: the first layer's residual stream begins after the norm of hidden states."""
    hidden, e, later = hidden_size(config), eps(config), pre_norms(config)
    first = Norms(
        mixer=PairNorm(Norm("input_layernorm", hidden, e), Norm("hidden_norm", hidden, e), normed), ffn=later.ffn
    )  # fmt: skip
    bias = flag(config, "attention_bias", False)
    norm = HeadNorm(e) if any(name.endswith("self_attn.q_norm.weight") for name in files.names) else None
    full = attention(config, bias=bias, out_bias="layers.0.self_attn.o_proj.bias" in files.names, norm=norm)
    mixers = {"full_attention": full, "sliding_attention": replace(full, window=sliding_window(config))}
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    kinds = layer_types(config, ["full_attention"] * layer_count(config), known=tuple(mixers))
    return tuple(Layer(mixers[kind], inner, later if i else first) for i, kind in enumerate(kinds))
