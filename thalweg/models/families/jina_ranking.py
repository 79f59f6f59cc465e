"""jina-reranker-v3: Qwen 3 reads a query with all of its documents, and a projection of a token behind each is compared."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.families.qwen3 import qwen3
from thalweg.models.families.tails import attach_tail
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense

OUTPUTS = 512
"""Of the projection. No file has this number."""


def jina_ranking(config: Config) -> ModelSpec:
    spec, hidden = qwen3(config), hidden_size(config)
    dense = (
        Dense("", hidden, hidden // 2, bias=False, act="relu", name="model.projector.0"),
        Dense("", hidden // 2, OUTPUTS, bias=False, act="none", name="model.projector.2"),
    )
    tail = replace(pooling(config, default="last"), each=True, dense=dense, form="jina-reranker-v3")
    return attach_tail(spec, tail)
