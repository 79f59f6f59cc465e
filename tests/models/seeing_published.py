"""Small models that see, in the format of their authors: transformers has the same networks in another. For tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from seeing_parts import HALVES, IDS, MROPE, QWEN, SIGLIP, TEXT, Seeing, config
from transformers.modeling_outputs import MoeModelOutputWithPast

LAYER = (
    ("layer_norm1.", "norm1."), ("layer_norm2.", "norm2."), ("self_attn.out_proj.", "attn.proj."),
    ("self_attn.projection_layer.", "attn.proj."),
)  # fmt: skip
EYE = {"image_size": 28, "patch_size": 7}
ALIGNED = (
    ("linear1.", "layers.0."), ("linear2.", "layers.2."), ("fc1.", "layers.0."), ("hidden_layers.0.", "layers.2."),
    ("hidden_layers.1.", "layers.4."),
)  # fmt: skip
DECODER = {**TEXT, "max_position_embeddings": 2048}
VISION, TOWER = "model.vision_model.", "vision_model.vision_tower."


def timm_names(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """SigLIP's tensors, and those of an aligner, by the names of DeepSeek-VL's authors. q, k and v are one tensor."""
    made: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if key == f"{VISION}embeddings.position_embedding.weight":
            key, value = f"{TOWER}pos_embed", value[None]
        key = key.replace(f"{VISION}embeddings.patch_embedding.", f"{TOWER}patch_embed.proj.")
        key = key.replace(f"{VISION}post_layernorm.", f"{TOWER}norm.").replace(f"{VISION}encoder.layers.", f"{TOWER}blocks.")
        for old, new in (*(LAYER if TOWER in key else ()), *(ALIGNED if "aligner." in key else ())):
            key = key.replace(old, new)
        key = key.replace("model.language_model.", "language_model.model.").replace("lm_head.", "language_model.lm_head.")
        key = key.replace("model.generation_aligner.", "gen_aligner.").replace("model.vqmodel.", "gen_vision_model.")
        key = key.replace("model.generation_head.", "gen_head.").replace("model.generation_embeddings.", "gen_embed.")
        made[key.removeprefix("model.")] = value.contiguous()
    for i in range(layers):
        for kind in ("weight", "bias"):
            parts = [made.pop(f"{TOWER}blocks.{i}.self_attn.{p}_proj.{kind}") for p in "qkv"]
            made[f"{TOWER}blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
    return made


class Aligned(transformers.DeepseekVLForConditionalGeneration):
    def save_pretrained(self, path: Any, **more: Any) -> None:
        save_file(timm_names(self.state_dict(), 2), Path(path) / "model.safetensors")


class AlignedJanus(transformers.JanusForConditionalGeneration):
    def save_pretrained(self, path: Any, **more: Any) -> None:
        save_file(timm_names(self.state_dict(), 2), Path(path) / "model.safetensors")


def multi_modality(said: dict[str, Any], depth: int, **more: Any) -> dict[str, Any]:
    """config.json of DeepSeek-VL's authors, and `more`."""
    params = {
        "model_name": "siglip_large_patch16_384", "image_size": 28, "patch_size": 7, "width": 32, "layers": 2, "heads": 2,
        "mlp_ratio": 1.5, "select_feature": "same", "select_layer": -1,
    }  # fmt: skip
    aligner = {"depth": depth, "input_dim": 32, "n_embed": said["text_config"]["hidden_size"], "projector_type": "mlp_gelu"}
    return {
        "architectures": ["MultiModalityCausalLM"], "model_type": "multi_modality", "language_config": said["text_config"],
        "vision_config": {"cls": "CLIPVisionTower", "model_type": "vision", "params": params},
        "aligner_config": {"cls": "MlpProjector", "model_type": "aligner", "params": aligner}, **more,
    }  # fmt: skip


class Floored(transformers.DeepseekVLImageProcessorPil):
    """As DeepSeek-VL's authors resize an image: edges are rounded down."""

    def resize(self, image: np.ndarray, size: Any, *args: Any, **more: Any) -> np.ndarray:
        from PIL import Image

        height, width = image.shape[-2:]
        side, longer = size["height"], max(image.shape[-2:])
        edges = [max(int(edge / longer * side), 14) for edge in (width, height)]
        made = Image.fromarray(image.transpose(1, 2, 0)).resize((edges[0], edges[1]), Image.Resampling.BICUBIC)
        return np.asarray(made).transpose(2, 0, 1)


def set_edges(said: dict[str, Any]) -> dict[str, Any]:
    return {"image_size": 28, "min_size": 14, "image_mean": said["image_mean"], "image_std": said["image_std"]}


def build_step_vl(config: Any) -> Any:
    """Step 3.7's encoder before Qwen3."""
    model = transformers.Step3p7ForConditionalGeneration(config)
    decoder = transformers.Qwen3Config(**DECODER, tie_word_embeddings=False)
    decoder._attn_implementation = "eager"
    model.model.language_model = transformers.Qwen3Model(decoder)
    model.model.language_model.register_forward_hook(lambda *call: MoeModelOutputWithPast(**call[-1]))
    config.text_config = decoder
    return model


def step_vl(said: dict[str, Any]) -> dict[str, Any]:
    """config.json of the authors."""
    eye = said["vision_config"]
    vision = {
        "model_type": "perception_encoder", "width": eye["hidden_size"], "layers": eye["num_hidden_layers"],
        "heads": eye["num_attention_heads"], "image_size": 56, "patch_size": 7, "mlp_ratio": 1.5, "hidden_act": "quick_gelu",
        "ls_init_value": 0.1, "use_cls_token": False, "use_ln_post": False, "use_ln_pre": True, "use_rope2d": True,
        "use_abs_posemb": True, "output_dim": None, "pool_type": "none",
    }  # fmt: skip
    text = {**DECODER, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}
    return {
        "architectures": ["StepVLForConditionalGeneration"], "model_type": "step_robotics", "vision_config": vision,
        "text_config": text, "image_token_id": IDS["<image>"], "projector_bias": False, "image_token_len": 169,
        "understand_projector_stride": 2,
    }  # fmt: skip


def build_interns2(config: Any) -> Any:
    model = transformers.Qwen3_5MoeForConditionalGeneration(config)
    model.model.time_series = torch.nn.Linear(2, 2)
    return model


SQUARES = [[32, 64], [64, 32], [64, 64], [32, 96]]
PLACEHOLDER = "<image_placeholder>"
PUBLISHED: dict[str, Seeing] = {
    "interns2-preview": Seeing(
        config(
            "Qwen3_5MoeConfig",
            {
                "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
                "linear_value_head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 20,
                "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            },
            QWEN | {"num_position_embeddings": 36}, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",), build=build_interns2,
        published=lambda said: {
            **said, "architectures": ["InternS2PreviewForConditionalGeneration"], "model_type": "interns2_preview",
        },
        engine={"mamba_block_size": 32, "num_gpu_blocks_override": 160},
    ),
    "multi-modality": Seeing(
        config("DeepseekVLConfig", {"model_type": "llama"}, SIGLIP | EYE | {"hidden_act": "gelu"}, PLACEHOLDER),
        PLACEHOLDER, PLACEHOLDER, "Floored", {"size": {"height": 28, "width": 28}, **HALVES}, said=set_edges,
        build=Aligned,
        published=lambda said: multi_modality(said, 2),
    ),
    "multi-modality-janus": Seeing(
        config(
            "JanusConfig", {"model_type": "llama"},
            {
                "hidden_size": 32, "mlp_ratio": 1.5, "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 48,
                "depth": 3, "num_image_tokens": 16, **EYE,
            }, PLACEHOLDER,
            vq_config={"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "latent_channels": 8,
                       "num_embeddings": 8, "projection_dim": 48, "image_token_embed_dim": 48},
        ),
        PLACEHOLDER, PLACEHOLDER, "Floored", {"size": {"height": 28, "width": 28}, **HALVES}, said=set_edges,
        build=AlignedJanus,
        published=lambda said: multi_modality(said, 3, gen_vision_config={"cls": "VQ-16"}),
    ),
    "step-vl": Seeing(
        config(
            "Step3p7Config",
            {
                "num_hidden_layers": 2, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
                "share_expert_dim": 8, "layer_types": ["full_attention"] * 2, "max_position_embeddings": 2048,
            },
            {
                "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56, "patch_size": 7,
                "mlp_ratio": 1.5,
            }, "<image>",
        ),
        "<image>", "<image>", "Step3p7ImageProcessor",
        {"size": {"height": 56, "width": 56}, "patch_size": 28, "max_image_size": 84, "vision_patch_size": 7},
        ("num_local_patches",), writer="Step3p7Processor",
        holds={"image_feature_placeholder": 4 * "<image>", "patch_feature_placeholder": "<image>"}, build=build_step_vl,
        published=step_vl, engine={"max_model_len": 1024, "num_gpu_blocks_override": 200},
    ),
}  # fmt: skip
PUBLISHED |= {
    name: Seeing(
        config(
            "Granite4VisionConfig",
            {
                "model_type": "granite4_vision_text", "embedding_multiplier": 2.0, "residual_multiplier": 0.7,
                "attention_multiplier": 0.2, "logits_scaling": 1.5, "num_hidden_layers": 7,
            },
            SIGLIP | {"hidden_size": 64, "num_hidden_layers": 4}, "<image>", image_grid_pinpoints=SQUARES,
            downsample_rate="2/4", deepstack_layer_map=layers, spatial_target_layers=[6, 1, 3, 5],
            vision_feature_select_strategy="full",
        ),
        "<image>", "<image>\n", "LlavaNextImageProcessorPil",
        {
            "size": {"height": 32, "width": 32}, "crop_size": {"height": 32, "width": 32}, "image_grid_pinpoints": SQUARES,
        },
        ("image_sizes",), writer="Granite4VisionProcessor",
        holds={
            "patch_size": 4, "num_additional_image_tokens": 0, "vision_feature_select_strategy": "full",
            "downsample_rate": "2/4",
        },
    )
    for name, layers in (
        ("granite4-vision", [[-3, 4], [-1, 0], [1, 2]]), ("granite4-vision-blank", [[-3, 4], [1, 2]]),
    )
}  # fmt: skip
"""The language model gets vectors at its first layer, or zeros."""
