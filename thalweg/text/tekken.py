"""Builds tokenizers from Mistral's tekken.json: bytes merged by rank, as in tiktoken, after a block of special tokens.

Text that spells a special token becomes that token here, as with every other tokenizer. Mistral's own library never reads one
from text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from thalweg.errors import CheckpointError
from thalweg.text.pieces import byte_alphabet

FILE = "tekken.json"
SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of files up to version 7, which do not name them."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_UNNAMED = ("v1", "v2", "v3", "v7")


def load_tekken(file: Path) -> tuple[Backend, dict[str, str]]:
    """(tokenizer, special tokens by name: bos_token, eos_token ...). CheckpointError names file and key."""
    content = _object(file)
    config = content.get("config")
    if not isinstance(config, Mapping) or not isinstance(config.get("pattern"), str):
        raise CheckpointError(f"{file}: config: must be an object with the pattern that cuts text into words")
    size, before = (_count(config.get(k)) for k in ("default_vocab_size", "default_num_special_tokens"))
    if not size or not before:
        raise CheckpointError(f"{file}: config: default_vocab_size and default_num_special_tokens must be numbers of tokens")
    specials = _specials(file, content, before)
    tokens = _tokens(file, content.get("vocab"), size - before)
    backend = Backend(_bpe(tokens, specials))
    try:
        cut = pre_tokenizers.Split(Regex(config["pattern"]), "isolated")
    except Exception as e:  # the library raises plain Exception
        raise CheckpointError(f"{file}: config: pattern: {e}") from e
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    for special in (True, False):
        added = [AddedToken(t, normalized=False, special=special) for t, control in specials if control is special]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    ids = {t: i for i, (t, _) in enumerate(specials)}
    if NAMES["bos_token"] in ids:
        bos = NAMES["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, ids[bos])]
        )
    return backend, {name: token for name, token in NAMES.items() if token in ids}


def _count(value: Any) -> int:
    """The value if it is a valid number of tokens, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 24 else 0


def _object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, OSError, RecursionError) as e:
        raise CheckpointError(f"{file}: cannot be read as JSON: {e}; download the file again") from e
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, not {type(content).__name__}")
    return content


def _specials(file: Path, content: Mapping[str, Any], count: int) -> list[tuple[str, bool]]:
    """(text, is it a control token?) of each id before the vocabulary."""
    listed, version = content.get("special_tokens"), content["config"].get("version")
    if listed is None:
        if version not in _UNNAMED:
            raise CheckpointError(f"{file}: special_tokens: missing, which files of version {version!r:.20} must have")
        listed = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(SPECIALS)]
    result = [(f"<SPECIAL_{i}>", True) for i in range(count)]
    for i, each in enumerate(listed if isinstance(listed, list) else [None]):
        text = each.get("token_str") if isinstance(each, Mapping) else None
        if not isinstance(text, str) or not text or each.get("rank") != i or i >= count:
            raise CheckpointError(f"{file}: special_tokens: entry {i} must have rank {i}, below {count}, and a token_str")
        result[i] = (text, each.get("is_control", True) is not False)
    if len({t for t, _ in result}) != count:
        raise CheckpointError(f"{file}: special_tokens: two tokens are the same")
    return result


def _tokens(file: Path, vocab: Any, count: int) -> list[bytes]:
    """Tokens by rank. Files have more tokens than are used."""
    if not isinstance(vocab, list) or not 256 <= count <= len(vocab):
        raise CheckpointError(f"{file}: vocab: must list the {count} tokens that config counts, including the 256 bytes")
    result = []
    for i, each in enumerate(vocab[:count]):
        try:
            token = base64.b64decode(each["token_bytes"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            token = b""
        if not token or each.get("rank") != i or (i < 256 and token != bytes([i])):
            raise CheckpointError(
                f"{file}: vocab: entry {i} must have rank {i} and its bytes in base64 (the first 256 in order)"
            )
        result.append(token)
    if len(set(result)) != count:
        raise CheckpointError(f"{file}: vocab: two tokens are the same")
    return result


def _bpe(tokens: list[bytes], specials: list[tuple[str, bool]]) -> models.BPE:
    """The BPE model. Every pair of tokens that joins to a token is a merge, with the joined token's rank. Bytes are spelled
    with the letters of byte-level tokenizers."""
    ranks = {t: i for i, t in enumerate(tokens)}
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    spelled = [t.decode("latin-1").translate(letters) for t in tokens]
    merges: list[tuple[str, str]] = []
    for rank in range(256, len(tokens)):
        token, text = tokens[rank], spelled[rank]
        ways = []
        for at in range(1, len(token)):
            left = ranks.get(token[:at])
            if left is not None and (right := ranks.get(token[at:])) is not None:
                ways.append((left, right, at))
        merges += [(text[:at], text[at:]) for _, _, at in sorted(ways)]
    vocab = {t: i for i, (t, _) in enumerate(specials)}
    vocab |= {t: len(specials) + i for i, t in enumerate(spelled)}
    return models.BPE(vocab=vocab, merges=merges, ignore_merges=True)
