"""The TPU device: JAX arrays, one mesh of devices that share a model, compiled programs and no eager steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.backends.host import host_memory, process_memory
from thalweg.backends.tpu import TpuOptions, on_host
from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.attention import backends as attention_backends
from thalweg.backends.tpu.kinds import KINDS
from thalweg.backends.tpu.library import kernels
from thalweg.backends.tpu.mesh import Ranks
from thalweg.backends.tpu.program import TpuExecutable
from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo, Memory, row_bytes
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.parts.scores import Scores
from thalweg.hal.platform import Place
from thalweg.hal.step import SCRATCH, Features, Params, StateBox, Step, StepShape

LOGPROBS = 20
"""Top tokens computed where some are asked for: as many as requests usually may."""


def open_device(place: Place, options: TpuOptions) -> TpuDevice:
    """DeviceError if JAX cannot reach the devices of the platform asked for."""
    on_host, want = options.jax_platform == "cpu", len(place.devices)
    if not jax._src.xla_bridge.backends_are_initialized():
        jax.config.update("jax_platforms", options.jax_platform)
        if on_host and want > max(1, jax.config.values["jax_num_cpu_devices"]):
            jax.config.update("jax_num_cpu_devices", want)  # the host in the place of so many
    try:
        there = jax.devices(options.jax_platform)
    except RuntimeError as e:
        raise DeviceError(f"device: tpu: JAX cannot open its platform {options.jax_platform!r}: {e}") from e
    if max(place.devices) >= len(there):
        why = "" if not on_host else ", because it was started with so many: use another process"
        raise DeviceError(f"device: tpu: {want} devices are asked for, and JAX sees {len(there)}{why}")
    kind = there[0].device_kind
    if options.kind and KINDS[options.kind].device_kind != kind:
        raise DeviceError(f"device: tpu: kind {options.kind} is asked for, and here is a {kind}: omit it")
    if options.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(options.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # which are kept depends on no clock
    return TpuDevice([there[i] for i in place.devices], options)


def _info(device_kind: str, memory_bytes: int) -> DeviceInfo:
    """By the table, where it knows the generation. As much memory as the device says."""
    known = next((k.info() for k in KINDS.values() if k.device_kind == device_kind), None)
    info = known or DeviceInfo(device_kind, "tpu", 0, 1, ("bfloat16", "float32"), {"jax_platform": "tpu"})
    return replace(info, memory_bytes=memory_bytes)


class TpuDevice(Device):
    """One JAX device, or several that share a model, and programs for them."""

    pads = moves_blocks = True
    bodies_invariant = False

    def __init__(self, devices: Sequence[Any], options: TpuOptions) -> None:
        self._ranks = Ranks(devices)
        self.comm = self._ranks.comm
        self._precompile = options.precompile
        self._on_host = options.jax_platform == "cpu"
        info = on_host(self._ranks.size) if self._on_host else _info(devices[0].device_kind, self.memory().total)
        self.info = replace(info, notes={**info.notes, "jax": jax.__version__})
        self.kernels: Sequence[Kernel] = kernels(options, self._on_host)
        self.attention = attention_backends(options.attention, interpret=self._on_host)

    def memory(self) -> Memory:
        """Of the rank that has least left. On the host, ranks share."""
        stats = [d.memory_stats() for d in self._ranks.devices]
        if all(stats):
            return min((Memory(s["bytes_limit"], s["bytes_limit"] - s["bytes_in_use"]) for s in stats), key=lambda m: m.free)
        total, free = host_memory()
        return Memory(total // self._ranks.size, free // self._ranks.size)

    def memory_used(self) -> int:
        """On the host, a share of the private memory of the process."""
        return process_memory() // self._ranks.size if self._on_host else super().memory_used()

    def put(self, t: Any) -> jax.Array:
        return jax.device_put(to_host(t), self._ranks.whole())

    def put_on(self, t: Any, rank: int) -> jax.Array:
        return jax.device_put(to_host(t), self._ranks.devices[rank])

    def join(self, parts: Sequence[Any]) -> Any:
        return self._ranks.join(parts)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> jax.Array:
        """[blocks, ranks x the first dimension of a block, ...]: a block of all ranks is one piece for the host."""
        first, *rest = layout.shape
        return self._zeros((blocks, self._ranks.size * first, *rest), layout.dtype, self._ranks.shard_along(1))

    def alloc(self, shape: tuple[int, ...], dtype: str) -> jax.Array:
        return self._zeros(shape, dtype, self._ranks.whole())

    def write(self, array: jax.Array, at: int, values: Any) -> jax.Array:
        return jax.device_put(array.at[at].set(jnp.asarray(to_host(values), array.dtype)), array.sharding)

    def _zeros(self, shape: tuple[int, ...], dtype: str, where: Any) -> jax.Array:
        return jnp.zeros(shape, {"int64": "int32"}.get(dtype, dtype), device=where)

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> TpuExecutable:
        return TpuExecutable(step, params, state, shape, features, self._ranks)

    def widen(self, features: Features) -> Features:
        """Sampling costs little more than a greedy choice, and 20 logprobs no more than one: no separate programs."""
        logprobs, score = features.logprobs, features.level(Scores)
        if score > 0:
            features = features.plus(Scores, max(score, LOGPROBS))
        return replace(features, random=True, logprobs=max(logprobs, LOGPROBS) if logprobs > 0 else logprobs)

    def warmup_buckets(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        """On the host, for trials, the smallest of each kind."""
        if self._precompile == "none":
            return ()
        if self._precompile == "all" or (self._precompile == "auto" and not self._on_host):
            return buckets
        first = {s.uniform: s for s in sorted(buckets, key=lambda s: -s.tokens)}
        return [first[k] for k in (False, True) if k in first]

    def export(self, caches: Sequence[jax.Array], blocks: np.ndarray) -> TpuExport:
        index = pad_blocks(blocks)
        return TpuExport([kv[index] for kv in caches], len(blocks))

    def import_(self, caches: Sequence[jax.Array], blocks: np.ndarray, rows: np.ndarray) -> list[jax.Array]:
        index, out, at = pad_blocks(blocks), list[jax.Array](), 0
        for kv in caches:
            n = row_bytes(kv)
            got = np.zeros((len(index), *kv.shape[1:]), kv.dtype)
            got[: len(blocks)] = np.ascontiguousarray(rows[:, at : at + n]).view(kv.dtype).reshape(len(blocks), *kv.shape[1:])
            out.append(jax.device_put(_write_blocks(kv, index, got), kv.sharding))
            at += n
        return out

    def copy_blocks(self, kv: jax.Array, source: np.ndarray, target: np.ndarray) -> jax.Array:
        return jax.device_put(kv.at[jnp.asarray(target)].set(kv[jnp.asarray(source)]), kv.sharding)

    def read_blocks(self, kv: jax.Array, blocks: np.ndarray) -> bytes:
        return np.asarray(kv[jnp.asarray(blocks)]).tobytes()

    def write_blocks(self, kv: jax.Array, blocks: np.ndarray, data: bytes) -> jax.Array:
        got = np.frombuffer(data, kv.dtype).reshape(len(blocks), *kv.shape[1:])
        return jax.device_put(kv.at[jnp.asarray(blocks)].set(got), kv.sharding)

    def synchronize(self) -> None:
        jax.device_put(0, self._ranks.whole()).block_until_ready()


@dataclass(slots=True)
class TpuExport:
    """Blocks of caches that were gathered on the device. The host copies them when they are asked for."""

    parts: list[jax.Array]
    count: int

    def ready(self) -> bool:
        return all(bool(part.is_ready()) for part in self.parts)  # type: ignore[attr-defined]

    def result(self) -> np.ndarray:
        """u8[blocks, bytes]"""
        rows = [np.asarray(part)[: self.count].reshape(self.count, -1).view(np.uint8) for part in self.parts]
        return np.concatenate(rows, axis=1)


def pad_blocks(blocks: np.ndarray) -> np.ndarray:
    """These blocks and the scratch block, up to a power of two: every new length is compiled for."""
    more = (1 << (len(blocks) - 1).bit_length()) - len(blocks)
    return np.concatenate([blocks, np.full(more, SCRATCH, blocks.dtype)])


@partial(jax.jit, donate_argnums=0)
def _write_blocks(kv: jax.Array, index: np.ndarray, got: np.ndarray) -> jax.Array:
    return kv.at[index].set(got)
