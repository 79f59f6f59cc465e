"""Which matrices of a model adapters may change (`--lora-target-modules`), and the bytes for it. Loads no tensor framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from thalweg.hal.kv import BYTES
from thalweg.models.spec import ModelSpec
from thalweg.models.weights import Source, Weight, divide_outputs, walk


def is_target(tensor: str, modules: Sequence[str] | None) -> bool:
    """Is this tensor that of one of the modules, each a name or its end after a dot? modules: None is every one."""
    if modules is None:
        return True
    module = tensor.removesuffix(".T").removesuffix(".weight")
    return any(module == each or module.endswith(f".{each}") for each in modules)


def container(expert: str) -> str:
    """The module that holds the experts, of a matrix of the first: "mlp.experts" of "mlp.experts.0.up_proj.weight"."""
    return expert.rpartition(".0.")[0]


def expert_layers(spec: ModelSpec) -> dict[str, tuple[int, int, int]]:
    """The modules with experts that adapters may change -> (experts, hidden size, inner size)."""
    found = {}
    for keys, w in walk({"layers": spec.weights()["layers"]}):
        if w.role == "experts" and keys[-2] == "gate_up":
            inner, hidden = w.sources[0].shape
            found[container(w.sources[0].name)] = (len(w.sources) // 2, hidden, inner)
    return found


def find_unmatched(tensors: Iterable[str], modules: Sequence[str] | None) -> list[str]:
    """The modules that none of the tensors is of."""
    held = list(tensors)
    return [each for each in modules or () if not any(is_target(tensor, (each,)) for tensor in held)]


ADAPTED = ("layers", "inputs", "streams")
"""Keys of `ModelSpec.weights` under which linear layers take adapters."""


def adapter_linears(spec: ModelSpec, gathering: int = 1) -> dict[tuple[Source, ...], Weight]:
    """The sources of each linear layer that adapters may change -> its weight. gathering: ranks that have all inputs of every
    layer (`Context.tp_invariant`)."""
    result = spec.weights()
    parts = {key: part for key in ADAPTED if isinstance(part := result.get(key), Mapping)}
    linears = (w for _, w in walk(parts) if w.role == "linear")
    return {w.sources: divide_outputs(w, gathering) if gathering > 1 and w.shard == 1 else w for w in linears}


def adapter_tensors(spec: ModelSpec) -> Iterator[str]:
    """The names of all matrices that adapters may change."""
    for sources in adapter_linears(spec):
        yield from (name for s in sources for name in s.names)
    yield from expert_layers(spec)
    yield f"{spec.root}{spec.embed}.weight"
    if spec.pooling is None:
        yield f"{spec.head}.weight"


def adapter_bytes(
    spec: ModelSpec, dtype: str, adapters: int, rank: int, modules: Sequence[str] | None = None, divided: int = 1,
    tp_invariant: bool = False,
) -> int:  # fmt: skip
    """Of the state's slots for low-rank adapters, on one device: so many adapters, and slot 0, of this rank at the most.
    modules: as in `adapter_names.is_target`. divided: ranks that divide the model.
    tp_invariant: they divide no sum. IndivisibleError."""
    result = spec.weights()
    linear = [
        [s.shard_shape(w.shard, divided) for s in each]
        for each, w in adapter_linears(spec, divided if tp_invariant else 1).items()
        if any(is_target(name, modules) for s in each for name in s.names)
    ]
    values = sum(rank * (len(each) * each[0][1] + sum(rows for rows, _ in each)) for each in linear)
    ranks = 4 * sum(len(each) for each in linear)  # int32
    outputs = sum(rows for each in linear for rows, _ in each)
    if is_target(f"{spec.root}{spec.embed}.weight", modules):
        values += rank * (spec.vocab + rank + spec.hidden)  # the embedding, with the identity of `TableTarget`
        ranks += 4
    if "head" in result and not spec.head_normed and is_target(f"{spec.head}.weight", modules):
        values += rank * (spec.hidden + spec.vocab // divided)
        ranks, outputs = ranks + 4, outputs + spec.vocab // divided
    for name, (experts, hidden, inner) in expert_layers(spec).items():  # only where they are named: they are many
        if modules is not None and is_target(name, modules):
            values += rank * experts * (3 * hidden + 3 * inner // divided)
            ranks += 4 * 3 * experts
    classes = [w for keys, w in walk({"classes": result.get("classes", {})}) if keys[-1] == "weight" and len(w.shape(1)) == 2]
    for each in (w for w in classes if len(w.sources) == 1):  # with a bias, whether they have one or not
        values += each.shape(1)[0] * (each.shape(1)[1] + 1)
        ranks += 4
    return (adapters + 1) * int(values * BYTES[dtype] + ranks + 2 * 4 * outputs)  # int32, and two vectors of float32
