"""How each family turns an image into arrays and a stretch of its prompt. One file each, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, architecture, folder
from thalweg.checkpoint.json_files import read_object
from thalweg.checkpoint.native_images import READS
from thalweg.errors import ConfigError
from thalweg.media.processors.aria import Aria, aria
from thalweg.media.processors.base import FILE, Size, View, outer, vision
from thalweg.media.processors.blip import Blip, blip
from thalweg.media.processors.blip_2 import Blip2, Blip2Source, blip_2
from thalweg.media.processors.chameleon import Chameleon, chameleon
from thalweg.media.processors.clip import Clip, ClipVector, clip, clip_vector
from thalweg.media.processors.cosmos3 import Cosmos3Edge, cosmos3_edge
from thalweg.media.processors.deepseek_vl import DeepseekVL, Janus, deepseek_vl, janus, multi_modality
from thalweg.media.processors.deepseek_vl2 import DeepseekVl2, deepseek_vl2
from thalweg.media.processors.deepseek_vl_hybrid import DeepseekVLHybrid, deepseek_vl_hybrid
from thalweg.media.processors.donut import Donut, donut
from thalweg.media.processors.dots_ocr import dots_ocr, dots_vlm
from thalweg.media.processors.florence2 import Florence2, florence2
from thalweg.media.processors.fuyu import Fuyu, fuyu
from thalweg.media.processors.gemma3 import Gemma3, gemma3
from thalweg.media.processors.gemma4 import Gemma4, gemma4
from thalweg.media.processors.git import Git, git
from thalweg.media.processors.glm5_next import Glm5Next, glm5_next
from thalweg.media.processors.granite4_vision import Granite4Vision, granite4_vision
from thalweg.media.processors.granite_docling import GraniteDocling, granite_docling
from thalweg.media.processors.hunyuan import HunYuanVL, Hy4, hunyuan_vl, hy_v4_vl
from thalweg.media.processors.idefics2 import Idefics2, idefics2
from thalweg.media.processors.idefics3 import Idefics3, ModernVBert, colmodernvbert, idefics3
from thalweg.media.processors.instructblip import (
    InstructBlip,
    InstructBlipSource,
    instructblip,
    instructblip_video,
    read_files,
)
from thalweg.media.processors.kimi import Kimi, kimi
from thalweg.media.processors.kosmos2 import Kosmos2, kosmos2
from thalweg.media.processors.lfm2_vl import Lfm2Vl, lfm2_vl
from thalweg.media.processors.lfm3_vl import Lfm3, lfm3_vl
from thalweg.media.processors.llama4 import Llama4, llama4
from thalweg.media.processors.llava_next import LlavaNext, llava_next, llava_onevision
from thalweg.media.processors.llava_original import llava_original, read_placeholder
from thalweg.media.processors.llava_texts import Mantis, Tarsier, mantis, read_added, tarsier
from thalweg.media.processors.minicpm_v import MiniCpmV, minicpm_ocr, minicpm_v
from thalweg.media.processors.minicpm_v_2 import MiniCpmV2, minicpm_v_2
from thalweg.media.processors.minicpm_v_4_7 import MiniCpmV47, minicpm_v_4_7
from thalweg.media.processors.mllama import Mllama, mllama
from thalweg.media.processors.molmo2 import KEYS as MOLMO_KEYS
from thalweg.media.processors.molmo2 import Molmo2, molmo2
from thalweg.media.processors.nemotron_vl import (
    LlamaNemotron,
    NemotronOmni,
    NemotronTiles,
    llama_nemotron,
    nemotron_nano_vl,
    nemotron_omni,
)
from thalweg.media.processors.ovis import Ovis, ovis, read_pad
from thalweg.media.processors.ovis2 import Ovis2, ovis2
from thalweg.media.processors.ovis2_5 import MARKS, Ovis25, ovis2_5
from thalweg.media.processors.paligemma import colpali, paligemma
from thalweg.media.processors.perception_lm import PerceptionLM, perception_lm
from thalweg.media.processors.phi3_v import Phi3V, phi3_v
from thalweg.media.processors.phi4_multimodal import Phi4Multimodal, phi4_multimodal
from thalweg.media.processors.pixtral import Pixtral, lighton_ocr, pixtral
from thalweg.media.processors.qwen_encoders import (
    hyperclovax_vision,
    opencua,
    points_1_5,
    sarashina2_vision,
    tarsier2,
)
from thalweg.media.processors.qwen_vl import (
    Exaone45,
    Glm4v,
    PaddleOCR,
    QwenVL,
    ernie4_5_vl,
    exaone4_5,
    glm4v,
    glm_ocr,
    keye,
    paddleocr_vl,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
)
from thalweg.media.processors.sam import (
    DeepseekOcr,
    DeepseekOcr1,
    GotOcr,
    PaddedOcr,
    deepseek_ocr,
    deepseek_ocr2,
    deepseek_ocr2_chat,
    got_ocr2,
)
from thalweg.media.processors.step3 import Step3, step3p7
from thalweg.media.processors.tile_texts import Eagle25, H2ovl, NvlmD, eagle2_5, h2ovl, nvlm_d
from thalweg.media.processors.tiles import (
    AyaVision,
    CommandAVision,
    TiledImages,
    aya_vision,
    cohere2_vision,
    internvl,
    internvl_chat,
    qianfan_ocr,
)
from thalweg.media.processors.tokens import token_id
from thalweg.media.processors.trocr import Trocr, trocr
from thalweg.media.processors.video_llama_3 import VideoLlama3, video_llama_3
from thalweg.media.processors.video_llava import video_llava

__all__ = ["FILE", "PROCESSORS", "Clip", "Gemma3", "Pixtral", "Processor", "QwenVL", "Size", "View", "processor"]

Processor = (
    Aria
    | Blip
    | Blip2
    | Blip2Source
    | Chameleon
    | Clip
    | ClipVector
    | Cosmos3Edge
    | DeepseekOcr
    | DeepseekOcr1
    | DeepseekVL
    | DeepseekVLHybrid
    | DeepseekVl2
    | Florence2
    | Fuyu
    | Gemma3
    | Gemma4
    | Git
    | Glm4v
    | Glm5Next
    | GotOcr
    | Granite4Vision
    | GraniteDocling
    | HunYuanVL
    | Hy4
    | Idefics2
    | Idefics3
    | InstructBlip
    | InstructBlipSource
    | Donut
    | Eagle25
    | Exaone45
    | H2ovl
    | NvlmD
    | Janus
    | Kimi
    | Kosmos2
    | Lfm2Vl
    | Lfm3
    | CommandAVision
    | Llama4
    | LlavaNext
    | Mantis
    | Tarsier
    | MiniCpmV
    | MiniCpmV2
    | MiniCpmV47
    | ModernVBert
    | Mllama
    | Molmo2
    | LlamaNemotron
    | NemotronOmni
    | NemotronTiles
    | Ovis
    | Ovis2
    | Ovis25
    | Phi4Multimodal
    | Trocr
    | AyaVision
    | PaddedOcr
    | PaddleOCR
    | PerceptionLM
    | Phi3V
    | Pixtral
    | QwenVL
    | Step3
    | TiledImages
    | VideoLlama3
)


def _llava(config: Config, options: Config) -> Processor:
    return pixtral(config, options) if vision(config).get("model_type") == "pixtral" else clip(config, options)


def _tarsier(config: Config, options: Config) -> Processor:
    of_qwen = str(config.get("model_type")).startswith("qwen2_vl")
    return tarsier2(config, options) if of_qwen else tarsier(config, options)


def _vision_encoder_decoder(config: Config, options: Config) -> Trocr | Donut:
    return donut(config, options) if vision(config).get("model_type") == "donut-swin" else trocr(config, options)


PROCESSORS: Mapping[str, Callable[[Config, Config], Processor]] = {
    "AriaForConditionalGeneration": aria,
    "AyaVisionForConditionalGeneration": aya_vision,
    "BeeForConditionalGeneration": llava_onevision,
    "Blip2ForConditionalGeneration": blip_2,
    "BlipForConditionalGeneration": blip,
    "CLIPModel": clip_vector,
    "ChameleonForConditionalGeneration": chameleon,
    "Cohere2VisionForConditionalGeneration": cohere2_vision,
    "CohereCompassForConditionalGeneration": qwen3_vl,
    "ColModernVBertForRetrieval": colmodernvbert,
    "ColPaliForRetrieval": colpali,
    "ColQwen2ForRetrieval": qwen2_vl,
    "ColQwen3": qwen3_vl,
    "ColQwen3_5": qwen3_vl,
    "Cosmos3EdgeForConditionalGeneration": cosmos3_edge,
    "Cosmos3ForConditionalGeneration": qwen3_vl,
    "Cosmos3OmniForConditionalGeneration": qwen3_vl,
    "DeepseekOCR2ForCausalLM": deepseek_ocr2_chat,
    "DeepseekOCRForCausalLM": deepseek_ocr,
    "DeepseekOcr2ForConditionalGeneration": deepseek_ocr2,
    "DeepseekVL2ForCausalLM": deepseek_vl2,
    "DeepseekVLForConditionalGeneration": deepseek_vl,
    "DeepseekVLHybridForConditionalGeneration": deepseek_vl_hybrid,
    "DeepseekVLV2ForCausalLM": deepseek_vl2,
    "DonutForConditionalGeneration": _vision_encoder_decoder,
    "DotsOCRForCausalLM": dots_ocr,
    "DotsVLMForCausalLM": dots_vlm,
    "Eagle2_5_VLForConditionalGeneration": eagle2_5,
    "Ernie4_5_VLMoeForConditionalGeneration": ernie4_5_vl,
    "Exaone4_5_ForConditionalGeneration": exaone4_5,
    "Florence2ForConditionalGeneration": florence2,
    "FuyuForCausalLM": fuyu,
    "Gemma3ForConditionalGeneration": gemma3,
    "EmbeddingGemma2Model": gemma4,
    "Gemma4ForConditionalGeneration": gemma4,
    "GitForCausalLM": git,
    "Glm46VForConditionalGeneration": glm4v,
    "Glm4vForConditionalGeneration": glm4v,
    "Glm4vMoeForConditionalGeneration": glm4v,
    "Glm5NextForConditionalGeneration": glm5_next,
    "GlmOcrForConditionalGeneration": glm_ocr,
    "GotOcr2ForConditionalGeneration": got_ocr2,
    "Granite4VisionForConditionalGeneration": granite4_vision,
    "GraniteDoclingForConditionalGeneration": granite_docling,
    "H2OVLChatModel": h2ovl,
    "HCXVisionV2ForCausalLM": hyperclovax_vision,
    "HYV4VLForConditionalGeneration": hy_v4_vl,
    "HunYuanVLForConditionalGeneration": hunyuan_vl,
    "HyperCLOVAXVisionV2ForConditionalGeneration": hyperclovax_vision,
    "Idefics2ForConditionalGeneration": idefics2,
    "Idefics3ForConditionalGeneration": idefics3,
    "InstructBlipForConditionalGeneration": instructblip,
    "InstructBlipVideoForConditionalGeneration": instructblip_video,
    "InternS1ForConditionalGeneration": internvl,
    "InternS2PreviewForConditionalGeneration": qwen3_vl,
    "InternVLChatModel": internvl_chat,
    "InternVLForConditionalGeneration": internvl,
    "JanusForConditionalGeneration": janus,
    "JinaVLForRanking": qwen2_vl,
    "KeyeForConditionalGeneration": keye,
    "KeyeVL1_5ForConditionalGeneration": keye,
    "Kimi_K25ForConditionalGeneration": kimi,
    "KimiK25ForConditionalGeneration": kimi,
    "KimiVLForConditionalGeneration": kimi,
    "Kosmos2ForConditionalGeneration": kosmos2,
    "Lfm2VlForConditionalGeneration": lfm2_vl,
    "Lfm3VlForConditionalGeneration": lfm3_vl,
    "LightOnOCRForConditionalGeneration": lighton_ocr,
    "LightOnOcrForConditionalGeneration": lighton_ocr,
    "Llama4ForConditionalGeneration": llama4,
    "Llama_Nemotron_Nano_VL": llama_nemotron,
    "LlavaForConditionalGeneration": _llava,
    "LlavaLlamaForCausalLM": llava_original,
    "LlavaMistralForCausalLM": llava_original,
    "LlavaNextForConditionalGeneration": llava_next,
    "LlavaNextVideoForConditionalGeneration": llava_next,
    "LlavaOnevisionForConditionalGeneration": llava_onevision,
    "LlavaQwenForCausalLM": llava_original,
    "MantisForConditionalGeneration": mantis,
    "MiniCPMO": minicpm_v_2,
    "MiniCPMV": minicpm_v_2,
    "MiniCPMOcrForConditionalGeneration": minicpm_ocr,
    "MiniCPMV4_6ForConditionalGeneration": minicpm_v,
    "MiniCPMV4_7ForConditionalGeneration": minicpm_v_4_7,
    "Mistral3ForConditionalGeneration": pixtral,
    "Molmo2ForConditionalGeneration": molmo2,
    "OpsColQwen3Model": qwen3_vl,
    "OpenCUAForConditionalGeneration": opencua,
    "MllamaForConditionalGeneration": mllama,
    "MultiModalityCausalLM": multi_modality,
    "NemotronH_Nano_Omni_Reasoning_V3": nemotron_omni,
    "NemotronH_Nano_VL_V2": nemotron_nano_vl,
    "NemotronH_Omni_Reasoning_V3": nemotron_omni,
    "NemotronH_Super_Omni_Reasoning_V3": nemotron_omni,
    "NVLM_D": nvlm_d,
    "Ovis": ovis,
    "Ovis2ForConditionalGeneration": ovis2,
    "Ovis2_5": ovis2_5,
    "Ovis2_6ForCausalLM": ovis2_5,
    "Ovis2_6_MoeForCausalLM": ovis2_5,
    "PaddleOCRVLForConditionalGeneration": paddleocr_vl,
    "PaliGemmaForConditionalGeneration": paligemma,
    "PerceptionLMForConditionalGeneration": perception_lm,
    "POINTSV15ChatModel": points_1_5,
    "Phi3VForCausalLM": phi3_v,
    "Phi4MMForCausalLM": phi4_multimodal,
    "Phi4MultimodalForCausalLM": phi4_multimodal,
    "PixtralForConditionalGeneration": pixtral,
    "QianfanOCRForConditionalGeneration": qianfan_ocr,
    "Qwen2_5OmniForConditionalGeneration": qwen2_5_vl,
    "Qwen2_5OmniModel": qwen2_5_vl,
    "Qwen2_5OmniThinkerForConditionalGeneration": qwen2_5_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen3OmniMoeForConditionalGeneration": qwen3_vl,
    "Qwen3OmniMoeThinkerForConditionalGeneration": qwen3_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLForSequenceClassification": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl,
    "Qwen3_5ForConditionalGeneration": qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": qwen3_vl,
    "Qwen4ExpForConditionalGeneration": qwen3_vl,
    "SiglipModel": clip_vector,
    "Sarashina2VisionForCausalLM": sarashina2_vision,
    "SkyworkR1VChatModel": internvl_chat,
    "SmolVLMForConditionalGeneration": idefics3,
    "Step3p7ForConditionalGeneration": step3p7,
    "StepVLForConditionalGeneration": step3p7,
    "Tarsier2ForConditionalGeneration": tarsier2,
    "TarsierForConditionalGeneration": _tarsier,
    "VideoLlama3ForConditionalGeneration": video_llama_3,
    "VisionEncoderDecoderModel": _vision_encoder_decoder,
    "VideoLlavaForConditionalGeneration": video_llava,
    "VipLlavaForConditionalGeneration": clip,
}
"""`architectures` entry of config.json -> the function that reads its image settings."""
NEMOTRON = (
    "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2", "NemotronH_Omni_Reasoning_V3",
    "NemotronH_Super_Omni_Reasoning_V3",
)  # fmt: skip
OVIS = ("Ovis2_5", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM")
WRITTEN: Mapping[str, str] = {
    **dict.fromkeys(("H2OVLChatModel", "InternVLChatModel", "SkyworkR1VChatModel"), "<IMG_CONTEXT>"),
    "Llama_Nemotron_Nano_VL": "<image>",
    "NVLM_D": "<|vision_pad|>",
    **dict.fromkeys(("MiniCPMO", "MiniCPMV"), "<unk>"),
    "POINTSV15ChatModel": "<|image_pad|>",
    "DeepseekOCR2ForCausalLM": "<image>",
    "DeepseekOCRForCausalLM": "<image>",
    "DeepseekVL2ForCausalLM": "<image>",
    "DeepseekVLV2ForCausalLM": "<image>",
    "MultiModalityCausalLM": "<image_placeholder>",
    **dict.fromkeys(NEMOTRON, "<image>"),
    **dict.fromkeys(OVIS, MARKS["image_token_id"]),
    "Molmo2ForConditionalGeneration": MOLMO_KEYS["image_token_id"],
}
"""Architecture -> text of the placeholder token, where the configuration does not name its id."""
WRITTEN_MORE: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(OVIS, MARKS),
    "Molmo2ForConditionalGeneration": MOLMO_KEYS,
}
"""The same of several tokens, by the keys of their ids."""

FILES: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "InstructBlipForConditionalGeneration": read_files,
    "InstructBlipVideoForConditionalGeneration": read_files,
    **dict.fromkeys(("LlavaLlamaForCausalLM", "LlavaMistralForCausalLM", "LlavaQwenForCausalLM"), read_placeholder),
    "Ovis": read_pad,
    "TarsierForConditionalGeneration": read_added,
}
"""Architecture -> reader of settings in other files than those of config.json and of the image processor."""


def processor(config: Config, path: Path, others: Collection[str] = ()) -> Processor | None:
    """Of the model in this directory. None: it does not see, or its files do not say how. others: keys of
    `mm_processor_kwargs` that another kind of media reads. CheckpointError or UnsupportedModelError."""
    read = PROCESSORS.get(architecture(config))
    if read is None or config.get("language_model_only") or not isinstance(outer(config).get("vision_config"), dict):
        return None
    options = outer(config).get(READS)  # of a format that has no file for it
    options = options if isinstance(options, dict) else _read_settings(folder(path))
    if options is None:
        return None
    if (name := WRITTEN.get(architecture(config))) is not None:
        names = WRITTEN_MORE.get(architecture(config), {"image_token_id": name})
        ids = {key: token_id(folder(path), each) for key, each in names.items()}
        config = {**config, BESIDE: {**outer(config), **ids}}
    if (more := FILES.get(architecture(config))) is not None:
        config = {**config, BESIDE: {**outer(config), **more(folder(path))}}
    if isinstance(own := options.get("media_proc_cfg"), dict):  # Kimi's authors keep them in a nested object
        options = {**options, **own}
    settings = _TrackedSettings({**options, **config.get("mm_processor_kwargs", {})})
    result = read(config, settings)
    if unread := sorted(set(config.get("mm_processor_kwargs", {})) - settings.read - set(others)):
        raise ConfigError(f"mm_processor_kwargs: unknown setting {unread[0]!r:.60} for this model's images; remove it")
    return result


class _TrackedSettings(dict[str, Any]):
    """Settings, with a record of the keys that were read."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _read_settings(where: Path) -> dict[str, Any] | None:
    """The settings, in a separate file or among those of the whole processor (transformers 5)."""
    if not where.is_dir():
        return None
    whole = where / "processor_config.json"
    if (where / FILE).is_file():
        around = read_object(whole) if whole.is_file() else {}
        return {**{key: around[key] for key in AROUND if key in around}, **read_object(where / FILE)}
    if not whole.is_file():
        return None
    found = read_object(whole)
    inner = found if "candidate_resolutions" in found else found.get("image_processor")  # of the authors of DeepSeek-OCR
    return {**{key: found[key] for key in AROUND if key in found}, **inner} if isinstance(inner, dict) else None


AROUND = ("image_use_col_tokens", "use_single_crop_col_tokens", "use_single_crop_start_token")
"""Settings of images that lie beside those of the image processor."""
