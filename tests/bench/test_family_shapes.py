"""The shapes of `benchmarks/families.py`: every family is cut to two decoder layers that it accepts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import transformers

from thalweg.checkpoint.spelling import canonical_config
from thalweg.models import registry

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/families.py"
loaded = importlib.util.spec_from_file_location("benchmark_families", SCRIPT)
assert loaded is not None
assert loaded.loader is not None
families = importlib.util.module_from_spec(loaded)
sys.path.append(str(SCRIPT.parent))  # of its other file
loaded.loader.exec_module(families)
PAIRS = {"deepseek_v4", "hy_v4", "longcat_flash", "qwen4_exp_text", "rwkv", "zamba", "zamba2", "zaya"}
"""Families whose decoder layer is declared as two."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", sorted(families.find_families()))
def test_a_family_is_cut_to_two_layers(kind: str, tmp_path: Path) -> None:
    assert families.write_config(kind, families.find_families()[kind], tmp_path) is None
    config = canonical_config(json.loads((tmp_path / "config.json").read_text()))
    spec = registry.family(config)(config)
    assert len(spec.layers) == families.LAYERS * (2 if kind in PAIRS | MORE_PAIRS else 1)
    assert spec.hidden >= families.SMALLEST


def test_layers_named_by_number_keep_one_that_is_named() -> None:
    made = families.shrink({"num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8], "layer_rope": [1] * 15 + [2]}, "X")
    assert (made["full_attn_idxs"], made["layer_rope"], made["num_hidden_layers"]) == ([1], [1, 2], 2)


MORE_PAIRS = {
    "alice_ai", "deepseek_v41", "glm5_next_text", "iquestloopcoder", "kimi_k3", "muse_spark_text", "nanbeige",
    "ouro", "phi4flash", "rwkv7",
}  # fmt: skip
"""The same of families in `family_configs`, and families whose layers run twice."""
SEES = {
    "DeepseekOCR2ForCausalLM", "DeepseekOCRForCausalLM", "DeepseekVL2ForCausalLM", "DeepseekVLV2ForCausalLM",
    "DotsOCRForCausalLM", "DotsVLMForCausalLM", "FuyuForCausalLM", "HCXVisionV2ForCausalLM", "LlavaLlamaForCausalLM",
    "LlavaMistralForCausalLM", "LlavaQwenForCausalLM", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM",
    "Phi3VForCausalLM", "Sarashina2VisionForCausalLM",
}  # fmt: skip
"""Text models of these are other families'."""
SAME = {
    "InternLM3ForCausalLM": "llama", "MiMoV2ForCausalLM": "mimo_v2_flash", "MiMoV2OmniForCausalLM": "mimo_v2_flash",
}  # fmt: skip
"""Architecture -> the measured family that has its layers."""


@pytest.mark.nightly
def test_every_decoder_family_of_the_registry_has_a_shape() -> None:
    """By the function that reads its configuration: names of one family share it. Classes that this transformers lacks may
    wait for the next."""
    covered = {registry.ARCHITECTURES.get(name) for name in families.find_families().values()}
    left = {n for n, reader in registry.ARCHITECTURES.items() if n.endswith("ForCausalLM") and reader not in covered}
    newer = {"LaraMiniForCausalLM"} if not hasattr(transformers, "LaraMiniConfig") else set()
    assert left - newer <= SEES | SAME.keys()
    assert set(SAME.values()) <= families.find_families().keys()
