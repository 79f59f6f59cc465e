"""The safetensors reader against the format's own library, and against files that lie."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.errors import CheckpointError

FULL = {
    "a": torch.arange(24, dtype=torch.float32).reshape(4, 6),
    "b": torch.randn(5, 3).to(torch.bfloat16),
    "c.half": torch.randn(7).to(torch.float16),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "ids": torch.arange(5),
    "flag": torch.tensor([True, False]),
    "fp8": torch.randn(2, 2).to(torch.float8_e4m3fn),
}


def build(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A directory with a hand-made model.safetensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(begin: int = 0, end: int = 8, dtype: object = "F32", shape: object = (2,)) -> dict:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("length", [0x0280, 0x0480])
def test_a_header_whose_length_begins_as_a_pickle_does_is_a_header(length, tmp_path):
    header = json.dumps({"a": tensor()}).encode()
    path = build(tmp_path, header + b" " * (length - len(header)), b"\0" * 8)
    assert (path / "model.safetensors").read_bytes()[0] == 0x80
    assert open_checkpoint(path).names == ["a"]


def test_reads_what_the_formats_library_reads(tmp_path):
    save_file(FULL, tmp_path / "model.safetensors", metadata={"format": "pt"})
    got = open_checkpoint(tmp_path)
    assert got.names == sorted(FULL)
    with safe_open(tmp_path / "model.safetensors", "pt") as oracle:
        for name in FULL:
            want = oracle.get_tensor(name)
            dtype, shape = got.entry(name)
            assert (dtype, shape) == (str(want.dtype).removeprefix("torch."), tuple(want.shape))
            assert got.read(name).tobytes() == want.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    assert got.bytes == sum(t.nbytes for t in FULL.values())


@pytest.mark.slow
def test_what_was_forgotten_takes_no_memory_and_can_be_read_again(tmp_path):
    rng = np.random.default_rng(0)
    given = {name: torch.from_numpy(rng.standard_normal((1 << 20,), np.float32)) for name in ("a", "b", "c")}
    save_file(given, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)

    def resident() -> int:
        """KiB of the file's pages in this process."""
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        after = (line for line in lines if line.endswith(str(tmp_path / "model.safetensors")))
        return sum(int(next(x for x in lines if x.startswith("Rss:")).split()[1]) for _ in after)

    views = {name: checkpoint.read(name) for name in given}
    assert all(v.sum() == given[name].numpy().sum() for name, v in views.items())
    assert resident() >= 12 << 10
    checkpoint.forget("b")
    assert resident() <= 8 << 10
    np.testing.assert_array_equal(views["b"], given["b"])
    for name in given:
        checkpoint.forget(name)
    assert resident() == 0


def test_rows_and_columns_are_views_of_only_those(tmp_path):
    save_file({"w": torch.arange(24.0).reshape(4, 6)}, tmp_path / "model.safetensors")
    w = open_checkpoint(tmp_path).read("w", slice(1, 3), slice(2, 5))
    np.testing.assert_array_equal(w, np.arange(24.0).reshape(4, 6)[1:3, 2:5])
    assert w.base is not None
    assert not w.flags.writeable
    with pytest.raises(CheckpointError, match="no tensor 'x'"):
        open_checkpoint(tmp_path).read("x")


BAD = {
    "hole": ({"a": tensor(0, 8), "b": tensor(12, 20)}, 20, "leaves 4 bytes before it unused"),
    "hole-at-start": ({"a": tensor(4, 12)}, 12, "leaves 4 bytes"),
    "overlap": ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "overlaps"),
    "same-bytes": ({"a": tensor(0, 8), "b": tensor(0, 8)}, 8, "overlaps"),
    "truncated": ({"a": tensor(0, 8)}, 7, "truncated"),
    "left-over": ({"a": tensor(0, 8)}, 9, "1 bytes after the last tensor"),
    "reversed": ({"a": tensor(8, 0)}, 8, "data_offsets span -8"),
    "wrong-size": ({"a": tensor(0, 8, shape=(3,))}, 8, "needs 12 bytes"),
    "negative": ({"a": tensor(-8, 0)}, 8, "not two byte positions"),
    "float-offset": ({"a": tensor(0, 8.0)}, 8, "not two byte positions"),
    "bool-shape": ({"a": tensor(0, 4, shape=[True])}, 4, "not a list of sizes"),
    "negative-shape": ({"a": tensor(0, 8, shape=[-2])}, 8, "not a list of sizes"),
    "huge-shape": ({"a": tensor(0, 8, shape=[1 << 62])}, 8, "not a list of sizes"),
    "product-overflow": ({"a": tensor(0, 0, shape=[1 << 32, 1 << 32])}, 0, "data_offsets span 0"),
    "huge-offset": ({"a": tensor(0, (1 << 64) - 1)}, 8, "not two byte positions"),
    "many-dimensions": ({"a": tensor(0, 4, shape=[1] * 99)}, 4, "not a list of sizes"),
    "dtype": ({"a": tensor(dtype="F31")}, 8, "unknown dtype 'F31'"),
    "dtype-type": ({"a": tensor(dtype=["F32"])}, 8, "unknown dtype"),
    "missing-key": ({"a": {"dtype": "F32", "shape": [2]}}, 8, "must have exactly"),
    "extra-key": ({"a": {**tensor(), "x": 1}}, 8, "must have exactly"),
    "not-an-object": ([1, 2], 0, "not a JSON object"),
    "metadata": ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
    "metadata-type": ({"__metadata__": None}, 0, "__metadata__"),
    "not-json": (b"{nope", 0, "not valid JSON"),
    "not-utf8": (b'{"\xff": 1}', 0, "not UTF-8"),
    "nan": (b'{"a": NaN}', 0, "NaN is not a number"),
    "deep": (b"[" * 100_000, 0, "nested too deeply"),
    "digits": (b'{"a": ' + b"9" * 10_000 + b"}", 0, "not valid JSON"),
    "twice": (b'{"a": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}, "a": {}}', 0, "'a' appears twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_header_that_lies_is_refused_naming_file_and_reason(name, tmp_path):
    header, data, words = BAD[name]
    with pytest.raises(CheckpointError, match=words) as e:
        open_checkpoint(build(tmp_path, header, b"\0" * data))
    assert "model.safetensors" in str(e.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated"),
        (b"\x01\x02", "truncated"),
        (struct.pack("<Q", 1 << 63), "claims a header of"),
        (struct.pack("<Q", 100) + b"{}", "truncated"),
        (b"PK\x03\x04" + b"\0" * 100, "zip archive"),
        (pickle.dumps({"a": 1}, protocol=2), "pickle"),
        (pickle.dumps({"a": 1}, protocol=4), "pickle"),
        (b"GGUF" + b"\0" * 100, "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_something_else_is_refused_by_content(content, words, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)


def test_pickled_weights_are_refused_in_words(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(CheckpointError, match=r"pickled.*convert them to safetensors"):
        open_checkpoint(tmp_path)


@settings(max_examples=some(60, 300), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7), st.integers(0, 1))
@pytest.mark.slow
def test_a_flipped_header_bit_or_a_cut_file_never_passes_as_more_than_it_is(tmp_path_factory, at, bit, cut):
    """Whatever we accept, the format's own library accepts too and reads the same; a cut file is always refused."""
    path = tmp_path_factory.mktemp("flip")
    file = path / "model.safetensors"
    save_file({k: FULL[k] for k in ("a", "b", "ids")}, file)
    content = bytearray(file.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    if cut:
        file.write_bytes(content[: at % len(content)])
    else:
        content[at % header] ^= 1 << bit
        file.write_bytes(content)
    try:
        got = open_checkpoint(path)
    except CheckpointError:
        return
    assert not cut, "a truncated file was accepted"
    try:
        oracle = safe_open(file, "np")
    except SafetensorError as e:
        raise AssertionError("accepted what the format's library refuses") from e
    with oracle:
        assert sorted(oracle.keys()) == got.names
        for name in got.names:
            assert tuple(oracle.get_slice(name).get_shape()) == got.entry(name)[1]


def shards(path: Path, weight_map: object, files: dict[str, list[str]]) -> Path:
    for file, names in files.items():
        save_file({n: torch.ones(2) for n in names}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def test_an_index_joins_its_shards(tmp_path):
    got = open_checkpoint(
        shards(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"}, {"1.safetensors": ["a"], "2.safetensors": ["b"]})
    )
    assert got.names == ["a", "b"]
    assert got.file("b").name == "2.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "files", "words"),
    [
        ({"a": "1.safetensors", "b": "1.safetensors"}, {"1.safetensors": ["a"]}, "lacks b"),
        ({"a": "1.safetensors"}, {"1.safetensors": ["a", "b"]}, "holds b, which .* does not list"),
        ({"a": "1.safetensors"}, {}, "1.safetensors: listed .* but missing"),
        ({"a": "../1.safetensors"}, {}, "not the name of a safetensors file"),
        ({"a": "/etc/x.safetensors"}, {}, "not the name"),
        ({"a": "x\\y.safetensors"}, {}, "not the name"),
        ({"a": "x\0.safetensors"}, {}, "not the name"),
        ({"a": "model.bin"}, {}, "not the name"),
        ({"a": 3}, {}, "not the name"),
        ([], {}, "weight_map: must map"),
        ({}, {}, "weight_map: must map"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(weight_map, files, words, tmp_path):
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(shards(tmp_path, weight_map, files))


def test_several_files_without_an_index_and_none_at_all_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no weights"):
        open_checkpoint(tmp_path)
    for n in "ab":
        save_file({n: torch.ones(1)}, tmp_path / f"{n}.safetensors")
    with pytest.raises(CheckpointError, match=r"2 safetensors files but no model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


def test_of_a_tensor_in_two_shards_the_index_decides(tmp_path):
    for file, value in (("1", 1.0), ("2", 2.0)):
        save_file({"a": torch.full((3,), value), file: torch.ones(1)}, tmp_path / f"{file}.safetensors")
    for home, value in (("1", 1.0), ("2", 2.0)):
        index = {"1": "1.safetensors", "2": "2.safetensors", "a": f"{home}.safetensors"}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        got = open_checkpoint(tmp_path)
        assert (got.file("a").name, got.read("a").tolist()) == (f"{home}.safetensors", [value] * 3)
        assert (got.names, got.values, got.bytes) == (["1", "2", "a"], 5, 20), "each tensor counts once"
        assert sorted((name, file.name) for name, file, _ in got.tensors()) == sorted(index.items())


def test_numbered_parts_without_an_index_are_one_model_unless_they_contradict_each_other(tmp_path):
    parts = [tmp_path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    save_file({"a": torch.arange(4.0), "b": torch.ones(1)}, parts[0])
    save_file({"a": torch.arange(4.0), "c": torch.ones(1)}, parts[1])
    got = open_checkpoint(tmp_path)
    assert (got.names, got.values) == (["a", "b", "c"], 6)
    for other in (torch.arange(4.0) + 1, torch.arange(4.0).to(torch.float16), torch.arange(4.0).reshape(2, 2)):
        save_file({"a": other, "c": torch.ones(1)}, parts[1])
        words = (
            r"model-00001-of-00002\.safetensors and model-00002-of-00002\.safetensors hold different tensors 'a'.*add the index"
        )
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(tmp_path)
    parts[1].rename(tmp_path / "model-00003-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="2 safetensors files but no"):
        open_checkpoint(tmp_path)
