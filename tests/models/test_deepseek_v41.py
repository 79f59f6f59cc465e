"""DeepSeek V4.1 against its definition, which transformers does not have, and that against NeMo AutoModel's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepseek_v41_definition import CHANGES, TEXT, VOCAB, Definition, draw, merge, nemo, round_by, save, write
from definitions import compare, compare_with_one_by_one
from rig import Rig
from zoo import edit_config

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal import ops
from thalweg.models import registry
from thalweg.models.layers.engram import read_ids
from thalweg.text.merged_tokens import merge_tokens


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_tokens_and_logprobs_are_those_of_the_definition(change: str, platform: str, tmp_path: Path) -> None:
    compare(tmp_path, Definition(*write(tmp_path, change)), VOCAB, platform)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_the_definition_is_nemo_s(change: str, tmp_path: Path) -> None:
    pytest.importorskip("nemo_automodel")
    config, tensors = write(tmp_path, change)
    mine, its = Definition(config, tensors), nemo(config, tensors, tmp_path)
    for length in (1, 24):
        ids = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
        torch.testing.assert_close(mine(ids), its(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    """Compared with each prompt alone: rounding magnifies a last bit that differs from the definition's."""
    write(tmp_path, "whole")
    compare_with_one_by_one(tmp_path, VOCAB)


FORMS = {"fp8": (32, 448, 1e-4, True), "mxfp4": (32, 6, 6 * 2.0**-126, True), "nvfp4": (16, 6, 6 * 2.0**-9, False)}


@pytest.mark.parametrize("form", FORMS)
def test_groups_are_rounded_to_the_nearest_code(form: str) -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(300, 3, 40, generator=g) * 10.0 ** torch.randint(-6, 4, (300, 1, 1), generator=g)
    x[0], x[1, 0, :8] = 0, torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    group, *rest = FORMS[form]
    assert torch.equal(ops.round_groups(x, form=form, group=group), round_by(x, group, *rest))


def test_tokens_are_merged_by_their_text(tmp_path: Path) -> None:
    write(tmp_path, "whole")
    ids, count = merge_tokens(tmp_path / "tokenizer.json")
    assert list(ids) == merge()
    assert count == TEXT["engram_compressed_vocab_size"]


@pytest.mark.slow
def test_experts_in_4_bits_and_tables_in_8_are_read(tmp_path: Path) -> None:
    """As in published files: a power of two for each 32 inputs, of every row in tables."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    g, config = torch.Generator().manual_seed(1), {**TEXT, "moe_intermediate_size": 32, "hidden_size": 64}
    tensors = draw(config, 1)
    held = dict(tensors)
    for name in [n for n in tensors if ".ffn.experts." in n or n.endswith("engram.embed.weight")]:
        rows, columns = held.pop(name).shape
        powers = torch.randint(122, 126, (rows, -(-columns // 32)), generator=g)
        scale = (2.0 ** (powers - 127)).repeat_interleave(32, 1)[:, :columns]
        if "experts" in name:
            codes = torch.randint(0, 16, (rows, columns), generator=g)
            tensors[name], pairs = values[codes] * scale, codes[:, 0::2] | codes[:, 1::2] << 4
            stored = pairs.to(torch.uint8).view(torch.int8)
        else:
            stored = torch.randn(rows, columns, generator=g).to(torch.float8_e4m3fn)
            tensors[name] = stored.float() * scale
        held[name], held[name.replace(".weight", ".scale")] = stored, powers.to(torch.uint8).view(torch.float8_e8m0fnu)
    said = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
    save(tmp_path / "coded", config, held, quantization_config=said)
    save(tmp_path / "dense", config, tensors)
    (tokens, scores), (others, wanted) = (serve(tmp_path / kind) for kind in ("coded", "dense"))
    assert tokens == others
    np.testing.assert_allclose(scores, wanted, atol=1e-4)


def serve(path: Path) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities."""
    llm = LLM(
        str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, max_model_len=64, kv_cache_memory_bytes=4_000_000,
        use_tqdm_on_load=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, detokenize=False)
    try:
        (answer,) = llm.generate({"prompt_token_ids": [5, 9, 33, 2, 71, 8, 40]}, params, use_tqdm=False)
    finally:
        llm.shutdown()
    said = answer.outputs[0]
    return list(said.token_ids), [step[t].logprob for step, t in zip(said.logprobs, said.token_ids, strict=True)]


def test_tensors_of_other_parts_are_left_unread(tmp_path: Path) -> None:
    config, tensors = write(tmp_path, "one-level")
    want = [s.tokens for s in Rig(tmp_path, platform="cpu").generate([[4, 8, 15]], 4, 4, 8)]
    others = ("mtp.0.attn.wq_a.weight", "vision.norm.weight", "aligner.w1.weight", "image_end")
    save(tmp_path, config, {**tensors, **{name: torch.ones(3) for name in others}})
    assert [s.tokens for s in Rig(tmp_path, platform="cpu").generate([[4, 8, 15]], 4, 4, 8)] == want


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"compress_ratios": [0, 2]}, CheckpointError, "compress_ratios"),
        ({"kv_source_layer_ids": [1, 3]}, CheckpointError, "kv_source_layer_ids: layer 4"),
        ({"index_source_layer_ids": [1, 3]}, CheckpointError, "index_source_layer_ids"),
        ({"candidate_source_layer_id": 3}, UnsupportedModelError, "candidate_source_layer_id"),
        ({"engram_num_embeddings": [260]}, CheckpointError, "engram_num_embeddings: must be 2"),
        ({"engram_num_embeddings": [260, 300]}, CheckpointError, "engram_num_embeddings: layer 3"),
        ({"o_groups": 3}, CheckpointError, "o_groups"),
        ({"scoring_func": "sigmoid"}, UnsupportedModelError, "scoring_func"),
        ({"gate_temp": 2.0}, UnsupportedModelError, "gate_temp"),
    ],
)
def test_what_is_refused(said: dict[str, Any], error: type[Exception], match: str) -> None:
    config = {**TEXT, **said, "architectures": ["DeepseekV41ForCausalLM"]}
    with pytest.raises(error, match=match):
        registry.family(config)(config)


def test_hashes_need_the_model_s_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, "whole")

    def read() -> torch.Tensor:
        config = read_config(tmp_path)
        around: Any = registry.family(config)(config).layers[0].around
        return read_ids(around.inputs)

    assert read().tolist() == merge()
    edit_config(tmp_path, text_config={**TEXT, "engram_compressed_vocab_size": 71})
    with pytest.raises(CheckpointError, match=r"70 without case.*engram_compressed_vocab_size 71"):
        read()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read()
