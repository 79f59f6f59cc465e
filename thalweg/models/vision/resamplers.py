"""The resamplers of vision encoders, by their declarations: a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.latent_reader import LatentReader
from thalweg.models.vision.perceiver import Perceiver
from thalweg.models.vision.qformer import ViewQFormer
from thalweg.models.vision.query_projector import QueryProjector
from thalweg.models.vision.resampler import Resampler
from thalweg.models.vision.text_qformer import ViewTextQFormer
from thalweg.models.vision.window_pool import WindowPool
from thalweg.models.vision.window_qformer import WindowQFormers

RESAMPLERS: Mapping[type, Callable[[Context, Any, Mapping[str, Any]], Any]] = {
    spec.LatentReaderSpec: LatentReader,
    spec.PerceiverSpec: Perceiver,
    spec.QFormerSpec: ViewQFormer,
    spec.QueryProjectorSpec: QueryProjector,
    spec.ResamplerSpec: Resampler,
    spec.TextQFormerSpec: ViewTextQFormer,
    spec.WindowPoolSpec: WindowPool,
    spec.WindowQFormersSpec: WindowQFormers,
}
"""Declaration -> builder. The result is called with (parameters, x [T, inputs], the step's patches, its batch), and returns
vectors [N, outputs], in the order that `Patches.mix` numbers."""


def build_resampler(ctx: Context, s: Any, weights: Mapping[str, Any]) -> Any:
    return RESAMPLERS[type(s)](ctx, s, weights)
