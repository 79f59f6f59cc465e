"""A whole step of a model for TPU, of shapes alone: nothing is loaded and nothing is computed, so a step of any size can be
lowered or compiled on any host. What lowers is what the backend runs: the same model, the same kernels, the same program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from thalweg.backends.tpu import TpuOptions
from thalweg.backends.tpu.arrays import pack
from thalweg.backends.tpu.attention import backends
from thalweg.backends.tpu.library import kernels
from thalweg.backends.tpu.mesh import Ranks
from thalweg.backends.tpu.program import TpuExecutable
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder
from thalweg.hal.step import Features, SamplingArrays, StateBox, StepBatch, StepShape
from thalweg.models.build import build
from thalweg.models.step import make_step
from thalweg.models.weights import ParamSpec, walk

TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2x1", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2x1", "v7x": "tpu7x:2x2x1"}
"""A generation -> the smallest machine of it that libtpu compiles for."""
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_8B = {
    **LLAMA_1B, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip


def step_of(
    config: Mapping[str, Any], shape: StepShape, *, dtype: str = "bfloat16", block_tokens: int = 32, blocks: int = 1024,
    max_len: int = 4096, features: Features | None = None, ranks: Ranks | None = None,
) -> tuple[Any, tuple[Any, Any, Any]]:  # fmt: skip
    """(jitted function of parameters, state and batch buffer; their shapes), for one bucket of a model.

    ranks: the devices it is for, and then the shapes say where they lie; None: one device, whichever."""
    result = ranks or Ranks(jax.devices("cpu")[:1])
    binder = Binder(kernels(TpuOptions(), on_host=False), bodies_invariant=False)
    model = build(
        config, binder=binder, attention=backends("pallas", interpret=False), mesh=Mesh(result.comm), dtype=dtype,
        max_len=max_len, block_tokens=block_tokens,
    )  # fmt: skip
    whole, by_heads, by_parts = (result.whole(), result.shard_along(1), result.shard_along(0)) if ranks else (None, None, None)

    def parameter(spec: ParamSpec) -> jax.ShapeDtypeStruct:
        first, *rest = tuple(spec.make().shape) if spec.make else spec.shape(result.size)
        divided = spec.shard is not None and result.size > 1
        return jax.ShapeDtypeStruct(
            (result.size * first if divided else first, *rest), spec.dtype, sharding=by_parts if divided else whole
        )

    params: dict[Any, Any] = {}
    for keys, spec in walk(model.specs):
        node = params
        for k in keys[:-1]:
            node = node.setdefault(k, {})
        node[keys[-1]] = parameter(spec)
    kv = [
        jax.ShapeDtypeStruct((blocks, result.size * la.shape[0], *la.shape[1:]), la.dtype, sharding=by_heads)
        for la in model.layouts
    ]
    state = {"kv": kv, "history": jax.ShapeDtypeStruct((shape.seqs + 1, max_len + 1), np.int32, sharding=whole)}
    batch = decode_batch(shape, len(model.groups))
    batch.features = features or Features()
    batch.metadata = model.metadata(batch, shape)
    buffer, cut_up, _ = pack(batch)
    exe = TpuExecutable(make_step(model, binder, logprobs_mode="raw_logprobs"), params, StateBox(state), shape, None, result)
    return exe.program(cut_up), (params, state, jax.ShapeDtypeStruct(buffer.shape, np.int32, sharding=whole))


def decode_batch(shape: StepShape, groups: int) -> StepBatch:
    """A step of this bucket: decodes alone if it is uniform, else one prompt beside decodes."""
    n, i32 = shape.seqs, np.int32
    query = np.ones(n, i32)
    query[-1] += shape.tokens - n
    seq = np.repeat(np.arange(n, dtype=i32), query)
    start = np.cumsum(query) - query
    return StepBatch(
        tokens=np.zeros(shape.tokens, i32), token_seq=seq, positions=(np.arange(shape.tokens) - start[seq]).astype(i32),
        slots=np.arange(1, n + 1, dtype=i32), context=np.zeros(n, i32), query=query,
        last_row=(np.cumsum(query) - 1).astype(i32),
        emit=np.ones(n, bool), block_tables=tuple(np.zeros((n, shape.blocks), i32) for _ in range(groups)),
        sampling=SamplingArrays.greedy(n),
    )  # fmt: skip
