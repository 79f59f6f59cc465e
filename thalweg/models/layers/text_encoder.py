"""The encoder of source texts. It runs within the first step of a sequence, one text at a time, so that a text's vectors depend
on no other text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef, SourceVectors
from thalweg.models.layers.embedding import AddedEmbedding
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.layers.speech import whole_sequence
from thalweg.models.vision.davit import DaViT
from thalweg.models.vision.query_image import QueryImage
from thalweg.models.weights import ParamSpec, Weight


def _build_image(ctx: Context, s: Any, weights: Mapping[str, Any]) -> DaViT | QueryImage:
    return QueryImage(ctx, s, weights) if isinstance(s, declared.QueryImageSpec) else DaViT(ctx, s, weights)


class TextEncoder:
    """Source texts -> a vector for each of their tokens."""

    def __init__(
        self, ctx: Context, spec: declared.TextEncoder, weights: Mapping[str, Any], block: Callable[..., Any],
        embed: Callable[[Any, Array], Array],
    ) -> None:  # fmt: skip
        """block: builder of a layer from its declaration. embed: embeddings of token ids, of the model's parameters."""
        self._embed, self._globals, ropes = embed, spec.globals, spec.ropes
        self._layers = [
            block(ctx, each, weights["layers"][i], [MixerRef(i, table=-1 if m.rope is None else ropes.index(m.rope))
                                                    for m in each.mixers])
            for i, each in enumerate(spec.layers)
        ]  # fmt: skip
        self._learned = [AddedEmbedding(ctx, each, spec.hidden, weights["learned"][i], spec.sources)
                         for i, each in enumerate(spec.learned)]  # fmt: skip
        norms = {key: build_norm(ctx, norm, weights[key]) for key in ("embed_norm", "norm") if (norm := getattr(spec, key))}
        self._image = None if spec.vision is None else _build_image(ctx, spec.vision, weights["vision"])
        self._placeholder = -1 if spec.vision is None else spec.vision.token
        self._embed_norm, self._norm = norms.get("embed_norm"), norms.get("norm")
        self.specs: dict[str, Any] = {
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
            **{key: norm.specs for key, norm in norms.items()},
        }
        if ropes:
            self.specs["rope"] = {
                i: ParamSpec(Weight(()), "float32", make=partial(
                    cos_sin_table, dict(rope.parameters), rope.dim, rope.trained, spec.sources
                )) for i, rope in enumerate(ropes)
            }  # fmt: skip
        if spec.embed:
            op, scale = ctx.bind(ops.embed, vocab=spec.vocab, size=spec.hidden), round_to(spec.embed_scale, ctx.dtype)
            self._embed = lambda params, tokens: op(tokens, params["text"]["embed"]["weight"]) * scale
            self.specs["embed"] = {"weight": ParamSpec(weights["embed"]["weight"], ctx.dtype, op.pack)}
        if spec.globals:
            self.specs["globals"] = {"weight": ParamSpec(weights["globals"]["weight"], ctx.dtype)}
        if self._learned:
            self.specs["learned"] = {i: each.specs for i, each in enumerate(self._learned)}
        if self._image is not None:
            self.specs["vision"] = self._image.specs

    def __call__(self, params: Mapping[str, Any], features: Array) -> SourceVectors:
        """params: of the whole model. features f32[N, rows, sources]: token ids, and -1 behind the last one of each. Rows
        behind the first hold an image, where the model reads one and the source has placeholders."""
        texts = features[:, 0].to(torch.int32)
        lengths = tuple((texts >= 0).sum(1).tolist())
        result = [self._one(params, t[:n], rows[1:]) for t, n, rows in zip(texts, lengths, features, strict=True)]
        return SourceVectors(torch.cat(result), lengths)

    def _one(self, params: Mapping[str, Any], tokens: Array, image: Array) -> Array:
        """tokens i32[n], image f32[rows, sources] -> [n, hidden]."""
        batch, p = whole_sequence(tokens.shape[0], tokens), params["text"]
        x = self._embed(params, tokens)
        places = (tokens == self._placeholder).nonzero()[:, 0]
        if self._image is not None and len(places):
            x = x.index_copy(0, places, self._image(p["vision"], image.flatten()))
        for i, each in enumerate(self._learned):
            x = x + each(p["learned"][i], batch, None)
        if self._embed_norm is not None:
            x = self._embed_norm(p["embed_norm"], x)
        if self._globals:
            x = torch.cat([p["globals"]["weight"], x])
        residual, flow = None, Flow(batch, [None] * len(self._layers), p.get("rope", {}))
        for i, layer in enumerate(self._layers):
            x, residual = layer(p["layers"][i], x, residual, flow)
        x, residual = x[self._globals :], None if residual is None else residual[self._globals :]
        if self._norm is not None:
            return self._norm.add(p["norm"], x, residual)[0]
        return x if residual is None else x + residual


def round_to(value: float, dtype: str) -> float:
    return float(torch.tensor(value, dtype=getattr(torch, dtype)))
