"""Loading: what does not fit is refused by name before any weight is read; what fits is divided among ranks correctly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rig import Rig, Seq
from safetensors.torch import load_file, save_file
from thread_ranks import Ring
from zoo import edit_config, make_checkpoint

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.checkpoint.safetensors import Checkpoint
from thalweg.errors import CheckpointError, ConfigError
from thalweg.hal.comm import Communicator, Mesh, Solo
from thalweg.hal.discovery import load
from thalweg.hal.op import PLAIN, Binder, Kernel, Pack
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models.build import build
from thalweg.models.load import _place_param, load_params
from thalweg.models.weights import walk
from thalweg.options.weights import LOAD_FORMATS, LOAD_REFUSED
from thalweg.quantization import online

DEVICE = load("reference").open(Place())


def model(path: Path, comm: Communicator | None = None, dtype: str = "float32", kernels: tuple = ()):
    return build(
        read_config(path), binder=Binder(kernels), attention=DEVICE.attention, mesh=Mesh(comm or Solo()), dtype=dtype,
        max_len=64, block_tokens=4,
    )  # fmt: skip


def edit_weights(path: Path, edit) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, file, metadata={"format": "pt"})


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop(NAME), f"lacks {NAME}"),
        (lambda t: t.pop("lm_head.weight"), r'lacks lm_head\.weight .*"tie_word_embeddings": true'),
        (lambda t: t.update({"model.extra.weight": torch.ones(1)}), r"has model\.extra\.weight, which the architecture"),
        (lambda t: t.update({NAME: t[NAME][:-1]}), rf"{NAME} has shape \[79, 48\], config\.json makes it \[80, 48\]"),
        (lambda t: t.update({NAME: t[NAME].to(torch.int8)}), f"{NAME} has dtype int8; this version reads"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_is_read(edit, words, tmp_path, monkeypatch):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    edit_weights(path, edit)
    monkeypatch.setattr(Checkpoint, "read", lambda *a: pytest.fail("read a weight"))
    with pytest.raises(CheckpointError, match=words):
        load_params(model(path), path, DEVICE, progress=False)


def test_many_problems_are_counted_not_listed(tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    edit_config(path, intermediate_size=40, hidden_size=24)
    with pytest.raises(CheckpointError, match=r"and \d+ more problems"):
        load_params(model(path), path, DEVICE, progress=False)


def test_leftovers_of_old_exports_and_bare_decoders_load(tmp_path):
    """Stored rotary tables, a stored copy of a tied output matrix, names without the `model.` prefix."""
    path = make_checkpoint("llama-tied", tmp_path, tokenizer=False)
    (want,) = Rig(path).generate([[5, 6, 7]], 5, 9, 9)

    def edit(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"].clone()
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)

    edit_weights(path, edit)
    assert Rig(path).generate([[5, 6, 7]], 5, 9, 9)[0].tokens == want.tokens


def test_a_weight_stored_twice_under_two_names_must_be_the_same(tmp_path):
    path = make_checkpoint("llama-tied", tmp_path, tokenizer=False)
    edit_weights(path, lambda t: t.update({"norm.weight": t["model.norm.weight"].clone()}))
    assert Rig(path)
    edit_weights(path, lambda t: t.update({"norm.weight": t["model.norm.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight and norm\.weight are the same weight .* and they differ"):
        Rig(path)


def test_stored_dtypes_are_converted(tmp_path):
    path = make_checkpoint("qwen2", tmp_path, dtype=torch.float16, tokenizer=False)
    params = load_params(model(path, dtype="bfloat16"), path, DEVICE, progress=False)
    stored = load_file(path / "model.safetensors")
    assert torch.equal(params["embed"]["weight"], stored["model.embed_tokens.weight"].to(torch.bfloat16))
    parts = [stored[f"model.layers.1.self_attn.{x}_proj.bias"] for x in "qkv"]
    assert torch.equal(params["layers"][1]["mixer"]["qkv"]["bias"], torch.cat(parts).to(torch.bfloat16))


def test_a_tied_embedding_is_placed_once(tmp_path):
    path = make_checkpoint("llama-tied", tmp_path, tokenizer=False)
    params = load_params(model(path), path, DEVICE, progress=False)
    assert params["embed"]["weight"].data_ptr() == params["head"]["weight"].data_ptr()


@pytest.mark.parametrize("name", online.METHODS)
def test_a_device_that_rounds_is_given_the_dense_weight_and_everything_happens_there(name):
    """A device of sizes alone: a step that left it would raise. Without it the host rounds, and gives the device codes."""
    dense = torch.randn(48, 256).to(torch.bfloat16)
    spec = SimpleNamespace(pack=Pack(lambda w: dict(w.data)), format=online.METHODS[name].layers, matrices=1)
    given: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for rounds, seen in given.items():

        def put(t, seen=seen):
            seen.append(t)
            return t.to("meta")

        made = _place_param(spec, dense, put, rounds)
        assert {a.device.type for a in made.values()} == {"meta"}
    assert given[True][0] is dense
    assert all(t.is_meta for t in given[True][1:])
    assert {str(t.device) for t in given[False]} == {"cpu"}
    assert dense.dtype not in {t.dtype for t in given[False] if t.shape == dense.shape}


def test_every_matrix_passes_through_its_kernels_pack_once(tmp_path):
    path = make_checkpoint("llama-biased", tmp_path, tokenizer=False)
    packed = []

    def pack(w):
        packed.append(w.shape)
        return w.data["weight"]

    spy = Kernel("linear", "spy", run=torch.nn.functional.linear, pack=Pack(pack))
    load_params(model(path, kernels=(spy,)), path, DEVICE, progress=False)
    assert len(packed) == 2 * 4 + 1  # qkv, out, gate-up, down per layer; output matrix
    assert (64 + 2 * 32, 48) in packed  # q, k and v side by side


def test_a_kernel_that_packs_from_the_file_gets_views_where_nothing_is_converted(tmp_path):
    path = make_checkpoint("llama-biased", tmp_path, tokenizer=False)
    given = []

    def mapped(parts, format):
        assert format == DENSE
        given.append(parts)
        return torch.from_numpy(np.concatenate(parts))

    spy = Kernel("linear", "spy", run=torch.nn.functional.linear, pack=Pack(PLAIN.make, mapped))
    params = load_params(model(path, kernels=(spy,)), path, DEVICE, progress=False)
    assert sorted({len(parts) for parts in given}) == [1, 2, 3]  # one matrix; gate, up; q, k, v
    assert len(given) == 2 * 4 + 1
    assert not any(part.flags.writeable for parts in given for part in parts)
    plain = load_params(model(path), path, DEVICE, progress=False)
    for keys, _ in walk(model(path).specs):
        assert torch.equal(_at(params, keys), _at(plain, keys))
    given.clear()
    load_params(model(path, dtype="bfloat16", kernels=(spy,)), path, DEVICE, progress=False)
    assert not given


def test_what_is_kept_as_it_was_read_lies_where_the_device_says(tmp_path, monkeypatch):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    spy = Kernel("linear", "spy", lambda *a: None, pack=Pack(lambda w: w.data["weight"].clone()))
    plain = load_params(model(path, kernels=(spy,)), path, DEVICE, progress=False)
    made = []

    def blank(self, shape, dtype):
        made.append(torch.full(shape, float("nan"), dtype=getattr(torch, dtype)))
        return made[-1]

    monkeypatch.setattr(type(DEVICE), "blank", blank)
    params = load_params(model(path, kernels=(spy,)), path, DEVICE, progress=False)
    places = {t.data_ptr() for t in made}
    for keys, spec in walk(model(path, kernels=(spy,)).specs):
        assert torch.equal(_at(params, keys), _at(plain, keys))
        if spec.sources:
            packed = spec.pack is spy.pack
            assert (_at(params, keys).data_ptr() in places) is not packed, keys
    assert any(spec.pack is spy.pack for _, spec in walk(model(path, kernels=(spy,)).specs))


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_a_file_cut_short_after_loading_harms_nothing(platform, tmp_path):
    path = make_checkpoint("qwen3", tmp_path, tokenizer=False)
    seqs = [Seq(1, [5, 6, 7], 3), Seq(1, [5, 6, 7], 3)]
    Rig(path, platform=platform).step([(seqs[0], 3)])
    rig = Rig(path, platform=platform)
    (path / "model.safetensors").write_bytes(b"")
    rig.step([(seqs[1], 3)])
    assert seqs[0].tokens == seqs[1].tokens


def test_dummy_weights_are_reproducible_and_need_no_files(tmp_path):
    path = make_checkpoint("qwen3", tmp_path, tokenizer=False)
    (path / "model.safetensors").unlink()
    a, b, c = (load_params(model(path), path, DEVICE, load_format="dummy", seed=s, progress=False) for s in (1, 1, 2))
    for keys, spec in walk(model(path).specs):
        x, y, z = (_at(p, keys) for p in (a, b, c))
        assert x.shape == y.shape
        assert torch.equal(x, y)
        if spec.sources and spec.weight.fill == "normal":
            assert not torch.equal(x, z)
            assert x.std() < 0.03
    with pytest.raises(ConfigError, match="load_format: unknown format 'pt'; supported: "):
        load_params(model(path), path, DEVICE, load_format="pt")


def _at(params, keys):
    for k in keys:
        params = params[k]
    return params


def test_dummy_weights_of_ranks_are_shares_of_those_of_one(tmp_path):
    path = make_checkpoint("llama-biased", tmp_path, tokenizer=False)
    whole = load_params(model(path), path, DEVICE, load_format="dummy", progress=False)
    divided = model(path, Ring(2))
    shares = [load_params(divided, path, DEVICE, load_format="dummy", progress=False, ranks=(r,)) for r in range(2)]
    for keys, spec in walk(divided.specs):
        if not spec.sources:
            continue
        parts = [_at(each, keys) for each in shares]
        assert parts[0].shape == spec.shape(2)
        if spec.shard is None:
            joined = parts[0]
        elif spec.shard:
            joined = torch.cat(parts, 1)
        else:  # each source is divided by itself
            rows = [s.shard_shape(0, 2)[0] for s in spec.sources]
            joined = torch.cat([p for pair in zip(*(each.split(rows) for each in parts), strict=True) for p in pair])
        assert torch.equal(joined, _at(whole, keys))


def test_a_model_that_does_not_divide_is_refused(tmp_path):
    path = make_checkpoint("llama-tied", tmp_path, tokenizer=False)
    with pytest.raises(ConfigError, match="tensor_parallel_size: 3 does not divide the model's 4 attention heads"):
        model(path, Ring(3))


@pytest.mark.parametrize("name", LOAD_REFUSED)
@pytest.mark.sampled(2)
def test_loaders_that_are_not_honoured_are_refused_with_what_to_do(name):
    with pytest.raises(ConfigError, match=f"load_format: {name}: .*(give the|leave it at auto)"):
        LLM("thalweg-nano", device="reference", load_format=name)


@pytest.mark.parametrize("name", sorted(set(LOAD_FORMATS) - {"dummy", "gguf"}))
def test_other_readers_of_the_same_files_are_ours(name, tmp_path):
    path = make_checkpoint("llama-tied", tmp_path, tokenizer=False)
    params = load_params(model(path), path, DEVICE, progress=False, load_format=name)
    plain = load_params(model(path), path, DEVICE, progress=False)
    assert all(torch.equal(_at(params, keys), _at(plain, keys)) for keys, _ in walk(model(path).specs))


def test_a_loader_that_the_files_contradict_is_refused():
    with pytest.raises(ConfigError, match=r"load_format: gguf, but .* is safetensors; leave it at auto"):
        LLM("thalweg-nano", device="reference", load_format="gguf")


@pytest.mark.parametrize(
    ("name", "mount"), [("s3://models/llama", "mount-s3"), ("gs://m/x", "gcsfuse"), ("oss://a", "a file system")]
)
def test_object_stores_are_refused_naming_a_mount(name, mount):
    with pytest.raises(CheckpointError, match=f"is an address.*{mount}.* give the directory"):
        resolve_model(name)
