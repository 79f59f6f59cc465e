"""Conformer layers of one clip, with torch's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts, Parts


class ConformerLayers:
    """All layers of an encoder, which are alike. Parameters are passed."""

    def __init__(self, s: spec.ConformerLayer, parts: BoundParts) -> None:
        """parts: with the layers under /layers."""
        self.spec, self._parts = s, parts

    def read_places(self, x: Array) -> Any:
        """What each layer reads of the places of x [T, hidden]."""
        s, n = self.spec, len(x)
        if s.places == "relative":
            return relative_places(n, s.hidden, x)
        if s.places == "key":
            place = torch.arange(n, device=x.device)
            before, after = s.reach
            return (place - place[:, None]).clamp(-before, after) + before
        if s.places == "none":
            return None
        table = cos_sin_table({"rope_type": "default", "rope_theta": s.base}, s.hidden // s.heads, n, n).to(x.device)
        cos, sin = table.chunk(2, -1)
        return torch.cat((cos, cos), -1)[:, None].to(x.dtype), torch.cat((sin, sin), -1)[:, None].to(x.dtype)

    def run(self, i: int, p: Parts, x: Array, places: Any) -> Array:
        """Layer i: [T, hidden] -> the same."""
        at, s = f"/layers/{i}", self.spec
        x = s.half[0] * x + s.half[1] * self._feed_forward(f"{at}/ff1", p["ff1"], x)
        x = x + self._attend(f"{at}/attn", p["attn"], x, places)
        x = s.conv[0] * x + s.conv[1] * self._convolve(f"{at}/conv", p["conv"], x)
        x = s.half[0] * x + s.half[1] * self._feed_forward(f"{at}/ff2", p["ff2"], x)
        return self._parts.norm(f"{at}/norm", p["norm"], x)

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        return self._parts.linear(f"{at}/down", p["down"], activate_clip(x, self.spec.act))

    def _attend(self, at: str, p: Parts, x: Array, places: Any) -> Array:
        s, n = self.spec, len(x)
        heads, size = s.heads, s.hidden // s.heads
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        if s.places == "rotary input":
            turned = rotate_halves(x.view(n, heads, size), *places).reshape(n, -1)
            q, k = self._parts.linear(f"{at}/qk", p["qk"], turned).view(n, 2, heads, size).unbind(1)
            v = self._parts.linear(f"{at}/v", p["v"], x).view(n, heads, size)
        else:
            q, k, v = self._parts.linear(f"{at}/qkv", p["qkv"], x).view(n, 3, heads, size).unbind(1)
        bias = None
        if s.places == "rotary":
            q, k = rotate_halves(q, *places), rotate_halves(k, *places)
        elif s.places == "relative":
            q, bias = self._score_distances(at, p, q, places)
        elif s.places == "key":
            bias = torch.einsum("ihd,ijd->hij", q, p["distance"][places]) * size**-0.5
        if s.chunk:
            chunk = torch.arange(n, device=x.device) // s.chunk
            before = chunk[:, None] - chunk
            hidden = ((before < 0) | (before > s.chunks))[None]
            bias = (
                q.new_zeros(1, n, n).masked_fill(hidden, -torch.inf) if bias is None else bias.masked_fill(hidden, -torch.inf)
            )
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, None if bias is None else bias[None])
        return self._parts.linear(f"{at}/out", p["out"], y[0].transpose(0, 1).reshape(n, heads * size))

    def _score_distances(self, at: str, p: Parts, q: Array, places: Array) -> tuple[Array, Array]:
        """Scores are (q + content) k + (q + place) r, with r of the distance from query to key. (the first factor, the second
        summand [heads, n, n])."""
        n, heads, size = q.shape
        far = self._parts.linear(f"{at}/far", p["far"], places).view(2 * n - 1, heads, size)
        scores = ((q + p["place"]).transpose(0, 1) @ far.permute(1, 2, 0)).contiguous() * size**-0.5
        # Of [heads, n, 2 * n - 1], row i has the distance to key j in column n - 1 - i + j.
        step = 2 * n - 1
        return q + p["content"], scores.as_strided((heads, n, n), (n * step, step - 1, 1), n - 1).contiguous()

    def _convolve(self, at: str, p: Parts, x: Array) -> Array:
        s, depth = self.spec, p["depth"]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        x = functional.glu(self._parts.linear(f"{at}/up", p["up"], x), -1).T
        before = s.kernel - 1 if s.causal else (s.kernel - 1) // 2
        x = functional.pad(x, (before, s.kernel - 1 - before))
        x = functional.conv1d(x[None], depth["kernel"], depth.get("bias"), groups=s.hidden)
        if s.conv_norm == "batch":
            batch = p["batch"]
            x = functional.batch_norm(x, batch["mean"], batch["var"], batch["weight"], batch["bias"])[0].T
        else:
            x = self._parts.norm(f"{at}/layer", p["layer"], x[0].T.contiguous())
        return self._parts.linear(f"{at}/down", p["down"], activate_clip(x, s.act).contiguous())


def relative_places(n: int, hidden: int, x: Array) -> Array:
    """Sines and cosines, alternating, of the distances n - 1 to 1 - n: [2 * n - 1, hidden], as x."""
    every = 10000.0 ** -(torch.arange(0, hidden, 2, dtype=torch.float32, device=x.device) / hidden)
    angle = torch.arange(n - 1, -n, -1, dtype=torch.float32, device=x.device)[:, None] * every
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(x.dtype)


def rotate_halves(x: Array, cos: Array, sin: Array) -> Array:
    """x [T, heads, size], cos and sin [T, 1, size]."""
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin
