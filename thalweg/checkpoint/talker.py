"""Tokens of Qwen3-Omni's talker: its files have a vocabulary of codes, with special tokens behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, architecture, integer
from thalweg.checkpoint.spelling import TALKER, WHOLE
from thalweg.errors import CheckpointError

SPECIAL = 1024
"""Tokens at the end of the vocabulary that are no codes."""
PROMPT = ("codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id", "codec_pad_id", "codec_bos_id")
"""Keys of the tokens before the first frame, without the voice."""
MOST = 1 << 16


def around(config: Config) -> Config:
    """The settings outside the talker's layers."""
    found = config.get(BESIDE)
    return found if isinstance(found, dict) else config


def has_talker(config: Config) -> bool:
    """Can a part of this model speak its answers?"""
    part = around(config).get("talker_config")
    return isinstance(part, dict) and isinstance(part.get("text_config"), dict)


def name_talker(config: Config) -> str:
    """The architecture of the part that speaks, of a model that has it (`has_talker`)."""
    return architecture(config).removesuffix(WHOLE) + TALKER


def talker_config(config: Config) -> Mapping[str, Any]:
    return part_of(around(config), "talker_config")


def part_of(config: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    found = config.get(key)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {where}{key}: missing")
    return found


def count_codes(config: Config) -> int:
    """Codes of the first codebook."""
    return integer(config, "vocab_size", SPECIAL + 1, MOST) - SPECIAL


def stored_tokens(config: Config) -> tuple[int, tuple[int, ...]]:
    """Tokens of the files: (the end of a sequence, those of prompts). Voices follow `PROMPT`."""
    part, stored = talker_config(config), integer(config, "vocab_size", SPECIAL + 1, MOST)
    ids = [integer(part, key, 0, stored - 1) for key in PROMPT]
    return integer(part, "codec_eos_token_id", 0, stored - 1), (*ids, *voices(config).values())


def voices(config: Config) -> dict[str, int]:
    """Names of voices and their stored tokens."""
    found, stored = talker_config(config).get("speaker_id"), integer(config, "vocab_size")
    if not isinstance(found, dict) or not found or not all(type(i) is int and 0 <= i < stored for i in found.values()):
        raise CheckpointError("config.json: talker_config: speaker_id: must map names of voices to tokens below vocab_size")
    return {str(name): row for name, row in found.items()}
