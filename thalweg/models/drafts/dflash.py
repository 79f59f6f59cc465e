"""DFlash's layers, in the forms of its authors, of transformers and of `speculators`."""

from __future__ import annotations

from pathlib import Path

from thalweg.checkpoint.config import flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.drafts.checkpoint import check_hidden, check_kind, read_draft_files
from thalweg.models.drafts.declared import DraftModel, DraftTarget
from thalweg.models.drafts.taps import places_after, places_before
from thalweg.models.families.common import attention, eps, hidden_size, layer_count, layer_types, mlp, pre_norms
from thalweg.models.spec import HeadNorm, Layer, Names, Norm
from thalweg.models.spec.dflash import DFlashSpec

AFTER, BEFORE = "target_layer_ids", "aux_hidden_state_layer_ids"
"""Keys of the places: of ids "after layer i", and in `speculators` "before layer i"."""
UNREAD = ("t2d", "d2t", "verifier_norm.", "verifier_lm_head.", "embed_tokens.")
NAMES = Names(
    replace=(("encoder.fc.", "fc."), ("encoder.output_norm_enc.", "hidden_norm.")), skip=UNREAD
)  # fmt: skip


def declare_dflash(path: Path, target: DraftTarget) -> DraftModel:
    """Raises CheckpointError for faulty files or another target's drafter, UnsupportedModelError for layers with windows."""
    files = read_draft_files(path, "dflash_config")
    config = files.config
    check_kind(config, "dflash")
    check_hidden(config, target)
    hidden, layers, e = hidden_size(config), len(target.spec.layers), eps(config)
    if "sliding_attention" in layer_types(config, ["full_attention"] * layer_count(config)):
        raise UnsupportedModelError("config.json: layer_types: windows in blocks of masks are not supported by this version")
    taps = places_before(config[BEFORE], layers, BEFORE) if BEFORE in config else places_after(config.get(AFTER), layers, AFTER)
    mask = integer(config, "mask_token_id", low=0)
    if mask >= target.spec.vocab:
        raise CheckpointError(f"config.json: mask_token_id: {mask} is no token of the target's {target.spec.vocab}")
    vocab = integer(config, "draft_vocab_size", default=target.spec.vocab)
    mixer = attention(config, bias=flag(config, "attention_bias", False), norm=HeadNorm(e), spans=True)
    layer = Layer(mixer, mlp(config), pre_norms(config))
    spec = DFlashSpec(
        vocab=vocab, hidden=hidden, layers=(layer,) * layer_count(config), norm=Norm("norm", hidden, e), taps=taps,
        context_norm=Norm("hidden_norm", hidden, e), block=integer(config, "block_size", low=2, high=65), mask=mask,
        from_newest=flag(config, "sample_from_anchor", False), has_head="lm_head.weight" in files.names,
        mapped=vocab != target.spec.vocab, names=NAMES,
    )  # fmt: skip
    return DraftModel(path, config, spec)
