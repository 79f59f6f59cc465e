"""Pooling models on devices that are not here: the GPU device on a processor, the TPU's step on JAX's host platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import VOCAB, describe_pooling, make_checkpoint, make_classifier, make_encoder

from thalweg import LLM
from thalweg.errors import DeviceError

GPU = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
TPU: dict[str, Any] = {"device": "tpu", "additional_config": {"jax_platform": "cpu"}}
GROUPS = [(31, 1, 64, 7), (1, 1, 1), (1, 1), (48, 2, 17, 64, 5, 30), (1, 1, 1), (2, 2)]
"""Lengths of texts that are asked for together: uneven ones, and such as one step's graph may serve. Of the first two, results
of each token are asked for too."""


def results(path: Path, **args: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    llm = LLM(str(path), dtype="float32", max_model_len=64, skip_tokenizer_init=True, **args)
    try:
        asked = [(lengths, None) for lengths in GROUPS] + [(GROUPS[i], llm.supported_tasks[-1]) for i in (0, 1)]
        return [
            out.outputs.data
            for lengths, task in asked
            for out in llm.encode([rng.integers(3, VOCAB, n).tolist() for n in lengths], pooling_task=task, use_tqdm=False)
        ]
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-mean", "roberta-classes", "modernbert", "mpnet", "qwen3"])
def test_the_gpu_device_gives_what_the_reference_gives(name: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {}
    if name == "bert-mean":
        path = make_encoder("bert", tmp_path)
        describe_pooling(path, "mean_tokens")
    elif name in ("modernbert", "mpnet"):
        path = make_encoder(name, tmp_path)
    elif name == "roberta-classes":
        path = make_classifier("roberta", tmp_path, 3)
    else:
        path, more = make_checkpoint(name, tmp_path), {"runner": "pooling", "max_num_batched_tokens": 24}
    for got, want in zip(results(path, device=GPU, **more), results(path, device="reference", **more), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_the_tpu_step_embeds_with_decoders_and_refuses_encoders(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torchax")
    path = make_checkpoint("qwen3", tmp_path)
    made = results(path, runner="pooling", **TPU)
    for got, want in zip(made, results(path, runner="pooling", device="reference"), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(DeviceError, match="cannot run encoders, of text as of images: no attention backend"):
        results(make_encoder("bert", tmp_path), **TPU)
