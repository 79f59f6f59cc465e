"""The supported architectures, and the function that reads the configuration of each. Imports no tensor framework, so that an
unsupported model is rejected before anything heavy is loaded.

A family may be third-party: an installed package names it in the entry points of the group `thalweg.models`
("MyModelForCausalLM" -> "package.module:function"). The function turns a configuration into a `ModelSpec`.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.checkpoint.tail import GENERATES
from thalweg.errors import UnsupportedModelError
from thalweg.models import names, tying
from thalweg.models.families import tails
from thalweg.models.families.groups import check_rope
from thalweg.models.spec import ModelSpec
from thalweg.plugins import PluginRegistry, import_attribute

_FAMILIES = "thalweg.models.families"
ARCHITECTURES: Mapping[str, str] = {
    "AfmoeForCausalLM": f"{_FAMILIES}.afmoe:afmoe",
    "AlbertForMaskedLM": f"{_FAMILIES}.albert:albert",
    "AlbertForPreTraining": f"{_FAMILIES}.albert:albert",
    "AlbertForSequenceClassification": f"{_FAMILIES}.albert:albert_classifier",
    "AlbertForTokenClassification": f"{_FAMILIES}.albert:albert_of_tokens",
    "AlbertModel": f"{_FAMILIES}.albert:albert",
    "AliceAIForCausalLM": f"{_FAMILIES}.alice_ai:alice_ai",
    "Apertus1p5ForConditionalGeneration": f"{_FAMILIES}.apertus:apertus1p5",
    "Apertus1p5TextForCausalLM": f"{_FAMILIES}.apertus:apertus1p5",
    "ApertusForCausalLM": f"{_FAMILIES}.apertus:apertus",
    "AquilaForCausalLM": f"{_FAMILIES}.llama:llama",
    "AquilaModel": f"{_FAMILIES}.llama:llama",
    "ArceeForCausalLM": f"{_FAMILIES}.arcee:arcee",
    "AriaForConditionalGeneration": f"{_FAMILIES}.aria:aria",
    "AudioFlamingo3ForConditionalGeneration": f"{_FAMILIES}.audio_chat:audio_flamingo3",
    "AXK1ForCausalLM": f"{_FAMILIES}.axk1:axk1",
    "AXK2ForCausalLM": f"{_FAMILIES}.axk2:axk2",
    "AyaVisionForConditionalGeneration": f"{_FAMILIES}.aya_vision:aya_vision",
    "BaiChuanForCausalLM": f"{_FAMILIES}.baichuan:baichuan_7b",
    "BaichuanForCausalLM": f"{_FAMILIES}.baichuan:baichuan",
    "BailingHybridForCausalLM": f"{_FAMILIES}.bailing_hybrid:bailing_hybrid",
    "BailingMoEForCausalLM": f"{_FAMILIES}.bailing:bailing_moe",
    "BailingMoeForCausalLM": f"{_FAMILIES}.bailing:bailing_moe",
    "BailingMoeV2ForCausalLM": f"{_FAMILIES}.bailing:bailing_moe_v2",
    "BailingMoeV2_5ForCausalLM": f"{_FAMILIES}.bailing_hybrid:bailing_moe_v2_5",
    "BailingMoeV3ForCausalLM": f"{_FAMILIES}.bailing_hybrid:bailing_moe_v3",
    "BambaForCausalLM": f"{_FAMILIES}.bamba:bamba",
    "BartForConditionalGeneration": f"{_FAMILIES}.bart:bart",
    "BertForMaskedLM": f"{_FAMILIES}.bert:bert",
    "BertForPreTraining": f"{_FAMILIES}.bert:bert",
    "BertForSequenceClassification": f"{_FAMILIES}.bert:bert_classifier",
    "BertForTokenClassification": f"{_FAMILIES}.bert:bert_of_tokens",
    "BertModel": f"{_FAMILIES}.bert:bert",
    "BertSpladeSparseEmbeddingModel": f"{_FAMILIES}.bert:bert_splade",
    "BgeM3EmbeddingModel": f"{_FAMILIES}.roberta:roberta",
    "BlenderbotForConditionalGeneration": f"{_FAMILIES}.bart:blenderbot",
    "BlenderbotSmallForConditionalGeneration": f"{_FAMILIES}.bart:blenderbot_small",
    "Blip2ForConditionalGeneration": f"{_FAMILIES}.blip_2:blip_2",
    "BloomForCausalLM": f"{_FAMILIES}.bloom:bloom",
    "CamembertForMaskedLM": f"{_FAMILIES}.roberta:roberta",
    "CamembertForSequenceClassification": f"{_FAMILIES}.roberta:roberta_classifier",
    "CamembertForTokenClassification": f"{_FAMILIES}.roberta:roberta_of_tokens",
    "CamembertModel": f"{_FAMILIES}.roberta:roberta",
    "CanaryForConditionalGeneration": f"{_FAMILIES}.canary:canary",
    "ChatGLMForConditionalGeneration": f"{_FAMILIES}.chatglm:chatglm",
    "ChatGLMModel": f"{_FAMILIES}.chatglm:chatglm",
    "CLIPModel": f"{_FAMILIES}.clip:clip",
    "CodeGenForCausalLM": f"{_FAMILIES}.codegen:codegen",
    "Cohere2ForCausalLM": f"{_FAMILIES}.cohere:cohere2",
    "Cohere2MoeForCausalLM": f"{_FAMILIES}.cohere2_moe:cohere2_moe",
    "Cohere2VisionForConditionalGeneration": f"{_FAMILIES}.aya_vision:cohere2_vision",
    "CohereCompassForCausalLM": f"{_FAMILIES}.cohere_compass:cohere_compass",
    "CohereCompassForConditionalGeneration": f"{_FAMILIES}.cohere_compass:cohere_compass",
    "CohereAsrForConditionalGeneration": f"{_FAMILIES}.canary:cohere_asr",
    "CohereForCausalLM": f"{_FAMILIES}.cohere:cohere",
    "ColBERTJinaRobertaModel": f"{_FAMILIES}.colbert:colbert_jina",
    "ColBERTLfm2Model": f"{_FAMILIES}.colbert:colbert_lfm2",
    "ColBERTModernBertModel": f"{_FAMILIES}.colbert:colbert_modernbert",
    "ColModernVBertForRetrieval": f"{_FAMILIES}.colmodernvbert:colmodernvbert",
    "ColPaliForRetrieval": f"{_FAMILIES}.colpali:colpali",
    "ColQwen2ForRetrieval": f"{_FAMILIES}.colqwen:colqwen2",
    "ColQwen3": f"{_FAMILIES}.colqwen:colqwen3",
    "ColQwen3_5": f"{_FAMILIES}.colqwen:colqwen3_5",
    "Cosmos3EdgeForConditionalGeneration": f"{_FAMILIES}.cosmos3:cosmos3_edge",
    "Cosmos3ForConditionalGeneration": f"{_FAMILIES}.cosmos3:cosmos3",
    "Cosmos3OmniForConditionalGeneration": f"{_FAMILIES}.cosmos3:cosmos3",
    "Contriever": f"{_FAMILIES}.bert:contriever",
    "CwmForCausalLM": f"{_FAMILIES}.cwm:cwm",
    "Data2VecAudioForCTC": f"{_FAMILIES}.wav2vec:data2vec_audio",
    "DbrxForCausalLM": f"{_FAMILIES}.dbrx:dbrx",
    "Data2VecTextForMaskedLM": f"{_FAMILIES}.roberta:data2vec_text",
    "Data2VecTextForSequenceClassification": f"{_FAMILIES}.roberta:data2vec_text_classifier",
    "Data2VecTextForTokenClassification": f"{_FAMILIES}.roberta:data2vec_text_of_tokens",
    "Data2VecTextModel": f"{_FAMILIES}.roberta:data2vec_text",
    "DebertaForMaskedLM": f"{_FAMILIES}.deberta:deberta",
    "DebertaForSequenceClassification": f"{_FAMILIES}.deberta:deberta_classifier",
    "DebertaForTokenClassification": f"{_FAMILIES}.deberta:deberta_of_tokens",
    "DebertaModel": f"{_FAMILIES}.deberta:deberta",
    "DebertaV2ForMaskedLM": f"{_FAMILIES}.deberta:deberta_v2",
    "DebertaV2ForSequenceClassification": f"{_FAMILIES}.deberta:deberta_v2_classifier",
    "DebertaV2ForTokenClassification": f"{_FAMILIES}.deberta:deberta_v2_of_tokens",
    "DebertaV2Model": f"{_FAMILIES}.deberta:deberta_v2",
    "DeciLMForCausalLM": f"{_FAMILIES}.deci:deci",
    "DeepseekForCausalLM": f"{_FAMILIES}.deepseek:deepseek",
    "DeepseekOCRForCausalLM": f"{_FAMILIES}.deepseek_ocr:deepseek_ocr",
    "DeepseekOCR2ForCausalLM": f"{_FAMILIES}.deepseek_ocr2:deepseek_ocr2_chat",
    "DeepseekOcr2ForConditionalGeneration": f"{_FAMILIES}.deepseek_ocr2:deepseek_ocr2",
    "DeepseekV2ForCausalLM": f"{_FAMILIES}.deepseek:deepseek_v2",
    "DeepseekV32ForCausalLM": f"{_FAMILIES}.deepseek_v32:deepseek_v32",
    "DeepseekV3ForCausalLM": f"{_FAMILIES}.deepseek:deepseek_v3",
    "DeepseekV4ForCausalLM": f"{_FAMILIES}.deepseek_v4:deepseek_v4",
    "DeepseekV4ForConditionalGeneration": f"{_FAMILIES}.deepseek_v4:deepseek_v4_text",
    "DeepseekVL2ForCausalLM": f"{_FAMILIES}.deepseek_vl2:deepseek_vl2",
    "DeepseekVLV2ForCausalLM": f"{_FAMILIES}.deepseek_vl2:deepseek_vl2",
    "DeepseekVLForConditionalGeneration": f"{_FAMILIES}.deepseek_vl:deepseek_vl",
    "DiffLlamaForCausalLM": f"{_FAMILIES}.diffllama:diffllama",
    "DistilBertForMaskedLM": f"{_FAMILIES}.distilbert:distilbert",
    "DistilBertForSequenceClassification": f"{_FAMILIES}.distilbert:distilbert_classifier",
    "DistilBertForTokenClassification": f"{_FAMILIES}.distilbert:distilbert_of_tokens",
    "DistilBertModel": f"{_FAMILIES}.distilbert:distilbert",
    "Dots1ForCausalLM": f"{_FAMILIES}.dots1:dots1",
    "Dots3NoteForCausalLM": f"{_FAMILIES}.dots3_note:dots3_note",
    "Dots3NoteForConditionalGeneration": f"{_FAMILIES}.dots3_note:dots3_note",
    "ElectraForMaskedLM": f"{_FAMILIES}.electra:electra",
    "ElectraForPreTraining": f"{_FAMILIES}.electra:electra",
    "ElectraForSequenceClassification": f"{_FAMILIES}.electra:electra_classifier",
    "ElectraForTokenClassification": f"{_FAMILIES}.electra:electra_of_tokens",
    "ElectraModel": f"{_FAMILIES}.electra:electra",
    "DotsOCRForCausalLM": f"{_FAMILIES}.dots_ocr:dots_ocr",
    "Ernie4_5_ForCausalLM": f"{_FAMILIES}.ernie4_5:ernie4_5",
    "Ernie4_5_MoeForCausalLM": f"{_FAMILIES}.ernie4_5:ernie4_5_moe",
    "Ernie4_5_VLMoeForConditionalGeneration": f"{_FAMILIES}.ernie4_5_vl:ernie4_5_vl",
    "Ernie4_5ForCausalLM": f"{_FAMILIES}.ernie4_5:ernie4_5",
    "EmbeddingGemma2Model": f"{_FAMILIES}.embedding_gemma2:embedding_gemma2",
    "ErnieForMaskedLM": f"{_FAMILIES}.ernie:ernie",
    "ErnieForPreTraining": f"{_FAMILIES}.ernie:ernie",
    "ErnieForSequenceClassification": f"{_FAMILIES}.ernie:ernie_classifier",
    "ErnieForTokenClassification": f"{_FAMILIES}.ernie:ernie_of_tokens",
    "ErnieModel": f"{_FAMILIES}.ernie:ernie",
    "EuroBertForMaskedLM": f"{_FAMILIES}.eurobert:eurobert",
    "EuroBertForSequenceClassification": f"{_FAMILIES}.eurobert:eurobert_classifier",
    "EuroBertForTokenClassification": f"{_FAMILIES}.eurobert:eurobert_of_tokens",
    "EuroBertModel": f"{_FAMILIES}.eurobert:eurobert",
    "Exaone4_5_ForConditionalGeneration": f"{_FAMILIES}.exaone4_5:exaone4_5",
    "Exaone4ForCausalLM": f"{_FAMILIES}.exaone4:exaone4",
    "ExaoneForCausalLM": f"{_FAMILIES}.exaone:exaone",
    "ExaoneMoEForCausalLM": f"{_FAMILIES}.exaone_moe:exaone_moe",
    "ExaoneMoeForCausalLM": f"{_FAMILIES}.exaone_moe:exaone_moe",
    "FalconForCausalLM": f"{_FAMILIES}.falcon:falcon",
    "FalconH1ForCausalLM": f"{_FAMILIES}.falcon_h1:falcon_h1",
    "FalconMambaForCausalLM": f"{_FAMILIES}.mamba:falcon_mamba",
    "Florence2ForConditionalGeneration": f"{_FAMILIES}.florence2:florence2",
    "FlexOlmoForCausalLM": f"{_FAMILIES}.flex_olmo:flex_olmo",
    "FlintForCausalLM": f"{_FAMILIES}.flint:flint",
    "Gemma2ForCausalLM": f"{_FAMILIES}.gemma:gemma2",
    "Gemma3ForCausalLM": f"{_FAMILIES}.gemma3:gemma3",
    "Gemma3ForConditionalGeneration": f"{_FAMILIES}.multimodal:gemma3",
    "Gemma3nForCausalLM": f"{_FAMILIES}.gemma3n:gemma3n",
    "Gemma3nForConditionalGeneration": f"{_FAMILIES}.gemma3n:gemma3n",
    "Gemma3TextModel": f"{_FAMILIES}.gemma3:gemma3_text",
    "Gemma4ForCausalLM": f"{_FAMILIES}.gemma4:gemma4",
    "Gemma4ForConditionalGeneration": f"{_FAMILIES}.gemma4_images:gemma4_images",
    "Gemma4UnifiedForCausalLM": f"{_FAMILIES}.gemma4:gemma4_unified",
    "Gemma4UnifiedForConditionalGeneration": f"{_FAMILIES}.gemma4:gemma4_unified",
    "GemmaForCausalLM": f"{_FAMILIES}.gemma:gemma",
    "GigaChat35ForCausalLM": f"{_FAMILIES}.gigachat35:gigachat35",
    "Glm4ForCausalLM": f"{_FAMILIES}.glm4:glm4",
    "Glm4MoeForCausalLM": f"{_FAMILIES}.glm4_moe:glm4_moe",
    "Glm4MoeLiteForCausalLM": f"{_FAMILIES}.glm4_moe_lite:glm4_moe_lite",
    "Glm46VForConditionalGeneration": f"{_FAMILIES}.glm4v:glm46v",
    "Glm4vForConditionalGeneration": f"{_FAMILIES}.glm4v:glm4v",
    "Glm4vMoeForConditionalGeneration": f"{_FAMILIES}.glm4v:glm4v_moe",
    "Glm5NextForCausalLM": f"{_FAMILIES}.glm5_next:glm5_next",
    "Glm5NextForConditionalGeneration": f"{_FAMILIES}.glm5_next:glm5_next",
    "GlmAsrForConditionalGeneration": f"{_FAMILIES}.audio_chat:glm_asr",
    "GlmForCausalLM": f"{_FAMILIES}.glm:glm",
    "GlmMoeDsaForCausalLM": f"{_FAMILIES}.deepseek_v32:glm_moe_dsa",
    "GlmOcrForConditionalGeneration": f"{_FAMILIES}.glm4v:glm_ocr",
    "GotOcr2ForConditionalGeneration": f"{_FAMILIES}.got_ocr2:got_ocr2",
    "GPT2ForSequenceClassification": f"{_FAMILIES}.gpt:gpt2_classifier",
    "GPT2LMHeadModel": f"{_FAMILIES}.gpt:gpt2",
    "GPT2Model": f"{_FAMILIES}.gpt:gpt2_embedder",
    "GPTBigCodeForCausalLM": f"{_FAMILIES}.gpt:gpt_bigcode",
    "GPTJForCausalLM": f"{_FAMILIES}.gpt:gptj",
    "GPTNeoForCausalLM": f"{_FAMILIES}.gpt:gpt_neo",
    "GPTNeoXForCausalLM": f"{_FAMILIES}.gpt_neox:gpt_neox",
    "GPTNeoXJapaneseForCausalLM": f"{_FAMILIES}.gpt_neox_japanese:gpt_neox_japanese",
    "GptOssForCausalLM": f"{_FAMILIES}.gpt_oss:gpt_oss",
    "GraniteDoclingForConditionalGeneration": f"{_FAMILIES}.granite_docling:granite_docling",
    "GraniteForCausalLM": f"{_FAMILIES}.granite:granite",
    "GraniteMoeForCausalLM": f"{_FAMILIES}.granite:granite_moe",
    "GraniteMoeHybridForCausalLM": f"{_FAMILIES}.granite_hybrid:granite_hybrid",
    "GraniteMoeSharedForCausalLM": f"{_FAMILIES}.granite:granite_moe_shared",
    "GraniteMoeSWAForCausalLM": f"{_FAMILIES}.granite_swa:granite_moe_swa",
    "GraniteSpeech5ForCTC": f"{_FAMILIES}.granite_speech5:granite_speech5",
    "GraniteSpeechForConditionalGeneration": f"{_FAMILIES}.granite_speech:granite_speech",
    "GraniteSpeechPlusForConditionalGeneration": f"{_FAMILIES}.granite_speech:granite_speech",
    "GraniteSWAForCausalLM": f"{_FAMILIES}.granite_swa:granite_swa",
    "GteForMaskedLM": f"{_FAMILIES}.gte:gte",
    "GteForSequenceClassification": f"{_FAMILIES}.gte:gte_classifier",
    "GteModel": f"{_FAMILIES}.gte:gte",
    "GteNewForSequenceClassification": f"{_FAMILIES}.gte:gte_classifier",
    "GteNewModel": f"{_FAMILIES}.gte:gte",
    "HF_ColBERT": f"{_FAMILIES}.colbert:colbert",
    "HubertForCTC": f"{_FAMILIES}.wav2vec:hubert",
    "HunYuanDenseV1ForCausalLM": f"{_FAMILIES}.hunyuan:hunyuan",
    "HunYuanMoEV1ForCausalLM": f"{_FAMILIES}.hunyuan:hunyuan_moe",
    "HyperCLOVAXForCausalLM": f"{_FAMILIES}.granite:hyperclovax",
    "HYV4ForCausalLM": f"{_FAMILIES}.hy_v4:hy_v4",
    "HYV4VLForConditionalGeneration": f"{_FAMILIES}.hy_v4:hy_v4_vl",
    "HYV3ForCausalLM": f"{_FAMILIES}.hy_v3:hy_v3",
    "Idefics2ForConditionalGeneration": f"{_FAMILIES}.idefics2:idefics2",
    "Idefics3ForConditionalGeneration": f"{_FAMILIES}.idefics3:idefics3",
    "InternLM2ForCausalLM": f"{_FAMILIES}.internlm:internlm2",
    "InternLM2ForRewardModel": f"{_FAMILIES}.internlm:internlm2_reward",
    "InternLM2VEForCausalLM": f"{_FAMILIES}.internlm:internlm2_ve",
    "InternLM3ForCausalLM": f"{_FAMILIES}.internlm:internlm3",
    "InternLMForCausalLM": f"{_FAMILIES}.internlm:internlm",
    "InternS1ForConditionalGeneration": f"{_FAMILIES}.internvl:internvl",
    "InternVLChatModel": f"{_FAMILIES}.internvl:internvl_chat",
    "InternVLForConditionalGeneration": f"{_FAMILIES}.internvl:internvl",
    "IQuestCoderForCausalLM": f"{_FAMILIES}.llama:llama",
    "JAISLMHeadModel": f"{_FAMILIES}.jais:jais",
    "Jais2ForCausalLM": f"{_FAMILIES}.jais2:jais2",
    "JambaForCausalLM": f"{_FAMILIES}.jamba:jamba",
    "JanusForConditionalGeneration": f"{_FAMILIES}.janus:janus",
    "JinaEmbeddingsV3ForMaskedLM": f"{_FAMILIES}.jina_v3:jina_v3",
    "JinaEmbeddingsV3ForSequenceClassification": f"{_FAMILIES}.jina_v3:jina_v3_classifier",
    "JinaEmbeddingsV3Model": f"{_FAMILIES}.jina_v3:jina_v3",
    "JinaEmbeddingsV5Model": f"{_FAMILIES}.jina_v5:jina_v5",
    "KeyeForConditionalGeneration": f"{_FAMILIES}.keye:keye",
    "KeyeVL1_5ForConditionalGeneration": f"{_FAMILIES}.keye:keye_1_5",
    "Kimi_K25ForConditionalGeneration": f"{_FAMILIES}.kimi_vl:kimi_k25",
    "KimiK25ForConditionalGeneration": f"{_FAMILIES}.kimi_vl:kimi_k25",
    "KimiK2ForCausalLM": f"{_FAMILIES}.deepseek:deepseek_v3",
    "JinaForRanking": f"{_FAMILIES}.jina_ranking:jina_ranking",
    "KimiK3ForConditionalGeneration": f"{_FAMILIES}.kimi_k3:kimi_k3",
    "KimiK3LinearForCausalLM": f"{_FAMILIES}.kimi_k3:kimi_k3",
    "KimiLinearForCausalLM": f"{_FAMILIES}.kimi_linear:kimi_linear",
    "KimiVLForConditionalGeneration": f"{_FAMILIES}.kimi_vl:kimi_vl",
    "Kolibri1ForCausalLM": f"{_FAMILIES}.kolibri1:kolibri1",
    "LagunaForCausalLM": f"{_FAMILIES}.laguna:laguna",
    "LaraMiniForCausalLM": f"{_FAMILIES}.lara_mini:lara_mini",
    "Lfm2ForCausalLM": f"{_FAMILIES}.lfm2:lfm2",
    "Lfm2MoeForCausalLM": f"{_FAMILIES}.lfm2:lfm2_moe",
    "Lfm2VlForConditionalGeneration": f"{_FAMILIES}.lfm2_vl:lfm2_vl",
    "Lfm3ForCausalLM": f"{_FAMILIES}.lfm3:lfm3",
    "Lfm3VlForConditionalGeneration": f"{_FAMILIES}.lfm3:lfm3_vl",
    "LEDForConditionalGeneration": f"{_FAMILIES}.led:longformer",
    "LightOnOCRForConditionalGeneration": f"{_FAMILIES}.lighton_ocr:lighton_ocr",
    "LightOnOcrForConditionalGeneration": f"{_FAMILIES}.lighton_ocr:lighton_ocr",
    "Llama4ForCausalLM": f"{_FAMILIES}.llama4:llama4",
    "Llama4ForConditionalGeneration": f"{_FAMILIES}.llama4:llama4",
    "LlamaBidirectionalForSequenceClassification": f"{_FAMILIES}.llama:llama_both_ways_classifier",
    "LlamaBidirectionalModel": f"{_FAMILIES}.llama:llama_both_ways",
    "LlamaForCausalLM": f"{_FAMILIES}.llama:llama",
    "LLaMAForCausalLM": f"{_FAMILIES}.llama:llama",
    "LlavaForConditionalGeneration": f"{_FAMILIES}.multimodal:llava",
    "LlavaNextForConditionalGeneration": f"{_FAMILIES}.llava_next:llava_next",
    "LlavaNextVideoForConditionalGeneration": f"{_FAMILIES}.llava_next:llava_next",
    "LlavaOnevisionForConditionalGeneration": f"{_FAMILIES}.llava_next:llava_onevision",
    "LongcatFlashForCausalLM": f"{_FAMILIES}.longcat:longcat_flash",
    "LongT5ForConditionalGeneration": f"{_FAMILIES}.longt5:longt5",
    "M2M100ForConditionalGeneration": f"{_FAMILIES}.bart:m2m_100",
    "Mamba2ForCausalLM": f"{_FAMILIES}.mamba2:mamba2",
    "MambaForCausalLM": f"{_FAMILIES}.mamba:mamba",
    "MarianMTModel": f"{_FAMILIES}.bart:marian",
    "MBartForConditionalGeneration": f"{_FAMILIES}.bart:mbart",
    "MegatronBertForMaskedLM": f"{_FAMILIES}.megatron_bert:megatron_bert",
    "MegatronBertForPreTraining": f"{_FAMILIES}.megatron_bert:megatron_bert",
    "MegatronBertForSequenceClassification": f"{_FAMILIES}.megatron_bert:megatron_bert_classifier",
    "MegatronBertForTokenClassification": f"{_FAMILIES}.megatron_bert:megatron_bert_of_tokens",
    "MegatronBertModel": f"{_FAMILIES}.megatron_bert:megatron_bert",
    "MiMoForCausalLM": f"{_FAMILIES}.mimo:mimo",
    "MiMoV2FlashForCausalLM": f"{_FAMILIES}.mimo_v2:mimo_v2_flash",
    "MiMoV2OmniForCausalLM": f"{_FAMILIES}.mimo_v2:mimo_v2",
    "MiMoV2ForCausalLM": f"{_FAMILIES}.mimo_v2:mimo_v2",
    "MiniCPM3ForCausalLM": f"{_FAMILIES}.minicpm3:minicpm3",
    "MiniCPMForCausalLM": f"{_FAMILIES}.minicpm:minicpm",
    "MiniCPMO": f"{_FAMILIES}.minicpm_v_2:minicpm_v",
    "MiniCPMV": f"{_FAMILIES}.minicpm_v_2:minicpm_v",
    "MiniCPMOcrForConditionalGeneration": f"{_FAMILIES}.minicpm_v:minicpm_ocr",
    "MiniCPMV4_6ForConditionalGeneration": f"{_FAMILIES}.minicpm_v:minicpm_v",
    "MiniCPMV4_7ForConditionalGeneration": f"{_FAMILIES}.minicpm_v:minicpm_v_4_7",
    "MiniMaxForCausalLM": f"{_FAMILIES}.minimax:minimax",
    "MiniMaxM1ForCausalLM": f"{_FAMILIES}.minimax:minimax",
    "MiniMaxM2ForCausalLM": f"{_FAMILIES}.minimax_m2:minimax_m2",
    "MiniMaxM3SparseForCausalLM": f"{_FAMILIES}.minimax_m3:minimax_m3",
    "MiniMaxM3SparseForConditionalGeneration": f"{_FAMILIES}.minimax_m3:minimax_m3",
    "MiniMaxText01ForCausalLM": f"{_FAMILIES}.minimax:minimax",
    "Ministral3ForCausalLM": f"{_FAMILIES}.ministral3:ministral3",
    "MinistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "Mistral3ForConditionalGeneration": f"{_FAMILIES}.multimodal:mistral3",
    "Mistral4ForCausalLM": f"{_FAMILIES}.mistral4:mistral4",
    "MistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "MistralLarge3ForCausalLM": f"{_FAMILIES}.mistral4:mistral4",
    "Molmo2ForConditionalGeneration": f"{_FAMILIES}.molmo2:molmo2",
    "MoonshineForConditionalGeneration": f"{_FAMILIES}.moonshine:moonshine",
    "MistralLarge4ForConditionalGeneration": f"{_FAMILIES}.mistral_large4:mistral_large4",
    "MixtralForCausalLM": f"{_FAMILIES}.mixtral:mixtral",
    "ModernBertForMaskedLM": f"{_FAMILIES}.modernbert:modernbert",
    "MllamaForConditionalGeneration": f"{_FAMILIES}.mllama:mllama",
    "ModernBertForSequenceClassification": f"{_FAMILIES}.modernbert:modernbert_classifier",
    "ModernBertForTokenClassification": f"{_FAMILIES}.modernbert:modernbert_of_tokens",
    "ModernBertModel": f"{_FAMILIES}.modernbert:modernbert",
    "MPNetForMaskedLM": f"{_FAMILIES}.mpnet:mpnet",
    "MPNetForSequenceClassification": f"{_FAMILIES}.mpnet:mpnet_classifier",
    "MPNetModel": f"{_FAMILIES}.mpnet:mpnet",
    "MptForCausalLM": f"{_FAMILIES}.bloom:mpt",
    "MPTForCausalLM": f"{_FAMILIES}.bloom:mpt",
    "MT5EncoderModel": f"{_FAMILIES}.t5:t5_encoder",
    "MT5ForConditionalGeneration": f"{_FAMILIES}.t5:t5",
    "MuseGlimmerForCausalLM": f"{_FAMILIES}.muse:muse_glimmer",
    "MuseGlimmerForConditionalGeneration": f"{_FAMILIES}.muse:muse_glimmer",
    "MuseSparkForConditionalGeneration": f"{_FAMILIES}.muse_spark:muse_spark",
    "MusicFlamingoForConditionalGeneration": f"{_FAMILIES}.audio_chat:audio_flamingo3",
    "MvpForConditionalGeneration": f"{_FAMILIES}.bart:mvp",
    "NanbeigeForCausalLM": f"{_FAMILIES}.nanbeige:nanbeige",
    "NemotronForCausalLM": f"{_FAMILIES}.nemotron:nemotron",
    "NemotronH_Nano_Omni_Reasoning_V3": f"{_FAMILIES}.nemotron_vl:nemotron_vl",
    "NemotronH_Nano_VL_V2": f"{_FAMILIES}.nemotron_vl:nemotron_vl",
    "NemotronH_Omni_Reasoning_V3": f"{_FAMILIES}.nemotron_vl:nemotron_vl",
    "NemotronH_Super_Omni_Reasoning_V3": f"{_FAMILIES}.nemotron_vl:nemotron_vl",
    "NemotronHForCausalLM": f"{_FAMILIES}.nemotron_h:nemotron_h",
    "NewForSequenceClassification": f"{_FAMILIES}.gte:gte_classifier",
    "NewModel": f"{_FAMILIES}.gte:gte",
    "NomicBertForMaskedLM": f"{_FAMILIES}.nomic_bert:nomic_bert",
    "NomicBertForSequenceClassification": f"{_FAMILIES}.nomic_bert:nomic_bert_classifier",
    "NomicBertModel": f"{_FAMILIES}.nomic_bert:nomic_bert",
    "Olmo2ForCausalLM": f"{_FAMILIES}.olmo2:olmo2",
    "Olmo3ForCausalLM": f"{_FAMILIES}.olmo2:olmo3",
    "OlmoeForCausalLM": f"{_FAMILIES}.olmoe:olmoe",
    "OlmoForCausalLM": f"{_FAMILIES}.olmo:olmo",
    "OlmoHybridForCausalLM": f"{_FAMILIES}.olmo_hybrid:olmo_hybrid",
    "OpenAIGPTLMHeadModel": f"{_FAMILIES}.openai_gpt:openai_gpt",
    "OpsColQwen3Model": f"{_FAMILIES}.colqwen:colqwen3",
    "OpenAIPrivacyFilterForTokenClassification": f"{_FAMILIES}.gpt_oss:privacy_filter",
    "OPTForCausalLM": f"{_FAMILIES}.opt:opt",
    "OrionForCausalLM": f"{_FAMILIES}.orion:orion",
    "OuroForCausalLM": f"{_FAMILIES}.ouro:ouro",
    "Ovis2_5": f"{_FAMILIES}.ovis2_5:ovis2_5",
    "Ovis2_6ForCausalLM": f"{_FAMILIES}.ovis2_5:ovis2_5",
    "Ovis2_6_MoeForCausalLM": f"{_FAMILIES}.ovis2_5:ovis2_5",
    "Ovis2ForConditionalGeneration": f"{_FAMILIES}.ovis2:ovis2",
    "PaddleOCRVLForConditionalGeneration": f"{_FAMILIES}.paddleocr_vl:paddleocr_vl",
    "PaliGemmaForConditionalGeneration": f"{_FAMILIES}.paligemma:paligemma",
    "PanguEmbeddedForCausalLM": f"{_FAMILIES}.llama:pangu_embedded",
    "Param2MoEForCausalLM": f"{_FAMILIES}.bailing:param2_moe",
    "ParakeetForCTC": f"{_FAMILIES}.parakeet:parakeet_ctc",
    "ParakeetForRNNT": f"{_FAMILIES}.parakeet:parakeet_rnnt",
    "ParakeetForTDT": f"{_FAMILIES}.parakeet:parakeet_tdt",
    "PegasusXForConditionalGeneration": f"{_FAMILIES}.pegasus_x:pegasus_x",
    "PegasusForConditionalGeneration": f"{_FAMILIES}.bart:pegasus",
    "Phi3VForCausalLM": f"{_FAMILIES}.phi3_v:phi3_v",
    "PerceptionLMForConditionalGeneration": f"{_FAMILIES}.perception_lm:perception_lm",
    "Phi3ForCausalLM": f"{_FAMILIES}.phi3:phi3",
    "Phi4MMForCausalLM": f"{_FAMILIES}.phi4_multimodal:phi4mm",
    "Phi4MultimodalForCausalLM": f"{_FAMILIES}.phi4_multimodal:phi4_multimodal",
    "PhiForCausalLM": f"{_FAMILIES}.phi:phi",
    "PhiMoEForCausalLM": f"{_FAMILIES}.phimoe:phimoe",
    "PhimoeForCausalLM": f"{_FAMILIES}.phimoe:phimoe",
    "PixtralForConditionalGeneration": f"{_FAMILIES}.multimodal:native_pixtral",
    "Plamo3ForCausalLM": f"{_FAMILIES}.plamo3:plamo3",
    "PLBartForConditionalGeneration": f"{_FAMILIES}.bart:plbart",
    "QianfanOCRForConditionalGeneration": f"{_FAMILIES}.internvl:qianfan_ocr",
    "QuantMixtralForCausalLM": f"{_FAMILIES}.mixtral:mixtral",
    "Qwen2_5_VLForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen2_5_vl",
    "Qwen2_5OmniForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen2_5_omni",
    "Qwen2_5OmniModel": f"{_FAMILIES}.audio_chat:qwen2_5_omni",
    "Qwen2_5OmniThinkerForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen2_5_omni",
    "Qwen2AudioForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen2_audio",
    "Qwen2ForCausalLM": f"{_FAMILIES}.qwen2:qwen2",
    "Qwen2ForProcessRewardModel": f"{_FAMILIES}.qwen2:qwen2_process_reward",
    "Qwen2ForRewardModel": f"{_FAMILIES}.qwen2:qwen2_reward",
    "Qwen2MoeForCausalLM": f"{_FAMILIES}.qwen2_moe:qwen2_moe",
    "Qwen2VLForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen2_vl",
    "Qwen3_5ForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_5",
    "Qwen3_5ForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen3_5",
    "Qwen3_5MoeForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen3_5_moe",
    "Qwen3ASRForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen3_asr",
    "Qwen4ExpForCausalLM": f"{_FAMILIES}.qwen4:qwen4_exp",
    "Qwen4ExpForConditionalGeneration": f"{_FAMILIES}.qwen4:qwen4_exp",
    "Qwen3ForCausalLM": f"{_FAMILIES}.qwen3:qwen3",
    "Qwen3MoeForCausalLM": f"{_FAMILIES}.qwen3:qwen3_moe",
    "Qwen3NextForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_next",
    "Qwen3OmniMoeForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen3_omni_moe",
    "Qwen3OmniMoeThinkerForConditionalGeneration": f"{_FAMILIES}.audio_chat:qwen3_omni_moe",
    "Qwen3VLForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen3_vl",
    "Qwen3VLForSequenceClassification": f"{_FAMILIES}.multimodal:qwen3_vl_classifier",
    "Qwen3VLMoeForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen3_vl_moe",
    "QWenLMHeadModel": f"{_FAMILIES}.qwen:qwen",
    "RecurrentGemmaForCausalLM": f"{_FAMILIES}.recurrent_gemma:recurrent_gemma",
    "RemBertForMaskedLM": f"{_FAMILIES}.rembert:rembert",
    "RemBertForSequenceClassification": f"{_FAMILIES}.rembert:rembert_classifier",
    "RemBertForTokenClassification": f"{_FAMILIES}.rembert:rembert_of_tokens",
    "RemBertModel": f"{_FAMILIES}.rembert:rembert",
    "Rnj1ForCausalLM": f"{_FAMILIES}.gemma3:rnj1",
    "RobertaForMaskedLM": f"{_FAMILIES}.roberta:roberta",
    "RobertaForSequenceClassification": f"{_FAMILIES}.roberta:roberta_classifier",
    "RobertaForTokenClassification": f"{_FAMILIES}.roberta:roberta_of_tokens",
    "RobertaModel": f"{_FAMILIES}.roberta:roberta",
    "RoFormerForMaskedLM": f"{_FAMILIES}.roformer:roformer",
    "RoFormerForSequenceClassification": f"{_FAMILIES}.roformer:roformer_classifier",
    "RoFormerForTokenClassification": f"{_FAMILIES}.roformer:roformer_of_tokens",
    "RoFormerModel": f"{_FAMILIES}.roformer:roformer",
    "RWKV7ForCausalLM": f"{_FAMILIES}.rwkv:rwkv7",
    "RwkvForCausalLM": f"{_FAMILIES}.rwkv:rwkv4",
    "RWForCausalLM": f"{_FAMILIES}.falcon:refined_web",
    "SarvamMLAForCausalLM": f"{_FAMILIES}.deepseek:sarvam_mla",
    "SarvamMoEForCausalLM": f"{_FAMILIES}.bailing:sarvam_moe",
    "SeedOssForCausalLM": f"{_FAMILIES}.seed_oss:seed_oss",
    "SiglipModel": f"{_FAMILIES}.clip:siglip",
    "SkyworkR1VChatModel": f"{_FAMILIES}.internvl:internvl_chat",
    "SmolLM3ForCausalLM": f"{_FAMILIES}.smollm3:smollm3",
    "SmolVLMForConditionalGeneration": f"{_FAMILIES}.idefics3:idefics3",
    "SolarForCausalLM": f"{_FAMILIES}.solar:solar",
    "SolarOpenForCausalLM": f"{_FAMILIES}.solar_open:solar_open",
    "Spark2_5ForCausalLM": f"{_FAMILIES}.spark2_5:spark2_5",
    "StableLMEpochForCausalLM": f"{_FAMILIES}.stablelm:stablelm_epoch",
    "StableLmForCausalLM": f"{_FAMILIES}.stablelm:stablelm",
    "Starcoder2ForCausalLM": f"{_FAMILIES}.starcoder2:starcoder2",
    "Step3p5ForCausalLM": f"{_FAMILIES}.step3p5:step3p5",
    "Step3p7ForConditionalGeneration": f"{_FAMILIES}.step3p5:step3p7",
    "SwitchTransformersForConditionalGeneration": f"{_FAMILIES}.switch:switch",
    "T5GemmaForConditionalGeneration": f"{_FAMILIES}.t5gemma:t5gemma",
    "T5EncoderModel": f"{_FAMILIES}.t5:t5_encoder",
    "T5ForConditionalGeneration": f"{_FAMILIES}.t5:t5",
    "TeleChat2ForCausalLM": f"{_FAMILIES}.telechat:telechat",
    "TeleChat3ForCausalLM": f"{_FAMILIES}.llama:llama",
    "TeleChatForCausalLM": f"{_FAMILIES}.telechat:telechat",
    "UMT5EncoderModel": f"{_FAMILIES}.t5:umt5_encoder",
    "UMT5ForConditionalGeneration": f"{_FAMILIES}.t5:umt5",
    "UniSpeechForCTC": f"{_FAMILIES}.wav2vec:unispeech",
    "UniSpeechSatForCTC": f"{_FAMILIES}.wav2vec:unispeech_sat",
    "VaultGemmaForCausalLM": f"{_FAMILIES}.gemma:vault_gemma",
    "VideoLlama3ForConditionalGeneration": f"{_FAMILIES}.video_llama_3:video_llama_3",
    "VideoLlavaForConditionalGeneration": f"{_FAMILIES}.video_llava:video_llava",
    "VipLlavaForConditionalGeneration": f"{_FAMILIES}.vipllava:vipllava",
    "VisionEncoderDecoderModel": f"{_FAMILIES}.trocr:vision_encoder_decoder",
    "VoxtralForConditionalGeneration": f"{_FAMILIES}.audio_chat:voxtral",
    "VoxtralRealtimeForConditionalGeneration": f"{_FAMILIES}.voxtral_realtime:voxtral_realtime",
    "VoyageQwen3BidirectionalEmbedModel": f"{_FAMILIES}.voyage:voyage_qwen3",
    "CsmForConditionalGeneration": f"{_FAMILIES}.csm:csm",
    "VitsModel": f"{_FAMILIES}.vits:vits",
    "Wav2Vec2ForCTC": f"{_FAMILIES}.wav2vec:wav2vec2",
    "SEWForCTC": f"{_FAMILIES}.wav2vec:sew",
    "Wav2Vec2BertForCTC": f"{_FAMILIES}.conformer_ctc:wav2vec2_bert",
    "Wav2Vec2ConformerForCTC": f"{_FAMILIES}.conformer_ctc:wav2vec2_conformer",
    "LasrForCTC": f"{_FAMILIES}.conformer_ctc:lasr",
    "WavLMForCTC": f"{_FAMILIES}.wav2vec:wavlm",
    "WhisperForConditionalGeneration": f"{_FAMILIES}.whisper:whisper",
    "XGLMForCausalLM": f"{_FAMILIES}.xglm:xglm",
    "XLMRobertaForMaskedLM": f"{_FAMILIES}.roberta:roberta",
    "XLMRobertaForSequenceClassification": f"{_FAMILIES}.roberta:roberta_classifier",
    "XLMRobertaForTokenClassification": f"{_FAMILIES}.roberta:roberta_of_tokens",
    "XLMRobertaModel": f"{_FAMILIES}.roberta:roberta",
    "XLMRobertaXLForMaskedLM": f"{_FAMILIES}.xlm_roberta_xl:xlm_roberta_xl",
    "XLMRobertaXLForSequenceClassification": f"{_FAMILIES}.xlm_roberta_xl:xlm_roberta_xl_classifier",
    "XLMRobertaXLForTokenClassification": f"{_FAMILIES}.xlm_roberta_xl:xlm_roberta_xl_of_tokens",
    "XLMRobertaXLModel": f"{_FAMILIES}.xlm_roberta_xl:xlm_roberta_xl",
    "XverseForCausalLM": f"{_FAMILIES}.llama:llama",
    "xLSTMForCausalLM": f"{_FAMILIES}.xlstm:xlstm",
    "YoutuForCausalLM": f"{_FAMILIES}.youtu:youtu",
    "ZambaForCausalLM": f"{_FAMILIES}.zamba:zamba",
    "Zamba2ForCausalLM": f"{_FAMILIES}.zamba2:zamba2",
    "ZayaForCausalLM": f"{_FAMILIES}.zaya:zaya",
}
"""`architectures` entry of config.json -> "module:function"."""


_LIST = PluginRegistry("thalweg.models", ARCHITECTURES)
FALLBACK = "thalweg.models.fallback.declare:build_spec"
"""The function for configurations without a family. Importing it imports transformers."""
INSTALL = "pip install 'thalweg[hf]'"
_GENERATES = "ForCausalLM"
WRAPPERS = {
    "TransformersForCausalLM": False, "TransformersMoEForCausalLM": False, "TransformersEmbeddingModel": True,
    "TransformersMoEEmbeddingModel": True,
}  # fmt: skip
"""Names of vLLM's for whatever class of transformers `model_type` means: does it give vectors?"""
_TAILS = {"ForSequenceClassification": tails.classifier, "Model": tails.embedder}
_TAILS = {
    "ForSequenceClassification": tails.classifier, "ForTokenClassification": tails.of_tokens, "Model": tails.embedder,
}  # fmt: skip
"""Suffix of an architecture -> the function that adds this tail to the decoder listed as ...ForCausalLM."""
Family = Callable[[Mapping[str, Any]], ModelSpec]


def architectures() -> dict[str, str]:
    """Architecture -> "module:function", those of installed packages too."""
    return _LIST.targets()


def add(name: str, target: str) -> None:
    """Serve an architecture in this process. target: "module:function" of its family, or a served architecture.
    UnsupportedModelError for another target."""
    if ":" not in target:
        found = _entry(target)
        if found is None or found[1]:
            raise UnsupportedModelError(_unknown(target, ""))
        target = architectures()[target]
    _LIST.add(name, target)


def resolve_architecture(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError names the nearest architecture, or the missing feature. Classes of
    transformers that are unknown here are looked up when it is loaded."""
    name = architecture(config)
    if not foreign(config):
        _base(name)
    return name


def foreign(config: Mapping[str, Any]) -> bool:
    """Is a model to be served through transformers' own module: asked for, or the one way there is? UnsupportedModelError
    where it is and transformers is not installed, or does not do."""
    name, asked = architecture(config), config.get("model_impl", "auto")
    if asked != "transformers" and (asked != "auto" or has(name)):
        return False
    missing = names.missing(name)
    if missing is not None and not missing.fallback and (asked == "auto" or name.startswith("Transformers")):
        raise UnsupportedModelError(_unknown(name, missing.why))
    if not name.endswith(GENERATES) and name not in WRAPPERS:
        if asked == "auto":
            return False
        raise UnsupportedModelError(
            f"config.json: architectures: {name!r:.100}: the fallback to transformers serves classes that generate text; "
            "others need a family: leave --model-impl out"
        )
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedModelError(_unknown(name, f"transformers may serve it, and is not installed: {INSTALL}"))
    return True


def has(name: str) -> bool:
    """Is there a family for this architecture?"""
    return _entry(name) is not None


def windows(config: Mapping[str, Any]) -> list[int]:
    """Of its mixers: tokens that each sees, 0 for all."""
    return [getattr(mixer, "window", 0) for _, mixer in family(config)(config).mixers]


def family(config: Mapping[str, Any]) -> Family:
    """The function that reads this architecture's configuration. Loads no tensor framework either, except where
    transformers' own module is to serve it."""
    if foreign(config):
        return _fallback_spec
    name, end = _base(architecture(config))
    tail = _TAILS.get(end) if end else tails.embedder if "pooling" in config and name.endswith(GENERATES) else None
    return _reader(_LIST.load(name), tail)


def declare(config: Mapping[str, Any], path: str | Path) -> tuple[dict[str, Any], ModelSpec]:
    """The spec of a model, and its configuration. Where the files contradict the configuration about the output matrix, it has
    a mark (`models.tying`), from which `family` gives the same spec. path: a model directory or file. Errors as of `family`,
    and of its function."""
    spec = base = family(config)(config)
    if spec.pooling is not None:
        if config.get("classifier_from_token") is None:  # no output matrix is read
            return dict(config), spec
        base = _LIST.load(_base(architecture(config))[0])(config)
    found = tying.find_output_matrix(base, path)
    if found is None:
        return dict(config), spec
    marked = {**config, tying.KEY: found}
    return marked, family(marked)(marked)


@functools.cache
def _reader(found: Family, tail: Callable[[ModelSpec, Mapping[str, Any]], ModelSpec] | None) -> Family:
    def read(config: Mapping[str, Any]) -> ModelSpec:
        spec = found(config)
        check_rope(config, [key for rope in spec.ropes for key in rope.keys])
        spec = tying.adapt(spec, config)
        return tails.apply_causality(spec if tail is None else tail(spec, config), config)

    return read


def _fallback_spec(config: Mapping[str, Any]) -> ModelSpec:
    if config.get(tying.KEY) == tying.OWN:
        config = {**config, "tie_word_embeddings": False}
    try:
        made: ModelSpec = import_attribute(FALLBACK)(config)
    except LookupError as e:
        raise UnsupportedModelError(_unknown(architecture(config), str(e.args[0]), near=True)) from e
    except ImportError as e:
        why = f"transformers may serve it, and what is installed does not do: {e}; pip install -U 'thalweg[hf]'"
        raise UnsupportedModelError(_unknown(architecture(config), why)) from e
    vectors = "pooling" in config or WRAPPERS.get(architecture(config), False)
    return tails.embedder(made, config) if vectors else made


def _base(name: str) -> tuple[str, str]:
    """(the entry of the list that reads an architecture, the end of the name that says which tail a decoder gets)."""
    found = _entry(name)
    if found is None:
        missing = names.missing(name)
        raise UnsupportedModelError(_unknown(name, "" if missing is None else missing.why))
    return found


def _entry(name: str) -> tuple[str, str] | None:
    if name in _LIST:
        return name, ""
    for end in _TAILS:
        base = name.removesuffix(end) + _GENERATES
        if name.endswith(end) and base in _LIST:
            return base, end
    return None


def _unknown(name: str, why: str, near: bool = False) -> str:
    """near: name the nearest all the same. Without a reason they are named."""
    others = ", ".join(difflib.get_close_matches(name, _LIST.names(), n=3, cutoff=0.6)) if near or not why else ""
    said = f"{why and f': {why}'}{others and f'; nearest are {others}'}"
    return (
        f"config.json: architectures: {name!r:.100} is not supported{said}; "
        f"`thalweg models` lists all {len(_LIST.names())} that are"
    )
