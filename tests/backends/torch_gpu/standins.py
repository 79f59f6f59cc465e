"""Stand-ins for attention libraries that need a GPU: modules whose functions have the signatures of the real ones, refuse what
those refuse, and compute the answer in plain torch from what they were given. An argument in the wrong place, a layout
that is not the library's, or a length that is off by one gives another answer, or an error.

Signatures, from the libraries' public sources: flash_attn 2.7 (flash_attn/flash_attn_interface.py), flash-attn 3
(hopper/flash_attn_interface.py), flashinfer 0.2 to 0.6 (flashinfer/prefill.py), AITER 0.1.10 (aiter/ops/mha.py).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from thalweg.backends.cuda import flash3
from thalweg.backends.cuda import flashinfer as flashinfer_wrapper
from thalweg.backends.rocm import aiter as aiter_wrapper
from thalweg.backends.torch_gpu import flash2, paged
from thalweg.backends.torch_gpu.attention import GatherAttention
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.testing import HostGpuPlatform
from thalweg.hal.platform import Place
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing import test_attention as kit

CUDA = 2
"""The number of CUDA devices in DLPack."""
ROWS = 256
"""Rows whose scores are in memory at once. The keys of a row's future are left out with it: masks are causal."""


def formula(
    q: Tensor, k: Tensor, v: Tensor, held: Tensor, scale: float, causal: bool, window: Sequence[int], softcap: float
) -> Tensor:
    """q [n, m, heads, D], the last m tokens of sequences with held [n] keys each; k and v [n, L, kv_heads, D], of which those
    from held on are not looked at -> [n, m, heads, D]. A row that sees nothing gives zeros. Nothing here looks at a value."""
    m, length, share = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    at = torch.arange(length, device=q.device)
    there = at < held[:, None]
    k, v = (torch.where(there[..., None, None], x, 0).double().repeat_interleave(share, 2) for x in (k, v))
    own = held[:, None] - m + torch.arange(m, device=q.device)
    behind = own[..., None] - at
    seen = there[:, None].expand_as(behind)
    left, right = window[0], 0 if causal else window[1]
    seen = seen & (behind >= -right) if right >= 0 else seen
    seen = seen & (behind <= left) if left >= 0 else seen
    scores = torch.einsum("nmhd,nlhd->nhml", q.double(), k) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    weights = torch.nan_to_num(torch.softmax(scores.masked_fill(~seen[:, None], float("-inf")), -1))
    return torch.einsum("nhml,nlhd->nmhd", weights, v).to(q.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, *integers: Tensor) -> None:
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.shape[-1] <= 256
    assert q.shape[-1] % 8 == 0
    assert q.shape[-2] % k.shape[-2] == 0
    for i in integers:
        assert i.dtype == torch.int32
        assert i.stride(-1) == 1


def _one_by_one(
    q: Tensor, pairs: Sequence[tuple[int, int]], keys: Sequence[Tensor], values: Sequence[Tensor], *how: Any
) -> Tensor:
    """pairs: (first row, rows) of each sequence; keys and values [L, kv_heads, D] of each. Rows of nobody are NaN."""
    out = torch.full_like(q, float("nan"))
    for (row, n), k, v in zip(pairs, keys, values, strict=True):
        for at in range(0, n, ROWS):
            m = min(ROWS, n - at)
            held = torch.tensor([k.shape[0] - (n - at - m)], device=q.device)
            some = slice(row + at, row + at + m)
            out[some] = formula(q[None, some], k[None], v[None], held, *how)[0]
    return out


def _cut(marks: Tensor) -> list[tuple[int, int]]:
    at = marks.tolist()
    assert at[0] == 0
    return [(a, b - a) for a, b in itertools.pairwise(at)]


def _read(pages: Tensor, table: Tensor, n: int) -> Tensor:
    """The first n keys of a sequence whose pages these are."""
    size = pages.shape[1]
    return pages[table[: -(-n // size)].long()].flatten(0, 1)[:n]


def flash_attn() -> ModuleType:
    module = ModuleType("flash_attn")
    module.__version__ = "2.7.4"  # type: ignore[attr-defined]
    calls = module.calls = []  # type: ignore[attr-defined]

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        calls.append("varlen")
        _check(q, k, v, cu_seqlens_q, cu_seqlens_k, block_table)
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        rows, held = _cut(cu_seqlens_q), [n for _, n in _cut(cu_seqlens_k)]
        assert len(rows) == len(held) == block_table.shape[0]
        assert q.shape[0] == sum(n for _, n in rows)
        assert max_seqlen_q == max(n for _, n in rows)
        assert max_seqlen_k == max(held)
        keys, values = ([_read(x, t, n) for t, n in zip(block_table, held, strict=True)] for x in (k, v))
        return _one_by_one(q, rows, keys, values, softmax_scale or q.shape[-1] ** -0.5, causal, window_size, softcap)

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
        cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
    ):  # fmt: skip
        calls.append("kvcache")
        assert k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        return _cached(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal, window_size, softcap)

    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module


def _cached(q: Tensor, k: Tensor, v: Tensor, held: Tensor, table: Tensor, scale: float | None, *how: Any) -> Tensor:
    """q [S, n, heads, D]; what a graph may record."""
    _check(q, k, v, held, table)
    assert q.shape[0] == held.shape[0] == table.shape[0]
    keys, values = (x[table.long()].flatten(1, 2) for x in (k, v))
    return formula(q, keys, values, held, scale or q.shape[-1] ** -0.5, *how)


def flash_attn_interface() -> ModuleType:
    module = ModuleType("flash_attn_interface")
    calls = module.calls = []  # type: ignore[attr-defined]

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None,
        rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0,
        pack_gqa=None, sm_margin=0, return_softmax_lse=False,
    ):  # fmt: skip
        if cu_seqlens_q is None:
            calls.append("kvcache")
            return _cached(q, k_cache, v_cache, cache_seqlens, page_table, softmax_scale, causal, window_size, softcap)
        calls.append("varlen")
        _check(q, k_cache, v_cache, cache_seqlens, page_table, cu_seqlens_q)
        rows, held = _cut(cu_seqlens_q), cache_seqlens.tolist()
        assert len(rows) == len(held) == page_table.shape[0]
        assert max_seqlen_q == max(n for _, n in rows)
        keys, values = ([_read(x, t, n) for t, n in zip(page_table, held, strict=True)] for x in (k_cache, v_cache))
        return _one_by_one(q, rows, keys, values, softmax_scale or q.shape[-1] ** -0.5, causal, window_size, softcap)

    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module


def flashinfer() -> ModuleType:
    module = ModuleType("flashinfer")
    module.__version__ = "0.6.1"  # type: ignore[attr-defined]
    calls = module.calls = []  # type: ignore[attr-defined]

    class BatchPrefillWithPagedKVCacheWrapper:
        def __init__(
            self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None, paged_kv_indptr_buf=None,
            paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None, mask_indptr_buf=None,
            backend="auto", jit_args=None, jit_kwargs=None,
        ) -> None:  # fmt: skip
            assert float_workspace_buffer.dtype == torch.uint8
            assert kv_layout == "NHD"

        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
            pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
            rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, non_blocking=True,
        ) -> None:  # fmt: skip
            calls.append("plan")
            for i in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
                assert i.dtype == torch.int32
            self._rows, runs = _cut(qo_indptr), _cut(paged_kv_indptr)
            assert paged_kv_indices.shape[0] == sum(n for _, n in runs)
            last = paged_kv_last_page_len.tolist()
            assert all(1 <= n <= page_size for n in last)
            self._held = [(n - 1) * page_size + extra for (_, n), extra in zip(runs, last, strict=True)]
            self._tables = [paged_kv_indices[a : a + n] for a, n in runs]
            assert all(new <= held for (_, new), held in zip(self._rows, self._held, strict=True))
            self._form = (page_size, num_kv_heads, head_dim_qk, q_data_type, kv_data_type, num_qo_heads)
            self._how = (sm_scale or head_dim_qk**-0.5, causal, (window_left, -1), logits_soft_cap or 0.0)

        def run(self, q, paged_kv_cache, *args, k_scale=None, v_scale=None, out=None, lse=None, return_lse=False):
            calls.append("run")
            page, heads, dim, kind, kv_kind, q_heads = self._form
            assert paged_kv_cache.shape[1:] == (2, page, heads, dim)
            assert (q.dtype, paged_kv_cache.dtype) == (kind, kv_kind)
            assert q.shape == (sum(n for _, n in self._rows), q_heads, dim)
            assert q.is_contiguous()
            k, v = paged_kv_cache.unbind(1)
            keys, values = ([_read(x, t, n) for t, n in zip(self._tables, self._held, strict=True)] for x in (k, v))
            return _one_by_one(q, self._rows, keys, values, *self._how)

    module.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper  # type: ignore[attr-defined]
    return module


def aiter() -> ModuleType:
    module = ModuleType("aiter")
    calls = module.calls = []  # type: ignore[attr-defined]

    def mha_batch_prefill_func(
        q, k, v, cu_seqlens_q, kv_indptr, kv_page_indices, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        logits_soft_cap=0.0, causal=False, window_size=(-1, -1), alibi_slopes=None, deterministic=False, return_lse=False,
        return_attn_probs=False, out=None, q_descale=None, k_descale=None, v_descale=None, kv_last_page_lens=None,
        block_table=None, seqlen_k=None,
    ):  # fmt: skip
        calls.append("prefill")
        _check(q, k, v, cu_seqlens_q, kv_indptr, kv_page_indices, kv_last_page_lens)
        assert k.shape[1] in (16, 1024)
        assert q.shape[-1] == 128
        rows, runs, last = _cut(cu_seqlens_q), _cut(kv_indptr), kv_last_page_lens.tolist()
        held = [(n - 1) * k.shape[1] + extra for (_, n), extra in zip(runs, last, strict=True)]
        tables = [kv_page_indices[a : a + n] for a, n in runs]
        assert max_seqlen_q == max(n for _, n in rows)
        assert max_seqlen_k == max(held)
        keys, values = ([_read(x, t, n) for t, n in zip(tables, held, strict=True)] for x in (k, v))
        return _one_by_one(q, rows, keys, values, softmax_scale or q.shape[-1] ** -0.5, causal, window_size, logits_soft_cap)

    module.mha_batch_prefill_func = mha_batch_prefill_func  # type: ignore[attr-defined]
    return module


MODULES = {
    "flash_attn": flash_attn, "flash_attn_interface": flash_attn_interface, "flashinfer": flashinfer, "aiter": aiter,
}  # fmt: skip


@contextmanager
def installed(package: str = "") -> Iterator[None]:
    """As if this attention library were there and no other, on any machine."""
    before = {name: sys.modules[name] for name in MODULES if name in sys.modules}
    sys.modules.update({name: make() if name == package else None for name, make in MODULES.items()})  # type: ignore[misc]
    try:
        yield
    finally:
        for name in MODULES:
            del sys.modules[name]
        sys.modules.update(before)


class LibrariesPlatform(HostGpuPlatform):
    """The GPU's device on the host with every library there is, for the conformance kit: what it makes of a machine where they
    are installed."""

    name = "host-gpu-libraries"

    def open(self, place: Place) -> GpuDevice:
        made: Any = super().open(place)
        made.attention = (*(backend() for backend in BACKENDS), *made.attention)
        return made


def _make(load: Any, package: str, arch: str) -> Any:
    with installed(package), patch.object(paged, "partner", lambda arch: GatherAttention()):
        return load(arch).attention[0]


BACKENDS = (
    lambda: _make(flash3.load, "flash_attn_interface", "sm_90"), lambda: _make(flashinfer_wrapper.load, "flashinfer", "sm_90"),
    lambda: _make(flash2.load, "flash_attn", "sm_90"), lambda: _make(aiter_wrapper.load, "aiter", "gfx942"),
)  # fmt: skip


def fill_cache(device: GpuDevice, attention: Any, spec: Any, mix: list[tuple[int, int]], size: int) -> Any:
    """Stories of (length, new tokens), their cache with all but the new ones written and NaN in every other place, its tables
    and where the new ones start."""
    made = kit.rng("libraries", len(mix))
    stories = [seq.story(made, spec, length, new) for length, new in mix]
    table, blocks = seq.tables(made, stories, size)
    cache = seq.Cache(device, attention, spec, size, blocks)
    cache.box.value[1:] = float("nan")
    start = [s.length - s.query for s in stories]
    old = [i for i, n in enumerate(start) if n]
    done, before = [stories[i] for i in old], [start[i] for i in old]
    cache.attend(seq.batch_of(table[old], [0] * len(old), before), *seq.rows(done, [0] * len(old), before))
    return stories, cache, table, start


def as_gpu_tensor(tvm_ffi: Any, t: Tensor) -> Any:
    """A tensor of tvm-ffi that claims to lie on the first GPU, at an address of the host: for checks of arguments before a
    launch."""

    class Claim:
        def __dlpack__(self, **more: Any) -> Any:
            capsule = torch.utils.dlpack.to_dlpack(t)
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            device = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
            (ctypes.c_int32 * 2).from_address(device)[:] = [CUDA, 0]
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return CUDA, 0

    return tvm_ffi.from_dlpack(Claim())
