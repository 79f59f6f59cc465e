"""The TPU device: JAX arrays, one mesh of devices that share a model, programs in place of eager steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from thalweg.backends.host import cores, cpu_name, host_memory
from thalweg.backends.tpu import TpuOptions
from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.attention import backends as attention_backends
from thalweg.backends.tpu.program import AXIS, Executable
from thalweg.errors import DeviceError
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.platform import Device, DeviceInfo, Memory, Place
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape

KERNELS: tuple[Kernel, ...] = ()


def open_device(place: Place, options: TpuOptions) -> TpuDevice:
    """DeviceError if JAX cannot reach that many devices of the platform asked for."""
    if not jax._src.xla_bridge.backends_are_initialized():  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", options.jax_platform)
        if options.jax_platform == "cpu" and options.devices > 1:
            jax.config.update("jax_num_cpu_devices", options.devices)
    try:
        there = jax.devices(options.jax_platform)
    except RuntimeError as e:
        raise DeviceError(f"device: tpu: JAX cannot open its platform {options.jax_platform!r}: {e}") from e
    wanted = range(options.devices) if options.devices > 1 else place.devices
    if max(wanted) >= len(there):
        raise DeviceError(f"device: tpu: asked for {max(wanted) + 1} devices, and JAX sees {len(there)}; set devices lower")
    if options.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(options.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return TpuDevice([there[i] for i in wanted], options)


class TpuDevice(Device):
    """`ranks` devices hold a model together; one is the usual case."""

    kernels: Sequence[Kernel] = KERNELS
    pads = True
    bodies_invariant = False

    def __init__(self, devices: Sequence[Any], options: TpuOptions) -> None:
        self._devices = list(devices)
        self._mesh = Mesh(np.array(self._devices), (AXIS,))
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        on_host = options.jax_platform == "cpu"
        self.info = DeviceInfo(
            name=f"JAX on {cpu_name()}" if on_host else devices[0].device_kind,
            kind="tpu",
            memory_bytes=self.memory().total,
            cores=cores() if on_host else len(self._devices),
            dtypes=("float32", "bfloat16") if on_host else ("bfloat16", "float32"),
            notes={"jax": jax.__version__, "jax_platform": options.jax_platform, "devices": str(len(self._devices))},
        )
        self.attention = attention_backends(options.attention, interpret=on_host)

    def memory(self) -> Memory:
        """Of the device that has least left."""
        stats = [d.memory_stats() for d in self._devices]
        if any(not s for s in stats):
            return Memory(*host_memory())
        return min((Memory(s["bytes_limit"], s["bytes_limit"] - s["bytes_in_use"]) for s in stats), key=lambda m: m.free)

    def put(self, t: Any) -> jax.Array:
        return jax.device_put(to_host(t), self._everywhere)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> jax.Array:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> jax.Array:
        kind = {"int64": "int32"}.get(dtype, dtype)
        return jax.jit(lambda: jnp.zeros(shape, kind), out_shardings=self._everywhere)()

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        return Executable(step, params, state, shape, features, self._mesh)

    def copy_blocks(self, kv: jax.Array, source: np.ndarray, target: np.ndarray) -> jax.Array:
        return kv.at[jnp.asarray(target)].set(kv[jnp.asarray(source)])

    def read_blocks(self, kv: jax.Array, blocks: np.ndarray) -> bytes:
        return np.asarray(kv[jnp.asarray(blocks)]).tobytes()

    def write_blocks(self, kv: jax.Array, blocks: np.ndarray, data: bytes) -> jax.Array:
        got = np.frombuffer(data, kv.dtype).reshape(len(blocks), *kv.shape[1:])
        return kv.at[jnp.asarray(blocks)].set(got)

    def synchronize(self) -> None:
        for d in self._devices:
            jax.device_put(0, d).block_until_ready()
