"""Four of JAX's host devices for every test here: how many there are is settled when JAX is first used."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 4)
# Programs are compiled for one test and run once: what XLA makes faster takes it longer than it saves.
jax.config.update("jax_disable_most_optimizations", True)
