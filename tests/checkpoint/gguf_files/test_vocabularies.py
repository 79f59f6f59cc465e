"""Tokenizers from a GGUF file's metadata against those that the vocabularies were taken from, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Regex, SentencePieceBPETokenizer, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from thalweg.checkpoint.gguf import read_vocabulary
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.text.words import WORDS

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's the fox's 3rd jump in 2024, isn't it? We'LL see, they've SAID so.\n\n",
    "def main(argc, argv):\r\n\treturn [x ** 2 for x in range(1000)]  # 12345\n    pass\n", "Größe, façade, naïve; ÄÖÜ ß ñ.\n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. 中文字符和标点。日本語テキスト\n",
    "a  b   c    d\t\te \n \n\n  f   \n",
] * 3  # fmt: skip
TEXTS = [
    *CORPUS[:5], "", " ", "  ", "\n", "\n\n\n", " x", "x ", "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
    "'s 'S 'LL 12'345",
    "🚀 (normal) 😶‍🌫️ ✅ 🦙🦙", "3333333333", "ied 4 ½ months", "<|end|>tail <mask>x <|end|>", "Cửa Việt", "discards\t\n\r\n  x",
]  # fmt: skip
PUBLISHED = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip
"""How the models' own tokenizer.json cut text, where it is one pattern."""


def _byte_level(pre: str) -> Tokenizer:
    """A small vocabulary, trained the way that the published ones of this name were."""
    made = Tokenizer(models.BPE())
    cut = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    }.get(pre) or [
        pre_tokenizers.Split(Regex(PUBLISHED[pre]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made.pre_tokenizer = pre_tokenizers.Sequence(cut)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["<|end|>"])
    return made


def _file(path: Path, **said) -> Path:
    w = gguf.GGUFWriter(path, "llama")
    for key, value in said.items():
        if isinstance(value, list):
            w.add_array(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, bool):
            w.add_bool(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, int):
            w.add_uint32(f"tokenizer.ggml.{key}", value)
        else:
            w.add_string(f"tokenizer.ggml.{key}", value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _of(made: Tokenizer, **said):
    state = json.loads(made.to_str())
    vocab = made.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {t["content"] for t in state["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    return {"tokens": tokens, "token_type": [3 if t in special else 1 for t in tokens], "merges": merges} | said


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_byte_level_vocabulary_makes_the_tokens_of_its_source(pre, tmp_path):
    made = _byte_level(pre)
    file = _file(tmp_path / "m.gguf", model="gpt2", pre=pre, **_of(made), eos_token_id=made.token_to_id("<|end|>"))
    mine = load_tokenizer(file)
    for text in TEXTS:
        assert mine.encode(text, add_special_tokens=False) == made.encode(text).ids, text
        assert mine.decode(mine.encode(text), False) == text
    assert mine.special_tokens == {"eos_token": "<|end|>"}
    assert mine.special_texts == ("<|end|>",)


def test_words_that_are_tokens_are_taken_whole_where_the_name_says_so(tmp_path):
    """As Llama 3 has them (ignore_merges): the merges alone would not make this word."""
    made = _byte_level("llama-bpe")
    said = _of(made, model="gpt2", pre="llama-bpe")
    said["tokens"], said["token_type"] = [*said["tokens"], "Ġzyxwv"], [*said["token_type"], 1]
    whole = load_tokenizer(_file(tmp_path / "a.gguf", **said, bos_token_id=0))
    assert whole.encode("a zyxwv")[-1] == len(said["tokens"]) - 1
    assert whole.encode("a")[0] == 0  # begins with the token for that, though the file does not say so
    parts = load_tokenizer(_file(tmp_path / "b.gguf", **{**said, "pre": "qwen2"}, bos_token_id=0, add_bos_token=False))
    assert len(parts.encode("a zyxwv")) > 2


def test_a_sentencepiece_vocabulary_makes_the_tokens_of_its_source(tmp_path):
    """Scores in place of merges, bytes for what is not known, a space before every text."""
    source = SentencePieceBPETokenizer(fuse_unk=True)
    source.train_from_iterator(CORPUS, vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    learned = source.get_vocab()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [t for t in sorted(learned, key=learned.__getitem__) if t not in tokens]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    tokens.append("<mask>")
    said = {"model": "llama", "tokens": tokens, "token_type": [*kinds, 4], "scores": [*scores, 0.0]}
    mine = load_tokenizer(_file(tmp_path / "m.gguf", **said))
    ids = {t: i for i, t in enumerate(tokens)}
    for text in TEXTS:
        if "<" in text or not text:
            continue
        want: list[int] = []
        for token in Tokenizer.from_str(_with_bytes(source)).encode(text).tokens:
            want.append(ids[token])
        assert mine.encode(text) == [1, *want], text
        assert mine.decode(mine.encode(text)) == text
    assert ids["<mask>"] in mine.encode("x <mask>y")
    assert mine.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    plain = load_tokenizer(_file(tmp_path / "n.gguf", **said, add_space_prefix=False, add_bos_token=False, add_eos_token=True))
    assert plain.encode("fox")[-1] == 2
    assert plain.token_of(plain.encode("fox")[0])[0] != "▁"


def _with_bytes(source: SentencePieceBPETokenizer) -> str:
    """The trained tokenizer, with bytes for what it does not know."""
    state = json.loads(source.to_str())
    vocab = state["model"]["vocab"]
    for i in range(256):
        vocab.setdefault(f"<0x{i:02X}>", len(vocab))
    state["model"] |= {"byte_fallback": True, "unk_token": "<unk>"}
    state["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    state["pre_tokenizer"] = None
    return json.dumps(state)


def test_characters_are_merged_by_rank_within_lines(tmp_path):
    """As Gemma 4 has it: spaces are marks, what is no token becomes bytes, and every text has a beginning."""
    source = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    source.normalizer = normalizers.Replace(" ", "▁")
    source.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    source.train_from_iterator(CORPUS[1:4], trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    said = _of(source, model="gemma4", bos_token_id=2, eos_token_id=1, unknown_token_id=3, add_bos_token=False)
    kinds = {**dict.fromkeys(special[:3], 3), "<unk>": 2, **dict.fromkeys(special[4:], 6)}
    said["token_type"] = [kinds.get(token, 1) for token in said["tokens"]]
    mine = load_tokenizer(_file(tmp_path / "m.gguf", **said))
    for text in [t for t in TEXTS if "<" not in t]:
        assert mine.encode(text) == [2, *source.encode(text).ids], text
        assert mine.decode(mine.encode(text)) == text
    assert any(mine.token_of(i).startswith("▁") for i in mine.encode("a  b"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.merges: missing: how characters are merged"):
        load_tokenizer(_file(tmp_path / "n.gguf", **{k: v for k, v in said.items() if k != "merges"}))


def _charsmap(table: dict[str, str]) -> bytes:
    """A table of what is replaced: each state has 256 units of its own."""
    units, texts, states = np.zeros(512, "<u4"), b"", {b"": 1}
    units[0] = 256 << 10
    for key, text in table.items():
        for i, byte in enumerate(data := key.encode()):
            at = 256 * states[data[:i]] + byte
            if data[: i + 1] not in states:
                states[data[: i + 1]] = len(states) + 1
                units = np.append(units, np.zeros(256, "<u4"))
                units[at] = (at ^ 256 * states[data[: i + 1]]) << 10 | byte
        units[at] |= 1 << 8
        units[256 * states[data]] = 1 << 31 | len(texts)
        texts += text.encode() + b"\0"
    return units.nbytes.to_bytes(4, "little") + units.astype("<u4").tobytes() + texts


TABLE = {"\n": " ", "\t": " ", "\r": " ", "\u00a0": " ", "ﬁ": "fi", "Ⅷ": "VIII", "～": "~", "？": "?"}


def _unigram() -> tuple[Tokenizer, dict]:
    source = Tokenizer(models.Unigram())
    source.normalizer = normalizers.Precompiled(_charsmap(TABLE))
    cut = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    source.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    source.train_from_iterator(CORPUS, trainer)
    pieces = json.loads(source.to_str())["model"]["vocab"]
    said = {
        "model": "t5", "tokens": [p for p, _ in pieces] + ["[PAD0]"], "scores": [float(s) for _, s in pieces] + [-10000.0],
        "token_type": [3, 3, 3, 2, *[1] * (len(pieces) - 4), 5], "bos_token_id": 0, "padding_token_id": 1, "eos_token_id": 2,
        "unknown_token_id": 3, "add_space_prefix": True, "remove_extra_whitespaces": True, "add_bos_token": True,
        "precompiled_charsmap": list(_charsmap(TABLE)),
    }  # fmt: skip
    return source, said


def test_a_unigram_vocabulary_makes_the_tokens_of_its_source(tmp_path):
    """As XLM-RoBERTa's files have it: characters are replaced first, and what is unknown has a price."""
    source, said = _unigram()
    mine = load_tokenizer(_file(tmp_path / "m.gguf", **said))
    for text in [*TEXTS, "ﬁ Ⅷ\u00a0x ？", "[PAD0]"]:
        assert mine.encode(text) == [0, *source.encode(text, add_special_tokens=False).ids, 2], text
    assert mine.encode("ﬁ") == mine.encode("fi")
    assert mine.decode(mine.encode("the lazy  dog")[1:-1]) == "the lazy dog"
    plain = load_tokenizer(_file(tmp_path / "n.gguf", **said | {"add_bos_token": False}))
    assert plain.encode("fox") == mine.encode("fox")[1:]


def _broken(**units: int) -> list[int]:
    """Of a table, one number changed. The first four bytes are the size of what follows."""
    made = bytearray(_charsmap(TABLE))
    for at, value in units.items():
        made[4 * int(at[1:]) : 4 * int(at[1:]) + 4] = value.to_bytes(4, "little")
    return list(made)


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        ({"precompiled_charsmap": None}, CheckpointError, "precompiled_charsmap: missing"),
        ({"unknown_token_id": 1 << 20}, CheckpointError, "unknown_token_id: missing"),
        ({"add_space_prefix": False}, UnsupportedModelError, "add_space_prefix, remove_extra_whitespaces: .*--tokenizer"),
        ({"remove_extra_whitespaces": False}, UnsupportedModelError, "add_space_prefix, remove_extra_whitespaces"),
        ({"precompiled_charsmap": [1, 2, 3]}, CheckpointError, "says 197121 bytes of states, and has 0"),
        ({"precompiled_charsmap": _broken(_0=1 << 30)}, CheckpointError, "bytes of states"),
        ({"precompiled_charsmap": _broken(_1=1 << 29)}, CheckpointError, "leads outside of itself"),
        ({"precompiled_charsmap": _broken(_513=1 << 31 | 5000)}, CheckpointError, "leads outside of itself"),
        ({"precompiled_charsmap": _charsmap(TABLE)[:-1]}, CheckpointError, "leads outside of itself"),
    ],
)  # fmt: skip
def test_unigram_vocabularies_that_cannot_be_right_are_refused(said, error, why, tmp_path):
    whole = _unigram()[1] | said
    whole = {k: list(v) if isinstance(v, bytes) else v for k, v in whole.items() if v is not None}
    with pytest.raises(error, match=why):
        load_tokenizer(_file(tmp_path / "m.gguf", **whole))


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        ({"pre": "no-such-cut"}, UnsupportedModelError, "pre: 'no-such-cut' is not known to this version; .*--tokenizer"),
        ({"pre": None}, UnsupportedModelError, "tokenizer.ggml.pre: missing"),
        ({"model": "rwkv"}, UnsupportedModelError, "tokenizer.ggml.model: 'rwkv' is not .*gpt2, gemma4, llama, bert and t5"),
        ({"model": "llama"}, CheckpointError, "tokenizer.ggml.scores: missing"),
        ({"merges": None}, CheckpointError, "tokenizer.ggml.merges: missing"),
        ({"tokens": None}, CheckpointError, "tokenizer.ggml.tokens: missing"),
        ({"token_type": [1, 1]}, CheckpointError, "token_type: says nothing of some of the"),
        ({"tokens": "one"}, CheckpointError, "tokenizer.ggml.tokens: must be an array of no more than"),
    ],
)  # fmt: skip
def test_vocabularies_that_cannot_be_right_are_refused(said, error, why, tmp_path):
    whole = _of(_byte_level("gpt-2"), model="gpt2", pre="gpt-2") | said
    file = _file(tmp_path / "m.gguf", **{k: v for k, v in whole.items() if v is not None})
    with pytest.raises(error, match=why):
        load_tokenizer(file)


def test_every_way_to_cut_text_can_be_built():
    for name, words in WORDS.items():
        for pattern in words.patterns:
            cut = pre_tokenizers.Split(Regex(pattern), "isolated")
            for text in TEXTS:
                assert "".join(part for part, _ in cut.pre_tokenize_str(text)) == text, name


def test_templates_have_names(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    w.add_tokenizer_model("gpt2")
    w.add_token_list(["a", "b"])
    w.add_chat_template([{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    assert read_vocabulary(tmp_path / "m.gguf").templates == {"default": "A", "tool_use": "B"}
