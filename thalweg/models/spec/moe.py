"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from thalweg.models.spec.deep_router import DeepRouter
from thalweg.models.spec.mlp import MLP, UngatedMLP
from thalweg.models.spec.norm import Norm, ScaledNorm
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, matrices, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """A mixture of gated MLPs: every token goes to `top_k` of the experts (`ops.route`, `ops.experts`)."""

    experts: int
    top_k: int
    inner: int
    """Of one expert."""
    act: str = "silu"
    gated: bool = True
    """False: experts are down(act(up(x)))."""
    scores: str = "softmax"
    """softmax, sigmoid, sparsemixer (of two experts), as Phi-3.5-MoE was trained, sqrtsoftplus, as DeepSeek V4, or logits:
    the best logits are selected, and weights are their sigmoids."""
    table: str = ""
    """The tensor [vocabulary, top_k] with the experts of each token id; "" = the router selects them. Requires sqrtsoftplus."""
    table_rows: int = 0
    """Of that tensor."""
    jitter: float = 0.0
    """Of the sparsemixer."""
    renormalise: bool = False
    """Weights of the chosen experts sum to one."""
    scale: float = 1.0
    shared: MLP | UngatedMLP | None = None
    """The shared expert. Its name is relative to this part's."""
    shared_gate: str = ""
    """The matrix of one output; its sigmoid multiplies the output of `shared`; "" = none."""
    average: bool = False
    """Half of the sum of the outputs of the experts and `shared`, rather than the sum."""
    name: str = "mlp"
    """"" = its tensors are the layer's own."""
    router: str = "gate"
    deep_router: DeepRouter | None = None
    """Instead of a matrix."""
    router_turned: bool = False
    """The router is stored [hidden, experts]."""
    router_bias: bool = False
    correction: str = ""
    """The tensor of a number per expert, added to its score where experts are chosen and not to its share; "" = none."""
    correction_rows: int = 0
    """Rows of that tensor; 0 = it has one dimension."""
    correction_row: int | None = None
    """Which of these rows it is. None: there is one."""
    groups: int = 1
    """Groups of experts, of which the best `top_groups` count."""
    top_groups: int = 1
    group_best: int = 2
    """A group counts as much as so many of its best experts together: one, or two."""
    expert: str = "experts.{}"
    """{}: the expert's index."""
    first_expert: int = 0
    """The index of the first one."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: tuple[str, ...] | None = None
    """Tensors that hold gate and up, and down, of all experts in checkpoints that do not have one each. Of three each holds one
    part."""
    turned: bool = False
    """These are [experts, inputs, outputs]."""
    stacked: bool = False
    """Such tensors, one for each part, are [experts * inner, inputs], and that of down is transposed."""
    alternate: bool = False
    """Rows of gate and up alternate there; False: first all of gate."""
    latent: int = 0
    """Size of the projection before the experts; their sum is projected back. 0 = experts see the token."""
    latent_bias: bool = False
    latents: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")
    """The names of these projections."""
    biases: tuple[str, str] | None = None
    """Tensors that hold the biases of gate and up, in the order of their rows, and of down, of all experts."""
    sum_bias: str = ""
    """The tensor [hidden] that is added to the experts' sum; "" = none."""
    inward: bool = False
    """An expert's weight multiplies its input, not its output."""
    router_norm: Norm | None = None
    """Of the router's input."""
    logit_scale: float = 1.0
    """Of the router's output."""
    expert_scale: str = ""
    """The tensor of a factor per expert, of its weights once they are settled; "" = none."""
    entry: Norm | None = None
    """Of the experts' input, but not the router's."""
    latent_norm: Norm | None = None
    """Of the projected input."""
    sum_norm: Norm | None = None
    """Of the sum of the experts' outputs, before it is projected back."""
    result_norm: ScaledNorm | None = None
    """Of each expert's output, before its weight. All experts share it."""
    cut: float = 0.0
    clamp: float = 0.0
    """Both as in `MLP`, of each expert."""
    zero: int = 0
    """Additional zero-computation experts (identity). They are the router's last outputs, and have no matrices."""
    capacity: int = 0
    """Tokens of a sequence that an expert accepts, the first ones; it adds 0 to later ones. Requires one expert for each
    token, and whole sequences in a step (an encoder). 0 = no limit."""
    placed: bool = False
    """Ranks hold some experts whole, rather than a share of each. Set by `place_experts`."""

    def __post_init__(self) -> None:
        if not self.gated and (self.biases or (self.fused and not self.stacked)):
            raise ValueError("MoE: experts without gates have no biases, and are in one tensor only if they are stacked")
        if (self.table and self.scores != "sqrtsoftplus") or bool(self.table) != (self.table_rows > 0):
            raise ValueError("MoE: a table has rows, and requires sqrtsoftplus")
        if self.result_norm is not None and (self.biases or self.inward):
            raise ValueError("MoE: a norm of results requires experts without biases, with weights of their outputs")
        if (self.latent_norm or self.sum_norm) is not None and not self.latent:
            raise ValueError("MoE: there is no projected input to normalise")
        if self.capacity and self.top_k != 1:
            raise ValueError("MoE: a capacity requires one expert for each token")
        if self.deep_router is not None and (self.top_k != 1 or self.zero or self.correction or self.groups > 1):
            raise ValueError("MoE: a router with layers selects one expert among all of them")
        if self.clamp and (self.act != "silu" or not self.gated or self.cut):
            raise ValueError("MoE: clamp requires silu and gates, and excludes cut")
        if self.cut and (self.act != "silu" or not self.gated):
            raise ValueError("MoE: cut requires silu and gates")
        if self.zero and (self.biases or self.inward or self.latent or self.entry or self.scores == "sparsemixer"):
            raise ValueError("MoE: zero-computation experts require plain ones without biases, inward, latent or entry")

    @property
    def norms(self) -> dict[str, Norm | ScaledNorm | None]:
        return {
            "router_norm": self.router_norm, "entry": self.entry, "latent_norm": self.latent_norm,
            "sum_norm": self.sum_norm, "result_norm": self.result_norm,
        }  # fmt: skip

    @property
    def width(self) -> int:
        return self.inner * self.top_k + (self.shared.inner if self.shared else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}." if self.name else at
        each = [at + self.expert.format(self.first_expert + e) for e in range(self.experts)]
        gates = {f"{e}.{part}": self.inner for e in each for part in ((self.gate, self.up) if self.gated else (self.up,))}
        seen = self.latent or hidden
        more: dict[str, Any] = {} if self.shared is None else {"shared": self.shared.weights(at, hidden)}
        if self.shared_gate:
            more["shared_gate"] = {"weight": Weight((Source(f"{at}{self.shared_gate}.weight", (1, hidden)),))}
        if self.correction:
            scored = self.experts + self.zero
            shape = (self.correction_rows, scored) if self.correction_rows else (scored,)
            bias = Source(f"{at}{self.correction}", shape)
            if (row := self.correction_row) is not None:
                bias = Source(f"{bias.name}.{row}", (scored,), within=TensorView(bias.name, shape, at=row))
            more["correction"] = {"bias": Weight((bias,), fill="zeros", dtype="float32")}
        if self.table:
            more["table"] = {
                "ids": Weight((Source(f"{at}{self.table}", (self.table_rows, self.top_k)),), fill="zeros", dtype="int64")
            }
        if self.latent:
            for key, name, shape in zip(("enter", "leave"), self.latents, ((seen, hidden), (hidden, seen)), strict=True):
                more[key] = {"weight": Weight((Source(f"{at}{name}.weight", shape),), role="linear")}
                if self.latent_bias:
                    more[key]["bias"] = vector(f"{at}{name}.bias", shape[0])
        if self.expert_scale:
            more["expert_scale"] = {"weight": vector(f"{at}{self.expert_scale}", self.experts, fill="ones")}
        if self.sum_bias:
            more["sum_bias"] = {"bias": vector(f"{at}{self.sum_bias}", hidden)}
        for key, norm in self.norms.items():
            if norm is not None:
                more[key] = norm.weights(at)
        if self.router_bias:
            more["router_bias"] = {"bias": vector(f"{at}{self.router}.bias", self.experts + self.zero)}
        if self.biases is not None:
            first, second = (
                (f"{at}{name}", (self.experts, n)) for name, n in zip(self.biases, (2 * self.inner, hidden), strict=True)
            )
            rows, step = ((0, 1), 2) if self.alternate else ((0, self.inner), 1)
            more["biases"] = {
                "gate_up": Weight(tuple(
                    Source(f"{each[e]}.{part}.bias", (self.inner,), within=TensorView(*first, e, first=row, step=step))
                    for e in range(self.experts) for row, part in zip(rows, (self.gate, self.up), strict=True)
                ), 0),
                "down": Weight(tuple(
                    Source(f"{each[e]}.{self.down}.bias", (hidden,), within=TensorView(*second, e)) for e in range(self.experts)
                )),
            }  # fmt: skip
        if self.placed and "biases" in more:
            more["biases"]["gate_up"] = self._place(more["biases"]["gate_up"])
        return {
            "router": (
                {"weight": Weight((self._router_source(at, hidden),))}
                if self.deep_router is None
                else self.deep_router.weights(at, hidden, self.experts)
            ),
            "gate_up": {
                "weight": self._place(
                    self._view_fused(at, matrices(gates, seen, shard=0, role="experts"), 0, 2 * self.inner, seen)
                )
            },
            "down": {
                "weight": self._place(
                    self._view_fused(
                        at,
                        matrices({f"{e}.{self.down}": seen for e in each}, self.inner, shard=1, role="experts"),
                        1,
                        seen,
                        self.inner,
                    )
                )
            },
            **more,
        }

    def _router_source(self, at: str, hidden: int) -> Source:
        name, outputs = f"{at}{self.router}.weight", self.experts + self.zero
        view = TensorView(name, (hidden, outputs), turned=True)
        return (
            Source(f"{name}.turned", (outputs, hidden), within=view) if self.router_turned else Source(name, (outputs, hidden))
        )

    def _place(self, weight: Weight) -> Weight:
        return replace(weight, shard=None, experts=self.experts) if self.placed else weight

    def _view_fused(self, at: str, weight: Weight, which: int, outputs: int, inputs: int) -> Weight:
        """outputs, inputs: of an expert's matrix in the fused tensor, each of which holds two of the sources, or one."""
        if self.fused is None:
            return weight
        if len(self.fused) == 3 or self.stacked:
            names = self.fused[:-1] if which == 0 else self.fused[-1:]
            if self.stacked:
                stored = (self.experts * self.inner, inputs if which == 0 else outputs)
                return attach_views(weight, [
                    TensorView(f"{at}{name}", stored, e, which == 1, parts=self.experts)
                    for e in range(self.experts) for name in names
                ])  # fmt: skip
            shape = (self.experts, outputs // len(names), inputs)
            return attach_views(weight, [TensorView(f"{at}{name}", shape, e) for e in range(self.experts) for name in names])
        shape = (self.experts, inputs, outputs) if self.turned else (self.experts, outputs, inputs)
        parts = len(weight.sources) // self.experts
        rows, step = (1, parts) if self.alternate else (outputs // parts, 1)
        return attach_views(weight, [
            TensorView(f"{at}{self.fused[which]}", shape, e, self.turned, part * rows, step)
            for e in range(self.experts) for part in range(parts)
        ])  # fmt: skip
