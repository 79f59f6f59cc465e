"""dots.ocr of parts of transformers, which does not have the model: Qwen2's decoder, and Qwen2-VL's encoder with other norms
and feed-forward parts. For tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen


class DotsConfig(transformers.Qwen2Config):
    model_type = "dots_ocr"


class GatedPart(nn.Module):
    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__()
        wide = said["intermediate_size"]
        sizes = {"fc1": (said["embed_dim"], wide), "fc2": (wide, said["embed_dim"]), "fc3": (said["embed_dim"], wide)}
        for name, (inputs, outputs) in sizes.items():
            self.add_module(name, nn.Linear(inputs, outputs, bias=said["use_bias"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.silu(self.fc1(x)) * self.fc3(x))


class Patches(nn.Module):
    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__()
        patch, width = said["patch_size"], said["embed_dim"]
        self.patchifier = nn.ModuleDict(
            {"proj": nn.Conv2d(3, width, patch, patch), "norm": Qwen2RMSNorm(width, said["rms_norm_eps"])}
        )
        self.shape = (-1, 3, patch, patch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patchifier["norm"](self.patchifier["proj"](x.view(self.shape)).flatten(1))


def encoder(said: dict[str, Any]) -> nn.Module:
    width, e = said["embed_dim"], said["rms_norm_eps"]
    config = transformers.Qwen2VLConfig(
        vision_config={
            "depth": said["num_hidden_layers"], "embed_dim": width, "hidden_size": said["hidden_size"],
            "num_heads": said["num_attention_heads"], "patch_size": said["patch_size"],
            "spatial_merge_size": said["spatial_merge_size"],
        }
    ).vision_config  # fmt: skip
    config._attn_implementation = "eager"
    made = qwen.Qwen2VisionTransformerPretrainedModel(config)
    made.patch_embed = Patches(said)
    for block in made.blocks:
        block.norm1, block.norm2, block.mlp = Qwen2RMSNorm(width, e), Qwen2RMSNorm(width, e), GatedPart(said)
        if not said["use_bias"]:
            block.attn.qkv.bias = block.attn.proj.bias = None
    made.post_trunk_norm = Qwen2RMSNorm(width, e)
    made.merger.register_forward_pre_hook(lambda _, args: (made.post_trunk_norm(args[0]),))
    return made


class DotsVlmConfig(transformers.DeepseekV3Config):
    model_type = "dots_vlm"


class WithDots:
    """Before a decoder's class: the encoder, and vectors in place of placeholders."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.vision_tower = encoder(config.vision_config)

    def forward(self, input_ids: Any = None, pixel_values: Any = None, image_grid_thw: Any = None, **more: Any) -> Any:
        x, shown = self.model.embed_tokens(input_ids), input_ids == self.config.image_token_id  # type: ignore[attr-defined]
        if pixel_values is not None and shown.any():
            vectors = self.vision_tower(pixel_values, image_grid_thw).pooler_output
            x = x.masked_scatter(shown.unsqueeze(-1), vectors)
        return super().forward(inputs_embeds=x, **more)  # type: ignore[misc]


class DotsOCRForCausalLM(WithDots, transformers.Qwen2ForCausalLM):
    config_class = DotsConfig


class DotsVLMForCausalLM(WithDots, transformers.DeepseekV3ForCausalLM):
    config_class = DotsVlmConfig
