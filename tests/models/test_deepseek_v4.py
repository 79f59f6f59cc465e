"""DeepSeek V4 as its authors publish it: names of tensors and settings, and experts in 4 bits. The text, in any cut and among
any others, is compared in test_families.py, test_latent.py and tests/integration."""

from __future__ import annotations

import pytest
import torch
from rig import Rig
from safetensors.torch import load_file, save_file
from test_families import prompts
from zoo import edit_config, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.engine.control.cache.groups import window
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry, sizes

NAME = "deepseek-v4"
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Of 4-bit floats (e2m1), by code."""


def publish(path, change=lambda name, tensor: {name: tensor}) -> None:
    """Names of the authors' files instead of those that transformers writes."""
    (file,) = path.glob("*.safetensors")
    held = {}
    for name, tensor in load_file(file).items():
        name = name.removeprefix("model.").replace(".attn.norm.", ".attn.kv_norm.").replace("hc_head.hc_", "hc_head_")
        held |= change(name.replace("embed_tokens.", "embed."), tensor.contiguous())
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, file, {"format": "pt"})


def generate(path) -> list[tuple[list[int], list[float]]]:
    return [(s.tokens, s.scores + s.logprobs) for s in Rig(path, platform="cpu").generate(prompts()[:3], 4, 8, 24)]


def serve(path) -> tuple[list[int], list[float]]:
    llm = LLM(
        str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, max_model_len=64, kv_cache_memory_bytes=4_000_000,
        use_tqdm_on_load=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, detokenize=False)
    try:
        (answer,) = llm.generate({"prompt_token_ids": prompts()[0]}, params, use_tqdm=False)
    finally:
        llm.shutdown()
    told = answer.outputs[0]
    return list(told.token_ids), [step[t].logprob for step, t in zip(told.logprobs, told.token_ids, strict=True)]


def test_names_and_settings_of_published_files_mean_the_same(tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    want = generate(path)
    publish(path)
    edit_config(
        path, layer_types=None, compress_ratios=[0, 4, 128, 4, 0], compress_rates=None, compress_rate_hca=8, num_hash_layers=2,
        mlp_layer_types=None, partial_rotary_factor=None, qk_rope_head_dim=8, rope_parameters=None, rope_scaling={
            "type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        },
    )  # fmt: skip
    assert generate(path) == want


def test_experts_in_4_bits_are_read_and_others_are_dense_where_no_scale_says_otherwise(tmp_path):
    path, dense = (make_checkpoint(NAME, tmp_path / form, tokenizer=False) for form in ("coded", "dense"))
    made: dict[str, torch.Tensor] = {}

    def encode(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        if ".experts." not in name:
            return {name: tensor}
        groups = torch.nn.functional.pad(tensor, (0, -tensor.shape[1] % 32)).unflatten(1, (-1, 32))
        exponents = (groups.abs().amax(-1) / 6).clamp(min=2.0**-60).log2().ceil()
        scaled = groups / exponents.exp2()[..., None]
        codes = (scaled.abs()[..., None] - VALUES).abs().argmin(-1)
        made[name] = (VALUES[codes] * scaled.sign() * exponents.exp2()[..., None]).flatten(1)[:, : tensor.shape[1]]
        codes = (codes + 8 * (scaled < 0)).flatten(1)[:, : tensor.shape[1]].to(torch.uint8)
        return {
            name: (codes[:, 0::2] + 16 * codes[:, 1::2]).view(torch.int8),
            name.replace(".weight", ".scale"): (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu),
        }

    publish(path, encode)
    publish(dense, lambda name, tensor: {name: made.get(name, tensor)})
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
    edit_config(path, expert_dtype="fp4", quantization_config=said)
    (tokens, scores), (others, wanted) = (serve(each) for each in (path, dense))
    assert tokens == others
    assert scores == pytest.approx(wanted, abs=1e-4)
    assert len(made) == 4 * 6 * 3


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"layer_types": ["full_attention"] * 4}, CheckpointError, "layer_types"),
        ({"layer_types": None, "compress_ratios": [0, 4, 16, 4]}, CheckpointError, "compress_ratios"),
        ({"mlp_layer_types": ["sparse"] * 4}, CheckpointError, "mlp_layer_types"),
        ({"o_groups": 3}, CheckpointError, "o_groups"),
        ({"n_shared_experts": 2}, UnsupportedModelError, "n_shared_experts"),
        ({"scoring_func": "sigmoid"}, UnsupportedModelError, "scoring_func"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(changes, error, words, tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    edit_config(path, **changes)
    config = read_config(path)
    with pytest.raises(error, match=words):
        registry.family(config)(config)


def test_a_long_sequence_keeps_entries_and_only_the_last_keys(tmp_path):
    """In values of bfloat16, with the sizes of V4-Flash: a layer without entries, two with one for 4 tokens, and one with one
    for 128."""
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    edit_config(
        path, head_dim=512, index_head_dim=128, sliding_window=128, compress_rates=None, partial_rotary_factor=0.125,
        rope_parameters=None,
    )  # fmt: skip
    config = read_config(path)
    spec = registry.family(config)(config)
    groups = sizes.kv_groups(sizes.cache_specs(spec, "bfloat16", "", 1 << 20), 16, 1024)
    assert [(g.kind, g.window, g.block_tokens, g.bytes_per_block // 2) for g in groups] == [
        ("window", 128, 16, 4 * 16 * 512),
        ("window", 8, 16, 2 * 16 * 4 * (512 + 128)),
        ("full", 0, 16, 2 * 4 * (512 + 128)),
        ("window", 128, 16, 16 * 2 * 512),
        ("full", 0, 128, 512),
    ]


def test_windows_of_rows_have_blocks_for_running_sequences_and_the_text_is_the_same(tmp_path, monkeypatch):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    want = serve_many(path)[0]
    monkeypatch.setattr(window, "STEP", 8)
    got, groups, blocks = serve_many(path)
    assert got == want
    whole = [n for g, n in zip(groups, blocks, strict=True) if g.kind == "full"]
    few = [n for g, n in zip(groups, blocks, strict=True) if g.kind == "window"]
    assert max(few) < max(whole) / 2


def serve_many(path):
    """Texts of prompts longer than a window, each twice, and the groups of the cache with their blocks."""
    llm = LLM(
        str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, max_model_len=128, max_num_seqs=2, block_size=4,
        num_gpu_blocks_override=64, max_num_batched_tokens=32, use_tqdm_on_load=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    work = [{"prompt_token_ids": 2 * p} for p in prompts()] * 2
    try:
        texts = [list(a.outputs[0].token_ids) for a in llm.generate(work, params, use_tqdm=False)]
        cache = llm.config.cache
        return texts, cache.groups, cache.blocks
    finally:
        llm.shutdown()
