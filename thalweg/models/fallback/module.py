"""A model computed by transformers' own module, on the paged step: the counterpart of `models.decoder.Decoder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from thalweg.errors import DeviceError, UnsupportedModelError
from thalweg.hal.attention import AttentionBackend, AttnSpec, choose_attention
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import KernelChoice
from thalweg.hal.parts.overlays import Overlays
from thalweg.hal.step import Array, StepBatch, StepShape
from thalweg.models import sizes
from thalweg.models.context import Context
from thalweg.models.fallback import attention, classes
from thalweg.models.fallback.declare import looked_at
from thalweg.models.fallback.files import ConvertedFiles
from thalweg.models.fallback.probe import AttentionCall, read
from thalweg.models.fallback.products import Products
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.heads.pooling import Pooler
from thalweg.models.weights import ParamSpec, Weight

_IDS, _VECTORS = "input_ids", "inputs_embeds"


class TransformersModel:
    """Holds no values: parameters, computed buffers and caches are passed."""

    reader = ConvertedFiles
    vision = None
    audio = None
    voice = None
    has_argmax = False
    cache_scales: frozenset[str] = frozenset()
    adapters = None
    recurrent = False

    def __init__(self, ctx: Context, spec: TransformersSpec) -> None:
        self.spec, self.mesh, self.max_len, self.formats, self.dtype = spec, ctx.mesh, ctx.max_len, ctx.formats, ctx.dtype
        self.vocab, self.hidden = spec.vocab, spec.hidden
        result = classes.make(spec.config, ctx.dtype, ctx.max_len)
        name = type(result.model).__name__
        self.module, self._calls = result.model, looked_at(result, name).calls
        if len(self._calls) != len(spec.layers):
            raise UnsupportedModelError(
                f"{name}: it has {len(self._calls)} layers that attend, and {len(spec.layers)} were planned"
            )
        self._base, self._head = result.base, classes.head_alone(result.model)
        self._at = {id(m): i for i, m in enumerate(self._attending())}
        self.kept: list[AttnSpec] = []
        for each in sizes.cache_specs(spec, ctx.dtype, ctx.kv_dtype, ctx.max_len, 1, ctx.kv_skip):
            assert isinstance(each, AttnSpec)
            self.kept.append(each)
        kinds = list(dict.fromkeys(self.kept))
        self.layer_group = tuple(kinds.index(k) for k in self.kept)
        """Per layer: its index in `groups`."""
        self.backends = [_backend(ctx, k) for k in self.kept]
        self.layouts: tuple[KVLayout, ...] = tuple(
            b.layout(k, ctx.block_tokens) for b, k in zip(self.backends, self.kept, strict=True)
        )
        self.groups = sizes.kv_groups(self.kept, ctx.block_tokens, ctx.state_tokens, [i.bytes_per_block for i in self.layouts])
        self.attention: tuple[tuple[AttentionBackend, AttnSpec] | None, ...] = tuple(
            (self.backends[g.layers[0]], self.kept[g.layers[0]]) for g in self.groups
        )
        self.specs: dict[str, Any] = {
            "module": {h.name: ParamSpec(h.weight, h.dtype or ctx.dtype) for h in spec.held},
            "computed": {
                n: ParamSpec(Weight(()), str(b.dtype).removeprefix("torch."), make=lambda b=b: b)  # type: ignore[misc]
                for n, b in result.computed.items()
            },
        }
        self._pooler = None if spec.pooling is None else Pooler(ctx, spec.pooling, spec.hidden)
        self.pools = self._pooler is not None
        self._products = Products(ctx, result.model, spec.products)
        self.specs["module"] |= self._products.left
        if self._products.specs:
            self.specs["products"] = self._products.specs
        self._prefix = f"{result.model.base_model_prefix}."
        self._numbers = tuple(h.name for h in spec.held if not h.shape)
        self._shared_head = self._tied_parameters()
        ctx.binder.record(KernelChoice("model", {"class": name, "layers": len(self._calls)}, "transformers", False, ()))

    def _attending(self) -> list[nn.Module]:
        named = dict(self._base.named_modules())
        return [named[c.name] for c in self._calls]

    def rename(self, name: str) -> str | None:
        """Names of a checkpoint are converted by its reader."""
        return self.spec.rename(name)

    def forward(self, params: Any, batch: StepBatch, kv: list[Array], rows: Array | None = None) -> tuple[Array, list[Array]]:
        """As `Decoder.forward`: hidden states [T, hidden], or [R, hidden] of these rows i32[R], as they enter the class's head,
        and the new caches."""
        paged = _Paged(self, batch, list(kv))
        x = self._run(params, batch.tokens, batch.positions, paged, batch.get(Overlays))
        return x if rows is None else x.index_select(0, rows), paged.caches

    def _run(
        self, params: Any, tokens: Array, positions: Array, sink: attention.AttentionHandler, overlays: Overlays | None = None
    ) -> Array:
        """Hidden states [T, hidden]: the module's own, but for attention, which sink computes."""
        own = self._inside(params)
        given: dict[str, Any] = {_IDS: tokens.long().unsqueeze(0)}
        if overlays is not None:
            entry = self._base.get_input_embeddings()
            at = next(name for name, m in self._base.named_modules() if m is entry)
            inner = {n.removeprefix(f"{at}."): t for n, t in own.items() if n.startswith(f"{at}.")}
            x = functional_call(entry, inner, (given[_IDS],))[0]
            laid = overlays.vector[overlays.pick.clamp(min=0)].to(x.dtype)
            given = {_VECTORS: torch.where((overlays.pick >= 0).unsqueeze(1), laid, x).unsqueeze(0)}
        given |= {"position_ids": positions.long().unsqueeze(0), "use_cache": False, attention.HANDED: sink}
        with self._products.bind_params(params.get("products", {})):
            out: Array = functional_call(self._base, own, (), given).last_hidden_state[0]
        return out

    @torch.inference_mode()
    def check(self, params: Any) -> None:
        """Two concatenated sequences, twice: the result of the second must not depend on the first, nor on later tokens.
        UnsupportedModelError if it does. This runs the loaded module, and finds faults that probing its class may miss."""
        where = next(iter(params["module"].values()))
        if not isinstance(where, Tensor):
            return
        where = where.device
        positions = torch.tensor([*range(4), *range(5)], device=where)
        rows = []
        for tokens in ((11, 2, 23, 4, 5, 16, 7, 28, 9), (31, 42, 13, 34, 5, 16, 7, 28, 39)):
            ids = torch.tensor(tokens, device=where) % self.vocab
            rows.append(
                self._run(params, ids, positions, UncachedAttention((4, 5), [c.sees for c in self._calls], self._at))[
                    4:8
                ].float()
            )
        difference, size = (rows[0] - rows[1]).abs().max(), rows[0].abs().max()
        if not difference <= 0.02 * size:  # NaN too
            raise UnsupportedModelError(
                f"{type(self.module).__name__}: the fallback to transformers does not serve it: its results change with other "
                "requests in the batch"
            )

    def _inside(self, params: Any) -> dict[str, Any]:
        """Of the module without its head."""
        return {n.removeprefix(self._prefix): t for n, t in self._every(params).items() if n.startswith(self._prefix)}

    def _every(self, params: Any) -> dict[str, Any]:
        """Parameters and buffers by the module's names, in the module's shapes."""
        every = {**params["module"], **params.get("computed", {})}
        return every | {name: every[name].reshape(()) for name in self._numbers}

    def identify_layer(self, module: nn.Module, arguments: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor) -> int:
        """Which layer calls. RuntimeError where it says other than it did when the class was looked at."""
        layer = self._at[id(module)]
        call: AttentionCall = self._calls[layer]
        if read(call.name, q, k, v, arguments, call.sees) != call:
            raise RuntimeError(f"{call.name}: attends otherwise than when its class was looked at")
        return layer

    def metadata(self, batch: StepBatch, shape: StepShape | None) -> tuple[Mapping[str, Any], ...]:
        """As `Decoder.metadata`."""
        return tuple(
            {} if group is None else group[0].metadata(batch, g, group[1], shape) for g, group in enumerate(self.attention)
        )

    def logits(self, params: Any, x: Array) -> Array:
        """x [N, hidden] of `forward` -> f32[N, vocab], by the class's own head."""
        every = self._every(params)
        outside = {n: t for n, t in every.items() if not n.startswith(self._prefix)}
        for name, other in self._shared_head:
            outside.setdefault(name, every[other])
        with self._products.bind_params(params.get("products", {})):
            logits = functional_call(self._head, outside, (), {_VECTORS: x.unsqueeze(0), "use_cache": False}).logits
        return logits[0].to(torch.float32)

    def pooled_rows(self, batch: StepBatch) -> Array | None:
        """As `Decoder.pooled_rows`."""
        assert self._pooler is not None
        return self._pooler.rows(batch)

    def pool(self, params: Any, x: Array, batch: StepBatch) -> Array:
        """As `Decoder.pooled`."""
        assert self._pooler is not None
        return self._pooler(x, batch)

    def each(self, params: Any, x: Array, row: Array) -> Array:
        """As `Decoder.each`."""
        return x.index_select(0, row).to(torch.float32)

    def _tied_parameters(self) -> list[tuple[str, str]]:
        """Parameters of the head that share the embedding's tensor: (name there, name held)."""
        state = self.module.state_dict(keep_vars=True)
        held = {id(state[h.name]): h.name for h in self.spec.held}
        outside = ((n, held.get(id(t), n)) for n, t in state.items() if not n.startswith(self._prefix))
        return [(n, other) for n, other in outside if other != n]


class _Paged:
    """Handles the attention of one step's layers: keys and values go to the caches, queries attend within their sequence."""

    def __init__(self, model: TransformersModel, batch: StepBatch, caches: list[Array]) -> None:
        self._model, self._batch, self.caches = model, batch, caches

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> Tensor:
        model = self._model
        layer = model.identify_layer(module, arguments, q, k, v)
        spec, size = model.kept[layer], v.shape[3]
        dtype = getattr(torch, spec.dtype)
        q, k, v = (t[0].transpose(0, 1).to(dtype).contiguous() for t in (q, k, v))
        if size < spec.head_dim:
            v = torch.nn.functional.pad(v, (0, spec.head_dim - size))
        sinks = arguments["s_aux"].reshape(-1).to(dtype) if spec.sinks else None
        out, self.caches[layer] = model.backends[layer].attend(
            q, k, v, self.caches[layer], self._batch, model.layer_group[layer], spec, sinks
        )
        own: Tensor = out[..., :size].unsqueeze(0)
        return own


class UncachedAttention:
    """Handles attention over whole concatenated sequences, and computes it plainly, without caches."""

    def __init__(self, lengths: Sequence[int], sees: Sequence[int], at: Mapping[int, int]) -> None:
        self._lengths, self._sees, self._at = lengths, sees, at

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> Tensor:
        window, parts = self._sees[self._at[id(module)]], list(self._lengths)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scale, out = arguments["scaling"], []
        for one, keys, values in zip(*(torch.split(t, parts, 2) for t in (q, k, v)), strict=True):
            scores = one.float() @ keys.float().mT * (q.shape[3] ** -0.5 if scale is None else scale)
            n = torch.arange(scores.shape[-1], device=q.device)
            ahead = n[:, None] - n
            seen = (ahead >= 0) & (ahead < window) if window else ahead >= 0
            out.append(scores.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype) @ values)
        return torch.cat(out, 2).transpose(1, 2)


def _backend(ctx: Context, spec: AttnSpec) -> AttentionBackend:
    try:
        backend, refused = choose_attention(
            ctx.attention, spec, batch_invariant=ctx.binder.batch_invariant, block_tokens=ctx.block_tokens
        )
    except ValueError as e:
        raise DeviceError(str(e)) from e
    ctx.binder.record(KernelChoice("attention", asdict(spec), backend.name, backend.batch_invariant, refused))
    return backend
