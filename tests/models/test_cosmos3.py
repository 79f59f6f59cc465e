"""Checkpoints of Cosmos 3 with its generator: flat names, and tensors of parts that are not loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing

from thalweg import LLM, SamplingParams

FLAT = (
    (r"^model\.(language_model|visual)\.", ""), (r"\.self_attn\.([qkv])_proj\.", r".self_attn.to_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.to_out."), (r"\.self_attn\.([qk])_norm\.", r".self_attn.norm_\1."),
)  # fmt: skip
OF_EDGE = (
    (r"^model\.language_model\.", ""), *FLAT[1:3], (r"\.mlp\.fc1\.", ".mlp.up_proj."), (r"\.mlp\.fc2\.", ".mlp.down_proj.")
)  # fmt: skip
GENERATOR = (
    "proj_in.weight", "time_embedder.linear_1.weight", "norm_moe_gen.weight", "layers.1.mlp_moe_gen.up_proj.weight",
    "layers.0.self_attn.add_q_proj.weight", "layers.1.input_layernorm_moe_gen.weight", "action_modality_embed",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flat"), [("cosmos3", FLAT), ("cosmos3-edge", OF_EDGE)])
def test_a_checkpoint_with_the_generator_is_read(name: str, flat: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    model = seeing.make(name, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = {other: torch.ones(3, 2) for other in GENERATOR}
    for key, value in load_file(file).items():
        outside = name == "cosmos3-edge" and key.startswith(("model.visual.", "model.projector."))
        for old, new in () if outside else flat:
            key = re.sub(old, new, key)
        tensors[key] = value
    save_file(tensors, file)
    ids = list(range(3, 40))
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_model_len=128, use_tqdm_on_load=False)
    try:
        sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        (out,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        assert list(out.outputs[0].token_ids) == seeing.greedy(model, name, ids, [], 6)
    finally:
        llm.shutdown()
