"""Products of two narrow matrices of the checkpoint, added to a projection whose matrix several layers share (Zamba 2)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """up(down(x)), for each part of the projection or for all of its parts at once."""

    rank: int
    name: str
    """Of the list of pairs; {}: the part. Without it, all parts have one pair."""
    index: int
    """Of this layer's pair in the list."""

    def weights(self, at: str, parts: dict[str, int], inputs: int, heads: tuple[int, ...] = ()) -> Weights:
        """parts: outputs of each part of the projection. heads: as in `Source`."""
        pairs = {part: f"{at}{self.name.format(part)}.{self.index}" for part in parts}
        if "{}" not in self.name:
            pair = pairs[next(iter(parts))]
            fused = linear({f"{pair}.{part}": n for part, n in parts.items()}, self.rank, shard=0, fused=f"{pair}.1")
            return {"down": linear({f"{pair}.0": self.rank}, inputs, shard=None), "up": {0: fused}}
        down = linear({f"{pair}.0": self.rank for pair in pairs.values()}, inputs, shard=None)
        of = heads or (0,) * len(parts)
        up = {
            i: linear({f"{pairs[part]}.1": n}, self.rank, shard=0, heads=(of[i],)) for i, (part, n) in enumerate(parts.items())
        }
        return {"down": down, "up": up}
