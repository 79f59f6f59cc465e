"""gpt-oss's experts, against the dequantiser of transformers, and a small model of the family as it is published."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import counted, dense, logprobs, source, weights
from zoo import SMALL, edit_config, spread

from thalweg.errors import CheckpointError
from thalweg.quantization import registry

EXPERTS, HIDDEN, INNER = 3, 96, 40
MODULE = "model.layers.0.mlp.experts"


def tensors(hidden: int, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (EXPERTS, rows, hidden // 32, 16)).astype(np.uint8)
    return torch.from_numpy(blocks), torch.from_numpy(rng.integers(110, 135, blocks.shape[:3]).astype(np.uint8))


@pytest.fixture
def stored() -> dict[str, torch.Tensor]:
    up, down = tensors(HIDDEN, 2 * INNER, 1), tensors(64, HIDDEN, 2)
    return {f"{MODULE}.gate_up_proj_blocks": up[0], f"{MODULE}.gate_up_proj_scales": up[1],
            f"{MODULE}.down_proj_blocks": down[0], f"{MODULE}.down_proj_scales": down[1]}  # fmt: skip


def made(stored):
    said = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    said["stored"] = {k: (str(v.dtype).removeprefix("torch."), tuple(v.shape)) for k, v in stored.items()}
    return registry.of_checkpoint({"quantization_config": said})


def read(form, stored, layer, shape):
    """As the loader gives parts: by their own name, one expert's place of them."""
    parts = form.parts(layer, shape)
    for part in parts.values():
        assert tuple(stored[part.name].shape) in part.shapes
        assert stored[part.name].dtype == torch.uint8
    return form.read(layer, shape, lambda suffix: stored[parts[suffix].name][parts[suffix].at])


@pytest.mark.parametrize("expert", range(EXPERTS))
def test_experts_are_those_of_transformers(stored, expert):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    form = made(stored)
    both, down = (
        convert_moe_packed_tensors(stored[f"{MODULE}.{n}_blocks"], stored[f"{MODULE}.{n}_scales"], dtype=torch.float32)
        for n in ("gate_up_proj", "down_proj")
    )  # [E, inputs, outputs]: transformers multiplies from the other side
    for name, want, shape in (
        ("gate", both[expert].T[::2], (INNER, HIDDEN)), ("up", both[expert].T[1::2], (INNER, HIDDEN)),
        ("down", down[expert].T, (HIDDEN, 64)),
    ):  # fmt: skip
        layer = f"{MODULE}.{expert}.{name}_proj"
        got = read(form, stored, layer, shape)
        assert torch.equal(dense(got), want)
        assert got.format == form.of("experts", f"{layer}.weight")


def test_only_experts_are_quantised(stored):
    form = made(stored)
    assert form.of("linear", "model.layers.0.self_attn.q_proj.weight").kind == "dense"
    assert form.of("head", "lm_head.weight").kind == "dense"


def test_a_scale_that_is_no_number_is_refused(stored):
    stored[f"{MODULE}.down_proj_scales"][1, 0, 0] = 255
    with pytest.raises(CheckpointError, match=r"experts.1.down_proj: a scale is NaN"):
        read(made(stored), stored, f"{MODULE}.1.down_proj", (HIDDEN, 64))


@pytest.mark.slow
def test_the_loader_takes_each_expert_s_place_of_one_tensor(tmp_path):
    """A model of a family that is served, its experts written as gpt-oss writes them."""
    from safetensors.torch import load_file, save_file

    path = source(tmp_path, "qwen3-moe")
    held, kept = load_file(path / "model.safetensors"), {}
    for layer in range(SMALL["num_hidden_layers"]):
        module = f"model.layers.{layer}.mlp.experts"
        for name in [n for n in held if n.startswith(module)]:
            del held[name]
        up, down = (np.random.default_rng(7 + layer + k) for k in (0, 50))
        for name, rng, shape in (("gate_up", up, (4, 64, 2, 16)), ("down", down, (4, 64, 1, 16))):
            held[f"{module}.{name}_proj_blocks"] = torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
            held[f"{module}.{name}_proj_scales"] = torch.from_numpy(rng.integers(118, 124, shape[:3]).astype(np.uint8))
        for expert in range(4):
            for name, shape in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32))):
                which = f"{module}.{expert}.{name}_proj"
                kept[which] = dense(read(made(held), held, which, shape))
    save_file(held, path / "model.safetensors", {"format": "pt"})
    edit_config(path, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    found = weights(path)
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[layer], kept[layer]) for layer in kept)
    assert counted(path)[0] == counted(path)[1]
    assert bool(logprobs(path).isfinite().all())


@pytest.mark.slow
def test_gpt_oss_as_it_is_published(tmp_path):
    """Its experts in MXFP4, against transformers with what it makes of them."""
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**SMALL | {
            "hidden_size": 64, "intermediate_size": 32, "head_dim": 16, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
            "sliding_window": 5,
        })
    ).eval()  # fmt: skip
    model.set_attn_implementation("eager")
    spread(model, 5)
    model.save_pretrained(tmp_path)
    held, rng = load_file(tmp_path / "model.safetensors"), np.random.default_rng(3)
    for i, layer in enumerate(model.model.layers):
        for name, rows, columns in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
            at = f"model.layers.{i}.mlp.experts.{name}"
            del held[at]
            blocks = torch.from_numpy(rng.integers(0, 256, (EXPERTS, rows, columns // 32, 16)).astype(np.uint8))
            scales = torch.from_numpy(rng.integers(122, 125, blocks.shape[:3]).astype(np.uint8))
            held |= {f"{at}_blocks": blocks, f"{at}_scales": scales}
            getattr(layer.mlp.experts, name).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(held, tmp_path / "model.safetensors", {"format": "pt"})
    edit_config(
        tmp_path,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
    )
    prompt = tuple(rng.integers(0, SMALL["vocab_size"], 21).tolist())
    with torch.inference_mode():
        rows = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    want = rows[torch.arange(20), torch.tensor(prompt[1:])]
    torch.testing.assert_close(logprobs(tmp_path, "cpu", prompt), want, atol=1e-4, rtol=0)
