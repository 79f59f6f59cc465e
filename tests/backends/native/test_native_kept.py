"""Packed weights kept in a folder: mapped they give the same bits, other values have other files, and a damaged one is
made anew."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from thalweg import LLM, SamplingParams
from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.backends.cpu.native import PORTABLE, NativeLibrary, open_library
from thalweg.backends.cpu.native.linear import NativeLinear, PackedWeight
from thalweg.backends.cpu.native.weight_cache import LAYOUT, STALE, SUFFIX, PackedWeightCache
from thalweg.errors import DeviceError
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, WeightFormat

FORMATS = {
    "dense": DENSE,
    "int8-rows": WeightFormat("int", 8, act="int8"),
    "int8-keep": WeightFormat("int", 8, act="int8_keep4"),
    "w8a16": WeightFormat("int", 8),
    "w4a16": WeightFormat("int", 4, 64, symmetric=False),
    "w4a8": WeightFormat("int", 4, 64, symmetric=False, act="int8_per_group"),
    "w8a8-groups": WeightFormat("int", 8, 64, act="int8_per_group"),
    "fp8": WeightFormat("float", 8, act="float8_e4m3fn"),
}
"""All forms that are made of values in mapped files."""


@pytest.fixture
def keeping(library: NativeLibrary, tmp_path: Path) -> Iterator[NativeLinear]:
    library.kept = PackedWeightCache(library, tmp_path / "kept")
    yield NativeLinear(library)
    library.kept = None


def files(folder: Path) -> dict[str, int]:
    """Name -> when it was written."""
    return {p.name: p.stat().st_mtime_ns for p in (folder / "kept").iterdir()}


def values(rows: int = 200, columns: int = 320, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def packed(linear: NativeLinear, format: WeightFormat, *parts: np.ndarray) -> PackedWeight:
    made = linear.pack_mapped(parts or (values(),), format)
    assert made is not None
    return made


def refusal(linear: NativeLinear, format: WeightFormat) -> str | None:
    return linear.supports({"dtype": "float32", "weight": format, "in_features": 320, "out_features": 200})


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_a_kept_weight_gives_the_bits_of_one_packed_anew(
    library: NativeLibrary, keeping: NativeLinear, format: WeightFormat, tmp_path: Path
) -> None:
    if why := refusal(keeping, format):
        pytest.skip(why)
    x = torch.from_numpy(values(9, seed=2))
    first = packed(keeping, format)
    written = files(tmp_path)
    assert len(written) == 1
    second = packed(keeping, format)
    assert files(tmp_path) == written
    assert first.lies is None
    assert second.lies is not None
    assert first.bytes == second.bytes
    library.kept = None
    plain = packed(keeping, format)
    assert plain.lies is None
    want = keeping.run(x, plain, act=format.act, group=format.group)
    for weight in (first, second):
        assert torch.equal(keeping.run(x, weight, act=format.act, group=format.group), want)


def test_each_weight_format_and_instruction_set_has_a_file_of_its_own(
    library: NativeLibrary, keeping: NativeLinear, tmp_path: Path
) -> None:
    one, other = values(), values()
    other[199, 319] = np.nextafter(other[199, 319], 9)
    packed(keeping, DENSE, one)
    packed(keeping, DENSE, other)
    packed(keeping, DENSE, one[:100], one[100:])
    formats = [f for f in FORMATS.values() if refusal(keeping, f) is None]
    for format in formats:
        packed(keeping, format, one)
    assert len(files(tmp_path)) == 2 + len(formats)
    if library.level != PORTABLE:
        elsewhere = open_library(1, PORTABLE)
        elsewhere.kept = PackedWeightCache(elsewhere, tmp_path / "kept")
        packed(NativeLinear(elsewhere), DENSE, one)
        assert len(files(tmp_path)) == 3 + len(formats)


@pytest.mark.parametrize("damage", ["cut", "empty", "folder"])
def test_what_is_no_such_weight_is_packed_anew(
    library: NativeLibrary, keeping: NativeLinear, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.from_numpy(values(3, seed=2))
    want = keeping.run(x, packed(keeping, DENSE))
    (name,) = files(tmp_path)
    file = tmp_path / "kept" / name
    size = file.stat().st_size
    file.unlink() if damage == "folder" else None
    file.mkdir() if damage == "folder" else file.write_bytes(b"" if damage == "empty" else bytes(size - 64))
    with caplog.at_level(logging.WARNING):
        again = packed(keeping, DENSE)
    assert again.lies is None
    assert torch.equal(keeping.run(x, again), want)
    if damage == "folder":  # nothing takes its place, and the log says so
        assert "packed_weights" in caplog.text
        return
    assert file.stat().st_size == size
    assert packed(keeping, DENSE).lies is not None


def test_where_nothing_can_be_written_a_warning_says_so_once_and_weights_are_packed(
    library: NativeLibrary, keeping: NativeLinear, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept").rmdir()
    with caplog.at_level(logging.WARNING):
        for seed in (1, 2, 3):
            assert packed(keeping, DENSE, values(seed=seed)).lies is None
    assert caplog.text.count("packed_weights") == 1


@pytest.mark.parametrize("some", [True, False], ids=["some", "none"])
def test_a_checkpoint_of_which_nothing_can_be_kept_is_told_once(
    library: NativeLibrary, keeping: NativeLinear, caplog: pytest.LogCaptureFixture, some: bool
) -> None:
    assert library.kept is not None
    if some:
        packed(keeping, DENSE)
    with caplog.at_level(logging.WARNING):
        library.kept.tell()
        library.kept.tell()
    assert [r.message for r in caplog.records if "nothing of this checkpoint" in r.message] == caplog.messages
    assert len(caplog.messages) == (not some)


def test_what_a_killed_process_left_half_written_is_removed(
    library: NativeLibrary, keeping: NativeLinear, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    old, new, other = folder / "part-old", folder / "part-new", folder / f"0{SUFFIX}"
    for file in (old, new, other):
        file.write_bytes(b"x")
    for file in (old, other):
        os.utime(file, (time.time() - STALE - 60,) * 2)
    PackedWeightCache(library, folder)
    assert {p.name for p in folder.iterdir()} == {new.name, other.name}


def digest(library: NativeLibrary, data: bytes) -> tuple[int, int]:
    out, buffer = (ctypes.c_uint64 * 2)(), np.frombuffer(data or b"\0", np.uint8)
    library.digest(library.context, buffer.ctypes.data, len(data), ctypes.addressof(out))
    return out[0], out[1]


def test_the_digest_tells_apart_sizes_places_and_single_bits(library: NativeLibrary) -> None:
    rng = np.random.default_rng(3)
    seen = {digest(library, bytes(n)) for n in (0, 1, 15, 16, 63, 64, 65, 128, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20)}
    assert len(seen) == 12
    data = bytearray(rng.bytes((2 << 20) + 77))
    first = digest(library, bytes(data))
    assert digest(library, bytes(data)) == first
    for bit in (0, 7, 511, 8 * (1 << 20), 8 * len(data) - 1, *rng.integers(0, 8 * len(data), 40)):
        data[bit // 8] ^= 1 << bit % 8
        changed = digest(library, bytes(data))
        assert changed[0] != first[0]
        assert changed[1] != first[1]
        data[bit // 8] ^= 1 << bit % 8
    for a, b, n in ((0, 16, 16), (0, 64, 64), (8, 16, 8), (0, 1 << 20, 1 << 20)):  # places that change hands
        swapped = bytearray(data)
        swapped[a : a + n], swapped[b : b + n] = data[b : b + n], data[a : a + n]
        assert digest(library, bytes(swapped)) != first


PACKED = {
    "dense": "b2ede45d6ee7d9ef",
    "int8-rows": "ba71132eadc67207",
    "w4a16": "d393cbe07a3738da",
    "w4a8": "876048e0a8af2f8e",
    "fp8": "1ced00cda492c130",
}
"""Beginnings of SHA-256 of packed weights, at LAYOUT."""


def test_a_layout_that_changes_gets_another_number() -> None:
    """Files of an older layout would be read as weights. If this fails, raise LAYOUT and note the new digests."""
    library = open_library(1, PORTABLE)
    made = {}
    for name in PACKED:
        weight = packed(NativeLinear(library), FORMATS[name], np.arange(100 * 68, dtype=np.float32).reshape(100, 68) % 37 - 18)
        memory = (ctypes.c_char * weight.bytes).from_address(library.memory(weight.handle))
        made[name] = hashlib.sha256(memory).hexdigest()[:16]
    assert (LAYOUT, made) == (2, PACKED)


COMPRESSED = {64: "710cb2b5d3f2cbd9", 32: "c1d64bfff5bbdacd"}
"""The same of a weight in 12 bits, by bytes of a vector."""


def test_a_compressed_layout_that_changes_does_too(library: NativeLibrary) -> None:
    fresh = open_library(1, library.level)
    if not fresh.compress_weights():
        pytest.skip(f"kernels of {library.level} read weights as they are")
    bits = np.arange(103000, dtype=np.uint32) * 2654435761
    values = (((bits >> 16).astype(np.float32) + 0.5) * np.where(bits & 256, -1, 1).astype(np.float32)).reshape(100, 1030)
    values[::9, ::50] *= 2.0**-40
    weight = NativeLinear(fresh).pack_mapped(((values.view(np.uint32) >> 16).astype(np.uint16),), DENSE)
    assert weight is not None
    memory = (ctypes.c_char * weight.bytes).from_address(fresh.memory(weight.handle))
    made = hashlib.sha256(memory).hexdigest()[:16]
    assert (LAYOUT, made) == (2, COMPRESSED[64 if library.level.startswith("avx512") else 32])


@pytest.mark.slow
def test_a_start_maps_what_an_earlier_one_kept_and_the_text_is_the_same(tmp_path: Path) -> None:
    def text(**options: object) -> list[int]:
        llm = LLM(device="cpu", additional_config=options)
        try:
            done = llm.generate(["The river"], SamplingParams(temperature=0, max_tokens=12))
            return list(done[0].outputs[0].token_ids)
        finally:
            llm.shutdown()

    want = text()
    assert text(packed_weights=str(tmp_path / "kept")) == want
    written = files(tmp_path)
    assert written
    assert all(name.endswith(SUFFIX) for name in written)
    assert text(packed_weights=str(tmp_path / "kept")) == want
    assert files(tmp_path) == written


def test_a_folder_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match=r"packed_weights: .*file.* cannot be used as a folder"):
        CpuPlatform().with_options(CpuOptions(threads=1, packed_weights=str(tmp_path / "file"))).open(Place())


def test_without_compiled_kernels_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"packed_weights: nothing is packed without compiled kernels"):
        CpuPlatform().with_options(CpuOptions(isa="none", packed_weights=str(tmp_path))).open(Place())
