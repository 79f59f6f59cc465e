"""Small models that see by InternVL's tiles, with other projectors, texts and choices of tiles. For tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import ovis
import torch
import transformers
import transformers.models.got_ocr2.image_processing_pil_got_ocr2 as got
from dots_ocr import DotsVlmConfig, DotsVLMForCausalLM
from joined_parts import with_encoder
from seeing_joined import BOTH, LANGUAGE, spell_config
from seeing_more import LATENT, internvl_chat
from seeing_newer import DOTS, OVIS
from seeing_packed import RADIO, nano_tiles, nano_vl
from seeing_parts import HALVES, IDS, INTERNVL, SIGLIP, TEXT, TILED, Seeing, config
from torch import nn
from transformers.models.internvl.modeling_internvl import InternVLModel

CUT = {**TILED, "crop_to_patches": True, "max_patches": 4}


class TwiceCut(got.GotOcr2ImageProcessorPil):
    """H2OVL's multi-scale cropping, of the candidates that its code leaves for the second grid."""

    def preprocess(self, images: Any, **more: Any) -> Any:
        parts = []
        for image in images:
            side, most = self.size["height"], self.max_patches
            first = got.get_optimal_tiled_canvas((image.height, image.width), (side, side), 1, most)
            every = got.get_all_supported_aspect_ratios(3, most)
            kept = [(a, b) for a, b in every if first[0] % a and first[1] % b] or [(1, 1)]
            once = np.asarray(super().preprocess([image], **{**more, "return_tensors": "np"})["pixel_values"])
            with (
                mock.patch.object(got, "get_all_supported_aspect_ratios", return_value=kept),
                mock.patch.object(got, "get_optimal_tiled_canvas", got.get_optimal_tiled_canvas.__wrapped__),
            ):
                again = np.asarray(super().preprocess([image], **{**more, "return_tensors": "np"})["pixel_values"])
            parts.append(np.concatenate([again[:-1], once[:-1], again[-1:]]))
        return {"pixel_values": np.concatenate(parts)}


def most_similar(size: tuple[int, int], tile: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """The choice of Eagle 2.5 and Llama Nemotron: pixels up to 0.6 of the image's, times the likeness of both ratios."""
    ratio, area = size[1] / size[0], size[0] * size[1]
    grids = sorted({(a, b) for a in range(1, most + 1) for b in range(1, most + 1) if least <= a * b <= most}, key=np.prod)
    shares = [min(a * b * tile[0] ** 2 / area, 0.6) * min(a / b / ratio, ratio / (a / b)) for a, b in grids]
    return grids[int(np.argmax(shares))]


class SimilarTiles(got.GotOcr2ImageProcessorPil):
    def crop_image_to_patches(self, *args: Any, **more: Any) -> Any:
        with mock.patch.object(got, "get_optimal_tiled_canvas", most_similar):
            return super().crop_image_to_patches(*args, **more)


class SimilarRadioTiles(SimilarTiles):
    """The same, as patches."""

    def preprocess(self, images: Any, **more: Any) -> Any:
        tiles = np.asarray(super().preprocess(images, **{**more, "return_tensors": "np"})["pixel_values"])
        n, edge = len(tiles), tiles.shape[2] // 4
        rows = tiles.reshape(n, 3, edge, 4, edge, 4).transpose(0, 2, 4, 1, 3, 5).reshape(n * edge * edge, -1)
        return {"pixel_values": rows, "image_grid_hw": np.array([[edge, edge]] * n)}


def chat(name: str, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda said: {**internvl_chat(said), "architectures": [name], "model_type": name.lower(), **more}


def nvlm(config: Any) -> Any:
    """Without biases in the projector, which has the decoder's inner size."""
    model = transformers.QianfanOCRForConditionalGeneration._from_config(config, attn_implementation="eager")
    at, inner = model.model.multi_modal_projector, config.text_config.intermediate_size
    at.linear_1 = nn.Linear(at.linear_1.in_features, inner, bias=False)
    at.linear_2 = nn.Linear(inner, config.text_config.hidden_size, bias=False)
    return model


class EagleEye(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        wide, out = 4 * config.vision_config.hidden_size, config.text_config.hidden_size
        self.vision_model = transformers.SiglipVisionModel(config.vision_config)
        self.mlp1 = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, out), nn.GELU(), nn.Linear(out, out))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.vision_model(pixels).last_hidden_state
        edge = int(x.shape[1] ** 0.5)
        x = InternVLModel.pixel_shuffle(None, x.view(len(x), edge, edge, -1), 0.5)
        made: torch.Tensor = self.mlp1(x.flatten(0, -2))
        return made


class NemotronProjector(nn.Module):
    def __init__(self, wide: int, inner: int, out: int) -> None:
        super().__init__()
        self.layer_norm, self.linear_1, self.linear_2 = nn.LayerNorm(wide), nn.Linear(wide, inner), nn.Linear(inner, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear_2(nn.functional.gelu(self.linear_1(self.layer_norm(x))))
        return made


def llama_nemotron(config: Any) -> Any:
    model = transformers.NemotronH_Omni_Reasoning_V3._from_config(config, attn_implementation="eager")
    names = [name for name, part in model.named_modules() if name.endswith("multi_modal_projector")]
    holder = model.get_submodule(names[0].rpartition(".")[0])
    old = holder.multi_modal_projector
    holder.multi_modal_projector = NemotronProjector(
        old.linear_1.in_features, old.linear_1.out_features, old.linear_2.out_features
    )
    return model


def llama_nano(said: dict[str, Any]) -> dict[str, Any]:
    return {**nano_vl(said), "architectures": ["Llama_Nemotron_Nano_VL"], "model_type": "Llama_Nemotron_Nano_VL"}


TILES: dict[str, Seeing] = {
    "h2ovl": Seeing(
        config("QianfanOCRConfig", {"model_type": "mistral", "sliding_window": None}, INTERNVL, "<IMG_CONTEXT>"),
        "<IMG_CONTEXT>", "<image>\n", "GotOcr2ImageProcessorPil", CUT, writer="QianfanOCRProcessor",
        holds={"start_image_token": "<img>", "end_image_token": "</img>", "image_seq_length": 4},
        published=chat("H2OVLChatModel", use_msac=False),
    ),
    "nvlm-d": Seeing(
        config("QianfanOCRConfig", {"model_type": "qwen2"}, INTERNVL | {"attention_bias": False, "use_qk_norm": True},
                "<|vision_pad|>"),
        "<|vision_pad|>", "<image>\n", "GotOcr2ImageProcessorPil", CUT, published=chat("NVLM_D"), build=nvlm,
    ),
    "eagle2.5": Seeing(
        config(BOTH, {"model_type": "qwen2"}, SIGLIP | {"image_size": 28, "patch_size": 7}, "<IMG_CONTEXT>"),
        "<IMG_CONTEXT>", "<image>\n", "SimilarTiles", CUT | HALVES, build=with_encoder(transformers.Qwen2ForCausalLM, EagleEye),
        published=spell_config(
            "Eagle2_5_VLForConditionalGeneration", "eagle_2_5_vl", image_token_index=IDS["<IMG_CONTEXT>"], select_layer=-1,
            downsample_ratio=0.5, max_dynamic_patch=4, min_dynamic_patch=1, use_thumbnail=True, mlp_connector_layers=2,
        ),
        renamed=(("eye.vision_model.", "vision_model.vision_model."), ("eye.mlp1.", "mlp1."), *LANGUAGE),
        said=lambda said: {
            **HALVES, "size": {"height": 28, "width": 28}, "max_dynamic_tiles": 4, "min_dynamic_tiles": 1,
            "use_thumbnail": True, "pad_during_tiling": False, "tokens_per_tile": 4,
        },
    ),
    "llama-nemotron-vl": Seeing(
        config(
            "NemotronH_Omni_Reasoning_V3_Config", {"model_type": "llama", "num_nextn_predict_layers": 0}, RADIO,
            "<image>", projector_hidden_size=40, vision_hidden_size=32, audio_config=None,
        ),
        "<image>", "<image>", "SimilarRadioTiles",
        {"size": {"height": 16, "width": 16}, "crop_to_patches": True, "max_patches": 4}, ("image_grid_hw",),
        build=llama_nemotron, published=llama_nano, said=nano_tiles,
    ),
}  # fmt: skip
TILES["ovis"] = Seeing(
    config("Ovis2Config", {"model_type": "qwen2"}, OVIS | {"hidden_stride": 2, "qkv_bias": True, "mlp_bias": True},
           "<|image_pad|>", hidden_size=48, vocab_size=288),
    "<|image_pad|>", "<image>\n", "OvisParts", {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    ("image_sizes",), build=ovis.build, published=ovis.spell_config,
    said=lambda said: {**said, "max_partition": ovis.MOST, "do_center_crop": False},
)  # fmt: skip
TILES["dots-vlm"] = Seeing(
    lambda: DotsVlmConfig(
        **{**TEXT, **LATENT, "head_dim": 16}, vision_config=DOTS, image_token_id=IDS["<|image_pad|>"],
        architectures=["DotsVLMForCausalLM"], tie_word_embeddings=False,
    ),
    "<|image_pad|>", "<|image_pad|>", "Qwen2VLImageProcessorPil",
    {"patch_size": 4, "temporal_patch_size": 1, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
    build=DotsVLMForCausalLM,
)  # fmt: skip
PROCESSORS = {
    "OvisParts": ovis.OvisParts, "SimilarRadioTiles": SimilarRadioTiles, "SimilarTiles": SimilarTiles, "TwiceCut": TwiceCut,
}  # fmt: skip
