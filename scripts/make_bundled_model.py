"""Make the checkpoint inside the package (thalweg/assets/bundled): a byte-level BPE tokenizer learned from bundled_text.txt,
and a tiny Llama with random weights. Deterministic: running it again writes the same bytes.

    python scripts/make_bundled_model.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import weights
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
SEED = 20
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content or [] %}
{{- part.text }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
README = """\
# The bundled model

A Llama with four layers and **random weights**: it was never trained and speaks nonsense. It is here so that the engine can be
tried, tested and measured with nothing to download. Its tokenizer (byte-level BPE, 1024 tokens, ChatML special tokens) is
real, if small.

Made by `python scripts/make_bundled_model.py`; a test checks that the script still makes these files. Apache-2.0, like the
rest of the project.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "thalweg" / "assets" / "bundled")
    make(parser.parse_args().out)


def make(out: Path) -> None:
    """Write every file of the model into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train((HERE / "bundled_text.txt").read_text(encoding="utf-8"))
    if tokenizer.get_vocab_size() != CONFIG["vocab_size"]:
        raise SystemExit(f"the text gives {tokenizer.get_vocab_size()} tokens, not {CONFIG['vocab_size']}: add to it")
    tokenizer.save(str(out / "tokenizer.json"))
    _json(out / "config.json", CONFIG)
    _json(out / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0})
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    _json(out / "tokenizer_config.json", settings)
    (out / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (out / "README.md").write_text(README, encoding="utf-8")
    weights.write(out / "model.safetensors", CONFIG, weights.shapes(CONFIG), SEED)


def train(text: str) -> Tokenizer:
    """Byte-level BPE with the special tokens first, then the 256 bytes, then merges learned from the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def _json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
