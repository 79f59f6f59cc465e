"""What a model is, declared: a list of layers, what lies around them, and the tensors each part is made of.

A family (`families/`) turns a configuration into a `ModelSpec`; `decoder` assembles layers by the kinds named here, and
`sizes` counts bytes by walking the same declarations. Loads no tensor framework, so that memory can be planned, and a
configuration refused, before anything heavy is loaded.

Names of tensors are those of the checkpoint: each part names its own, relative to what it is a part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.tail import Pooling
from thalweg.models.weights import Source, View, Weight, Weights, linear, matrices, stacked, vector, viewed

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""What `layers.rotary` computes."""


def rope_type(parameters: Mapping[str, Any], dim: int) -> str:
    """UnsupportedModelError if this version lacks it, CheckpointError if dim is odd."""
    kind = parameters["rope_type"]
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"config.json: rope_type: {kind!r:.80} is not supported; this version has {', '.join(ROPE_TYPES)}"
        )
    if dim % 2:
        raise CheckpointError(f"config.json: head_dim: rotary positions need an even number, not {dim}")
    return str(kind)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over the last `size` values (`ops.rms_norm`)."""

    name: str
    size: int
    eps: float
    offset: float = 0.0
    """Added to the weight; the product with it is then taken in float32 (Gemma: 1)."""

    def weights(self, at: str) -> Weights:
        return {"weight": vector(f"{at}{self.name}.weight", self.size, fill="zeros" if self.offset else "ones")}


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer normalisation over the last `size` values (`ops.layer_norm`)."""

    name: str
    size: int
    eps: float
    bias: bool = True
    weight: bool = True
    offset: float = 0.0
    """Added to the weight (Nemotron: 1)."""

    def __post_init__(self) -> None:
        if self.bias and not self.weight:
            raise ValueError("LayerNorm: this version has no norm with a bias and no weight")

    def weights(self, at: str) -> Weights:
        at = f"{at}{self.name}"
        made = {"weight": vector(f"{at}.weight", self.size, fill="zeros" if self.offset else "ones")} if self.weight else {}
        return made | ({"bias": vector(f"{at}.bias", self.size, fill="zeros")} if self.bias else {})


AnyNorm = Norm | LayerNorm


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (`ops.rope`)."""

    parameters: Mapping[str, Any]
    """As `checkpoint.config.rope_parameters` gives them."""
    dim: int
    """Values of a head that turn, from its first."""
    trained: int
    """max_position_embeddings."""
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of q and k."""

    eps: float
    offset: float = 0.0
    after: bool = False
    """After rotation, not before it."""
    whole: bool = False
    """Over all heads at once, not each head's own. Its sum crosses ranks, so such a model runs on one."""
    q: str = "q_norm"
    k: str = "k_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self-attention with grouped queries."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    """None: positions are not told."""
    window: int = 0
    """Tokens a token sees, itself included; 0 = all before it."""
    causal: bool = True
    """False: a token sees its whole sequence, which must be in one step; keys and values are not kept (an encoder)."""
    scale: float = 0.0
    """Of the scores; 0 = head_dim ** -0.5."""
    softcap: float = 0.0
    norm: HeadNorm | None = None
    bias: bool = False
    """Of q, k and v."""
    out_bias: bool = False
    gated: bool = False
    """The projection of q gives each head's q, then as many values whose sigmoids its output is multiplied by."""
    name: str = "self_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    fused: str = ""
    """The tensor that holds q, k and v, one after the other; "" = one tensor each."""
    grouped: bool = False
    """The fused tensor holds of each head of keys in turn its heads of q, its k and its v."""
    out: str = "o_proj"
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""
    sinks: str = ""
    """The tensor of a logit per head that joins the softmax's denominator; "" = none."""
    grows: tuple[float, int] | None = None
    """(beta, n): q at position p is multiplied by 1 + beta * log(1 + floor(p / n))."""

    def __post_init__(self) -> None:
        if self.grouped and (self.gated or not self.fused):
            raise ValueError("Attention: heads are grouped in a fused tensor, and without gates")
        if self.norm is not None and self.norm.after and self.norm.whole:
            raise ValueError("Attention: this version has no norm over all heads after rotation")
        if self.window and not self.causal:
            raise ValueError("Attention: this version has no windows of tokens that see both ways")

    @property
    def widths(self) -> tuple[int, int, int]:
        """Heads, heads of keys and values, values of a head: what a step's temporaries are counted by."""
        return self.heads, self.kv_heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """What the attention backend is asked for, on one of `ranks`, where no sequence is longer than max_len: a window
        that no sequence outgrows hides nothing."""
        if not self.causal:
            return AttnSpec(
                heads=self.heads // ranks, kv_heads=self.kv_heads // ranks, head_dim=self.head_dim,
                scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind="encoder", softcap=self.softcap,
            )  # fmt: skip
        window = self.window if self.window < max_len else 0
        return AttnSpec(
            heads=self.heads // ranks, kv_heads=self.kv_heads // ranks, head_dim=self.head_dim,
            scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind="window" if window else "full", window=window,
            softcap=self.softcap, kv_dtype=kv_dtype, sinks=bool(self.sinks),
        )  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, d = f"{at}{self.name}.", self.head_dim
        outputs = (self.heads * d * (2 if self.gated else 1), self.kv_heads * d, self.kv_heads * d)
        parts, fused = {f"{at}{part}": n for part, n in zip(self.parts, outputs, strict=True)}, ""
        if self.grouped:
            parts = {f"{at}{self.fused}": sum(outputs)}
        elif self.fused:
            fused = f"{at}{self.fused}"
        made: dict[str, Any] = {
            "qkv": linear(parts, hidden, shard=0, bias=self.bias, fused=fused, turned=self.turned),
            "out": linear({f"{at}{self.out}": hidden}, self.heads * d, shard=1, bias=self.out_bias, turned=self.turned),
        }
        if self.norm is not None:
            widths = (self.heads * d, self.kv_heads * d) if self.norm.whole else (d, d)
            for key, name, size in zip(("q_norm", "k_norm"), (self.norm.q, self.norm.k), widths, strict=True):
                made[key] = Norm(name, size, self.norm.eps, self.norm.offset).weights(at)
        if self.sinks:
            made["sinks"] = vector(f"{at}{self.sinks}", self.heads, shard=0)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """A gated delta net: q, k and v through short convolutions, then a recurrence (`ops.delta_rule`) whose state is all that is
    kept of a sequence. Its heads are normed and multiplied by silu of a gate, z."""

    key_heads: int
    """Of q and of k; each serves value_heads / key_heads heads of the recurrence."""
    value_heads: int
    key_dim: int
    """Of one head."""
    value_dim: int
    kernel: int
    """Tokens a convolution sees, its own included."""
    eps: float
    act: str = "silu"
    """After the convolutions."""
    grouped: bool = False
    """Two tensors: of each key head in turn its q and k and its value heads' v and z; of each its value heads' b and a. False:
    four, q, k and v in one and z, b and a."""
    name: str = "linear_attn"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(f"DeltaNet: {self.value_heads} heads do not share {self.key_heads} queries and keys evenly")
        if self.kernel < 2:
            raise ValueError(f"DeltaNet: a convolution over {self.kernel} tokens is none")

    @property
    def parts(self) -> tuple[int, int, int]:
        """Values of a token's q, k and v."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        """As attention's: q, k, v and z, in heads of v."""
        q, k, v = self.parts
        return self.value_heads, -(-(q + k + v) // (2 * self.value_dim)), self.value_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolutions, and a matrix for each head."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, sum(self.parts) // ranks), dtype),
            state_part("delta", (self.value_heads // ranks, self.key_dim, self.value_dim), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, heads, (q, k, v) = f"{at}{self.name}.", self.value_heads, self.parts
        projected = (
            (Source(f"{at}in_proj_qkvz.weight", (q + k + 2 * v, hidden)), Source(f"{at}in_proj_ba.weight", (2 * heads, hidden)))
            if self.grouped
            else (
                *stacked(f"{at}in_proj_qkv.weight", self.parts, hidden),
                *(Source(f"{at}in_proj_{p}.weight", (n, hidden)) for p, n in (("z", v), ("b", heads), ("a", heads))),
            )
        )
        return {
            "in": {"weight": Weight(projected, 0, "linear")},
            "conv": {"weight": Weight(stacked(f"{at}conv1d.weight", self.parts, 1, self.kernel), 0)},
            "rate": {
                "log": vector(f"{at}A_log", heads, shard=0, dtype="float32"),
                "bias": vector(f"{at}dt_bias", heads, shard=0, fill="ones", dtype="float32"),
            },
            "norm": Norm("norm", self.value_dim, self.eps).weights(at),
            "out": linear({f"{at}out_proj": hidden}, v, shard=1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP:
    """down(act(gate(x)) * up(x))."""

    inner: int
    act: str = "silu"
    """As `ops.act_and_mul` names it."""
    bias: bool = False
    name: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: str = ""
    """The tensor that holds gate and up; "" = one tensor each."""

    @property
    def width(self) -> int:
        """Inner values that one token's step holds."""
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        parts = {f"{at}{self.gate}": self.inner, f"{at}{self.up}": self.inner}
        return {
            "gate_up": linear(parts, hidden, shard=0, bias=self.bias, fused=f"{at}{self.fused}" if self.fused else ""),
            "down": linear({f"{at}{self.down}": hidden}, self.inner, shard=1, bias=self.bias),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatedMLP:
    """down(act(up(x)))."""

    inner: int
    act: str = "gelu"
    """As `ops.activation` names it."""
    bias: bool = False
    name: str = "mlp"
    """"" = its matrices are the layer's own."""
    up: str = "fc1"
    down: str = "fc2"
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""

    @property
    def width(self) -> int:
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}." if self.name else at
        return {
            "up": linear({f"{at}{self.up}": self.inner}, hidden, shard=0, bias=self.bias, turned=self.turned),
            "down": linear({f"{at}{self.down}": hidden}, self.inner, shard=1, bias=self.bias, turned=self.turned),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """A mixture of gated MLPs: every token goes to `top_k` of the experts (`ops.route`, `ops.experts`)."""

    experts: int
    top_k: int
    inner: int
    """Of one expert."""
    act: str = "silu"
    scores: str = "softmax"
    renormalise: bool = False
    """Weights of the chosen experts sum to one."""
    scale: float = 1.0
    shared: MLP | None = None
    """What every token goes to as well. Its name is relative to this part's."""
    shared_gate: str = ""
    """The matrix of one output whose sigmoid multiplies what `shared` gives; "" = none."""
    name: str = "mlp"
    router: str = "gate"
    router_bias: bool = False
    correction: str = ""
    """The tensor of a number per expert, added to its score where experts are chosen and not to its share; "" = none."""
    correction_rows: int = 0
    """Rows of that tensor; 0 = it has one dimension."""
    groups: int = 1
    """Groups of experts, of which the best `top_groups` count."""
    top_groups: int = 1
    expert: str = "experts.{}"
    """{}: the expert's index."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: tuple[str, str] | None = None
    """Tensors that hold gate and up, and down, of all experts in checkpoints that do not have one each."""
    turned: bool = False
    """These are [experts, inputs, outputs], and rows of gate and up alternate."""
    biases: tuple[str, str] | None = None
    """Tensors that hold the biases of gate and up, which alternate, and of down, of all experts."""

    @property
    def width(self) -> int:
        return self.inner * self.top_k + (self.shared.inner if self.shared else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        each = [at + self.expert.format(e) for e in range(self.experts)]
        gates = {f"{e}.{part}": self.inner for e in each for part in (self.gate, self.up)}
        more: dict[str, Weights] = {} if self.shared is None else {"shared": self.shared.weights(at, hidden)}
        if self.shared_gate:
            more["shared_gate"] = {"weight": Weight((Source(f"{at}{self.shared_gate}.weight", (1, hidden)),))}
        if self.correction:
            shape = (self.correction_rows, self.experts) if self.correction_rows else (self.experts,)
            more["correction"] = {"bias": Weight((Source(f"{at}{self.correction}", shape),), fill="zeros", dtype="float32")}
        if self.router_bias:
            more["router_bias"] = {"bias": vector(f"{at}{self.router}.bias", self.experts)}
        if self.biases is not None:
            first, second = (
                (f"{at}{name}", (self.experts, n)) for name, n in zip(self.biases, (2 * self.inner, hidden), strict=True)
            )
            more["biases"] = {
                "gate_up": Weight(tuple(
                    Source(f"{each[e]}.{part}.bias", (self.inner,), within=View(*first, e, first=at_row, step=2))
                    for e in range(self.experts) for at_row, part in enumerate((self.gate, self.up))
                ), 0),
                "down": Weight(tuple(
                    Source(f"{each[e]}.{self.down}.bias", (hidden,), within=View(*second, e)) for e in range(self.experts)
                )),
            }  # fmt: skip
        return {
            "router": {"weight": Weight((Source(f"{at}{self.router}.weight", (self.experts, hidden)),))},
            "gate_up": {
                "weight": self._viewed(at, matrices(gates, hidden, shard=0, role="experts"), 0, 2 * self.inner, hidden)
            },
            "down": {
                "weight": self._viewed(
                    at,
                    matrices({f"{e}.{self.down}": hidden for e in each}, self.inner, shard=1, role="experts"),
                    1,
                    hidden,
                    self.inner,
                )
            },
            **more,
        }

    def _viewed(self, at: str, weight: Weight, which: int, outputs: int, inputs: int) -> Weight:
        """outputs, inputs: of an expert's matrix in the fused tensor, each of which holds two of the sources, or one."""
        if self.fused is None:
            return weight
        shape = (self.experts, inputs, outputs) if self.turned else (self.experts, outputs, inputs)
        parts = len(weight.sources) // self.experts
        rows, step = (1, parts) if self.turned else (outputs // parts, 1)
        return viewed(weight, [
            View(f"{at}{self.fused[which]}", shape, e, self.turned, part * rows, step)
            for e in range(self.experts) for part in range(parts)
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Norms:
    """Where a layer normalises: what enters attention and the feed-forward part, what leaves them before it is added to the
    residual stream, and the sum after that addition, which then is the stream (post-norm). None: not there."""

    mixer: AnyNorm | None = None
    mixer_out: AnyNorm | None = None
    ffn: AnyNorm | None = None
    ffn_out: AnyNorm | None = None
    mixer_sum: AnyNorm | None = None
    ffn_sum: AnyNorm | None = None

    KEYS: ClassVar[tuple[str, ...]] = ("mixer", "mixer_out", "ffn", "ffn_out", "mixer_sum", "ffn_sum")


@dataclass(frozen=True, slots=True)
class Layer:
    """x + mixer(x), then x + ffn(x), normalised as `norms` says."""

    mixer: Attention | DeltaNet
    ffn: MLP | UngatedMLP | MoE
    norms: Norms
    parallel: bool = False
    """Both parts see the same x, and both are added to it. Without a norm of its own the ffn takes the mixer's input."""
    multiplier: float = 1.0
    """Of what both parts add to the residual stream."""

    def __post_init__(self) -> None:
        if self.parallel and (self.norms.mixer_sum or self.norms.ffn_sum):
            raise ValueError("Layer: parallel parts are added once, so there is no sum between them to normalise")

    def weights(self, at: str, hidden: int) -> Weights:
        norms = {k: n.weights(at) for k in Norms.KEYS if (n := getattr(self.norms, k)) is not None}
        return {"norms": norms, "mixer": self.mixer.weights(at, hidden), "ffn": self.ffn.weights(at, hidden)}


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned table, of whose rows one is added to each embedded token."""

    name: str
    rows: int
    by: Literal["position", "type"] = "position"
    """Which row: that of the token's position, or that of its type: of two texts in one sequence, which."""
    first: int = 0
    """By position: the row of position 0. Those before it are of no use here (RoBERTa: its padding's, and one more)."""

    @property
    def positions(self) -> int:
        """Of the longest sequence."""
        return self.rows - self.first

    def weights(self, at: str, hidden: int) -> Weights:
        return {"weight": Weight((Source(f"{at}{self.name}.weight", (self.rows, hidden)),), role="embedding")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a checkpoint's names differ from those that the parts of a spec give."""

    replace: tuple[tuple[str, str], ...] = ()
    """Prefixes and what takes their place; the first that fits. Bare decoders lack the `root`, which is added."""
    inside: tuple[tuple[str, str], ...] = ()
    """Parts of names, anywhere in them, and what takes their place; all of them."""
    skip: tuple[str, ...] = ()
    """Prefixes of tensors that hold nothing of this model, such as another modality's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """An embedding, layers, a last norm, and a tail: an output matrix whose logits are sampled, or pooling."""

    vocab: int
    hidden: int
    layers: tuple[Layer, ...]
    norm: AnyNorm | None
    """Of what the last layer gives."""
    learned: tuple[Learned, ...] = ()
    """Added to embedded tokens."""
    embed_norm: AnyNorm | None = None
    """Of what enters the first layer."""
    pooling: Pooling | None = None
    """None: the tail is the output matrix."""
    tied: bool = False
    """The embedding is also the output matrix."""
    embed_scale: float = 1.0
    """Of embedded tokens, rounded to the model's dtype."""
    logit_scale: float = 1.0
    head_bias: bool = False
    """Of the output matrix."""
    logit_softcap: float = 0.0
    """0 = off; else logits become cap * tanh(logits / cap)."""
    root: str = "model."
    layer: str = "layers.{}."
    embed: str = "embed_tokens"
    head: str = "lm_head"
    names: Names = field(default_factory=Names)

    def weights(self) -> Weights:
        """Every parameter, by the keys that loaded parameters have."""
        table = f"{self.root}{self.embed}"
        shape = {table if self.tied else self.head: self.vocab}
        made: dict[str, Any] = {
            "embed": {"weight": matrices({table: self.vocab}, self.hidden, shard=1, role="embedding")},
            "layers": {i: each.weights(self.root + self.layer.format(i), self.hidden) for i, each in enumerate(self.layers)},
        }
        if self.learned:
            made["learned"] = {i: each.weights(self.root, self.hidden) for i, each in enumerate(self.learned)}
        for key, norm in (("embed_norm", self.embed_norm), ("norm", self.norm)):
            if norm is not None:
                made[key] = norm.weights(self.root)
        if self.pooling is None:
            made["head"] = {"weight": matrices(shape, self.hidden, shard=0, role="tied" if self.tied else "head")}
            if self.head_bias:
                made["head"]["bias"] = vector(f"{self.head}.bias", self.vocab, shard=0)
        elif self.pooling.classes is not None:
            made["classes"] = self.pooling.classes.weights(self.root, self.hidden)
        return made

    @property
    def causal(self) -> bool:
        """Does every token see those before it alone?"""
        return all(not isinstance(each.mixer, Attention) or each.mixer.causal for each in self.layers)

    @property
    def positions(self) -> int | None:
        """Tokens of the longest sequence that learned positions allow; None: the model has none."""
        return min((each.positions for each in self.learned if each.by == "position"), default=None)

    @property
    def types(self) -> int:
        """Types of tokens that are told apart; 1 = none are."""
        return max((each.rows for each in self.learned if each.by == "type"), default=1)

    @property
    def result(self) -> int:
        """Numbers that the tail gives of a sequence: logits, a vector, or one per class."""
        if self.pooling is None:
            return self.vocab
        return self.hidden if self.pooling.classes is None else len(self.pooling.classes.labels)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Each rotary table that some layer reads, once."""
        found: list[Rope] = []
        for each in self.layers:
            if each.mixer.rope is not None and each.mixer.rope not in found:
                found.append(each.mixer.rope)
        return tuple(found)

    def known(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it. None for tensors that hold nothing of their own: rotary tables,
        the output matrix of a model whose embedding serves as one, and what `names` skips."""
        if name.startswith(self.names.skip) or name.endswith("rotary_emb.inv_freq"):
            return None
        for old, new in self.names.replace:
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        for old, new in self.names.inside:
            name = name.replace(old, new)
        if self.tied and name == f"{self.head}.weight":
            return None
        return name if name.startswith((self.root, f"{self.head}.")) else self.root + name
