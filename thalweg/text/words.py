"""Word patterns of byte-level vocabularies, which split text before bytes are merged: one row for each name in GGUF files
(`tokenizer.ggml.pre`). The patterns are those of the models' published tokenizers. The first splits the text, and the next its
parts. The names and their grouping are llama.cpp's (`llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENGLISH}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENGLISH}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)
_SYMBOLS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
_DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", rf"{_SYMBOLS}|\s*[\r\n]+|\s+(?!\S)|\s+")
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-"
    "ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""Characters that editors replace by lookalikes are escaped."""


@dataclass(frozen=True, slots=True)
class WordPatterns:
    patterns: tuple[str, ...]
    whole: bool = False
    """A word in the vocabulary becomes that token, regardless of its merges."""
    bos: bool = False
    """Default for adding the bos token."""


_KINDS: tuple[tuple[str, WordPatterns], ...] = (
    ("default", WordPatterns((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", WordPatterns(
        (_LLAMA3,), whole=True, bos=True)),
    ("dbrx smaug-bpe chatglm-bpe", WordPatterns((_LLAMA3,))),
    ("glm4 glm5", WordPatterns((_LLAMA3,), whole=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open", WordPatterns((_QWEN2,))),
    (
        "qwen35",
        WordPatterns((
            rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        )),
    ),
    ("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert", WordPatterns((_GPT2,))),
    ("mpt olmo jais exaone4 jina-v1-en jina-v2-code roberta-bpe trillion granite-docling", WordPatterns((_GPT2,))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", WordPatterns((r"\p{N}", _GPT2))),
    ("falcon", WordPatterns((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    (
        "deepseek-llm",
        WordPatterns((
            "[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
        )),
    ),
    ("deepseek-coder", WordPatterns(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", WordPatterns(_DEEPSEEK3)),
    (
        "jais-2",
        WordPatterns((
            rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
            + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"\s{1,2}(?!\S)|\s{1}",
        )),
    ),
    (
        "exaone-moe",
        WordPatterns((
            rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )),
    ),
    ("tekken", WordPatterns((_TEKKEN,), whole=True, bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", WordPatterns((_GPT4O,))),
    ("tiny_aya cohere2moe", WordPatterns((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    ("poro-chat bloom gpt3-finnish", WordPatterns((r" ?[^(\s|.,!?…。，、।۔،)]+",))),
    ("viking", WordPatterns((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        WordPatterns(
            (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)),
    ),
    (
        "seed-coder",
        WordPatterns(
            (rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)),
    ),
)  # fmt: skip
WORDS: Mapping[str, WordPatterns] = {name: words for names, words in _KINDS for name in names.split()}
"""Name in files -> patterns."""
