"""Builds tokenizers from RWKV's World vocabulary: at each position of a text's UTF-8 bytes, the longest token.

A line of rwkv_vocab_v*.txt has an id, a Python literal of text or bytes, and its length in bytes: `3295 b'\\xec\\x97' 2`. The
longest match is found by one regular expression, the prefix tree of all tokens, as the `tokenizers` library has no such model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from thalweg.errors import CheckpointError
from thalweg.text.added import DECODER, FILE, content
from thalweg.text.pieces import byte_alphabet

FILES = "rwkv_vocab_v*.txt"
END = "<|rwkv_tokenizer_end_of_text|>"
"""Text of token 0, the end of a text, if no file names it. Vocabularies begin with token 1."""
LONGEST, MOST = 255, 1 << 24
"""Most bytes of a token, and the bound of ids."""
_LINE = re.compile(r"(\d{1,8}) (b?(?:'.*'|\".*\")) (\d{1,8})")


def find_world(path: Path) -> Path | None:
    """The World vocabulary of a model directory, the newest of several. None: it has none."""
    return max((f for f in path.glob(FILES) if f.is_file()), default=None)


def load_world(file: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a vocabulary file. config: of `merge_settings`, for the text of token 0 and add_bos_token.
    CheckpointError names file and line."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    ids = {"".join(map(letters.__getitem__, token)): i for token, i in _tokens(file).items()}
    missing = next((byte for byte, letter in letters.items() if letter not in ids), None)
    if missing is not None:
        raise CheckpointError(f"{file}: no token for the byte {missing:#04x}; download the file again")
    cut = pre_tokenizers.Split(Regex(_tree(sorted(ids))), "isolated")
    end = None if 0 in ids.values() else _end(config)
    if end is not None and ids.setdefault(end, 0) != 0:
        raise CheckpointError(f"{file}: {end!r} is token {ids[end]}, but other files of the tokenizer call token 0 so")
    result = Tokenizer(models.WordLevel(ids))
    result.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), cut])
    result.decoder = decoders.ByteLevel()
    if end is not None:
        result.add_special_tokens([AddedToken(end, normalized=False, special=True)])
    if config.get("add_bos_token"):
        bos = content(config.get("bos_token")) or end
        if bos is None or (first := result.token_to_id(bos)) is None:
            raise CheckpointError(f"tokenizer_config.json: add_bos_token: {file} has no token {bos!r}; correct bos_token")
        result.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, first)]
        )
    return result


def end_ids(backend: Tokenizer, eos: str | None) -> tuple[int, ...]:
    """Ids that end a text: that of `eos`, and token 0 if it is no part of a text. Published files have "\\n\\n" as eos_token,
    which is a token of the vocabulary."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    spelled = "" if eos is None else "".join(map(letters.__getitem__, eos.encode()))
    found = [None if eos is None else backend.token_to_id(eos), backend.token_to_id(spelled)]
    found += [0] if 0 in backend.get_added_tokens_decoder() else []
    return tuple(dict.fromkeys(i for i in found if i is not None))


def _end(config: Mapping[str, Any]) -> str:
    """The text of token 0: of the files with added tokens, else the bos_token."""
    listed, added = config.get(DECODER), config.get(FILE)
    text = content(listed.get("0")) if isinstance(listed, Mapping) else None
    if text is None and isinstance(added, Mapping):
        text = next((t for t, i in added.items() if i == 0), None)
    return text or content(config.get("bos_token")) or END


def _tokens(file: Path) -> dict[bytes, int]:
    """Token -> id."""
    try:
        lines = file.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{file}: cannot be read as UTF-8 text: {e}; download the file again") from e
    result: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _LINE.fullmatch(line.rstrip("\r"))
        token = None if row is None else _literal(row[2])
        if row is None or not token or len(token) != int(row[3]):
            raise CheckpointError(
                f"{file}: line {number}: must be an id, a token in quotes and its length in bytes, such as: 98 'a' 1; "
                "download the file again"
            )
        if len(token) > LONGEST or int(row[1]) >= MOST:
            raise CheckpointError(f"{file}: line {number}: tokens have at most {LONGEST} bytes, and ids are below {MOST}")
        if token in result:
            raise CheckpointError(f"{file}: line {number}: token {row[1]} is the same as token {result[token]}")
        result[token] = int(row[1])
    if len({*result.values()}) != len(result):
        raise CheckpointError(f"{file}: two tokens have the same id; download the file again")
    return result


def _literal(text: str) -> bytes | None:
    """The bytes of a Python literal. None: it is not one."""
    if text[0] != "b" and "\\" not in text and text[0] not in text[1:-1]:
        return text[1:-1].encode()  # most of them
    try:
        value = ast.literal_eval(text)
        return value if isinstance(value, bytes) else str(value).encode()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _tree(tokens: Sequence[str], depth: int = 0) -> str:
    """The expression of the longest token: a tree of the tokens, sorted, after their first `depth` letters, which are equal."""
    if len(tokens) == 1:
        return re.escape(tokens[0][depth:])
    whole = len(tokens[0]) == depth
    ways = [(c, _tree(list(each), depth + 1)) for c, each in groupby(tokens[whole:], key=itemgetter(depth))]
    last = [c for c, rest in ways if not rest]
    parts = [re.escape(c) + rest for c, rest in ways if rest]
    if last:
        parts.append(f"[{''.join(map(re.escape, last))}]" if len(last) > 1 else re.escape(last[0]))
    return f"(?:{'|'.join(parts)}){'?' if whole else ''}"
