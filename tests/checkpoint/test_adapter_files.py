"""Files of adapters: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from thalweg.checkpoint.adapters import read_adapter
from thalweg.errors import CheckpointError, UnsupportedModelError

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {f"{Q}.lora_A": (2, 8), f"{Q}.lora_B": (8, 2), f"{UP}.lora_A": (3, 8), f"{UP}.lora_B": (16, 3)}
    return {f"base_model.model.{k}.weight": rng.normal(size=s).astype(np.float16) for k, s in shapes.items()}


def write(folder: Path, config: dict[str, Any] | None = None, tensors: dict[str, np.ndarray] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    said = {**CONFIG, "rank_pattern": {"up_proj": 3}, **(config or {})}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    save_file(arrays() if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (3.0, 2.0)),
        ({"bias": "all"}, (3.0, 2.0)),  # of a base model without biases
        ({"use_rslora": True}, (6 / math.sqrt(2), 6 / math.sqrt(3))),
        ({"alpha_pattern": {"mlp.up_proj": 12, "proj": 1}}, (3.0, 4.0)),
        ({"alpha_pattern": {f"^{Q}$": 1, "q_proj": 2}}, (0.5, 2.0)),
        ({"alpha_pattern": {"^q_proj": 1}}, (3.0, 2.0)),
    ],
)
def test_each_matrix_has_its_own_rank_and_scale(config: dict[str, Any], scales: tuple[float, float], tmp_path: Path) -> None:
    read, stored = read_adapter(write(tmp_path / "a", config)), arrays()
    assert [m.scale for m in (read.modules[f"{Q}.weight"], read.modules[f"{UP}.weight"])] == pytest.approx(scales)
    assert read.rank == 3
    np.testing.assert_array_equal(read.modules[f"{UP}.weight"].b, stored[f"base_model.model.{UP}.lora_B.weight"])


def test_the_digest_is_that_of_names_scales_and_values(tmp_path: Path) -> None:
    plain = read_adapter(write(tmp_path / "a")).digest
    named = {k.removeprefix("base_model.model.").replace(".weight", ".default.weight"): v for k, v in arrays().items()}
    wide = {k: v.astype(np.float32) for k, v in named.items()}
    assert read_adapter(write(tmp_path / "b", {"task_type": "CAUSAL_LM"}, wide)).digest == plain
    others = [({"lora_alpha": 7}, None), ({}, arrays(1)), ({}, {k.replace("q_proj", "k_proj"): v for k, v in arrays().items()})]
    assert plain not in {read_adapter(write(tmp_path / "c", *other)).digest for other in others}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        *(
            ({"peft_type": k}, f"peft_type: '{k}' .*merge_and_unload")
            for k in ("VERA", "LOHA", "LOKR", "IA3", "OFT", "ADALORA")
        ),
        ({"peft_type": ["LORA"]}, "peft_type: "),
        *(
            ({"init_lora_weights": init}, f"init_lora_weights: '{init}' changes the base .*path_initial_model_for_weight")
            for init in ("pissa_niter_4", "olora", "corda")
        ),
        ({"init_lora_weights": "loftq"}, "init_lora_weights: 'loftq' .*quantised one; merge it"),
        ({"use_dora": True}, "_proj: has no lora_magnitude_vector, and use_dora"),
        ({"use_dora": True, "lora_bias": True}, "lora_bias: peft has no DoRA with it"),
        ({"bias": "some"}, "bias: 'some' is not one of"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices: .*merge_and_unload"),
        ({"layer_replication": [[0, 2]]}, "layer_replication: .*merge_and_unload"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens: .*train a plain LoRA"),
        ({"use_something_new": True}, "use_something_new"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "alpha_pattern: .*regular expressions"),
        ({"r": 0}, "r: must be a whole number"),
        ({"lora_alpha": "6"}, "lora_alpha: must be a finite number"),
        ({"lora_alpha": 10**400}, "lora_alpha: must be a finite number"),
        ({"rank_pattern": {}}, "up_proj: rank 3, and adapter_config.json says 2"),
    ],
)
def test_a_variant_that_is_not_served_is_refused_by_its_field_with_the_remedy(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((UnsupportedModelError, CheckpointError), match=words):
        read_adapter(write(tmp_path / "a", config))


ONE = np.ones(2, np.float32)


def _with(**more: np.ndarray) -> dict[str, np.ndarray]:
    return arrays() | {k.replace("__", "."): v for k, v in more.items()}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (_with(model__embed_tokens__lora_embedding_A=np.ones((2, 9), np.float32)), "embed_tokens: has table A and no lora_A"),
        (_with(a__base_layer__bias=ONE, a__bias=ONE), "a.bias: the module has two of this tensor"),
        (_with(**{f"{Q}.lora_B.bias": ONE}), r"q_proj.weight: bias of shape \[2\], and B has 8 rows"),
        (_with(**{f"{Q}.lora_magnitude_vector": ONE}), "q_proj: has a lora_magnitude_vector, and not use_dora"),
        (_with(**{f"{Q}.lora_magnitude_vector.bias": ONE}), "lora_magnitude_vector.bias: no lora_A"),
        (_with(a__lora_magnitude_vector=ONE), "a: has magnitude and no lora_A"),
        ({"model.norm.bias": ONE}, "changes no matrix"),
        (_with(a__token_adapter__trainable_tokens_delta=np.ones((1, 2), np.float32)), "trainable_tokens_delta: no lora_A"),
        ({k: v for k, v in arrays().items() if "up_proj.lora_B" not in k}, "up_proj: has A and no lora_B"),
        ({k: v.astype(np.int32) for k, v in arrays().items()}, "is int32"),
        ({k: np.full_like(v, np.inf) for k, v in arrays().items()}, "NaN or infinity"),
        (
            {k: v.T.copy() if "q_proj.lora_B" in k else v for k, v in arrays().items()},
            r"q_proj.*\[2, 8\] and B of shape \[2, 8\]",
        ),
        ({}, "changes no matrix"),
    ],
)
def test_a_tensor_of_no_use_is_refused_by_name(tensors: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    with pytest.raises((UnsupportedModelError, CheckpointError), match=words):
        read_adapter(write(tmp_path / "a", None, tensors))


def test_pickles_lies_and_folders_without_an_adapter_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors: truncated"):
        read_adapter(folder)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin: pickled files can run code"):
        read_adapter(folder)
    with pytest.raises(CheckpointError, match=r"no adapter of a known format .*peft"):
        read_adapter(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_adapter(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("metadata", "tensor", "words"),
    [
        ({"general.type": "model"}, "blk.0.attn_q.weight.lora_a", "general.type and adapter.type"),
        ({"adapter.alora.invocation_tokens": "1"}, "blk.0.attn_q.weight.lora_a", "adapter.alora.invocation_tokens"),
        ({}, "blk.0.attn_q.weight.lora_a", "q_proj.weight: has lora_a and not"),
        ({}, "token_embd.weight.lora_a", "token_embd.weight.lora_a: no lora_a or lora_b of a linear layer of llama"),
        ({}, "blk.0.strange.weight.lora_b", "blk.0.strange.weight.lora_b: no lora_a"),
    ],
)
def test_a_gguf_file_that_is_no_such_adapter_is_refused(
    metadata: dict[str, str], tensor: str, words: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for key, value in ({"general.type": "adapter", "adapter.type": "lora"} | metadata).items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", 6.0)
    writer.add_tensor(tensor, np.ones((2, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises((UnsupportedModelError, CheckpointError), match=words):
        read_adapter(tmp_path)
