"""Every preset of the compressed-tensors library, written by it: equal weights, its own rounding of inputs, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import LAYER, counted, dense, drawn, read, reader, source
from written import as_dense, compress, decompress, layout, rewrite, scheme
from zoo import load_reference

from thalweg import LLM, SamplingParams
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.ops.quantise import round_rows
from thalweg.quantization.formats.compressed_tensors import CompressedTensors

PRESETS = [
    "W4A16_ASYM", "W8A8", "INT8", "W4AFP8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4",
    "MXFP4XFP8", "MXFP6A16", "MXFP6A8", "MXFP8A16", "MXFP8", "W2A4", "W2A8", "W2A16", "W3A4", "W3A8", "W3A16", "W4A4",
    "W4A8", "W4A16", "W5A8", "W5A16", "W6A8", "W6A16", "W7A8", "W7A16", "W8A16",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_process_group() -> None:
    """The library divides its work where there is a group. A test of ranks may have left one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Some of the library's functions are compiled at their first call, which takes longer than all tests here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def described(how: Any, kept: str, **more: Any) -> dict[str, Any]:
    """The description that the library writes of one group."""
    from compressed_tensors.quantization import QuantizationConfig

    said = json.loads(QuantizationConfig(config_groups={"group_0": how}, format=kept).model_dump_json())
    said["config_groups"]["group_0"]["format"] = kept
    return said | {"quant_method": "compressed-tensors"} | more


def test_every_preset_is_here():
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    assert set(PRESETS) == set(PRESET_SCHEMES) - {"UNQUANTIZED"}


@pytest.mark.parametrize("preset", PRESETS)
def test_weights_and_rounded_inputs_of_a_preset_are_the_library_s(preset):
    """Weights are compared as equal numbers. NVFP4's outer scale divides in the file and multiplies here: one rounding more."""
    weight, x = drawn(40, 96), drawn(6, 96)
    how, kept = scheme(preset, ["Linear"]), layout(preset)
    tensors = compress(weight, how, kept, x)
    made = reader(described(how, kept), tensors)
    form = made.of("linear", f"{LAYER}.weight")
    got = read(made, tensors, (40, 96))
    assert got.format == form
    want = decompress(tensors, how, kept)
    if preset.startswith("NVFP4"):
        torch.testing.assert_close(dense(got), want, rtol=2e-7, atol=0)
    else:
        assert torch.equal(dense(got), want)
    if how.input_activations is None:
        assert form.act == ""
        return
    mine = round_rows(x, form.act, form.group, got.data.get("input_scale"))
    if how.input_activations.num_bits == 8 and how.input_activations.type == "int":
        # The library scales int8 by 127.5 steps, kernels everywhere by 127.
        assert float((mine - rounded(x, how, tensors)).abs().max()) <= 1.1 * float(x.abs().max()) / 127
    else:
        torch.testing.assert_close(mine, rounded(x, how, tensors), rtol=1e-6, atol=0)


def rounded(x: torch.Tensor, how: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the library's simulated forward pass makes of inputs."""
    from compressed_tensors.quantization import QuantizationStatus
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    module = torch.nn.Linear(1, 1)
    module.quantization_status = QuantizationStatus.FROZEN
    for name in ("input_scale", "input_global_scale"):
        if name in tensors:
            setattr(module, name, tensors[name])
    made: torch.Tensor = forward_quantize(module, x[None], "input", how.input_activations)[0]
    return made


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_padded_to_words_are_told_by_their_width(bits, symmetric):
    """The library packed so up to 0.17: as many codes as fit whole in a word."""
    weight = drawn(48, 96)
    how = scheme(f"W{bits}A16", ["Linear"])
    how.weights.symmetric = symmetric
    tensors = compress(weight, how, "pack-quantized")
    said = described(how, "pack-quantized")
    want = dense(read(reader(said, tensors), tensors, (48, 96)))
    assert torch.equal(want, decompress(tensors, how, "pack-quantized"))

    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    codes = unpack_from_int32(tensors["weight_packed"], bits, torch.Size((48, 96)))
    old = tensors | {"weight_packed": padded(codes, bits)}
    if not symmetric:
        zeros = unpack_from_int32(tensors["weight_zero_point"], bits, torch.Size((48, 12)), packed_dim=0)
        old["weight_zero_point"] = padded(zeros.T, bits).T.contiguous()
    assert torch.equal(dense(read(reader(said, old), old, (48, 96))), want)


def padded(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """By the definition, code by code."""
    per = 32 // bits
    words = torch.zeros(codes.shape[0], -(-codes.shape[1] // per), dtype=torch.int64)
    for i in range(codes.shape[1]):
        words[:, i // per] |= (codes[:, i].long() + (1 << bits - 1)) << i % per * bits
    return (words - ((words >> 31) << 32)).to(torch.int32)


@pytest.mark.parametrize("version", ["0.17.1", "0.20.0"])
def test_the_version_tells_where_the_width_does_not(version):
    """20 codes of 3 bits take two words either way."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes = torch.randint(-4, 4, (8, 20), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    how = scheme("W3A16", ["Linear"])
    how.weights.group_size = 20
    packed = padded(codes, 3) if version == "0.17.1" else pack_to_int32(codes, 3)
    tensors = {"weight_packed": packed, "weight_scale": torch.ones(8, 1), "weight_shape": torch.tensor([8, 20])}
    made = reader(described(how, "pack-quantized", version=version), tensors)
    assert torch.equal(read(made, tensors, (8, 20)).data["codes"], codes)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
@pytest.mark.parametrize("kept", ["pack-quantized", "int-quantized"])
def test_zero_points_of_every_strategy(strategy, kept):
    how = scheme("W4A16_ASYM", ["Linear"])
    how.weights.strategy = strategy
    tensors = compress(drawn(40, 96), how, kept)
    made = reader(described(how, kept), tensors)
    got = read(made, tensors, (40, 96))
    assert torch.equal(dense(got), decompress(tensors, how, kept))


def test_inputs_in_another_order():
    """`actorder: group`: g_idx is the group of each input. The columns of its definition: weight = code * scale[g_idx]."""
    how = scheme("W4A16", ["Linear"])
    tensors = compress(drawn(40, 96), how, "pack-quantized")
    groups = torch.randperm(96, generator=torch.Generator().manual_seed(5)) // 8
    tensors["weight_g_idx"] = groups.to(torch.int32)
    said = described(how, "pack-quantized")
    said["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    made = reader(said, tensors)
    got = read(made, tensors, (40, 96))
    assert got.format.reordered
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    codes = unpack_from_int32(tensors["weight_packed"], 4, torch.Size((40, 96)))
    want = codes.float() * tensors["weight_scale"].float()[:, groups]
    placed = torch.empty(40, 96)
    placed[:, got.data["perm"][0].long()] = dense(got)
    assert torch.equal(placed, want)
    with pytest.raises(UnsupportedModelError, match="not for experts"):
        made.of("experts", f"{LAYER}.weight")
    tensors["weight_g_idx"][0] = tensors["weight_g_idx"][1]
    with pytest.raises(CheckpointError, match="weight_g_idx: its groups are not of 8 inputs"):
        read(reader(said, tensors), tensors, (40, 96))


def test_weight_ordering_changes_no_file():
    how = scheme("W4A16", ["Linear"])
    said = described(how, "pack-quantized")
    said["config_groups"]["group_0"]["weights"]["actorder"] = "weight"
    assert not CompressedTensors(said).of("linear", f"{LAYER}.weight").reordered


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.*run_compressed=False"),
        ({"transform_config": {"config_groups": {}, "R1": 1}}, "transform_config.*run_compressed=False"),
        ({"config_groups": {}}, "config_groups"),
        ({"format": "marlin-24"}, "sparsity_config.*marlin-24"),
        ({"weights": {"num_bits": 3, "type": "float"}}, "in 3 bits"),
        ({"weights": {"actorder": "group"}, "group": {"format": "int-quantized"}}, "actorder"),
        ({"group": {"format": "unheard-of"}}, "format: 'unheard-of'.*reads pack-quantized"),
        ({"group": {"weights": None, "input_activations": {"num_bits": 8}}}, "weights"),
        ({"group": {"output_activations": {"num_bits": 8}}}, "output_activations"),
        ({"group": {"input_activations": {"num_bits": 8, "type": "int", "symmetric": False}}}, "symmetric"),
        ({"group": {"input_activations": {"num_bits": 16, "type": "float", "strategy": "token"}}}, "activations.*16 bits"),
    ],
)  # fmt: skip
def test_settings_that_are_not_read_are_refused_by_key(change, words):
    said = described(scheme("W4A16", ["Linear"]), "pack-quantized")
    said["config_groups"]["group_0"]["weights"] |= change.pop("weights", {})
    said["config_groups"].get("group_0", {}).update(change.pop("group", {}))
    with pytest.raises(UnsupportedModelError, match=words):
        CompressedTensors(said | change)


def test_a_name_goes_before_an_expression_and_that_before_a_class():
    groups = {"a": scheme("W8A16", ["Linear"]), "b": scheme("W4A16", ["re:.*mlp.*"]), "c": scheme("W2A16", [LAYER])}
    from compressed_tensors.quantization import QuantizationConfig

    said = json.loads(QuantizationConfig(config_groups=groups, format="pack-quantized").model_dump_json())
    made = CompressedTensors(said)
    layers = (LAYER, "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj")
    assert [made._group(layer).bits for layer in layers] == [2, 4, 8]


IGNORE = ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
CASES = [
    ("W3A16", "llama", "cpu"), ("NVFP4A16", "llama", "reference"), ("MXFP4A16", "llama", "cpu"), ("MXFP6A16", "llama", "cpu"),
    ("MXFP8A16", "qwen3-moe", "reference"), ("NVFP4A16", "qwen3-moe", "cpu"), ("W5A16", "qwen3-moe", "cpu"),
]  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize(("preset", "family", "device"), CASES)
@pytest.mark.sampled(1)
def test_text_is_that_of_transformers_with_the_library_s_weights(preset, family, device, tmp_path):
    """Formats that round weights alone: `run_compressed=False`."""
    path = source(tmp_path, family)
    made = rewrite(path, tmp_path / "q", {"group_0": (preset, ["Linear"])}, IGNORE)
    oracle = load_reference(as_dense(tmp_path / "dense", path, made), torch.float32)
    llm = LLM(str(tmp_path / "q"), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    for prompt in ([5, 9, 33, 70, 201], list(range(100, 117))):
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        told = list(out.outputs[0].token_ids)
        rows = oracle(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :]
        assert rows.argmax(-1).tolist() == told


@torch.inference_mode()
@pytest.mark.parametrize(
    "preset",
    ["FP8", "W8A8", "W4A4", "MXFP4", "FP8_BLOCK",
     *(pytest.param(p, marks=pytest.mark.slow) for p in ("FP8_DYNAMIC", "MXFP8", "MXFP4XFP8"))],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_logits_are_those_of_transformers_with_rounded_inputs(preset, tmp_path):
    """`run_compressed=True`: the library rounds inputs of layers as the checkpoint says. Both compute in float32. What is
    between them is less than a quarter of what rounding changes. (Not of W8A8: steps differ, so that both roundings may be.)"""
    import transformers

    micro = preset.startswith(("MX", "NV"))  # the library unpacks to bfloat16 at the first step
    path = source(tmp_path, dtype=torch.bfloat16)
    rewrite(path, tmp_path / "q", {"group_0": (preset, ["Linear"])}, IGNORE)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "q", dtype=torch.bfloat16 if micro else torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(run_compressed=True),
    )  # fmt: skip
    if micro:
        oracle(torch.tensor([[1]]))
        torch.nn.Module.float(oracle)
    _near(tmp_path / "q", oracle, path, 2 if preset == "W8A8" else 0.25)


def _near(quantised: Path, oracle: Any, plain: Path, most: float) -> None:
    """most: of the mean difference that rounding makes to log-probabilities."""
    llm = LLM(str(quantised), device="reference", dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    prompt = [5, 9, 33, 70, 201, 17, 90]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    mine = torch.tensor([step[t].logprob for step, t in zip(out.prompt_logprobs[1:], prompt[1:], strict=True)])
    theirs, unrounded = (
        m(torch.tensor([prompt])).logits[0].float().log_softmax(-1)[range(6), prompt[1:]]
        for m in (oracle, load_reference(plain, torch.float32))
    )
    assert float((mine - theirs).abs().mean()) < 0.02 + most * float((unrounded - theirs).abs().mean())


@torch.inference_mode()
def test_logits_of_nvfp4_are_those_of_the_library_s_simulated_layers(tmp_path):
    """Its global scales would be rounded to bfloat16 with `run_compressed=True`. So its weights are read back, and its function
    rounds the inputs of every layer."""
    from safetensors.torch import load_file

    path = source(tmp_path)
    made = rewrite(path, tmp_path / "q", {"group_0": ("NVFP4", ["Linear"])}, IGNORE)
    oracle, held = (
        load_reference(as_dense(tmp_path / "dense", path, made), torch.float32),
        load_file(tmp_path / "q" / "model.safetensors"),
    )
    for name, module in oracle.named_modules():
        scale = held.get(f"{name}.input_global_scale")
        if scale is not None:
            module.register_forward_pre_hook(
                lambda _, args, s=scale: (rounded(args[0][0], scheme("NVFP4", []), {"input_global_scale": s})[None],)
            )
    _near(tmp_path / "q", oracle, path, 0.05)


def test_the_plan_counts_what_is_held(tmp_path):
    path = source(tmp_path, "qwen3-moe")
    for preset in ("NVFP4", "MXFP6A16", "W3A16", "FP8", "W4A16_ASYM"):
        rewrite(path, tmp_path / preset, {"group_0": (preset, ["Linear"])}, IGNORE)
        planned, held = counted(tmp_path / preset)
        assert planned == held, preset


def test_groups_without_weights_are_dense(tmp_path):
    said = described(scheme("W4A16", ["re:.*up_proj"]), "pack-quantized")
    said["config_groups"]["dense"] = {"targets": ["Linear"], "weights": None, "input_activations": None}
    assert CompressedTensors(said).of("linear", f"{LAYER}.weight").kind == "dense"
    assert CompressedTensors(said).of("linear", "model.layers.0.mlp.up_proj.weight").bits == 4
