"""Products with a separate matrix per head. Latent attention computes keys and values from latents this way."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.matmul import ROWS


def _sample(tokens: int, heads: int, inputs: int, outputs: int, turned: bool) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        shape = (heads * inputs, outputs) if turned else (heads * outputs, inputs)
        x = rng.normal(size=(tokens, heads, inputs)).astype(np.float16)
        return x, (rng.normal(size=shape) / inputs**0.5).astype(np.float16)

    name = f"{tokens}x{heads}x{inputs}x{outputs}{'-turned' if turned else ''}"
    return Sample(name, make, {"heads": heads, "out_features": outputs, "turned": turned})


@op(
    samples=[
        _sample(1, 3, 24, 80, True), _sample(5, 4, 80, 24, False), _sample(37, 2, 64, 160, True),
        _sample(19, 5, 130, 64, False),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def head_linear(x: Tensor, weight: Tensor, *, heads: int, out_features: int, turned: bool = False) -> Tensor:
    """Each head of x times the matrix of that head: x [T, heads, in] -> [T, heads, out].

    weight [heads * out, in], or turned: [heads * in, out]. Facts at bind: in_features, dtype.
    Rows are padded as those of `linear`, for the same reason.
    """
    matrices = weight.view(heads, -1, weight.shape[1])
    matrices = matrices if turned else matrices.transpose(1, 2)
    tokens = x.shape[0]
    out = torch.bmm(F.pad(x.transpose(0, 1), (0, 0, 0, -tokens % ROWS)), matrices)
    return out[:, :tokens].transpose(0, 1)
