"""Tokens of a vocabulary that differ only by case, accents and spaces, counted as one (Engram, Cheng et al. 2026)."""

from __future__ import annotations

import functools
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

from thalweg.errors import CheckpointError

_KEPT = "\ue000"
"""Stands for a text that is one space while spaces at its ends are removed."""


@functools.lru_cache(maxsize=2)
def merge_tokens(file: Path) -> tuple[tuple[int, ...], int]:
    """(the merged id of each token, the number of merged ids). Ids are counted in order of tokens. A token that is no whole
    text has a merged id for itself. CheckpointError for a file that is no tokenizer.json."""
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as e:  # the library raises Exception itself
        raise CheckpointError(f"{file}: is no tokenizer file: {e}") from e
    fold = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex("^ $"), _KEPT), normalizers.Strip(),
        normalizers.Replace(_KEPT, " "),
    ])  # fmt: skip
    known: dict[str | None, int] = {}
    ids = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else fold.normalize_str(text) or text
        ids.append(known.setdefault(key, len(known)))
    return tuple(ids), len(known)
