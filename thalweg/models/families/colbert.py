"""ColBERT: an encoder whose every token has a vector of its own, made shorter by one matrix. Texts are compared by the best
match of each of a query's tokens."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.families.modernbert import modernbert
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense

SIZES = ("dim", "colbert_dim", "projection_dim")


def colbert(config: Config) -> ModelSpec:
    said = config.get("pooling")
    sources = [config, said if isinstance(said, dict) else {}]
    size = next((integer(s, key, high=1 << 20) for s in sources for key in SIZES if s.get(key) is not None), 0)
    if not size:
        raise CheckpointError(
            "config.json: dim: nothing says how long this model's vectors are (config.json, or dim of artifact.metadata); "
            "give --hf-overrides '{\"dim\": 128}', or what it was trained with"
        )
    dense = Dense("", hidden_size(config), size, bias=False, act="none", name="linear")
    tail = replace(pooling(config, default="cls"), each=True, dense=(dense,))
    return encoder(config, tail, prefix="bert.", skip=("pooler.", "cls."))


def colbert_modernbert(config: Config) -> ModelSpec:
    spec = modernbert(config)
    assert spec.pooling is not None
    if not spec.pooling.dense:
        raise CheckpointError("modules.json: this architecture needs a Dense step, as PyLate writes it")
    return replace(spec, pooling=replace(spec.pooling, each=True))
