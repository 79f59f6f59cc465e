"""Up-projections of latents are dense in every model. Where a checkpoint holds them in codes, loading makes them so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import logprobs, rewrite, simulated
from zoo import make_checkpoint

from thalweg.errors import CheckpointError
from thalweg.hal.ops.quantise import round_rows

FP8 = {"quant_method": "fp8", "weight_block_size": [32, 16], "fmt": "e4m3", "activation_scheme": "dynamic"}


@pytest.mark.slow
def test_up_projections_in_blocks_of_float8_are_those_of_the_codes(tmp_path):
    """As DeepSeek-V3 is published: all of attention is in codes. 176 rows are no whole blocks, and neither are those of a head.
    The down-projections of q and of latents share a product."""
    plain, meant, lacking = make_checkpoint("deepseek-v3", tmp_path, tokenizer=False), {}, []

    def write(layer, weight):
        if "self_attn" not in layer:
            return None
        out, fan_in = weight.shape
        drawn = torch.rand(-(-out // 32), -(-fan_in // 16), generator=torch.Generator().manual_seed(len(meant)))
        scale = drawn * 0.01 + 0.005
        wide = scale.repeat_interleave(32, 0)[:out].repeat_interleave(16, 1)[:, :fan_in]
        codes = (weight / wide).to(torch.float8_e4m3fn)
        meant[layer] = codes.float() * wide
        return {"weight": codes} | ({} if layer in lacking else {"weight_scale_inv": scale})

    def rounded(layer, x):
        return x if layer.endswith("kv_b_proj") else round_rows(x[0], "float8_e4m3fn_per_group", 16)[None]

    path = rewrite(plain, tmp_path / "codes", FP8, write)
    assert len(meant) == 3 * 5
    want, exact = simulated(plain, meant, rounded), simulated(plain, {})
    for device in ("reference", "cpu"):
        np.testing.assert_allclose(logprobs(path, device), want, atol=1e-4)
    assert (exact - want).abs().max() > 1e-3, "rounding is seen"
    lacking.append("model.layers.0.self_attn.kv_b_proj")
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.kv_b_proj\.weight"):
        logprobs(rewrite(plain, tmp_path / "lacking", FP8, write))
