"""The gated memory unit of SambaY (Ren et al. 2025, https://arxiv.org/abs/2507.06607)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMemory:
    """out(memory * silu(gate(x))), where memory is the scan of an earlier layer (`Mamba.remembered`)."""

    inner: int
    bias: bool = False
    name: str = "mixer"

    @property
    def width(self) -> int:
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        return {
            "gate": linear({f"{at}in_proj": self.inner}, hidden, shard=0, bias=self.bias),
            "out": linear({f"{at}out_proj": hidden}, self.inner, shard=1, bias=self.bias),
        }
