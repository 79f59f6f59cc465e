"""RWKV's World vocabulary: the ids of its authors' package, and errors that name the line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint.config import eos_ids
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.errors import CheckpointError
from thalweg.text.detokenizer import Detokenizer
from thalweg.text.grammar import vocabulary
from thalweg.text.tokenizer import Tokenizer
from thalweg.text.world import END

NAME = "rwkv_vocab_v20230424.txt"
MORE: list[str | bytes] = [
    "\n\n", "  ", "    ", " the", "the", "th", " ab", "ab", "abcd", "abcd x", "bcde", "'s", "\"'", "\\n", "]]", "^-&", "\r\n",
    "世", "世界", b"\xe4\xb8", b"\x96\xe7\x95", "é", "\U0001f600", b"\x98\x80\x80", "\u2028", "1 2", "<|", "\x00\x00",
]  # fmt: skip
BYTES: list[str | bytes] = [*map(chr, range(128)), *(bytes([b]) for b in range(128, 256))]
TEXTS = [
    "abcde abcd x abcd y the th  the    \n\n\n\r\n it's \"'", "世界丗世 \\n ]] ^-& é e\u0301",
    "\U0001f600\U0001f601 \u2028 1 2 1  2", "<|rwkv", "\x00\x00\x00 mañana", "",
]  # fmt: skip
RECORDED: list[list[int]] = [
    [265, 102, 263, 100, 101, 33, 121, 263, 100, 101, 33, 122, 260, 33, 262, 258, 261, 259, 257, 11, 273, 33, 106, 117, 268,
     33, 269],
    [275, 276, 152, 274, 33, 270, 33, 271, 33, 272, 33, 278, 33, 102, 205, 130],
    [279, 241, 160, 153, 130, 33, 281, 33, 282, 33, 50, 258, 51],
    [283, 115, 120, 108, 119],
    [284, 1, 33, 110, 98, 196, 178, 98, 111, 98],
    [],
]  # fmt: skip
"""Ids of the small vocabulary in `rwkv` 0.8.32 from PyPI."""
CONFIG: dict[str, Any] = {
    "added_tokens_decoder": {"0": {"content": END, "special": True}}, "bos_token": END, "eos_token": "\n\n", "pad_token": END,
    "unk_token": END, "tokenizer_class": "RwkvTokenizer",
    "auto_map": {"AutoTokenizer": ["hf_rwkv_tokenizer.RwkvTokenizer", None]},
}  # fmt: skip
"""As flash-linear-attention publishes it."""


def line(id: int, token: str | bytes) -> str:
    return f"{id} {token!r} {len(token.encode() if isinstance(token, str) else token)}"


def lines() -> list[str]:
    return [line(i, token) for i, token in enumerate([*BYTES, *MORE], 1)]


def save(path: Path, config: dict[str, Any] | None = CONFIG, text: str | None = None) -> Path:
    (path / NAME).write_bytes(("\r\n".join(lines()) + "\r\n" if text is None else text).encode())
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save(tmp_path_factory.mktemp("world")))


def stream(tok: Tokenizer, ids: list[int]) -> str:
    made = Detokenizer(tok)
    return "".join(map(made.push_one, ids)) + made.finish()


def test_ids_are_those_of_the_package_of_the_authors(small: Tokenizer) -> None:
    assert [small.encode(text) for text in TEXTS] == RECORDED
    for text, ids in zip(TEXTS, RECORDED, strict=True):
        assert small.decode(ids) == stream(small, ids) == text
        assert b"".join(map(small.bytes_of, ids)) == text.encode()


def test_a_text_and_its_bytes_have_the_same_ids_at_any_length(small: Tokenizer) -> None:
    long = "".join(TEXTS) * 60
    assert small.decode(small.encode(long)) == long
    assert len(small.encode(" " * 4001)) == 1001
    assert small.max_token_chars == len(END)
    assert [small.bytes_of(i) for i in (130, 260, 277)] == [b"\x81", b" the", b"\x96\xe7\x95"]


def test_the_end_of_a_text_is_token_0_and_plain_text_in_user_data(small: Tokenizer) -> None:
    assert small.encode(f"{END}a") == [0, 98]
    within = small.encode_with_data(f"{END}a", [(0, len(END) + 1)])
    assert 0 not in within
    assert small.decode(within) == f"{END}a"
    assert (small.bos_id, small.special_ids, small.decode([0, 98])) == (0, {0}, "a")


def test_an_end_token_that_is_part_of_the_vocabulary_keeps_its_id(small: Tokenizer, tmp_path: Path) -> None:
    """transformers' wrapper puts "\\n\\n" at an id of its own, whose row of the embedding is not trained."""
    assert small.encode("\n\n") == [257]
    assert (small.eos_ids, eos_ids(tmp_path, {"eos_token_id": 2}, small)) == ((257, 0), (2, 257, 0))
    assert small.decode([98, 257, 98]) == "a\n\na"
    assert vocabulary(small, 300, small.eos_ids).tokens[257:261] == [b"\n\n", b"  ", b"    ", b" the"]


@pytest.mark.parametrize(
    ("config", "first", "ends"),
    [
        (None, END, (0,)),
        ({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, "<|endoftext|>", (0,)),
        ({"bos_token": "<s>", "eos_token": "the"}, "<s>", (261, 0)),
    ],
)
def test_the_text_of_token_0_is_the_one_that_files_name(tmp_path: Path, config: Any, first: str, ends: tuple[int, ...]) -> None:
    tok = load_tokenizer(save(tmp_path, config))
    assert (tok.token_of(0), tok.encode(f"{first}a"), tok.eos_ids) == (first, [0, 98], ends)


def test_added_tokens_and_the_bos_token_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<end>": 0, "<new>": 285}))
    tok = load_tokenizer(save(tmp_path, {"bos_token": "<end>", "add_bos_token": True}))
    assert (tok.encode("a<new>"), tok.encode("a", add_special_tokens=False), tok.vocab_size) == ([0, 98, 285], [98], 286)


def test_tokenizer_json_has_precedence(tmp_path: Path) -> None:
    tok = load_tokenizer(save(tmp_path))
    tok.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / NAME).write_text("not a vocabulary")
    assert [load_tokenizer(tmp_path).encode(text) for text in TEXTS] == RECORDED


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda a: [*a, "285 'x"], r"line 285: must be an id, a token in quotes and its length"),
        (lambda a: [*a, "285 'xy' 3"], "line 285: must be an id"),
        (lambda a: [*a, "285 __import__('os') 2"], "line 285: must be an id"),
        (lambda a: [*a, r"285 '\xZ' 2"], "line 285: must be an id"),
        (lambda a: [*a, r"285 '\ud800' 3"], "line 285: must be an id"),
        (lambda a: [*a, "285 '' 0"], "line 285: must be an id"),
        (lambda a: [*a, f"285 '{'x' * 256}' 256"], "line 285: tokens have at most 255 bytes"),
        (lambda a: [*a, "99999999 'xy' 2"], "line 285: .* ids are below 16777216"),
        (lambda a: [*a, "285 'the' 3"], "line 285: token 285 is the same as token 261"),
        (lambda a: [*a, "284 'xy' 2"], "two tokens have the same id"),
        (lambda a: a[1:], "no token for the byte 0x00"),
        (lambda a: [], "no token for the byte 0x21"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, edit: Any, fault: str) -> None:
    with pytest.raises(CheckpointError, match=f"{NAME}: {fault}"):
        load_tokenizer(save(tmp_path, CONFIG, "\n".join(edit(lines()))))


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'the' is token 261, but other files of the tokenizer call token 0 so"):
        load_tokenizer(save(tmp_path, {"bos_token": "the"}))
    with pytest.raises(CheckpointError, match=r"add_bos_token: .* has no token '<b>'; correct bos_token"):
        load_tokenizer(save(tmp_path, {**CONFIG, "bos_token": "<b>", "add_bos_token": True}))
    (tmp_path / NAME).write_bytes(b"1 '\xff' 1")
    with pytest.raises(CheckpointError, match=f"{NAME}: cannot be read as UTF-8 text"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_every_id_of_the_published_vocabulary_is_that_of_the_package_of_the_authors(tmp_path: Path) -> None:
    """Where it is installed: `pip install rwkv`."""
    package = pytest.importorskip("rwkv.rwkv_tokenizer")
    file = Path(package.__file__).parent / NAME
    shutil.copy(file, tmp_path)
    ours, theirs, rng = load_tokenizer(tmp_path), package.TRIE_TOKENIZER(str(file)), random.Random(0)
    known = list(theirs.token2idx)
    assert all(ours.bytes_of(i) == token for token, i in theirs.token2idx.items())
    ranges = (
        (1, 0xD7FF),
        (32, 126),
        (9, 13),
        (0x4E00, 0x9FFF),
        (0x400, 0x4FF),
        (0x590, 0xDFF),
        (0xAC00, 0xD7A3),
        (0x1F300, 0x1F9FF),
    )
    for i in range(4000):
        drawn = "".join(chr(rng.randint(*rng.choice(ranges[i % 5 :]))) for _ in range(rng.randrange(60)))
        text = drawn if i % 4 else b"".join(rng.choices(known, k=20)).decode(errors="ignore")
        ids = theirs.encode(text)
        assert (ours.encode(text), ours.decode(ids), stream(ours, ids)) == (ids, text, text)
