"""Headers that nobody should believe: every corruption that llama.cpp's own test names, truncation at every byte, and random
damage. All are refused with file and reason, and none makes more memory than the file has bytes."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFHeader, Texts
from thalweg.checkpoint.gguf.names import first_part
from thalweg.errors import CheckpointError, UnsupportedModelError

U32, I32, F32, BOOL, TEXT, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0, dims: int | None = None) -> bytes:
    packed = b"".join(struct.pack("<Q", n & (1 << 64) - 1) for n in reversed(shape))
    return text(name) + struct.pack("<I", len(shape) if dims is None else dims) + packed + struct.pack("<IQ", kind, offset)


PAIRS = [
    pair("general.architecture", TEXT, text("llama")),
    pair("a.number", U32, struct.pack("<I", 7)),
    pair("a.flag", BOOL, b"\x01"),
    pair("an.array", ARRAY, struct.pack("<IQ3f", F32, 3, 1, 2, 3)),
    pair("some.texts", ARRAY, struct.pack("<IQ", TEXT, 3) + text("a") + text("") + text("ü")),
]
TENSORS = [tensor("one", [3, 5]), tensor("two", [2, 64], 8, 64)]
ALIGN = struct.pack("<I", 16)


def file(
    path: Path, pairs: list[bytes] = PAIRS, tensors: list[bytes] = TENSORS, data: int = 64 + 136, *, magic: bytes = b"GGUF",
    version: int = 3, counts: tuple[int, int] | None = None, alignment: int = 32,
) -> Path:  # fmt: skip
    n, m = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, n & (1 << 64) - 1, m & (1 << 64) - 1) + b"".join(pairs) + b"".join(tensors)
    head += b"\0" * (-len(head) % alignment)
    path.write_bytes(head + bytes(range(256))[:data] + b"\x11" * max(0, data - 256))
    return path


def test_what_is_right_is_read(tmp_path):
    made = GGUFHeader(file(tmp_path / "m.gguf"))
    assert made.metadata["general.architecture"] == "llama"
    assert made.metadata["a.number"] == 7
    assert made.metadata["a.flag"] is True
    assert made.metadata["an.array"].tolist() == [1, 2, 3]
    assert isinstance(made.metadata["some.texts"], Texts)
    assert list(made.metadata["some.texts"]) == ["a", "", "ü"]
    assert made.tensors["one"].shape == (3, 5)
    assert made.read(made.tensors["one"]).dtype == np.float32
    assert made.read(made.tensors["two"]).shape == (2, 68)
    assert made.read(made.tensors["two"])[0, 0] == 64
    made.forget(made.tensors["two"])


def test_an_alignment_of_its_own_and_a_tensor_of_nothing_are_read(tmp_path):
    """As llama.cpp reads them (TENSORS_CUSTOM_ALIGN, TENSORS_ZERO_DIM)."""
    pairs = [*PAIRS, pair("general.alignment", U32, ALIGN)]
    tensors = [tensor("none", [0, 5]), tensor("one", [1, 5]), tensor("two", [2], 0, 32)]
    made = GGUFHeader(file(tmp_path / "m.gguf", pairs, tensors, 40, alignment=16))
    assert made.read(made.tensors["none"]).shape == (0, 5)
    assert made.read(made.tensors["two"]).view(np.uint8)[0] == 32


HUGE = (1 << 64) - 1
CORRUPT = {
    "HEADER_BAD_MAGIC": ({"magic": b"FUGG"}, "is not a GGUF file"),
    "HEADER_BAD_VERSION_0": ({"version": 0}, "version 0"),
    "HEADER_BAD_VERSION_1": ({"version": 1}, "version 1"),
    "HEADER_BAD_VERSION_FUTURE": ({"version": 4}, "version 4"),
    "HEADER_BIG_ENDIAN": ({"version": 3 << 24}, "big-endian"),
    "HEADER_BAD_N_TENSORS": ({"counts": (-1, len(PAIRS))}, "claims 18446744073709551615 tensors"),
    "HEADER_BAD_N_KV": ({"counts": (len(TENSORS), -1)}, "claims 18446744073709551615 metadata entries"),
    "KV_BAD_KEY_SIZE": ({"pairs": [struct.pack("<Q", HUGE) + PAIRS[0][8:]]}, "key 0 claims 18446744073709551615 bytes"),
    "KV_EMPTY_KEY": ({"pairs": [pair("", U32, ALIGN)]}, "key 0 is empty"),
    "KV_BAD_TYPE": ({"pairs": [pair("k", 13, ALIGN)]}, "has type 13"),
    "KV_BAD_ARRAY_TYPE": ({"pairs": [pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]}, "has type 9"),
    "KV_BAD_VALUE_SIZE": ({"pairs": [pair("k", TEXT, struct.pack("<Q", HUGE) + b"x")]}, "claims 18446744073709551615 bytes"),
    "KV_BAD_ARRAY_SIZE": ({"pairs": [pair("k", ARRAY, struct.pack("<IQ", U64, HUGE))]}, "claims 18446744073709551615 numbers"),
    "KV_BAD_TEXTS": ({"pairs": [pair("k", ARRAY, struct.pack("<IQ", TEXT, HUGE))]}, "claims 18446744073709551615 texts"),
    "KV_TEXT_TOO_LONG": (
        {"pairs": [pair("k", ARRAY, struct.pack("<IQQ", TEXT, 1, 1 << 20))]}, "goes beyond the end of the file"
    ),
    "KV_DUPLICATE_KEY": ({"pairs": [PAIRS[1], PAIRS[1]]}, "'a.number' appears twice"),
    "KV_BAD_ALIGN": ({"pairs": [pair("general.alignment", U32, struct.pack("<I", 13))]}, "must be a power of two, not 13"),
    "KV_ZERO_ALIGN": ({"pairs": [pair("general.alignment", U32, struct.pack("<I", 0))]}, "must be a power of two, not 0"),
    "KV_WRONG_TYPE_ALIGN": (
        {"pairs": [pair("general.alignment", F32, struct.pack("<f", 32))]}, "must be a power of two, not 32.0"
    ),
    "TENSORS_BAD_NAME_SIZE": ({"tensors": [tensor("n" * 64, [4])]}, "claims 64 bytes, 63 are possible"),
    "TENSORS_BAD_N_DIMS": ({"tensors": [tensor("t", [1] * 5)]}, "has 5 dimensions"),
    "TENSORS_NO_DIMS": ({"tensors": [tensor("t", [], 0)]}, "has 0 dimensions"),
    "TENSORS_BAD_SHAPE": ({"tensors": [tensor("t", [-1])]}, "more values than there can be"),
    "TENSORS_NE_TOO_BIG": ({"tensors": [tensor("t", [1 << 62, 4])]}, "more values than there can be"),
    "TENSORS_NBYTES_TOO_BIG": ({"tensors": [tensor("t", [1 << 62], 27)]}, "truncated: tensor 't' ends at byte"),
    "TENSORS_NBYTES_PAD_WRAP": ({"tensors": [tensor("t", [(1 << 30) + 1, (1 << 30) - 1, 4])]}, "truncated: tensor 't'"),
    "TENSORS_BAD_TYPE": ({"tensors": [tensor("t", [4], 99)]}, "has type 99"),
    "TENSORS_GONE_TYPE": ({"tensors": [tensor("t", [32], 31)]}, "has type 31 .Q4_0_4_4, removed from llama.cpp"),
    "TENSORS_BAD_BLOCKS": ({"tensors": [tensor("t", [48], 2)]}, "has rows of 48 values, and Q4_0 holds 32 in a block"),
    "TENSORS_BAD_OFFSET": ({"tensors": [TENSORS[0], tensor("two", [4], 0, 32)]}, "begins at byte 32 of the data"),
    "TENSORS_DUPLICATE_NAME": ({"tensors": [TENSORS[0], tensor("one", [4], 0, 64)]}, "tensor 'one' appears twice"),
    "TENSORS_BAD_ALIGN": ({"tensors": [TENSORS[0], tensor("two", [4], 0, 60)]}, "begins at byte 60 of the data"),
    "TENSORS_INCONSISTENT_ALIGN": (
        {"pairs": [pair("general.alignment", U32, struct.pack("<I", 1))]}, "'two' begins at byte 64 of the data"
    ),
    "DATA_NOT_ENOUGH_DATA": ({"data": 199}, "truncated: tensor 'two' ends at byte"),
    "DATA_BAD_ALIGN": ({"pairs": [pair("general.alignment", U32, struct.pack("<I", 6))]}, "must be a power of two, not 6"),
    "DATA_MEM_SIZE_OVERFLOW": (
        {"tensors": [tensor("t", [0x7FFFFFFFFFFFFFC0], 24), tensor("u", [0x7FFFFFFFFFFFFFC0], 24, 0x7FFFFFFFFFFFFFC0)]},
        "truncated: tensor 't' ends at byte",
    ),
}  # fmt: skip
"""By the names that llama.cpp's test-gguf.cpp has for them, and some that it has not."""


@pytest.mark.parametrize("name", sorted(CORRUPT))
def test_corruptions_are_refused_with_file_and_reason(name, tmp_path):
    change, why = CORRUPT[name]
    path = file(tmp_path / "m.gguf", **change)
    with pytest.raises(CheckpointError, match=why) as e:
        GGUFHeader(path)
    assert str(path) in str(e.value)


def test_every_truncation_is_refused(tmp_path):
    whole = file(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            GGUFHeader(path)


LITTLE = 64 * 1024
"""Bytes that reading a header of a few hundred bytes may allocate."""


def _read(path: Path) -> tuple[GGUFHeader | None, str, int]:
    """The header, or None and the error's text; and the peak of memory meanwhile."""
    tracemalloc.reset_peak()
    before, made, why = tracemalloc.get_traced_memory()[0], None, ""
    try:
        made = GGUFHeader(path)
    except (CheckpointError, UnsupportedModelError) as e:
        why = str(e)
    return made, why, tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize(
    "turns", [200, pytest.param(3_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_damaged_headers_crash_nothing_and_take_no_memory(turns, tmp_path):
    """Bytes, words and lengths replaced at random: what is not refused still lies within the file."""
    whole = file(tmp_path / "whole.gguf").read_bytes()
    end, rng, path, read = len(whole) - 200, np.random.default_rng(0), tmp_path / "m.gguf", 0
    extremes = [0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, HUGE >> 1, HUGE]
    tracemalloc.start()
    for i in range(turns):
        damaged = bytearray(whole)
        for _ in range(1 + i % 4):
            at = int(rng.integers(4, end))
            if rng.random() < 0.5:
                damaged[at] = int(rng.integers(0, 256))
            else:
                damaged[at : at + 8] = struct.pack("<Q", extremes[int(rng.integers(0, len(extremes)))])
        path.write_bytes(damaged[: max(len(whole) - 8, int(rng.integers(0, len(damaged) + 1)))])
        made, why, peak = _read(path)
        if peak >= LITTLE:  # tracemalloc counts every thread, such as one left by an earlier test: read again
            peak = min(peak, *(_read(path)[2] for _ in range(3)))
        assert peak < LITTLE
        if made is None:
            assert str(path) in why
            continue
        read += 1
        assert all(t.end <= len(damaged) for t in made.tensors.values())
        for value in made.metadata.values():
            assert not isinstance(value, Texts) or len("".join(value)) <= len(damaged)
    tracemalloc.stop()
    assert 0 < read < turns


def _part(tmp_path: Path, i: int, of: int, tensors: list[bytes], said: int = 2, stem: str = "m") -> Path:
    pairs = [
        pair("split.no", 2, struct.pack("<H", i)), pair("split.count", 2, struct.pack("<H", of)),
        pair("split.tensors.count", I32, struct.pack("<i", said)),
    ]  # fmt: skip
    return file(tmp_path / f"{stem}-{i + 1:05}-of-{of:05}.gguf", pairs, tensors, 64)


def test_a_split_model_is_read_from_any_of_its_files(tmp_path):
    first = _part(tmp_path, 0, 2, [tensor("one", [3, 5])])
    second = _part(tmp_path, 1, 2, [tensor("two", [2, 5])])
    assert first_part(second) == first
    made = GGUFFiles(first)
    assert set(made.tensors) == {"one", "two"}
    assert made.file("two") == second
    assert made.read("two").shape == (2, 5)


def test_split_models_with_something_wrong_are_refused(tmp_path):
    first = _part(tmp_path, 0, 2, [tensor("one", [3, 5])])
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.gguf: missing"):
        GGUFFiles(first)
    _part(tmp_path, 1, 2, [tensor("one", [2, 5])])
    with pytest.raises(CheckpointError, match=r"tensor 'one' is in m-00001-of-00002\.gguf too"):
        GGUFFiles(first)
    second = _part(tmp_path, 1, 2, [tensor("two", [2, 5]), tensor("more", [1], 0, 64)])
    second.write_bytes(second.read_bytes() + b"\0" * 64)
    with pytest.raises(CheckpointError, match="says 2 tensors, its 2 files hold 3"):
        GGUFFiles(first)
    with pytest.raises(CheckpointError, match="its name does not say so"):
        GGUFFiles(first.rename(tmp_path / "other.gguf"))
    alone = _part(tmp_path, 0, 1, [tensor("one", [3, 5])], 1).rename(tmp_path / "x-00001-of-00003.gguf")
    with pytest.raises(CheckpointError, match="its name is that of a part"):
        GGUFFiles(alone)
