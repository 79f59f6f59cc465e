"""The noise of sampling, defined: an integer hash of (seed, position, token id), so a seed means the same on every
device, in every batch and after a restart. This is the definition in numpy, independent of `hal.ops.sample`, which
states the same in the tensor framework. Tests compare the two. Knows no device.

All arithmetic is on 32-bit words and wraps around. `>>>` shifts in zeros. With

    mix(x):   x ^= x >>> 16;  x *= 0x7feb352d;  x ^= x >>> 15;  x *= 0x846ca68b;  x ^= x >>> 16

(the finaliser "lowbias32" of C. Wellons' hash-prospector), the low and high words `lo`, `hi` of the seed, and the
position `p` of the token being sampled (its index in the sequence):

    k0 = mix(mix(mix(lo + 0x9e3779b9) ^ hi) + p)
    k1 = mix(mix(mix(hi + 0x85ebca6b) ^ lo) ^ (p * 0x9e3779b1))
    h(t) = mix(mix(t + k0) ^ k1)                               for token id t
    v(t) = min((h(t) + 0.5) * 2^-32, 1 - 2^-24)                in float32, in (0, 1)
    noise(t) = -log(-log1p(-v(t)))                             a standard Gumbel variable

The token drawn is argmax over t of logits[t] + noise(t), so token t has probability softmax(logits)[t]. Small v give
the large noise that wins. float32 holds small v exactly, so the decisive tail has the full 32 bits of resolution.
"""

from __future__ import annotations

import numpy as np

SALT_LOW, SALT_HIGH, STRIDE = 0x9E3779B9, 0x85EBCA6B, 0x9E3779B1
MULTIPLY = (0x7FEB352D, 0x846CA68B)

HIGHEST = 22.875
"""No noise exceeds it: v >= 2^-33, so noise <= 33 ln 2 = 22.8738..."""
LOWEST = -2.8125
"""No noise is below it: v <= 1 - 2^-24, so noise >= -ln(24 ln 2) = -2.8115..."""


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of the module docstring, on uint32 arrays."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(MULTIPLY[0])
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(MULTIPLY[1])
    mixed: np.ndarray = x ^ (x >> np.uint32(16))
    return mixed


def hashes(seed: np.ndarray, position: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """h: seed i32[S, 2], position i32[S], token ids i32[N] -> uint32[S, N]."""
    lo, hi = np.asarray(seed, np.int32).view(np.uint32).T
    p, t = np.asarray(position, np.int32).view(np.uint32), np.asarray(tokens, np.int32).view(np.uint32)
    with np.errstate(over="ignore"):
        k0 = mix(mix(mix(lo + np.uint32(SALT_LOW)) ^ hi) + p)
        k1 = mix(mix(mix(hi + np.uint32(SALT_HIGH)) ^ lo) ^ (p * np.uint32(STRIDE)))
        return mix(mix(t[None, :] + k0[:, None]) ^ k1[:, None])


def noise(seed: np.ndarray, position: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Gumbel noise: seed i32[S, 2], position i32[S], token ids i32[N] -> f32[S, N]."""
    h = hashes(seed, position, tokens)
    v = np.minimum((h.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    gumbel: np.ndarray = -np.log(-np.log1p(-v))
    return gumbel


def gaussians(seed: np.ndarray, stream: int, count: int) -> np.ndarray:
    """Standard normal variables by Box and Muller's transform of two hashes each: seed i32[1, 2] -> f32[count]. Streams of a
    seed are independent."""
    h = hashes(seed, np.array([stream], np.int32), np.arange(2 * count, dtype=np.int32))[0].astype(np.float64)
    u, v = ((h + 0.5) * 2.0**-32).reshape(2, count)
    drawn: np.ndarray = (np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)).astype(np.float32)
    return drawn
