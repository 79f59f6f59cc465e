"""Small models that see, saved as transformers saves them, with a tokenizer, a template that shows images, and the settings
of an image processor of transformers. For tests."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pillow_processors
import torch
import transformers
import transformers.models.got_ocr2.image_processing_pil_got_ocr2 as got
from deepseek_vl2 import FittedTiles
from safetensors.torch import load_file, save_file
from seeing_joined import JOINED
from seeing_latest import LATEST
from seeing_llava import LLAVA
from seeing_more import MORE
from seeing_newer import NEWER
from seeing_packed import PACKED
from seeing_parts import (
    CLIP,
    GEMMA_4,
    GEMMA_4_EDGES,
    GEMMA_4_VISION,
    GLM,
    GLM_ROPE,
    IDEFICS,
    IDS,
    INTERNVL,
    MROPE,
    NAMES,
    PINS,
    PIXTRAL,
    QWEN,
    SIGLIP,
    SPLIT,
    TEMPLATE,
    TILED,
    Seeing,
    config,
)
from seeing_published import PUBLISHED, Floored
from seeing_queries import QUERIES
from seeing_tiled import PROCESSORS as TILED_PROCESSORS
from seeing_tiled import TILES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from zoo import spread

from thalweg.media.patches import PatchInputs, merge_order, twice

FAMILIES: dict[str, Seeing] = {
    "llava": Seeing(
        config("LlavaConfig", {"model_type": "llama"}, CLIP, "<image>"), "<image>", "<image>\n", "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    ),
    "pixtral": Seeing(
        config("LlavaConfig", {"model_type": "mistral", "sliding_window": None}, PIXTRAL, "[IMG]", vision_feature_layer=-1,
                vision_feature_select_strategy="full"),
        "[IMG]", "[IMG]", "PixtralImageProcessorPil", {"size": {"longest_edge": 56}, "patch_size": {"height": 7, "width": 7}},
        ("image_sizes",),
    ),
    "gemma3": Seeing(
        config("Gemma3Config", {"sliding_window": 20, "query_pre_attn_scalar": 24, "model_type": "gemma3_text"}, SIGLIP,
                "<image_soft_token>", mm_tokens_per_image=16),
        "<image_soft_token>", "<start_of_image>", "Gemma3ImageProcessorPil",
        {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    ),
    "mistral3": Seeing(
        config("Mistral3Config", {"model_type": "mistral", "sliding_window": None}, PIXTRAL, "[IMG]"),
        "[IMG]", "[IMG]", "PixtralImageProcessorPil", {"size": {"longest_edge": 56}, "patch_size": {"height": 14, "width": 14}},
        ("image_sizes",),
    ),
    "qwen2.5-vl": Seeing(
        config("Qwen2_5_VLConfig", {"rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
                QWEN | {"fullatt_block_indexes": [1], "window_size": 16}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
    ),
    "qwen3-vl": Seeing(
        config("Qwen3VLConfig", {"rope_parameters": MROPE},
                QWEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {
            "patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}, "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
        ("image_grid_thw",),
    ),
    "qwen2-vl": Seeing(
        config("Qwen2VLConfig", {"rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
                {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
                "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
    ),
    "qwen3-vl-moe": Seeing(
        config("Qwen3VLMoeConfig",
                {"rope_parameters": MROPE, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
                QWEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {
            "patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}, "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
        ("image_grid_thw",),
    ),
    "qwen3.5": Seeing(
        config(
            "Qwen3_5Config",
            {
                "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
                "linear_value_head_dim": 16,
                "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            },
            QWEN | {"num_position_embeddings": 36}, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
    ),
}  # fmt: skip
FAMILIES |= {
    "internvl": Seeing(
        config("InternVLConfig", {"model_type": "qwen2"}, INTERNVL, "<IMG_CONTEXT>"), "<IMG_CONTEXT>", "<IMG_CONTEXT>\n",
        "GotOcr2ImageProcessorPil", {**TILED, "crop_to_patches": True, "max_patches": 4}, writer="InternVLProcessor",
        holds={"start_image_token": "<img>", "end_image_token": "</img>", "image_seq_length": 4},
    ),
    "internvl-norms": Seeing(
        config(
            "InternVLConfig", {"model_type": "qwen3"},
            INTERNVL | {
                "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True, "use_mean_pooling": False,
                "num_hidden_layers": 3,
            }, "<IMG_CONTEXT>",
        ),
        "<IMG_CONTEXT>", "<IMG_CONTEXT>\n", "GotOcr2ImageProcessorPil", {**TILED, "crop_to_patches": True, "max_patches": 4},
    ),
    "idefics3": Seeing(
        config("Idefics3Config", {"model_type": "llama"}, IDEFICS, "<image>", scale_factor=2), "<image>", "<image>",
        "Idefics3ImageProcessorPil", SPLIT, ("pixel_attention_mask",), writer="Idefics3Processor",
        holds={"fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>", "image_seq_len": 4},
    ),
    "smolvlm": Seeing(
        config("SmolVLMConfig", {"model_type": "llama"}, IDEFICS | {"model_type": "smolvlm_vision"}, "<image>",
                scale_factor=4),
        "<image>", "<image>", "SmolVLMImageProcessorPil", SPLIT, ("pixel_attention_mask",), writer="SmolVLMProcessor",
        holds={"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>", "image_seq_len": 1},
    ),
    "llava-next": Seeing(
        config("LlavaNextConfig", {"model_type": "mistral", "sliding_window": None}, CLIP, "<image>",
                image_grid_pinpoints=PINS),
        "<image>", "<image>\n", "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": PINS},
        ("image_sizes",), writer="LlavaNextProcessor",
        holds={"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    ),
    "granite-vision": Seeing(
        config(
            "LlavaNextConfig",
            {
                "model_type": "granite", "embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2,
            }, SIGLIP | {"image_size": 28, "patch_size": 7, "num_hidden_layers": 4}, "<image>", image_grid_pinpoints=PINS,
            vision_feature_layer=[-4, -2, -1], vision_feature_select_strategy="full",
        ),
        "<image>", "<image>\n", "LlavaNextImageProcessorPil",
        {"size": {"height": 28, "width": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": PINS},
        ("image_sizes",), writer="LlavaNextProcessor",
        holds={"patch_size": 7, "num_additional_image_tokens": 0, "vision_feature_select_strategy": "full"},
    ),
    "llava-onevision": Seeing(
        config("LlavaOnevisionConfig", {"model_type": "qwen2"}, SIGLIP | {"image_size": 28, "patch_size": 7}, "<image>",
                image_grid_pinpoints=PINS, vision_aspect_ratio="anyres_max_2"),
        "<image>", "<image>\n", "LlavaOnevisionImageProcessorPil",
        {"size": {"height": 28, "width": 28}, "image_grid_pinpoints": PINS}, ("image_sizes", "batch_num_images"),
        writer="LlavaOnevisionProcessor",
        holds={"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
    ),
    "gemma4": Seeing(
        config("Gemma4Config", GEMMA_4 | {"num_kv_shared_layers": 2}, GEMMA_4_VISION | {"use_clipped_linears": True},
                "<|image|>", audio_config=None, **GEMMA_4_EDGES),
        "<|image|>", "<|image|>", "Gemma4ImageProcessorPil", {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        ("image_position_ids",), writer="Gemma4Processor", holds={"boi_token": "", "eoi_token": ""},
    ),
    "lighton-ocr": Seeing(
        config("LightOnOcrConfig", {"model_type": "qwen3"}, PIXTRAL, "<|image_pad|>"), "<|image_pad|>", "<|image_pad|>",
        "PixtralImageProcessorPil", {"size": {"longest_edge": 56}, "patch_size": {"height": 14, "width": 14}}, ("image_sizes",),
        writer="LightOnOcrProcessor", holds={"effective_patch_size": 14},
    ),
    "aya-vision": Seeing(
        config("AyaVisionConfig", {"model_type": "cohere2", "sliding_window": 20, "logit_scale": 1.0},
                SIGLIP | {"image_size": 28, "patch_size": 7}, "<image_soft_token>", alignment_intermediate_size=40),
        "<image_soft_token>", "<image>", "GotOcr2ImageProcessorPil", {**TILED, "crop_to_patches": True, "max_patches": 4},
        writer="AyaVisionProcessor",
        holds={
            "img_size": 28, "patch_size": 14, "start_of_img_token": "<|START_OF_IMG|>", "end_of_img_token": "<|END_OF_IMG|>",
            "img_patch_token": "<image_soft_token>", "tile_token": "TILE", "tile_global_token": "TILE_GLOBAL",
        },
    ),
    "cohere2-vision": Seeing(
        config("Cohere2VisionConfig", {"model_type": "cohere2", "sliding_window": 20, "logit_scale": 1.0},
                SIGLIP | {"image_size": 28, "patch_size": 7}, "<image_soft_token>", alignment_intermediate_size=40),
        "<image_soft_token>", "<image_soft_token>", "Cohere2VisionImageProcessor",
        {**TILED, "crop_to_patches": True, "max_patches": 4}, writer="Cohere2VisionProcessor",
        holds={
            "patch_size": 2, "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
    ),
    "glm4v": Seeing(
        config("Glm4vConfig", {"model_type": "glm4v_text", "rope_parameters": GLM_ROPE, "head_dim": 12}, GLM, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Glm4vImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 8192}}, ("image_grid_thw",),
    ),
    "glm4v-moe": Seeing(
        config(
            "Glm4vMoeConfig",
            {
                "model_type": "glm4v_moe_text", "rope_parameters": {**GLM_ROPE, "mrope_section": [2, 1, 1]},
                "n_routed_experts": 6, "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
            }, GLM | {"attention_bias": True}, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Glm4vImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 8192}}, ("image_grid_thw",),
    ),
    "paddleocr-vl": Seeing(
        config("PaddleOCRVLConfig",
                {"head_dim": 12, "rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "use_bias": True},
                {**SIGLIP, "image_size": 24, "model_type": "paddleocr_vl_vision"}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "PaddleOCRVLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
        writer="PaddleOCRVLProcessor",
    ),
    "gemma4-together": Seeing(
        config(
            "Gemma4Config",
            GEMMA_4 | {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0, "sliding_window": 72},
            GEMMA_4_VISION | {"standardize": True}, "<|image|>", audio_config=None, **GEMMA_4_EDGES,
        ),
        "<|image|>", "<|image|>", "Gemma4ImageProcessorPil", {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        ("image_position_ids",),
    ),
}  # fmt: skip
MORE |= NEWER | LATEST | PACKED | QUERIES | PUBLISHED | JOINED | LLAVA | TILES
FAMILIES |= MORE
LEAST = {"idefics2-split": 2, "ovis2.5": 8, "ovis2.6": 8}
"""Pixels of the shorter edge of an image, where transformers fails at fewer, or resizes those otherwise (Ovis 2.5)."""
ONE_AXIS = (
    "dots-ocr", "dots-vlm", "exaone4.5", "glm5-next", "hyperclovax-vision", "kimi-k2.5", "kimi-vl", "lfm3-vl", "opencua",
    "ovis2.5", "ovis2.6", "points-1.5", "sarashina2-vision", "video-llama-3",
)  # fmt: skip
"""Of those with grids: they do not ask which tokens are of images."""


def make(name: str, path: Path) -> torch.nn.Module:
    """The model of transformers, saved."""
    family = FAMILIES[name]
    model = build(name).eval()
    spread(model, 7)
    if name == "ernie4.5-vl":  # it never answers with tokens that go to other experts, as of its authors
        model.lm_head.weight.data[list(IDS.values())] = 0  # type: ignore[union-attr, index]
    model.save_pretrained(path)
    (file,) = path.glob("*.safetensors")
    if family.renamed:
        save_file({other_name(k, family.renamed): v for k, v in load_file(file).items()}, file)
    settings(name, path)
    return model


def build(name: str) -> torch.nn.Module:
    family = FAMILIES[name]
    if family.build is not None:
        return family.build(family.config()).to(torch.float32)
    return transformers.AutoModelForImageTextToText.from_config(
        family.config(), dtype=torch.float32, attn_implementation="eager"
    )


def other_name(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def settings(name: str, path: Path) -> None:
    """Files beside its tensors: config.json if it is not there, the tokenizer, and what is said of images."""
    family = FAMILIES[name]
    if not (path / "config.json").is_file():
        made = family.config()
        made.architectures = [architecture(name)]
        made.save_pretrained(path)
    said = family.published(json.loads((path / "config.json").read_text()))
    (path / "config.json").write_text(json.dumps(said))
    processor(name).save_pretrained(path)
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps(family.said(json.loads(file.read_text()))))
    write_tokenizer(path, family.marker, family.tokens)


def write_tokenizer(path: Path, marker: str, extra: tuple[str, ...] = ()) -> None:
    """Of bytes and special tokens, with a template that writes this for an image."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([*NAMES, *extra])
    tok.save(str(path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE % marker}
    (path / "tokenizer_config.json").write_text(json.dumps(said))


def processor(name: str) -> Any:
    """transformers' own, which needs Pillow. Of Command A Vision it needs torchvision: here its way to cut is put into that of
    GOT-OCR, which is the same otherwise."""
    family = FAMILIES[name]
    if family.processor == "Cohere2VisionImageProcessor":
        return CohereTiles(**family.settings)
    if family.processor in ("FittedTiles", "Floored"):
        return {"FittedTiles": FittedTiles, "Floored": Floored}[family.processor](**family.settings)
    if family.processor in TILED_PROCESSORS:
        return TILED_PROCESSORS[family.processor](**family.settings)
    if family.processor in ("RadioTiles", "RoundedTiles"):
        return globals()[family.processor](**family.settings)
    if family.processor in ON_PILLOW:
        return pillow_processors.processor(ON_PILLOW[family.processor], family.processor)(**family.settings)
    return getattr(transformers, family.processor)(**family.settings)


ON_PILLOW = {
    "PerceptionLMImageProcessor": "perception_lm",
    "Llama4ImageProcessor": "llama4", "Kimi_K25ImageProcessor": "kimi_k25", "Lfm2VlImageProcessor": "lfm2_vl",
    "NemotronH_Omni_Reasoning_V3ImageProcessor": "nemotron_h_omni", "Step3p7ImageProcessor": "step3p7",
}  # fmt: skip
"""By class, the module of those that need torchvision."""


def read(name: str, images: list[Any]) -> Any:
    """What transformers' model takes of images, as numpy has it."""
    if FAMILIES[name].processor != "Llama4ImageProcessor":
        return processor(name)(images=images, return_tensors="np")
    made = processor(name)(images=images, return_tensors="pt")  # in bfloat16, which numpy has not
    return {**made, "pixel_values": made["pixel_values"].float().numpy()}


@functools.cache
def canvas() -> Any:
    """What chooses the tiles of Command A Vision, out of a module of transformers that only torchvision lets one import."""
    file = Path(transformers.__file__).parent / "models/cohere2_vision/image_processing_cohere2_vision.py"
    wanted = ("get_all_supported_aspect_ratios", "get_optimal_tiled_canvas")
    parts = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    known: dict[str, Any] = {"np": np, "lru_cache": functools.lru_cache}
    exec(compile(ast.Module(parts, []), str(file), "exec"), known)
    return known[wanted[1]]


class CohereTiles(got.GotOcr2ImageProcessorPil):
    def crop_image_to_patches(self, *args: Any, **more: Any) -> Any:
        with mock.patch.object(got, "get_optimal_tiled_canvas", canvas()):
            return super().crop_image_to_patches(*args, **more)


class RoundedTiles(transformers.DeepseekOcr2ImageProcessorPil):
    """As DeepSeek-OCR's authors pad an image: with Pillow, which rounds the half of the space to an even number."""

    def pad_to_square(self, image: np.ndarray, background_color: Any = 0) -> np.ndarray:
        _, height, width = image.shape
        made = np.full((3, max(height, width), max(height, width)), background_color[0], image.dtype)
        top, left = (round((made.shape[1] - size) / 2) for size in (height, width))
        made[:, top : top + height, left : left + width] = image
        return made


class RadioTiles(got.GotOcr2ImageProcessorPil):
    """InternVL's tiles, as patches."""

    def preprocess(self, images: Any, **more: Any) -> Any:
        made = super().preprocess(images, **{**more, "return_tensors": "np"})
        tiles = np.asarray(made["pixel_values"])
        return {
            "pixel_values": cut_patches(tiles, 4),
            "image_grid_hw": np.array([[tiles.shape[2] // 4, tiles.shape[3] // 4]] * len(tiles)),
        }


def given(name: str, ids: list[int], images: list[Any]) -> dict[str, torch.Tensor]:
    """What transformers' model is asked with: a prompt whose placeholders are expanded, and its images."""
    family = FAMILIES[name]
    out = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    shown = (out["input_ids"] == IDS[family.token]).int()
    if images:
        nested = FAMILIES[name].writer in ("GraniteDoclingProcessor", "Idefics3Processor", "SmolVLMProcessor")
        nested = nested or name.startswith("idefics2")
        made = read(name, [images] if nested else images)
        extras = [k for k in (*family.extras, "pixel_values_local") if k in made]
        out |= {k: torch.from_numpy(np.asarray(made[k])) for k in ("pixel_values", *extras)}
        if name not in ONE_AXIS and ("image_grid_thw" in out or "image_position_ids" in out or name == "minicpm-v4.7"):
            out["mm_token_type_ids"] = shown
    if name == "deepseek-ocr" and images:
        edge = FAMILIES[name].settings["tile_size"]
        grids = [
            got.get_optimal_tiled_canvas(i.size[::-1], (edge, edge), 2, 6) if max(i.size) > edge else (1, 1) for i in images
        ]
        out |= {"patches_grid": [list(grid) for grid in grids], "num_local_patches": out["num_local_patches"].tolist()}
    if name == "gemma3":
        out["token_type_ids"] = shown
    if name == "ernie4.5-vl":
        edges = (IDS[each] for each in ("<|vision_start|>", "<|vision_end|>"))
        out["moe_mm_token_type_ids"] = sum((out["input_ids"] == id).int() for id in edges) + shown
    if name.startswith("paligemma") and images:
        out["token_type_ids"] = torch.zeros_like(shown)
    return out


@torch.no_grad()
def greedy(model: Any, name: str, ids: list[int], images: list[Any], new: int) -> list[int]:
    """transformers' tokens, those that end a text too. Of Qwen3.5 without its cache: with it, positions after an image are
    others than it has itself. So of Gemma 4 whose images see themselves: with it, tokens after long prompts and after text
    alone are others."""
    if name in ("qwen3.5", "interns2-preview", "gemma4-together"):
        seq = list(ids)
        for _ in range(new):
            seq.append(int(model(**given(name, seq, images), use_cache=False).logits[0, -1].argmax()))
        return seq[len(ids) :]
    if name == "blip-2" and not images:
        model = model.language_model  # the whole model requires an image
    model.generation_config.eos_token_id = None
    out = model.generate(**given(name, ids, images), max_new_tokens=new, do_sample=False)
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


@torch.no_grad()
def generate_scored(model: Any, new: int, given: int, **inputs: Any) -> tuple[list[int], np.ndarray]:
    """(greedy tokens of a decoder with cross attention, their log-probabilities). new: tokens. given: those of the decoder's
    prompt, the start token included. inputs: of `generate`."""
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    out = model.generate(
        **inputs, do_sample=False, num_beams=1, max_new_tokens=new, output_logits=True, return_dict_in_generate=True
    )
    tokens = out.sequences[0].tolist()[given:]
    return tokens, torch.cat(out.logits).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


@torch.no_grad()
def scores(model: Any, name: str, ids: list[int], images: list[Any]) -> np.ndarray:
    """transformers' log probabilities of the prompt's tokens, from the second."""
    logits = model(**given(name, ids, images)).logits[0, :-1].log_softmax(-1)
    made: np.ndarray = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    return made


def architecture(name: str) -> str:
    """Of transformers."""
    return type(build(name)).__name__


def written(name: str, image: Any) -> str:
    """What transformers' processor puts in an image's place; "" where it is not asked."""
    family = FAMILIES[name]
    if not family.writer:
        return ""
    kind, reads = getattr(transformers, family.writer), processor(name)
    whole = kind.__new__(kind)
    for key, value in {"image_processor": reads, "image_token": family.token, **family.holds}.items():
        setattr(whole, key, value)
    if family.writer == "Lfm2VlProcessor":
        return str(whole.replace_image_token(reads(images=[image], return_tensors="np"), 0, use_image_special_tokens=True))
    if family.writer in ("MiniCPMV4_6Processor", "MiniCPMV4_7Processor", "MiniCPMOcrProcessor"):
        divisor = 4 if "downsample_mode" in family.settings else 16
        return str(whole.replace_image_token(reads(images=[image], return_tensors="np"), 0, image_token_divisor=divisor))
    told = "pixel_attention_mask" in family.extras and family.writer != "GraniteDoclingProcessor"
    more = {"return_row_col_info": True} if told else {}
    tensors = "pt" if family.writer == "Llama4Processor" else "np"
    text: str = whole.replace_image_token(reads(images=[image], return_tensors=tensors, **more), 0)
    return text.replace("<|patch|>", family.token).replace("<IMG_ATOM>", family.token)


ORDERED = ("HunYuanVLImageProcessorPil", "HYV4VLImageProcessorPil", "Kimi_K25ImageProcessor")
"""They give patches, in our order."""


def same_pixels(name: str, prepared: PatchInputs, theirs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Patches [T, width] of ours and of transformers' pixel values, in one order."""
    pixels, ours, family = np.asarray(theirs["pixel_values"]), prepared.value, FAMILIES[name]
    if "target_sizes" in theirs:  # side by side, and ours in squares of squares
        rows = pixels.reshape(3, pixels.shape[2], -1, pixels.shape[2]).transpose(2, 0, 1, 3).reshape(len(ours), -1)
        once = "downsample_mode" in family.settings
        sizes = [merge_order(*size, 2) if once else twice(*size) for size in theirs["target_sizes"]]
        begins = np.cumsum([0, *map(len, sizes)])
        return ours, rows[np.concatenate([each + at for each, at in zip(sizes, begins, strict=False)])]
    if "high_res_pixel_values" in theirs:
        return ours, np.concatenate([cut_patches(np.asarray(theirs[k]), 7) for k in ("high_res_pixel_values", "pixel_values")])
    if "spatial_shapes" in theirs:  # patches, and some that are not there
        return ours, pixels[np.asarray(theirs["pixel_attention_mask"]) > 0]
    if "image_position_ids" in theirs:  # values from 0 to 1, and patches that are not there
        return ours, 2 * (pixels[0, : len(ours)] - 0.5)
    if family.processor in ORDERED:
        return ours, pixels.reshape(len(ours), -1)
    if "tilings" in theirs:
        return ours, cut_patches(pixels, 4)
    if "image_grid_hw" in theirs:  # patches, row by row, and learned vectors before those of each view
        views = np.split(ours, len(theirs["image_grid_hw"]))
        return np.concatenate([view[-(len(pixels) // len(views)) :] for view in views]), pixels
    if pixels.ndim == 2:  # patches already, and ours may lie window by window
        return ours[prepared.keep], pixels.reshape(len(ours), -1)
    if pixels.ndim == 4 and "image_grid_thw" in theirs:  # patches, row by row
        _, rows, columns = theirs["image_grid_thw"][0]
        return ours, pixels.reshape(len(ours), -1)[merge_order(rows, columns, family.config().vision_config.spatial_merge_size)]
    seen = family.config().vision_config
    patch = seen.model_args["patch_size"] if hasattr(seen, "model_args") else getattr(seen, "sam_config", seen).patch_size
    patch = patch if isinstance(patch, int) else patch[0]
    images = pixels.reshape(-1, *pixels.shape[-3:])
    if family.processor == "Idefics2ImageProcessorPil":  # patches that are shown whole
        masks = np.asarray(theirs["pixel_attention_mask"]).reshape(-1, *images.shape[-2:])
        shown = [image[:, : mask[:, 0].sum(), : mask[0].sum()] for image, mask in zip(images, masks, strict=True)]
        whole = [i[:, : i.shape[1] // patch * patch, : i.shape[2] // patch * patch] for i in shown]
        return ours, np.concatenate([cut_patches(i[None], patch) for i in whole])
    cut = cut_patches(images, patch)
    if "pixel_mask" in theirs:  # of patches that are not there
        mask = np.asarray(theirs["pixel_mask"])[0]
        return ours, cut[mask.reshape(mask.shape[0] // patch, patch, -1, patch).any((1, 3)).reshape(-1)]
    if "num_local_patches" in theirs:
        tiles = np.asarray(theirs.get("pixel_values_local", np.zeros((0, 3, patch, patch), np.float32)))
        return ours, np.concatenate([cut_patches(tiles, patch), cut])
    if len(ours) != len(cut):  # of each square the first is none
        ours = ours.reshape(len(images), len(cut) // len(images) + 1, -1)[:, 1:].reshape(cut.shape)
    return ours, cut


def cut_patches(images: np.ndarray, patch: int) -> np.ndarray:
    """[n, 3, height, width] -> [n * rows * columns, 3 * patch * patch]."""
    rows, columns = images.shape[2] // patch, images.shape[3] // patch
    parts = images.reshape(len(images), 3, rows, patch, columns, patch).transpose(0, 2, 4, 1, 3, 5)
    return parts.reshape(len(images) * rows * columns, 3 * patch * patch)
