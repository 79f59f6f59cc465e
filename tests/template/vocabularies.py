"""Small tokenizers of every family the package streams, trained here, so that no test needs a download."""

from __future__ import annotations

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from thalweg.text.tokenizer import Tokenizer

TEXT = [
    "The river runs where the bed is deepest; the thalweg is that line.",
    "Le fleuve coule, l'été comme l'hiver, où le lit est le plus profond.",
    "川は谷底を流れる。 Привет, мир! 😀👩‍👩‍👧 naïve café – “quotes” …",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": x ** 2}\n\n\tpass",
]
CONFIG = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True}}
SPECIALS = [AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>", "<|im_end|>")]
PLAIN_ADDED = [AddedToken("<tool é>", special=False, normalized=False)]


@cache
def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: a token is bytes."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return _done(t)


@cache
def byte_fallback(strip: bool = True) -> Tokenizer:
    """As Llama 2 (strip) and Gemma (no strip): "▁" is a space, unknown characters are <0xNN> tokens."""
    vocab: dict[str, int] = {"<unk>": 0}
    for token in [f"<0x{b:02X}>" for b in range(256)] + ["▁", "▁the", "▁river", *"abcdefghijklmnopqrstuvwxyz.,;é", "▁▁"]:
        vocab[token] = len(vocab)
    t = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    prepend = [normalizers.Prepend("▁")] if strip else []
    t.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", len(vocab))])
    return _done(t)


@cache
def metaspace() -> Tokenizer:
    """As T5: Unigram with a Metaspace decoder."""
    t = tokenizers.Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return _done(t)


@cache
def word_piece() -> Tokenizer:
    """As BERT: pieces joined by rule, so tokens are not bytes."""
    t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=False)
    t.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False))
    return _done(t)


def _done(t: tokenizers.Tokenizer) -> Tokenizer:
    t.add_special_tokens(SPECIALS)
    t.add_tokens(PLAIN_ADDED)
    return Tokenizer(t, CONFIG)
