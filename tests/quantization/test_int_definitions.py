"""GPTQ, AWQ and AutoRound by their definitions: what no library here writes. Act-order, both versions, odd widths, rules for
single layers, experts, ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packers
import pytest
import torch
from test_ints import DATA, DEVICE, EVERY, model, weights
from written import as_dense
from zoo import load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.comm import Communicator, Mesh
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.models import registry as families
from thalweg.models import sizes
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.load import load_params
from thalweg.models.weights import walk
from thalweg.quantization import registry
from thalweg.quantization.formats.awq import Awq
from thalweg.quantization.formats.gptq import Gptq
from thalweg.quantization.formats.words import stream

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True, "desc_act": False}
AO = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}
RNG = np.random.default_rng


def read(form, shape, tensors):
    """One layer -> (QTensor, its weight in the order of the layer's inputs)."""
    form.stored = {f"a.{k}": ("int32", v.shape) for k, v in tensors.items()}
    want = form.parts("a", shape)
    assert all(tensors[k].shape in part.shapes for k, part in want.items() if not part.optional)
    got = form.read("a", shape, lambda k: torch.from_numpy(tensors[k].copy()))
    assert got.format == form.scheme("a")
    dense = dequantise(got.data, got.format.group, torch.float32)
    if "perm" in got.data:
        dense = torch.empty_like(dense).index_copy_(1, got.data["perm"][0].long(), dense)
    return got, dense.numpy()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("bits", "group"), [(2, 16), (3, 32), (4, 8), (4, 128), (8, 32), (3, -1), (4, -1)])
def test_gptq_of_every_kind(bits, group, version, symmetric, ordered):
    weight = RNG(bits).normal(size=(64, 96)).astype(np.float32)
    tensors, want = packers.gptq(weight, bits, group, symmetric, version, RNG(1) if ordered else None)
    said = {"bits": bits, "group_size": group, "sym": symmetric, "desc_act": ordered}
    said |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    got, dense = read(Gptq(said), (64, 96), tensors)
    np.testing.assert_array_equal(dense, want)
    assert got.format.reordered == (ordered and group > 0)
    assert got.format.bits == (8 if bits == 8 else 4)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [8, 32, -1])
def test_awq_by_its_definition(group, symmetric):
    weight = RNG(3).normal(size=(64, 96)).astype(np.float32)
    tensors, want = packers.awq(weight, 96 if group == -1 else group, symmetric)
    said = {"w_bit": 4, "q_group_size": group, "zero_point": not symmetric, "version": "GEMM"}
    _, dense = read(Awq(said), (64, 96), tensors)
    np.testing.assert_array_equal(dense, want)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_a_stream_of_codes_may_cross_words(bits):
    codes = RNG(bits).integers(0, 1 << bits, (37, 5))
    got = stream(torch.from_numpy(packers.stream(codes, bits).T.copy()), bits, 37)
    np.testing.assert_array_equal(got.numpy(), codes.T)


@pytest.mark.parametrize(("bits", "stored", "zeros"), [(4, 15, 0), (8, 255, 0), (2, 3, 0), (3, 7, 8), (4, 7, 8)])
def test_the_first_version_adds_one_to_zeros_as_its_library_does(bits, stored, zeros):
    """Of 2, 4 and 8 bits it wraps, of 3 it does not."""
    weight = RNG(5).normal(size=(64, 96)).astype(np.float32)
    tensors, _ = packers.gptq(weight, bits, 32, symmetric=False)
    tensors["qzeros"] = packers.stream(np.full((64, 3), stored), bits).T.copy()
    got, _ = read(Gptq({"bits": bits, "group_size": 32, "sym": False}), (64, 96), tensors)
    assert set(got.data["zeros"].flatten().tolist()) == {zeros}


def test_a_zero_point_that_the_first_version_spilled_is_read_as_its_library_reads_it():
    """Its writer put -1 into the word, and so set every bit above: those outputs have the zero point 0 as well."""
    weight = RNG(6).normal(size=(64, 96)).astype(np.float32)
    tensors, _ = packers.gptq(weight, 4, 32, symmetric=False)
    wanted = [3, 0, 5, 7, 9, 1, 2, 4]
    word = np.uint32(0)
    for i, z in enumerate(wanted):
        word |= np.uint32(((z - 1) << (4 * i)) & 0xFFFFFFFF)
    tensors["qzeros"][:] = word.view(np.int32)
    got, _ = read(Gptq({"bits": 4, "group_size": 32, "sym": False}), (64, 96), tensors)
    assert got.data["zeros"][:8, 0].tolist() == [3, 0, 0, 0, 0, 0, 0, 0]


def test_zeros_that_are_not_in_the_middle_contradict_a_symmetric_checkpoint():
    tensors, _ = packers.gptq(RNG(0).normal(size=(64, 96)).astype(np.float32), 4, 32, version=2)
    with pytest.raises(CheckpointError, match=r"a: its zero points are 9 to 9.* are 8: .*another checkpoint_format"):
        read(Gptq({"bits": 4, "group_size": 32, "sym": True}), (64, 96), tensors)


def test_an_order_that_contradicts_the_settings_is_refused():
    weight = RNG(0).normal(size=(64, 96)).astype(np.float32)
    tensors, _ = packers.gptq(weight, 4, 32, order=RNG(1))
    with pytest.raises(CheckpointError, match=r"a.g_idx: its inputs are in another order, and .* desc_act is false"):
        read(Gptq({"bits": 4, "group_size": 32}), (64, 96), tensors)
    tensors["g_idx"][:40] = 0
    with pytest.raises(CheckpointError, match=r"a.g_idx: its groups are not of 32 inputs each"):
        read(Gptq({"bits": 4, "group_size": 32, "desc_act": True}), (64, 96), tensors)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_checkpoint("llama-biased", tmp_path_factory.mktemp("plain"), tokenizer=False)


def ordered(source: Path, out: Path):
    """A model in act-order, but for k_proj, whose g_idx is in order, and the second layer's attention, which stays dense."""

    def how(layer, weight):
        if layer.startswith("model.layers.1.self_attn"):
            return None
        return packers.gptq(weight, bits=8 if "up_proj" in layer else 4, order=None if "k_proj" in layer else RNG(len(layer)))

    dynamic = {r"-:model\.layers\.1\.self_attn\..*": {}, r"+:.*up_proj": {"bits": 8}}
    return packers.rewrite(source, out, GPTQ | {"desc_act": True, "dynamic": dynamic}, how)


@torch.inference_mode()
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_text_in_act_order_is_that_of_transformers_with_dense_weights(device, source, tmp_path):
    dense = ordered(source, tmp_path / "q")
    got = weights(tmp_path / "q")
    assert all(torch.equal(got[n], w.float()) for n, w in dense.items())
    oracle = load_reference(as_dense(tmp_path / "dense", source, dense), torch.float32)
    llm = LLM(str(tmp_path / "q"), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    for prompt in (RNG(2).integers(3, 250, n).tolist() for n in (5, 17)):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        told = list(out.outputs[0].token_ids)
        rows = oracle(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :]
        assert rows.argmax(-1).tolist() == told


def test_settings_of_single_layers_and_orders_that_are_none(source, tmp_path):
    ordered(source, tmp_path / "q")
    read_, form = read_config(tmp_path / "q", None, registry.check), registry.scheme
    scheme = form(read_, None)
    at = "model.layers.{}.{}_proj.weight"
    assert str(scheme.of("linear", at.format(0, "self_attn.q"))) == "int4-g8-reordered"
    assert str(scheme.of("linear", at.format(0, "self_attn.k"))) == "int4-g8"
    assert str(scheme.of("linear", at.format(0, "mlp.up"))) == "int8-g8-reordered"
    assert str(scheme.of("linear", at.format(1, "self_attn.q"))) == "dense"
    made, _ = model(tmp_path / "q")
    assert len(made.specs["layers"][0]["mixer"]["qkv"]["weight"]) == 3  # each takes its inputs in an order of its own
    held = {t.data_ptr(): t.nbytes for _, t in walk(load_params(made, tmp_path / "q", DEVICE, progress=False))}
    assert sizes.weight_bytes(families.family(read_)(read_), "float32", 64, use=scheme) == sum(held.values())


class Two(Communicator):
    """Says that there are two ranks, and lets none speak."""

    rank, size = 0, 2

    def all_reduce(self, x):
        raise AssertionError

    def all_gather(self, x, dim=-1):
        raise AssertionError


def test_ranks_share_outputs_in_act_order_but_no_inputs(source, tmp_path):
    dense = ordered(source, tmp_path / "q")
    said = {"binder": Binder(()), "attention": DEVICE.attention, "mesh": Mesh(tensor=Two()), "dtype": "float32", "max_len": 64}
    made = build(read_config(tmp_path / "q", None, registry.check), **said, block_tokens=4)
    files = Files(made, open_checkpoint(tmp_path / "q"), DEVICE)
    layer = made.specs["layers"][0]
    spec = layer["mixer"]["qkv"]["weight"][0]
    got = files.read(spec, 1)
    mine = torch.empty(got.shape).index_copy_(1, got.data["perm"][0].long(), dequantise(got.data, 8, torch.float32))
    assert torch.equal(mine, dense["model.layers.0.self_attn.q_proj.weight"][got.shape[0] :])
    row = next(s for _, s in walk(made.specs) if s.sources and "o_proj.weight" in s.sources[0].name)
    with pytest.raises(
        CheckpointError, match=r"o_proj.weight: its inputs are reordered \(act-order\).*tensor_parallel_size to 1"
    ):
        files.read(row, 0)
    made = build(read_config(tmp_path / "q", None, registry.check), **said, block_tokens=4, tp_invariant=True)
    row = next(s for _, s in walk(made.specs) if s.sources and "o_proj.weight" in s.sources[0].name)
    got = Files(made, open_checkpoint(tmp_path / "q"), DEVICE).read(row, 1)
    mine = torch.empty(got.shape).index_copy_(1, got.data["perm"][0].long(), dequantise(got.data, 8, torch.float32))
    assert torch.equal(mine, dense["model.layers.0.self_attn.o_proj.weight"][got.shape[0] :])


@pytest.mark.parametrize("name", [n for n in EVERY if n != "mlx-experts"])
@pytest.mark.sampled(9)
def test_the_shares_of_ranks_are_those_of_the_whole(name):
    """Outputs of q, k and v, inputs of o: groups of 32 end where shares of ranks do. Those of down_proj would be cut."""
    whole = weights(DATA / name)
    said = {"binder": Binder(()), "attention": DEVICE.attention, "mesh": Mesh(tensor=Two()), "dtype": "float32", "max_len": 64}
    made = build(read_config(DATA / name, None, registry.check), **said, block_tokens=4)
    files = Files(made, open_checkpoint(DATA / name), DEVICE)
    by_end = {spec.sources[-1].name.rpartition(".layers.0.")[2]: spec for _, spec in walk(made.specs) if spec.sources}
    group = by_end["self_attn.v_proj.weight"].format.group

    def share(spec, rank):
        return dequantise(files.read(spec, rank).data, spec.format.group, torch.float32)

    heads = json.loads((DATA / name / "config.json").read_text())["num_key_value_heads"]
    qkv, out, down = (by_end[f"{n}_proj.weight"] for n in ("self_attn.v", "self_attn.o", "mlp.down"))
    for rank in range(2):
        halves = [  # a single head of keys and values is on each rank
            whole[s.name].chunk(2)[rank] if heads > 1 or "q_proj" in s.name else whole[s.name] for s in qkv.sources
        ]
        assert torch.equal(share(qkv, rank), torch.cat(halves))
        if group <= 32:
            assert torch.equal(share(out, rank), whole[out.sources[0].name].chunk(2, 1)[rank])
    if group == 32 and down.sources[0].shape[1] % 64:
        with pytest.raises(CheckpointError, match=r"down_proj.weight: its groups of 32 inputs do not divide"):
            files.read(down, 0)


@pytest.mark.parametrize(
    ("description", "how"),
    [
        (GPTQ, lambda layer, w: packers.gptq(w)),
        (GPTQ | {"sym": False, "bits": 8}, lambda layer, w: packers.gptq(w, 8, symmetric=False)),
        ({"quant_method": "awq", "bits": 4, "group_size": 8}, lambda layer, w: packers.awq(w)),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 8, "sym": True, "packing_format": "auto_round",
             "block_name_to_quantize": "model.layers"},
            lambda layer, w: packers.gptq(w, version=2),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            lambda layer, w: packers.nf4(w),
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 8, "axis": 1}}},
            lambda layer, w: packers.hqq(w),
        ),
        (
            {"quant_method": "torchao", "quant_type": {"default": AO}},
            lambda layer, w: packers.rows8(w),
        ),
        ({"quant_method": "bitnet"}, lambda layer, w: packers.ternary(w)),
    ],
    ids=["gptq", "gptq8", "awq", "auto-round", "bitsandbytes", "hqq", "torchao", "bitnet"],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_experts_are_read_as_one(description, how, tmp_path):
    source = make_checkpoint("qwen3-moe", tmp_path, tokenizer=False)
    dense = packers.rewrite(source, tmp_path / "q", description, how)
    made, _ = model(tmp_path / "q")
    files = Files(made, open_checkpoint(tmp_path / "q"), DEVICE)
    spec = made.specs["layers"][0]["ffn"]["gate_up"]["weight"]
    got = files.read(spec, 0)
    assert got.shape[0] == sum(s.shape[0] for s in spec.sources) == 6 * 2 * 24
    want = torch.cat([dense[s.name] for s in spec.sources])
    assert torch.equal(dequantise(got.data, got.format.group, torch.float32), want)
    if description["quant_method"] == "bitnet":  # whose attention rounds inputs, so that texts may differ
        return
    llm = LLM(str(tmp_path / "q"), device="reference", dtype="float32", skip_tokenizer_init=True, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": [5, 9, 200, 7]}], params, use_tqdm=False)
    told = list(out.outputs[0].token_ids)
    oracle = load_reference(as_dense(tmp_path / "dense", source, dense), torch.float32)
    with torch.inference_mode():
        assert oracle(torch.tensor([[5, 9, 200, 7, *told[:-1]]])).logits[0, 3:].argmax(-1).tolist() == told


def test_an_output_matrix_and_biases_of_zeros(tmp_path):
    """`lm_head: true`. AutoGPTQ once wrote a bias of zeros for every layer."""
    from safetensors.torch import load_file, save_file

    plain = make_checkpoint("llama", tmp_path, tokenizer=False)
    packers.rewrite(plain, tmp_path / "q", GPTQ | {"lm_head": True}, lambda layer, w: packers.gptq(w))
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    head, want = packers.gptq(tensors.pop("lm_head.weight").numpy())
    tensors |= {f"lm_head.{k}": torch.from_numpy(v.copy()) for k, v in head.items()}
    tensors["model.layers.0.mlp.down_proj.bias"] = torch.zeros(48)
    save_file(tensors, tmp_path / "q" / "model.safetensors")
    np.testing.assert_array_equal(weights(tmp_path / "q")["lm_head.weight"].numpy(), want)
    tensors["model.layers.0.mlp.down_proj.bias"][3] = 1
    save_file(tensors, tmp_path / "q" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has model.layers.0.mlp.down_proj.bias"):
        weights(tmp_path / "q")


def test_older_files_describe_themselves_beside_the_configuration(source, tmp_path):
    dense = packers.rewrite(source, tmp_path / "q", GPTQ, lambda layer, w: packers.gptq(w))
    file = tmp_path / "q" / "config.json"
    config = json.loads(file.read_text())
    said = config.pop("quantization_config")
    file.write_text(json.dumps(config))
    del said["quant_method"]
    (tmp_path / "q" / "quantize_config.json").write_text(json.dumps(said))
    got = weights(tmp_path / "q")
    assert all(torch.equal(got[n], w.float()) for n, w in dense.items())
    (tmp_path / "q" / "quantize_config.json").write_text(json.dumps({"w_bit": 3, "q_group_size": 8}))
    with pytest.raises(UnsupportedModelError, match="AWQ's packing is of 4 bits, not 3"):
        weights(tmp_path / "q")
