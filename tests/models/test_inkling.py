"""Inkling as its authors publish it: names and layouts of tensors, and encoders that are left unread. The text, in any cut and
among any others, is compared in test_families.py and tests/integration."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from test_families import prompts
from zoo import ALL, SMALL, edit_config, make_checkpoint, spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

SMALLER: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 32}


def publish(path: Path, **changes: Any) -> Any:
    """The model, with its files in `path` as its authors write them: of two parts in one tensor the rows alternate."""
    text = {**SMALL, **ALL["inkling"][1], **changes}
    config = transformers.InklingConfig(
        text_config=text, vision_config={**SMALLER, "num_attention_heads": 2, "patch_size": 4}, audio_config={}
    )
    model = transformers.InklingForConditionalGeneration(config).eval()
    spread(model, zlib.crc32(b"inkling"))
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("rows", [None, 250])
def test_published_files_have_the_text_of_transformers(rows: int | None, tmp_path: Path) -> None:
    """rows: of the output matrix, whose last ones belong to no token."""
    model = publish(tmp_path, unpadded_vocab_size=rows)
    work = [[t % 250 for t in p] for p in prompts()[:2]]
    for s in Rig(tmp_path, platform="cpu").generate(work, 6, chunk=6, budget=17):
        with torch.inference_mode():
            logp = model(torch.tensor([s.tokens])).logits[0].float().log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose([*s.scores, *s.logprobs], chosen, atol=1e-4)


def test_settings_of_published_files_mean_the_same(tmp_path: Path) -> None:
    path = make_checkpoint("inkling", tmp_path, tokenizer=False)
    config = read_config(path)
    want = registry.family(config)(config)
    edit_config(
        path, layer_types=None, local_layer_ids=[0, 2], mlp_layer_types=None, dense_mlp_idx=1, conv_kernel_size=None,
        sconv_kernel_size=3, dense_intermediate_size=80, intermediate_size=24, moe_intermediate_size=None,
    )  # fmt: skip
    config = read_config(path)
    assert registry.family(config)(config) == want


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"shared_expert_sink": False}, UnsupportedModelError, "shared_expert_sink"),
        ({"mlp_layer_types": ["dense"]}, CheckpointError, "mlp_layer_types"),
        ({"conv_kernel_size": 1}, CheckpointError, "conv_kernel_size"),
        ({"layer_types": None, "local_layer_ids": 3}, CheckpointError, "local_layer_ids"),
        ({"swa_num_key_value_heads": 5}, CheckpointError, "swa_num_attention_heads"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(
    changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = make_checkpoint("inkling", tmp_path, tokenizer=False)
    edit_config(path, **changes)
    config = read_config(path)
    with pytest.raises(error, match=words):
        registry.family(config)(config)
