"""Products of a module computed by thalweg's ops and kernels: plain `nn.Linear` layers with a weight that no other module
reads, and experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from thalweg.hal import ops
from thalweg.hal.weights import DENSE
from thalweg.models.context import Context
from thalweg.models.fallback.experts import OWN
from thalweg.models.fallback.spec import ModuleParameter
from thalweg.models.layers.linear import Product
from thalweg.models.weights import ParamSpec


def plain(model: nn.Module) -> dict[str, nn.Linear]:
    """Linear layers of the exact class, by name."""
    return {name: m for name, m in model.named_modules() if type(m) is nn.Linear}


@dataclass(slots=True)
class LinearUsage:
    """Use of linear layers' weights during a run on the meta device."""

    called: dict[str, int] = field(default_factory=dict)
    """Name -> identity of the weight, of those that were called."""
    others: set[int] = field(default_factory=set)
    """Identities of tensors that other operations took."""

    def exchangeable(self, may: int) -> tuple[str, ...]:
        """Names of layers with a weight of no other use. may: id of the one weight with other uses allowed (an embedding's)."""
        return tuple(name for name, weight in self.called.items() if weight not in self.others or weight == may)


@contextmanager
def stub_linears(model: nn.Module, seen: LinearUsage) -> Iterator[None]:
    """Linear layers give results of the right shape, and touch no weight."""
    layers = plain(model)
    try:
        for name, layer in layers.items():
            layer.forward = _shape(name, layer, seen)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers.values():
            del layer.forward


def _shape(name: str, layer: nn.Linear, seen: LinearUsage) -> Any:
    def forward(input: Tensor) -> Tensor:
        if input.shape[-1] != layer.in_features:
            raise RuntimeError(f"{name} expects {layer.in_features} values, not {input.shape[-1]}")
        seen.called[name] = id(layer.weight)
        return input.new_empty(*input.shape[:-1], layer.out_features)

    return forward


class Products:
    """The exchanged layers of one model. Their packed weights are no tensors, so they do not come as a module's parameters do:
    `given` says for the time of a call where they are."""

    def __init__(self, ctx: Context, model: nn.Module, held: Sequence[ModuleParameter]) -> None:
        """held: their weights. From here on the model's layers compute here."""
        self._now: Mapping[str, Any] | None = None
        self.specs: dict[str, ParamSpec] = {}
        self.left: dict[str, ParamSpec] = {}
        """Of experts that no kernel here computes: the module does, with these parameters."""
        linear, mixtures = plain(model), dict[str, list[ModuleParameter]]()
        for each in held:
            if each.act:
                mixtures.setdefault(each.name.rpartition(".")[0], []).append(each)
                continue
            product = Product(ctx, each.weight)
            self.specs[each.name] = product.spec
            linear[each.name].forward = self._forward(each.name, linear[each.name], product)  # type: ignore[method-assign]
        for name, (first, second) in mixtures.items():
            self._mix(ctx, model.get_submodule(name), first, second)

    def _mix(self, ctx: Context, module: nn.Module, first: ModuleParameter, second: ModuleParameter) -> None:
        """first, second: the weights of gate and up, and of down."""
        count, rows, inputs = first.shape
        form, down = ctx.format(first.weight), ctx.format(second.weight)
        settings = {
            "experts": count, "act": first.act, "weight": form, "group": form.group, "down_weight": down,
            "down_group": down.group, "in_features": inputs, "inner": rows // 2,
        }  # fmt: skip
        if form == down == DENSE and not ctx.binder.gains(ops.experts, dtype=ctx.dtype, **settings):
            self.left |= {each.name: ParamSpec(each.whole, ctx.dtype) for each in (first, second)}
            return
        op = ctx.bind(ops.experts, **settings)
        for each, held_as in ((first, form), (second, down)):
            self.specs[each.name] = ParamSpec(each.weight, ctx.dtype, op.pack, held_as, count)

        def experts(x: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
            if self._now is None:
                raise RuntimeError(f"{first.name} was called outside of a step")
            out: Tensor = op(x, ids, shares, self._now[first.name], self._now[second.name])
            return out

        setattr(module, OWN, experts)

    @contextmanager
    def bind_params(self, params: Mapping[str, Any]) -> Iterator[None]:
        """params: the loaded values of `specs`."""
        self._now = params
        try:
            yield
        finally:
            self._now = None

    def _forward(self, name: str, layer: nn.Linear, product: Product) -> Any:
        def forward(input: Tensor) -> Tensor:
            if self._now is None:
                raise RuntimeError(f"{name} was called outside of a step")
            rows: Tensor = product(input.reshape(-1, layer.in_features), self._now[name], layer.bias)
            out: Tensor = rows.reshape(*input.shape[:-1], layer.out_features)
            return out

        return forward
