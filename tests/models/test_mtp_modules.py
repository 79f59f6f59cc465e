"""Modules for multi-token prediction of MiMo-V2, LongCat and Step 3.5. Their tensors or hidden states differ from those of
other families. Their drafts are those of the published formulas."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_mtp import DRAFT, FAMILIES, PROMPTS, Family, Published, _sizes, check_log_probabilities, texts
from torch import Tensor, nn
from transformers.models.longcat_flash import modeling_longcat_flash as longcat
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as mimo_v2
from transformers.models.step3p7 import modeling_step3p7 as step
from zoo import SMALL

from thalweg.engine.control.speculation.gain import Gain

WINDOW = 9
KINDS = ["full_attention", "sliding_attention"]


class LongcatBlock(nn.Module):
    """One of the two blocks of a layer, without a mixture."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = longcat.LongcatFlashMLA(config, layer), longcat.LongcatFlashMLP(config)
        norm = partial(longcat.LongcatFlashRMSNorm, config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()

    def forward(self, x: Tensor, **more: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), **more)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class StepTarget(nn.Module):
    """The text part, under the names that the tests use."""

    def __init__(self, settings: Any) -> None:
        super().__init__()
        vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
        config = transformers.Step3p7Config(
            text_config=settings.to_dict(), vision_config=vision, image_token_id=500, tie_word_embeddings=False
        )
        whole = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager")
        self.whole = whole
        self.save_pretrained = whole.save_pretrained

    @property
    def model(self) -> Any:
        return self.whole.model.language_model

    @property
    def lm_head(self) -> Any:
        return self.whole.lm_head


class PublishedStep(Published):
    def make_target(self) -> Any:
        return StepTarget(self.settings)

    def describe(self, config: dict[str, Any]) -> dict[str, Any]:
        more = {"num_nextn_predict_layers": 1, "mtp_layer_types": KINDS[1:], "mtp_mlp_layer_types": ["dense"]}
        return {**config, "text_config": {**config["text_config"], **more}}


FAMILIES |= {
    "mimo_v2": Family(
        _sizes("mimo-v2-flash", num_hidden_layers=3, layer_types=[*KINDS, KINDS[1]],
               mlp_layer_types=["sparse", "sparse", "dense"]),
        mimo_v2.MiMoV2FlashDecoderLayer, mimo_v2.MiMoV2FlashRMSNorm, "model.mtp.layers.0.",
        {"token": "enorm", "hidden": "hnorm", "final": "final_layernorm", "proj": "eh_proj"},
        {"architectures": ["MiMoV2FlashForCausalLM"]}, window=WINDOW, turns=("sliding_attention",),
        renamed=(("post_attention_layernorm", "pre_mlp_layernorm"), ("attn.sinks", "attn.attention_sink_bias")),
    ),
    "longcat": Family(
        _sizes("longcat-flash"), LongcatBlock, longcat.LongcatFlashRMSNorm, "model.mtp.",
        {"token": "layers.0.enorm.m", "hidden": "layers.0.hnorm.m", "final": "norm", "proj": "layers.0.eh_proj"},
        {"architectures": ["LongcatFlashForCausalLM"]},
        renamed=(("0.mlp.", "0.transformer_layer.mlp."), ("0.", "0.layers.0.")),
    ),
    "step": Family(
        partial(
            step.Step3p7TextConfig, **SMALL, head_dim=16, pad_token_id=0, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=24, share_expert_dim=32, moe_router_scaling_factor=1.7, sliding_window=WINDOW,
            num_sliding_attention_heads=6, moe_layers_enum="0", layer_types=KINDS, rope_theta=[5e4, 1e4],
            partial_rotary_factors=[0.5, 1.0],
        ),
        step.Step3p7DecoderLayer, step.Step3p7RMSNorm, "model.layers.2.",
        {"token": "enorm", "hidden": "hnorm", "final": "transformer.shared_head.norm", "proj": "eh_proj"},
        {"architectures": ["Step3p7ForConditionalGeneration"]}, window=WINDOW, turns=("sliding_attention",), raw=True,
        renamed=(),
    ),
}  # fmt: skip
NAMES = ("mimo_v2", "longcat", "step")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


def make(name: str, path: Path) -> tuple[Published, Path]:
    model = (PublishedStep if name == "step" else Published)(name)
    (path / name).mkdir()
    model.save(path / name)
    return model, path / name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(0)
def test_log_probabilities_of_drafts_are_those_of_the_published_formula(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_log_probabilities(*make(name, tmp_path), PROMPTS[3], monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_same_with_a_module(name: str, tmp_path: Path) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight, path = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24}, make(name, tmp_path)[1]
    without, _ = texts(path, None, **tight)
    with_drafts, stats = texts(path, DRAFT, **tight)
    assert with_drafts == without
    assert stats.draft_tokens > stats.accepted_tokens > 0
