"""The TPU device: JAX arrays, one mesh of devices that share a model, programs in place of eager steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.backends.host import cores, cpu_name, host_memory
from thalweg.backends.tpu import TpuOptions
from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.attention import backends as attention_backends
from thalweg.backends.tpu.program import Executable
from thalweg.errors import DeviceError
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.platform import Device, DeviceInfo, Memory, Place
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape

KERNELS: tuple[Kernel, ...] = ()


def open_device(place: Place, options: TpuOptions) -> TpuDevice:
    """DeviceError if JAX cannot reach the device of the platform asked for."""
    if not jax._src.xla_bridge.backends_are_initialized():
        jax.config.update("jax_platforms", options.jax_platform)
    try:
        there = jax.devices(options.jax_platform)
    except RuntimeError as e:
        raise DeviceError(f"device: tpu: JAX cannot open its platform {options.jax_platform!r}: {e}") from e
    index = place.devices[0]
    if index >= len(there):
        raise DeviceError(f"device: tpu: asked for device {index}, and JAX sees {len(there)}")
    if options.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(options.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return TpuDevice(there[index], options)


class TpuDevice(Device):
    """One device of JAX's, and programs for it."""

    kernels: Sequence[Kernel] = KERNELS
    pads = True
    bodies_invariant = False

    def __init__(self, device: Any, options: TpuOptions) -> None:
        self._device = device
        on_host = options.jax_platform == "cpu"
        self.info = DeviceInfo(
            name=f"JAX on {cpu_name()}" if on_host else device.device_kind,
            kind="tpu",
            memory_bytes=self.memory().total,
            cores=cores() if on_host else 1,
            dtypes=("float32", "bfloat16") if on_host else ("bfloat16", "float32"),
            notes={"jax": jax.__version__, "jax_platform": options.jax_platform},
        )
        self.attention = attention_backends(options.attention, interpret=on_host)

    def memory(self) -> Memory:
        stats = self._device.memory_stats()
        return Memory(stats["bytes_limit"], stats["bytes_limit"] - stats["bytes_in_use"]) if stats else Memory(*host_memory())

    def put(self, t: Any) -> jax.Array:
        return jax.device_put(to_host(t), self._device)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> jax.Array:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> jax.Array:
        kind = {"int64": "int32"}.get(dtype, dtype)
        with jax.default_device(self._device):
            return jnp.zeros(shape, kind)

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        return Executable(step, params, state, shape, features, self._device)

    def copy_blocks(self, kv: jax.Array, source: np.ndarray, target: np.ndarray) -> jax.Array:
        return kv.at[jnp.asarray(target)].set(kv[jnp.asarray(source)])

    def read_blocks(self, kv: jax.Array, blocks: np.ndarray) -> bytes:
        return np.asarray(kv[jnp.asarray(blocks)]).tobytes()

    def write_blocks(self, kv: jax.Array, blocks: np.ndarray, data: bytes) -> jax.Array:
        got = np.frombuffer(data, kv.dtype).reshape(len(blocks), *kv.shape[1:])
        return kv.at[jnp.asarray(blocks)].set(got)

    def synchronize(self) -> None:
        jax.device_put(0, self._device).block_until_ready()
