"""Bytes and counts of a model, computed from its spec: there is no other formula. Loads no tensor framework."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from thalweg.errors import ConfigError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import BYTES, CrossSpec, KVLayout, KVSpec, RowsSpec, StateSpec, kept_bytes
from thalweg.hal.platform import StepSizes
from thalweg.hal.weights import DENSE, WeightFormat
from thalweg.models.expert_parallel import moe_of
from thalweg.models.spec import (
    FFN,
    Attention,
    CrossAttention,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    ParallelMoE,
    ShortcutMoE,
    SmoothedFFN,
)
from thalweg.models.weights import HEADS, MULTIPLIED, Weight, experts_of_rank, products, walk
from thalweg.quantization.format import Scheme
from thalweg.quantization.online import CHUNK, DENSE_FORMATS

TEMPORARIES = 40
"""Arrays of float32 that rounding a chunk leaves behind before freed memory is given back, at the most (`models.load`)."""


def parameters(spec: ModelSpec) -> Iterator[Weight]:
    """Every parameter, a tied matrix twice: as the embedding and as the output matrix."""
    return (weight for _, weight in walk(spec.weights()))


def values(weight: Weight) -> int:
    """Elements, undivided."""
    return sum(prod(s.shape) for s in weight.sources)


def stored_values(spec: ModelSpec) -> int:
    """Elements of the checkpoint's tensors: a tied matrix once."""
    weights = (w for w in dict.fromkeys(parameters(spec)) if w.role != "tied")
    return sum(prod(s.shape) for w in weights for s in w.sources if not s.absent)


def head_values(spec: ModelSpec) -> int:
    return spec.vocab * spec.hidden


def unread_values(spec: ModelSpec) -> int:
    """Values of stored tensors of which only some rows are loaded (`ModelSpec.code_rows`)."""
    rows = spec.code_rows
    return 0 if rows is None else spec.hidden * (2 * rows.stored - 2 * (rows.codes + 1) - len(rows.prompt))


def table_bytes(spec: ModelSpec, max_len: int) -> int:
    """Of computed tables, which every rank has whole."""
    slopes = sum(getattr(mixer, "slope_values", 0) for _, mixer in spec.mixers)
    around = sum(getattr(layer.around, "table_bytes", 0) for layer in spec.layers)
    turned = sum(rope.dim // 2 if rope.scaled else max_len * rope.dim for rope in spec.ropes)
    if spec.text is not None:
        turned += sum(spec.text.sources * rope.dim for rope in spec.text.ropes)
    return (turned + slopes) * BYTES["float32"] + around


def held_bytes(
    weight: Weight,
    dtype: str,
    use: Scheme,
    ranks: int = 1,
    share: Callable[[str], float] = lambda dtype: 1.0,
    coded: Callable[[WeightFormat, int, int], int] = WeightFormat.bytes,
) -> int:
    """Bytes of a parameter on one rank: in dtype, or in its format. share: the held fraction of a dense matrix's bytes. coded:
    the bytes of a quantised matrix [outputs, inputs] in a format."""
    total = 0
    for part in products(weight.of_rank(0, ranks), use):
        form = use.of(part.role, part.sources[0].name)
        shapes = [s.shard_shape(weight.shard, ranks) for s in part.sources]
        if form == DENSE:
            kind = weight.dtype or dtype
            total += int(sum(map(prod, shapes)) * BYTES[kind] * share(kind))
        else:
            total += sum(coded(form, shape[0], shape[1]) for shape in shapes) + form.shared_bytes(shapes[0][1])
    return total


def weight_bytes(
    spec: ModelSpec,
    dtype: str,
    max_len: int,
    ranks: int = 1,
    use: Scheme = DENSE_FORMATS,
    packs: Callable[[str, WeightFormat], bool] = lambda dtype, format: False,
    dense_share: Callable[[str], float] = lambda dtype: 1.0,
    coded: Callable[[WeightFormat, int, int], int] = WeightFormat.bytes,
) -> int:
    """Bytes of the weights in memory, on one of the ranks that share them: with the copies packed by kernels (`packs`) and
    computed tables. A tied matrix is counted once where the embedding and the output matrix use the same values: in one format,
    unpacked, on one rank. dense_share: the fraction of a matrix's bytes that kernels hold. coded: as in `held_bytes`."""
    table = f"{spec.root}{spec.embed}.weight"
    form = use.of("embedding", table)
    once = spec.tied and spec.span is None and ranks == 1 and not packs(dtype, form) and use.of("tied", table) == form
    each = dict.fromkeys(parameters(spec))  # layers may share one
    multiplied, share = {*MULTIPLIED, *["embedding"] * once}, functools.cache(dense_share)
    held = sum(
        held_bytes(w, dtype, use, ranks, share if w.role in multiplied else lambda dtype: 1.0, coded)
        for w in each
        if not (once and w.role == "tied")
    )
    return held + table_bytes(spec, max_len)


def loading_bytes(spec: ModelSpec, dtype: str, ranks: int = 1, use: Scheme = DENSE_FORMATS) -> int:
    """The peak memory of loading, without the weights: one parameter as its file has it, and as it is packed. Where values are
    rounded or codes unpacked, temporaries of `online.CHUNK` values too, and memory not yet returned."""
    most = chunk = 0
    for weight in parameters(spec):
        held = held_bytes(weight, dtype, use, ranks)
        shapes = [s.shard_shape(weight.shard, ranks) for s in weight.of_rank(0, ranks).sources]
        dense = sum(map(prod, shapes)) * BYTES[weight.dtype or dtype]
        most = max(most, held + dense)
        chunk = max(chunk, min(values(weight), CHUNK) if held != dense else 0)
    return most + TEMPORARIES * chunk * BYTES["float32"]


Kept = AttnSpec | RowsSpec | StateSpec | CrossSpec
"""The state of a mixer per sequence: keys and values by token, other rows by token, a recurrent state, or keys and values of
its source."""


def owners(spec: ModelSpec) -> tuple[int, ...]:
    """Per mixer: the mixer with the cache that it attends to, itself or that of an earlier layer."""
    first = {layer: i for i, (layer, _) in reversed(list(enumerate(spec.mixers)))}
    sources = (getattr(mixer, "reads", None) for _, mixer in spec.mixers)
    return tuple(i if reads is None else first[reads] for i, reads in enumerate(sources))


def cache_specs(
    spec: ModelSpec, dtype: str, kv_dtype: str, max_len: int, ranks: int = 1, skip: Sequence[str] = ()
) -> tuple[Kept | None, ...]:
    """Per mixer; None: it reads another mixer's cache and has none. skip: layers with keys and values in the model's dtype, as
    in `skipped`."""
    return tuple(
        mixer.keeps(dtype, "" if is_skipped(layer, mixer, skip) else kv_dtype, max_len, ranks) if owner == i else None
        for i, ((layer, mixer), owner) in enumerate(zip(spec.mixers, owners(spec), strict=True))
    )


def is_skipped(layer: int, mixer: Mixer, skip: Sequence[str]) -> bool:
    """Is a layer among these: numbers of layers, and "sliding_window" for those that have a window?"""
    return bool(skip) and (str(layer) in skip or ("sliding_window" in skip and getattr(mixer, "window", 0) > 0))


def kv_groups(
    specs: Sequence[Kept | None],
    block_tokens: int,
    state_tokens: int,
    bytes_per_block: Sequence[int] | None = None,
    spare_states: bool = False,
) -> tuple[KVSpec, ...]:
    """Mixers that keep the same share a group, in order of their first. state_tokens: the distance at which states are
    kept for others. bytes_per_block: of each mixer, as its backend lays blocks out; None = keys and values side by side, the
    layout that every backend here has. spare_states: as in Context."""
    each = bytes_per_block or block_bytes(specs, block_tokens)
    groups = []
    for kind in dict.fromkeys(s for s in specs if s is not None):
        layers = tuple(i for i, s in enumerate(specs) if s == kind)
        tokens = state_tokens if isinstance(kind, StateSpec) else block_tokens
        if isinstance(kind, RowsSpec):
            tokens = kind.block_tokens(block_tokens)
        window = kind.window if kind.kind in ("window", "chunked") else 0  # an encoder's hides tokens, and frees none
        top = kind.top if isinstance(kind, AttnSpec) else 0
        spare = spare_states and isinstance(kind, StateSpec)
        groups.append(
            KVSpec(kind.kind, tokens, sum(each[i] for i in layers), layers, window, top, isinstance(kind, RowsSpec), spare)
        )
    if not groups:  # an encoder is the whole model: sequences are known by blocks without bytes
        groups.append(KVSpec("encoder", block_tokens, 0, ()))
    return tuple(groups)


def shared_group(groups: Sequence[KVSpec]) -> int:
    """The KV group whose blocks hold a draft model's keys and values too: the first that keeps every token. ConfigError."""
    found = next((i for i, g in enumerate(groups) if g.kind in ("full", "latent")), None)
    if found is None:
        raise ConfigError(
            "speculative_config: draft_model keeps its cache on the blocks of attention over every token, and no layer of this "
            "model has that; use method ngram or suffix"
        )
    return found


def layout_bytes(layout: KVLayout | tuple[KVLayout, ...]) -> int:
    """Bytes of a block of a mixer's cache. Several layouts: of its arrays."""
    return sum(part.bytes_per_block for part in (layout if isinstance(layout, tuple) else (layout,)))


def block_bytes(specs: Sequence[Kept | None], block_tokens: int, spec: ModelSpec | None = None) -> list[int]:
    """Bytes of a block of each mixer's cache. spec: of a pipeline stage, which has no caches of other stages."""
    layers = range(len(specs)) if spec is None else [layer for layer, _ in spec.mixers]
    here = layers if spec is None else spec.layer_range
    return [
        0 if s is None or layer not in here else _block_bytes(s, block_tokens) for layer, s in zip(layers, specs, strict=True)
    ]


def _block_bytes(s: Kept, block_tokens: int) -> int:
    if isinstance(s, RowsSpec):
        return layout_bytes(s.parts(block_tokens))
    return block_tokens * token_bytes(s) if isinstance(s, AttnSpec) else s.bytes_per_block


def stand_in_group(spec: ModelSpec, block_tokens: int) -> KVSpec:
    """One group of every token, with the bfloat16 size of the model's attention layers. A platform that runs no model keeps it,
    so that the control plane is the real one."""
    each = sum(token_bytes(s) for s in cache_specs(spec, "bfloat16", "", 1) if isinstance(s, AttnSpec))
    return KVSpec("full", block_tokens, max(1, each) * block_tokens, tuple(range(len(spec.mixers))))


def token_bytes(s: AttnSpec) -> int:
    """Bytes per token of one layer's cache."""
    if s.kind == "encoder":
        return 0
    return (1 if s.latent else 2) * s.kv_heads * kept_bytes(s.head_dim, s.kv_dtype or s.dtype) + index_bytes(s)


def index_bytes(s: AttnSpec) -> int:
    """Of the key among those by which tokens to read are chosen."""
    return s.index * BYTES[s.dtype]


def step_sizes(
    spec: ModelSpec, *, tokens: int, seqs: int, max_len: int, dtype: str, ranks: int = 1, batch_invariant: bool = True
) -> StepSizes:
    """Bounds of the temporaries of a model's largest step, on one of the ranks that share it. Every rank holds streams and
    inputs of layers whole."""
    wide = spec.hidden * (spec.streams.count if spec.streams else 1)
    inputs = spec.inputs.size if spec.inputs else 0
    row = max(spec.result, spec.hidden) if spec.pooling else spec.vocab  # the widest that the tail makes
    encoder = spec.source_encoder
    layers = [*spec.layers, *(encoder.layers if encoder else ())]
    heads, kv_heads, head_dim = max(
        (mixer.widths for each in layers for mixer in each.mixers), key=lambda w: (w[0] + 2 * w[1]) * w[2], default=(1, 1, 1)
    )
    return StepSizes(
        tokens=max(tokens, encoder.frames if encoder else 0), seqs=seqs, max_len=max_len, hidden=wide,
        inner=max((_inner_values(each.ffn, ranks) for each in layers if each.ffn), default=0) + inputs,
        heads=max(1, heads // ranks), kv_heads=max(1, kv_heads // ranks), head_dim=head_dim, vocab=row,
        dtype_bytes=BYTES[dtype], batch_invariant=batch_invariant,
    )  # fmt: skip


def _inner_values(ffn: FFN, ranks: int) -> int:
    """Inner values of one token on one rank, at the most."""
    moe = moe_of(ffn)
    if moe is None or not moe.placed:
        return ffn.width // ranks
    chosen = moe.inner * min(moe.top_k, experts_of_rank(moe.experts, ranks))
    dense = ffn.mlp.width if isinstance(ffn, ParallelMoE | ShortcutMoE) else 0
    return max(chosen + (moe.shared.inner // ranks if moe.shared else 0), dense // ranks)


def _encodes_source(spec: ModelSpec, keys: tuple[Any, ...]) -> bool:
    """Is this weight only read by the step that encodes the source of cross-attention?"""
    if keys[0] != "layers":
        return keys[0] in ("speech", "text", "tile_source")
    return isinstance(spec.layers[keys[1]].mixer, CrossAttention) and keys[2:4] in (("mixer", "k"), ("mixer", "v"))


@dataclass(frozen=True, slots=True)
class StepWork:
    """The minimum work of one step."""

    bytes: int
    flops: int
    """A multiplication and an addition are two."""


def mixes_last(layers: Sequence[Layer]) -> int:
    """The last layer that mixes tokens: after its mixer, only sampled rows need be computed. -1: all rows are needed, because a
    layer from there on gets another input of every token."""
    last = max((i for i, layer in enumerate(layers) if layer.mixers), default=-1)
    alone = all(layer.around is None and not isinstance(layer.ffn, ShortcutMoE | SmoothedFFN) for layer in layers[last:])
    return last if alone else -1


def _meets_last_rows(spec: ModelSpec, keys: tuple[Any, ...], last: int) -> bool:
    """Is this weight only multiplied with the sampled rows? last: by `mixes_last`."""
    if last < 0 or keys[0] != "layers" or keys[1] < last:
        return False
    cuts = isinstance(spec.layers[last].mixer, Attention | LatentAttention)
    return keys[1] > last or keys[2] == "ffn" or (cuts and keys[2] == "mixer" and keys[3] in ("out", "v_up"))


def step_work(
    spec: ModelSpec, dtype: str, use: Scheme, requests: int, new: int, context: int, kv_dtype: str = "",
    skip: Sequence[str] = (),
) -> StepWork:  # fmt: skip
    """One step of `requests` sequences with `new` tokens each after `context` known ones. Every matrix is read once, experts as
    far as tokens can choose them. Keys and values of the context are read and those of new tokens written, a state is read and
    written. For the output matrix and the layers after the last attention, only the last rows are computed where no others are
    read. Scores and weighted values count as products. For each number of a state, a delta rule has three: the read for the
    key, the update, and the read for the query."""
    read = products = 0
    rows = requests * new
    last = mixes_last(spec.layers) if spec.pooling is None or spec.pooling.mode in ("cls", "last") else -1
    for keys, w in walk(spec.weights()):
        if w.role == "embedding" or keys[0] in ("vision", "audio", "voice", "spoken_text") or _encodes_source(spec, keys):
            continue
        size, count = held_bytes(w, dtype, use), values(w)
        computed = requests if w.role in HEADS or _meets_last_rows(spec, keys, last) else rows
        if w.role == "experts" and keys[0] == "layers":
            moe = moe_of(spec.layers[keys[1]].ffn)
            assert moe is not None
            size = size * min(moe.experts, computed * moe.top_k) // moe.experts
            count = count * moe.top_k // moe.experts
        read += size
        products += 2 * computed * count
    attended = 0.0
    held = cache_specs(spec, dtype, kv_dtype, 1 << 62, skip=skip)
    for i, (owner, (of, mixer)) in enumerate(zip(owners(spec), spec.mixers, strict=True)):
        s = held[owner]
        assert s is not None
        if isinstance(s, StateSpec):
            attended += 6 * rows * prod(s.parts[-1].shape)
            read += 2 * requests * s.bytes_per_block
            continue
        if isinstance(s, CrossSpec):
            attended += 4 * s.heads * s.head_dim * rows * s.sources
            read += requests * s.bytes_per_block
            continue
        if isinstance(s, RowsSpec):
            seen = min(context + new, s.window or context + new) / s.every
            read += int(requests * seen * sum(s.sizes) * BYTES[s.dtype])
            attended += 4 * rows * mixer.widths[0] * sum(s.sizes) * seen
            continue
        most = s.window or s.top or context + new
        alone = of == last
        mean = context + new if alone else context + (new + 1) / 2  # that a token sees before it
        seen = min(new, 2 * most) if s.kind == "encoder" else min(mean, most)
        attended += 2 * s.heads * (s.head_dim + (s.latent or s.head_dim)) * (requests if alone else rows) * seen
        both = context + (2 if i == owner else 1) * new
        index = index_bytes(s)
        read += requests * ((token_bytes(s) - index) * min(both, most if s.top else both) + index * both)
    return StepWork(read, products + int(attended))
