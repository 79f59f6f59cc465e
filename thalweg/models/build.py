"""From a checked configuration to a model: which family, which kernels, which attention."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg.errors import ConfigError, UnsupportedModelError
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder
from thalweg.hal.ops import linear
from thalweg.hal.weights import WeightFormat
from thalweg.models.adapters import AdapterPlan
from thalweg.models.context import Context
from thalweg.models.decoder import Decoder
from thalweg.models.expert_parallel import has_experts, place_experts
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.precision import model_scheme
from thalweg.models.refusals import check_ranks
from thalweg.models.registry import family
from thalweg.models.stages import cut_stage
from thalweg.plugins import import_attribute
from thalweg.quantization.format import Scheme
from thalweg.quantization.online import linear_spec

FOREIGN = "thalweg.models.fallback.module:TransformersModel"
"""Module of models that run transformers' own modules. Importing it imports transformers."""
Model = Any
"""A `Decoder`, or a `TransformersModel` with the same interface. Public parts: spec, groups, layouts, layer_group,
attention, vocab, hidden, dtype, adapters, max_len, specs, rename, forward, logits, and where it `has_argmax`, argmax."""


def build(
    config: Mapping[str, Any],
    *,
    binder: Binder,
    attention: Sequence[AttentionBackend],
    mesh: Mesh,
    dtype: str,
    max_len: int,
    block_tokens: int,
    quantization: str | None = None,
    kv_dtype: str = "",
    kv_skip: Sequence[str] = (),
    state_tokens: int = 0,
    spare_states: bool = False,
    adapters: AdapterPlan | None = None,
    background: tuple[Binder, Sequence[AttentionBackend]] | None = None,
    stage_layers: Sequence[int] | None = None,
    tp_invariant: bool = False,
) -> Model:
    """The model of a config.json, every op bound to the device's kernels (the choices are in `binder.bindings`).

    max_len: longest sequence served. quantization: a name of quantization.online.METHODS; dense weights
    are rounded at load. kv_dtype: as in AttnSpec. kv_skip, adapters, state_tokens (0 = block_tokens), spare_states,
    tp_invariant: as in Context.
    background: the binder and the attention of encoders, where they run in another queue than steps. stage_layers: layers of
    each stage of `mesh.stage`, as `stages.partition` has it.
    Raises UnsupportedModelError, CheckpointError (the configuration), ConfigError (it does not
    divide among the ranks), DeviceError (no attention backend fits)."""
    for name, value in (("max_len", max_len), ("block_tokens", block_tokens)):
        if value < 1:
            raise ConfigError(f"{name}: must be at least 1, not {value}")
    spec = family(config)(config)
    check_ranks(spec, mesh.sizes())
    if mesh.expert.size > 1 or (tp_invariant and mesh.tensor.size > 1 and has_experts(spec)):
        spec = place_experts(spec)
    if mesh.stage.size > 1:
        spec = cut_stage(spec, mesh.stage.index, mesh.stage.size, stage_layers)
    use = resolve_scheme(model_scheme(config, quantization, spec), binder, dtype, spec.hidden)
    ctx = Context(
        binder, attention, mesh, dtype, max_len, block_tokens, use, kv_dtype, tuple(kv_skip), state_tokens or block_tokens,
        adapters=adapters, spare_states=spare_states, tp_invariant=tp_invariant,
    )  # fmt: skip
    if background is not None:
        ctx = replace(ctx, encoders=replace(ctx, binder=background[0], attention=background[1]))
    if isinstance(spec, TransformersSpec):
        if adapters is not None:
            name = config["architectures"][0]
            raise UnsupportedModelError(f"{name}: adapters are not supported where transformers computes the model")
        result: Model = import_attribute(FOREIGN)(ctx, spec)
        return result
    return Decoder(ctx, spec)


def resolve_scheme(use: Scheme, binder: Binder, dtype: str, width: int) -> Scheme:
    """A scheme as models hold it there: some name second formats. width: of the layers' inputs."""
    return use.choose(functools.partial(gains, binder, dtype, width))


def gains(binder: Binder, dtype: str, width: int, form: WeightFormat) -> bool:
    """Does a kernel run linear layers of this format, faster than its alternatives? width: of their inputs."""
    return binder.gains(linear, dtype=dtype, in_features=width, out_features=width, **linear_spec(form))
