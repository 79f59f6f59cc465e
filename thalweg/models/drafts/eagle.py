"""EAGLE-1's layers, in the form of its authors. The first has no norm before attention, and none follows the last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from thalweg.checkpoint.config import flag
from thalweg.models.drafts.checkpoint import check_hidden, check_kind, own_embedding, read_draft_files
from thalweg.models.drafts.declared import DraftModel, DraftTarget
from thalweg.models.drafts.taps import FINAL
from thalweg.models.families.common import attention, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import Layer
from thalweg.models.spec.eagle import EagleSpec


def declare_eagle(path: Path, target: DraftTarget) -> DraftModel:
    """Raises CheckpointError for faulty files or another target's drafter."""
    files = read_draft_files(path, "eagle_config")
    config = files.config
    check_kind(config, "eagle")
    bias, norms = flag(config, "attention_bias", False), pre_norms(config)
    mixer, inner = attention(config, bias=bias, out_bias=bias), mlp(config, bias=flag(config, "mlp_bias", False))
    layers = tuple(Layer(mixer, inner, norms if i else replace(norms, mixer=None)) for i in range(layer_count(config)))
    spec = EagleSpec(
        vocab=target.spec.vocab, hidden=hidden_size(config), layers=layers, norm=None, taps=(FINAL,),
        target_hidden=check_hidden(config, target), fc_bias="fc.bias" in files.names,
        embedded=own_embedding(files, path, target),
    )  # fmt: skip
    return DraftModel(path, config, spec)
