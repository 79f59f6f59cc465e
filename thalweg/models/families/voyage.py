"""voyage-4-nano: Qwen 3 with bidirectional attention, and a projection to longer embeddings."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.families.qwen3 import qwen3
from thalweg.models.families.tails import attach_tail, bidirectional
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense


def voyage_qwen3(config: Config) -> ModelSpec:
    hidden = hidden_size(config)
    longer = Dense("", hidden, integer(config, "num_labels", high=1 << 20, default=hidden), False, "none", "model.linear")
    tail = pooling(config, default="mean")
    return bidirectional(attach_tail(qwen3(config), replace(tail, dense=(longer, *tail.dense))))
