"""Decoders with BERT's layers: causal BERT, RoBERTa and BertGeneration (Rothe et al. 2020, https://arxiv.org/abs/1907.12461)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bert import HEAD, encoder
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.families.roberta import first_position
from thalweg.models.spec import Attention, DenseNorm, LayerNorm, ModelSpec


def bert_lm(config: Config) -> ModelSpec:
    head = _head(config, f"{HEAD}transform.dense", f"{HEAD}transform.LayerNorm", act(config, default="gelu", known=UNGATED))
    return causal(config, "bert.", HEAD.removesuffix("."), norm=head, skip=("pooler.", "cls.seq_relationship."))


def roberta_lm(config: Config) -> ModelSpec:
    head = _head(config, "lm_head.dense", "lm_head.layer_norm", "gelu")
    return causal(config, "roberta.", "lm_head", norm=head, skip=("pooler.",), first=first_position(config))


def bert_generation(config: Config) -> ModelSpec:
    """BERT without token types, and without a head before the output matrix."""
    result = causal(config, "bert.", "lm_head")
    return replace(result, learned=tuple(each for each in result.learned if each.by == "position"))


def causal(
    config: Config, prefix: str, head: str, *, skip: Sequence[str] = (), first: int = 0, norm: DenseNorm | None = None
) -> ModelSpec:
    """prefix: of the layers' tensors. head: the name of the bias of logits, without its last part. skip, first: as of
    `encoder`. norm: what the output matrix reads."""
    if not flag(config, "is_decoder", False):
        raise UnsupportedModelError(
            "config.json: is_decoder: false means bidirectional attention, which generates no text; "
            "--hf-overrides '{\"is_decoder\": true}' makes it causal"
        )
    layers = integer(config, "num_hidden_layers", high=10_000)
    tied = flag(config, "tie_word_embeddings", True)
    copy = f"{head}.decoder.bias" if tied else f"{head}.bias"  # of the bias, which only a tied matrix shares
    unread = (*skip, copy, *(f"encoder.layer.{i}.crossattention." for i in range(layers)))
    plain = {**config, "is_decoder": False, "add_cross_attention": False}
    result = encoder(plain, None, prefix=prefix, skip=unread, first=first)
    renamed = ((f"{head}.decoder.weight", f"{head}.weight"),) if tied else ()
    names = replace(result.names, replace=(*renamed, *result.names.replace))
    return replace(
        result, layers=tuple(replace(each, mixer=_causal(each.mixer)) for each in result.layers), norm=norm, names=names,
        head=head if tied else f"{head}.decoder", head_bias=True, tied=tied,
    )  # fmt: skip


def _causal(mixer: Any) -> Attention:
    assert isinstance(mixer, Attention)
    return replace(mixer, causal=True)


def _head(config: Config, dense: str, norm: str, act: str) -> DenseNorm:
    e = real(config, "layer_norm_eps", default=1e-12)
    return DenseNorm(dense, LayerNorm(norm, hidden_size(config), e), act)
