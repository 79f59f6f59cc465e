"""ColBERT: an encoder with one embedding per token and a projection to a smaller size. Texts are compared by the best match of
each of a query's tokens."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.families.jina_v3 import jina_roberta
from thalweg.models.families.lfm2 import lfm2
from thalweg.models.families.modernbert import modernbert
from thalweg.models.families.tails import embedder
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense, Pooling

SIZES = ("dim", "colbert_dim", "projection_dim")


def colbert(config: Config) -> ModelSpec:
    return encoder(config, _tail(config), prefix="bert.", skip=("pooler.", "cls."))


def colbert_jina(config: Config) -> ModelSpec:
    """jina-colbert-v2."""
    return jina_roberta({"rotary_emb_base": 10_000.0, **config}, _tail(config), skip=("pooler.",))


def colbert_modernbert(config: Config) -> ModelSpec:
    return _of_each(modernbert(config))


def colbert_lfm2(config: Config) -> ModelSpec:
    return _of_each(embedder(lfm2(config), config))


def _tail(config: Config) -> Pooling:
    """With a matrix in the model's own files."""
    section = config.get("pooling")
    sources = [config, section if isinstance(section, dict) else {}]
    size = next((integer(s, key, high=1 << 20) for s in sources for key in SIZES if s.get(key) is not None), 0)
    if not size:
        raise CheckpointError(
            "config.json: dim: the length of this model's vectors is missing (config.json, or dim of artifact.metadata); "
            "give --hf-overrides '{\"dim\": 128}', or the length of its training"
        )
    dense = Dense("", hidden_size(config), size, bias=False, act="none", name="linear")
    return replace(pooling(config, default="cls"), each=True, dense=(dense,))


def _of_each(spec: ModelSpec) -> ModelSpec:
    """With an additional Dense step."""
    assert spec.pooling is not None
    if not spec.pooling.dense:
        raise CheckpointError("modules.json: this architecture needs a Dense step, as PyLate writes it")
    return replace(spec, pooling=replace(spec.pooling, each=True))
