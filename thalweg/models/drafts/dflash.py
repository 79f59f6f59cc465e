"""The layers of DFlash, in the forms of its authors, of transformers and of `speculators`, and of DSpark, in the last form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.checkpoint.speculators import KIND
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.drafts.checkpoint import check_hidden, check_kind, read_draft_files
from thalweg.models.drafts.declared import DraftModel, DraftTarget
from thalweg.models.drafts.taps import places_after, places_before
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
from thalweg.models.spec import HeadNorm, Layer, Names, Norm
from thalweg.models.spec.dflash import Chain, DFlashSpec

AFTER, BEFORE = "target_layer_ids", "aux_hidden_state_layer_ids"
"""Keys of the places: of ids "after layer i", and in `speculators` "before layer i"."""
UNREAD = ("t2d", "d2t", "verifier_norm.", "verifier_lm_head.", "embed_tokens.", "confidence_head.")
NAMES = Names(
    replace=(("encoder.fc.", "fc."), ("encoder.output_norm_enc.", "hidden_norm.")), skip=UNREAD
)  # fmt: skip


def declare_dflash(path: Path, target: DraftTarget) -> DraftModel:
    """Raises CheckpointError for faulty files or another target's drafter."""
    return _declare(path, target, "dflash")


def declare_dspark(path: Path, target: DraftTarget) -> DraftModel:
    """As `declare_dflash`, with the head that adds to logits. The confidence head is not read."""
    draft = _declare(path, target, "dspark")
    rank = integer(draft.hf, "markov_rank", low=0, default=256)
    kind = text(draft.hf, "markov_head_type", "vanilla")
    if kind not in ("vanilla", "gated", "rnn"):
        raise UnsupportedModelError(f"config.json: markov_head_type: {kind!r:.80} is not supported by this version")
    assert isinstance(draft.spec, DFlashSpec)
    chain = Chain(kind=kind, rank=rank, known=target.spec.vocab) if rank else None  # type: ignore[arg-type]
    return replace(draft, spec=replace(draft.spec, chain=chain))


def _declare(path: Path, target: DraftTarget, kind: str) -> DraftModel:
    files = read_draft_files(path, "dflash_config", NAMES.replace)
    config = files.config
    check_kind(config, kind)
    check_hidden(config, target)
    hidden, layers, e = hidden_size(config), len(target.spec.layers), eps(config)
    taps = places_before(config[BEFORE], layers, BEFORE) if BEFORE in config else places_after(config.get(AFTER), layers, AFTER)
    mask = integer(config, "mask_token_id", low=0)
    if mask >= target.spec.vocab:
        raise CheckpointError(f"config.json: mask_token_id: {mask} is no token of the target's {target.spec.vocab}")
    vocab = integer(config, "draft_vocab_size", default=target.spec.vocab)
    spec = DFlashSpec(
        vocab=vocab, hidden=hidden, layers=_layers(config), norm=Norm("norm", hidden, e), taps=taps,
        context_norm=Norm("hidden_norm", hidden, e), block=integer(config, "block_size", low=2, high=65), mask=mask,
        from_newest=flag(config, "sample_from_anchor", kind == "dspark"), has_head="lm_head.weight" in files.names,
        mapped=vocab != target.spec.vocab, names=NAMES,
    )  # fmt: skip
    return DraftModel(path, config, spec)


def _layers(config: Config) -> tuple[Layer, ...]:
    """In those with windows, tokens of a block see those before them only, if the form is that of `speculators` and its
    configuration does not say otherwise."""
    full = attention(config, bias=flag(config, "attention_bias", False), norm=HeadNorm(eps(config)), spans=True)
    farthest = sliding_window(config)  # the distance of the last visible token
    both = flag(config, "sliding_window_non_causal", KIND not in config)
    window = replace(full, window=farthest + 1 if farthest else 0, spans=both)
    kinds = layer_types(config, ["full_attention"] * layer_count(config), known=("full_attention", "sliding_attention"))
    inner, norms = mlp(config), pre_norms(config)
    return tuple(Layer(window if kind == "sliding_attention" else full, inner, norms) for kind in kinds)
