"""Tiny random models of every family, made by transformers: the one table of configurations every model test walks.

Weights are drawn wider than transformers would, so that logits are spread and a wrong one changes the next token.
"""

from __future__ import annotations

import json
import shutil
import string
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from zoo_more import GEMMA4_ROPES, GEMMA4_TYPES, MORE
from zoo_text import INDEXED

VOCAB = 288
SPECIAL = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 256,
    "bos_token_id": 256,
}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_FACTORS = [1.0 + 0.25 * i for i in range(6)]
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 4}),
    "llama-biased": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama-tied": (transformers.LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-gelu": (transformers.LlamaConfig, {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-linear": (transformers.LlamaConfig, _rope("linear", factor=4.0)),
    "llama-dynamic": (transformers.LlamaConfig, _rope("dynamic", factor=2.0)),
    "llama-yarn": (
        transformers.LlamaConfig,
        _rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=0.5),
    ),
    "llama-3.1": (
        transformers.LlamaConfig,
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-longrope": (
        transformers.LlamaConfig,
        _rope("longrope", short_factor=_FACTORS, long_factor=[2 * f for f in _FACTORS], original_max_position_embeddings=128),
    ),
    "mistral": (transformers.MistralConfig, {"sliding_window": 12, "head_dim": 8}),
    "mistral-full": (transformers.MistralConfig, {"sliding_window": None}),
    "ministral": (
        transformers.MinistralConfig,
        {"sliding_window": 10, "head_dim": 16, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}),
    "mixtral-windowed": (transformers.MixtralConfig, {"num_local_experts": 4, "sliding_window": 12}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-windowed": (
        transformers.Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-windowed": (
        transformers.Qwen3Config,
        {
            "head_dim": 12,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3-moe": (
        transformers.Qwen3MoeConfig,
        {
            "head_dim": 16, "num_hidden_layers": 3, "mlp_only_layers": [1], "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "norm_topk_prob": True,
        },
    ),
    "qwen3-next": (
        transformers.Qwen3NextConfig,
        {
            "num_hidden_layers": 7, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
            "linear_key_head_dim": 16, "linear_value_head_dim": 24, "full_attention_interval": 3, "mlp_only_layers": [1],
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
        },
    ),
    "qwen3.5": (
        transformers.Qwen3_5TextConfig,
        {
            "num_hidden_layers": 5, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 24, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 3, "full_attention_interval": 2,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-v3": (
        transformers.DeepseekV3Config,
        {
            "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16, "v_head_dim": 20, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.7,
            **_rope(
                "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=0.5, mscale=1.0,
                mscale_all_dim=1.3,
            ),
        },
    ),
    "glm-moe-dsa": (
        transformers.GlmMoeDsaConfig,
        {**INDEXED, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"], "n_group": 2},
    ),
    "nemotron-h": (
        transformers.NemotronHConfig,
        {
            "num_hidden_layers": 7, "hybrid_override_pattern": "ME*-M*E", "head_dim": 16, "mamba_num_heads": 6,
            "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 24, "time_step_min": 0.4, "n_routed_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 32, "n_group": 3,
            "topk_group": 2, "routed_scaling_factor": 1.7, "moe_latent_size": 32,
        },
    ),
    "jamba": (
        transformers.JambaConfig,
        {
            "hidden_size": 64, "num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 3,
            "expert_layer_offset": 2, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 12, "mamba_dt_rank": 5,
        },
    ),
    "lfm2": (
        transformers.Lfm2Config,
        {
            "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 16,
            "head_dim": 16,
        },
    ),
    "glm4": (transformers.Glm4Config, {"head_dim": 24, "attention_bias": True, "pad_token_id": 0}),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 10, "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    "gemma4": (
        transformers.Gemma4TextConfig,
        {
            "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 10, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "enable_moe_block": True, "num_experts": 6,
            "top_k_experts": 2, "moe_intermediate_size": 24, "final_logit_softcapping": 4.0, "layer_types": GEMMA4_TYPES,
            "rope_parameters": GEMMA4_ROPES,
        },
    ),
}  # fmt: skip
"""Name -> (configuration class, what differs from SMALL)."""
ALL: dict[str, tuple[Any, dict[str, Any]]] = CONFIGS | MORE
ENCODERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (transformers.BertConfig, {"num_hidden_layers": 3, "type_vocab_size": 2, "hidden_act": "gelu"}),
    "roberta": (transformers.RobertaConfig, {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": (transformers.XLMRobertaConfig, {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1}),
    "longformer": (
        transformers.LongformerConfig,
        {
            "max_position_embeddings": 258,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "attention_window": [4, 8],
            "num_hidden_layers": 2,
        },
    ),
    "luke": (
        transformers.LukeConfig,
        {
            "max_position_embeddings": 258,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "entity_vocab_size": 9,
            "entity_emb_size": 16,
        },
    ),
    "modernbert": (
        transformers.ModernBertConfig,
        {"num_hidden_layers": 4, "local_attention": 10, "pad_token_id": 0, "hidden_size": 64},
    ),
    "distilbert": (transformers.DistilBertConfig, {"hidden_dim": 80, "pad_token_id": 0}),
    "mpnet": (transformers.MPNetConfig, {"max_position_embeddings": 258}),
    "nomic-bert": (transformers.NomicBertConfig, {"pad_token_id": 0, "hidden_size": 64}),
    "gte": (transformers.GteConfig, {"pad_token_id": 0}),
    "ernie": (transformers.ErnieConfig, {"use_task_id": True, "hidden_act": "gelu", "pad_token_id": 0}),
    "electra": (transformers.ElectraConfig, {"embedding_size": 48, "pad_token_id": 0}),
    "gemma3-both-ways": (
        transformers.Gemma3TextConfig,
        {**CONFIGS["gemma3"][1], "sliding_window": 11, "use_bidirectional_attention": True},
    ),
    "deberta": (
        transformers.DebertaConfig,
        {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False},
    ),
    "deberta-v3": (
        transformers.DebertaV2Config,
        {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "share_att_key": True,
            "position_buckets": 16,
            "max_relative_positions": 60,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "deberta-v2-apart": (
        transformers.DebertaV2Config,
        {
            "relative_attention": True,
            "pos_att_type": ["p2c"],
            "max_relative_positions": 40,
            "type_vocab_size": 2,
        },
    ),
    "eurobert": (transformers.EuroBertConfig, {"pad_token_id": 0, "attention_bias": True}),
    "jina-v3": (transformers.JinaEmbeddingsV3Config, {"pad_token_id": 0}),
    "electra-small": (transformers.ElectraConfig, {"embedding_size": 24, "pad_token_id": 0}),
    "albert": (
        transformers.AlbertConfig,
        {"embedding_size": 24, "num_hidden_layers": 4, "num_hidden_groups": 2, "pad_token_id": 0},
    ),
    "camembert": (transformers.CamembertConfig, {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1}),
    "data2vec-text": (
        transformers.Data2VecTextConfig,
        {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "xlm-roberta-xl": (
        transformers.XLMRobertaXLConfig,
        {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "megatron-bert": (transformers.MegatronBertConfig, {"pad_token_id": 0}),
    "rembert": (transformers.RemBertConfig, {"input_embedding_size": 24, "pad_token_id": 0}),
    "roformer": (transformers.RoFormerConfig, {"embedding_size": 24, "pad_token_id": 0}),
}
"""The same of models that give vectors."""
CLASSIFIERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "privacy-filter": (
        transformers.OpenAIPrivacyFilterConfig,
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 4,
            "sliding_window": 5,
            "pad_token_id": 0,
            "intermediate_size": 40,
        },
    ),
}
"""The same of models that only classify."""


def make_checkpoint(
    name: str, directory: Path, *, dtype: torch.dtype = torch.float32, max_shard_size: str = "1GB", tokenizer: bool = True
) -> Path:
    """Save the model of this name, with a byte-level tokenizer, into directory/name."""
    kind, different = ALL[name]

    def make(path: Path) -> None:
        save(kind(**{**SMALL, **different}), path, dtype=dtype, max_shard_size=max_shard_size)

    path = _copied((name, dtype, max_shard_size), make, directory / name)
    if tokenizer:
        make_tokenizer(path)
    return path


def make_causal(name: str, directory: Path, **changes: Any) -> Path:
    """The same with another configuration."""

    def make(path: Path) -> None:
        save(CONFIGS[name][0](**{**SMALL, **changes}), path)
        make_tokenizer(path)

    return _copied((name, json.dumps(changes)), make, directory / name)


def save(config: Any, path: Path, dtype: torch.dtype = torch.float32, **more: Any) -> None:
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    spread(model, zlib.crc32(path.name.encode()))
    model.to(dtype).save_pretrained(path, **more)


_made: dict[Any, tempfile.TemporaryDirectory[str]] = {}


def _copied(key: Any, make: Callable[[Path], None], path: Path) -> Path:
    """What `make` writes, written once in a process: a test may change its copy, and draws the same numbers afterwards."""
    if key not in _made:
        _made[key] = tempfile.TemporaryDirectory(prefix="thalweg-zoo-")
        with torch.random.fork_rng(devices=[]):
            make(Path(_made[key].name) / path.name)
    shutil.copytree(Path(_made[key].name) / path.name, path, dirs_exist_ok=True)
    return path


def make_encoder(name: str, directory: Path, auto: Any = transformers.AutoModel, **more: Any) -> Path:
    """Save the encoder of this name into directory/name, or what `auto` makes of it. It has no tokenizer. more: of its
    configuration."""
    kind, different = {**CONFIGS, **ENCODERS, **CLASSIFIERS}[name]

    def make(path: Path) -> None:
        model = auto.from_config(kind(**{**SMALL, **different, **more}), dtype=torch.float32)
        spread(model, zlib.crc32(name.encode()))
        model.save_pretrained(path)

    path = directory / f"{name}{'' if auto is transformers.AutoModel else '-' + auto.__name__}"
    return _copied((name, auto, json.dumps(more)), make, path)


def make_classifier(name: str, directory: Path, labels: int, **more: Any) -> Path:
    """The same with a head of so many classes."""
    return make_encoder(name, directory, transformers.AutoModelForSequenceClassification, num_labels=labels, **more)


def describe_pooling(path: Path, mode: str, normalise: bool = True, max_len: int | None = None) -> None:
    """The files that sentence-transformers keeps beside a model. mode: as its older versions name it."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalise
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (folder, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken", "mean_sqrt_len_tokens", "weightedmean_tokens")
    (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{m}": m == mode for m in modes}))
    if max_len is not None:
        (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_len}))


SINES = ("RoFormer", "MarianForCausalLM", "PegasusForCausalLM")
"""Classes whose positions are a table of sines."""


@torch.no_grad()
def spread(model: torch.nn.Module, seed: int) -> None:
    """Random weights whose logits differ by a few units; biases and norm weights that matter."""
    g = torch.Generator().manual_seed(seed)
    stored = (
        "tid2eid",
        "e_score_correction_bias",
        "expert_bias",
        "layer_scalar",
        "std_bias",
        "std_scale",
        "put_max",
        "rotary_emb.alpha",
        "balancing_biases",
        "put_min",
    )
    buffers = ((name, b) for name, b in model.named_buffers() if name.endswith(stored))
    for name, p in (*model.named_parameters(), *buffers):
        if type(model).__name__.startswith(SINES) and "embed_positions" in name:
            continue  # a table of sines
        if name.endswith(("input_max", "output_max", "input_min", "output_min")):
            p.fill_({"input_max": 1.1, "input_min": -0.9, "output_max": 1.6, "output_min": -1.7}[name.rsplit(".", 1)[1]])
        elif name.endswith(("A_log", "recurrent_param")):
            p.uniform_(-3, 0.5, generator=g)  # from heads that forget little to heads that forget much
        elif ("norm" in name.lower() or ".ln_" in name) and ".mlp.fc" not in name:
            p.add_(torch.empty_like(p).normal_(0, 0.2, generator=g))  # about where they begin: 1, or 0 where 1 is added
        elif name.endswith(("scale", "layer_scalar")):
            p.uniform_(0.5, 1.5, generator=g)
        elif name.endswith("balancing_biases"):  # of experts, and last of none, which transformers sets to -1 when it loads
            p.normal_(-0.8, 0.1, generator=g)
            p[-1] = -1
        elif name.endswith("rotary_emb.alpha"):
            p.normal_(0, 0.3, generator=g)
        elif "router.proj" in name:
            p.normal_(0, 8 / p.shape[1] ** 0.5, generator=g)  # what it reads is small, and experts must not be equally good
        elif "conv1d" in name or ".conv.conv" in name:
            p.normal_(0, 0.6, generator=g)
        elif name.endswith(".D"):
            p.normal_(0, 1, generator=g)
        elif name.endswith(("sinks", "alpha_p", "alpha_n")):
            p.normal_(0, 1.5, generator=g)
        elif name.endswith(("bias", "_hc.base", "hc_base", "residual_gate.gate")):
            p.normal_(0, 0.3, generator=g)
        elif name.endswith("tid2eid"):  # some experts of each token, each once
            experts = 2 * p.shape[1]
            p.copy_(torch.rand(p.shape[0], experts, generator=g).argsort(1)[:, : p.shape[1]])
        elif name.endswith(("lambda_1", "lambda_2", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")):
            p.uniform_(0.3, 1.2, generator=g)
        elif any(part in name for part in ("newline", "separator", "cls_token")):
            p.normal_(0, 0.6, generator=g)
        elif "embed" in name or "lm_head" in name:
            p.normal_(0, 0.4, generator=g)
        elif p.ndim == 1:  # gates
            p.uniform_(0.5, 1.5, generator=g)
        elif "shared_transformer" in name or name.endswith(".linear.weight"):
            p.normal_(0, 0.6 / p.shape[1] ** 0.5, generator=g)  # no residual stream leads around these
        else:
            p.normal_(0, 1.2 / p.shape[1] ** 0.5, generator=g)


def make_tokenizer(path: Path) -> None:
    """tokenizer.json of bytes and three special tokens, and a ChatML template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(list(SPECIAL))
    tok.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "bos_token": None,
        "chat_template": TEMPLATE,
        "model_max_length": SMALL["max_position_embeddings"],
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def load_reference(path: Path, dtype: torch.dtype) -> torch.nn.Module:
    """The same checkpoint in transformers, in plain eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


def edit_config(path: Path, **changes: Any) -> None:
    """Change keys of a saved config.json; None removes one."""
    file = path / "config.json"
    config = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    file.write_text(json.dumps(config))


def make_bert_tokenizer(path: Path, roberta: bool = False) -> None:
    """tokenizer.json of letters, with what BERT (or RoBERTa) puts around one text and two."""
    names = ("[CLS]", "<pad>", "[SEP]", "[UNK]")
    vocab = {n: i for i, n in enumerate((*names, *(m + c for c in string.ascii_lowercase for m in ("", "##"))))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    around = [(n, vocab[n]) for n in ("[CLS]", "[SEP]")]
    tok.post_processor = (
        processors.RobertaProcessing(around[1], around[0])
        if roberta
        else processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around)
    )
    tok.add_special_tokens(list(names))
    tok.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<pad>", "unk_token": "[UNK]"}))


def end_texts(path: Path) -> None:
    """Has the tokenizer of `make_tokenizer` put an end token behind every text, as those of Qwen3-Embedding do."""
    tok = Tokenizer.from_file(str(path / "tokenizer.json"))
    end = ("<|endoftext|>", tok.token_to_id("<|endoftext|>"))
    byte = processors.ByteLevel(trim_offsets=False)
    template = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>", special_tokens=[end]
    )
    tok.post_processor = processors.Sequence([byte, template])
    tok.save(str(path / "tokenizer.json"))
