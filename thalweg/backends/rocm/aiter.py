"""AITER (github.com/ROCm/aiter), where it is installed, for steps that hold prompts on gfx942 and gfx950.

Interface: `mha_batch_prefill_func` of 0.1.10 and later, with pages [page, token, head, D] of 16 or 1024 tokens and
`kv_last_page_lens`. Its decode kernels want another layout of keys and values, so decodes are the partner's. Not PyPI's
package of the same name, which is something else. Never run on a GPU here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from thalweg.backends.torch_gpu import paged
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.packages import function, loading
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch, StepShape

NAME = "aiter"
ARCHES = ("gfx942", "gfx950")


class AiterAttention(paged.LibraryAttention):
    """run: the function of the package. Its kernels are built for one head size. Its soft cap was wrong in releases
    up to 0.1.21 in some cases, so it is not used."""

    name = NAME
    sizes = (128,)
    softcap = False
    blocks = (16, 1024)

    def __init__(self, run: Callable[..., Any], partner: paged.PagedBackend) -> None:
        super().__init__(partner)
        self._run, self._once = run, paged.StepCache()

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """The partner's where the step is its own. Otherwise of the n real sequences {"lengths": i32[n], "queries":
        i32[n + 1]} where their new tokens begin. As numbers "held": their keys, "rows", their new tokens, and
        "longest" of one."""
        if paged.even(batch, shape):
            planned: Mapping[str, Any] = self._partner.metadata(batch, group, spec, shape)
            return planned
        n = paged.real(batch)
        held, new = paged.lengths(batch)[:n], batch.query[:n]
        return {
            "lengths": held, "queries": paged.starts(new), "held": tuple(held.tolist()), "rows": int(new.sum()),
            "longest": int(new.max(initial=0)),
        }  # fmt: skip

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        plan = batch.metadata[group]
        if "held" not in plan:
            return self._partner.attend(q, k, v, kv, batch, group, spec, sinks)
        self._partner.store(k, v, kv, batch, group, spec)
        rows, held, size = plan["rows"], plan["held"], kv.shape[2]
        if not rows:
            return q.new_zeros(q.shape), kv
        table, total = batch.block_tables[group][: len(held)], sum(-(-n // size) for n in held)
        first, used, last = self._once.of(plan, group, lambda: paged.pages(table, plan["lengths"], total, size))
        out = self._run(
            q[:rows].contiguous(), kv[:, 0], kv[:, 1], plan["queries"], first, used, plan["longest"], max(held),
            softmax_scale=spec.scale, causal=True, window_size=paged.window(spec), kv_last_page_lens=last,
        )  # fmt: skip
        return paged.whole(out, q.shape[0]), kv


def load(arch: str) -> KernelSet:
    if arch not in ARCHES:
        raise RuntimeError(f"runs on {' and '.join(ARCHES)}, not {arch}")
    with loading("aiter"):
        import aiter
    run = function(
        aiter, "mha_batch_prefill_func", "kv_indptr", "kv_page_indices", "max_seqlen_q", "max_seqlen_k",
        "softmax_scale", "causal", "window_size", "kv_last_page_lens",
    )  # fmt: skip
    return KernelSet(attention=(AiterAttention(run, paged.partner(arch)),))
