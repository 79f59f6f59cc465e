"""The Q-Former of InstructBLIP: learned queries read an image and a text."""

from __future__ import annotations

import torch

from thalweg.hal.parts.instruction import Instruction
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import Parts
from thalweg.models.vision.qformer import QFormer


class TextQFormer(QFormer):
    """x [window, source] of one image, words i32[N] -> [queries, outputs]."""

    def read(self, p: Parts, x: Array, words: Array) -> Array:
        s, count = self._spec, words.shape[0]
        places = torch.ones_like(words).cumsum(0) - 1
        text = p["words"].index_select(0, words) + p["places"].index_select(0, places)
        y = self._parts.norm("/enter", p["enter"], torch.cat([p["query"][0], text]))
        for i in range(s.layers):
            at, layer = f"/layers/{i}", p["layers"][i]
            y, text = self._attend(f"{at}/own", layer["own"], y, y, 1).split([s.queries, count])
            if s.attends(i):
                y = self._attend(f"{at}/window", layer["window"], y, x, 1)
            y = self._feed(at, layer, y)
            if i < s.layers - 1:
                y = torch.cat([y, self._feed(f"{at}/text", layer["text"], text)])
        return self._parts.linear("/out", p["out"], y)


class ViewTextQFormer:
    """As a resampler of one image, with the step's text: x [window, source] -> [queries, outputs]."""

    def __init__(self, ctx: Context, s: spec.TextQFormerSpec, weights: Parts) -> None:
        self._reads = TextQFormer(ctx, s, weights)
        self.specs = self._reads.specs

    def __call__(self, p: Parts, x: Array, patches: Patches, batch: StepBatch) -> Array:
        """patches: unused, as there is one view."""
        instruction = batch.get(Instruction)
        assert instruction is not None, "the image's processor gives a text"
        return self._reads.read(p, x, instruction.ids)
