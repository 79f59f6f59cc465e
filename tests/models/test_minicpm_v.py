"""MiniCPM-V 2.6 to 4.5 against the same network of transformers' parts, and the sizes of its authors' image processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import seeing
import torch
import transformers
from minicpm_parts import MiniCPMV
from safetensors.torch import save_file
from seeing_parts import TEXT
from test_images import GREEDY, asks, engine, picture, seen
from zoo import spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry

TOKEN = "<unk>"
EYE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 24,
    "patch_size": 4, "model_type": "siglip_vision_model",
}  # fmt: skip
READS = {
    "max_slice_nums": 9, "scale_resolution": 32, "patch_size": 4, "use_image_id": True, "image_feature_size": 6,
    "slice_mode": True, "norm_mean": [0.5] * 3, "norm_std": [0.5] * 3, "version": 2.6,
}  # fmt: skip
KINDS = {2.6: "Qwen2Config", 4.0: "LlamaConfig", 4.5: "Qwen3Config"}


def make(version: float, path: Path, dropped: bool = False, **more: Any) -> MiniCPMV:
    """A small model in its authors' format."""
    sizes = {**TEXT, "hidden_size": 256, "head_dim": 64, "tie_word_embeddings": False, "max_position_embeddings": 1024}
    config = getattr(transformers, KINDS[version])(
        **sizes, vision_config=EYE, query_num=6, drop_vision_last_layer=dropped, version=version
    )
    model = MiniCPMV(config).to(torch.float32).eval()
    spread(model, 7)
    path.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()} | more.pop("tensors", {}), path / "model.safetensors")
    said = {**config.to_dict(), "architectures": ["MiniCPMV"], "model_type": "minicpmv", **more}
    (path / "config.json").write_text(json.dumps(said))
    (path / "preprocessor_config.json").write_text(json.dumps(READS))
    seeing.write_tokenizer(path, "(<image>./</image>)", extra=(TOKEN,))
    return model


def read(ours: Any, image: Any) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    views, size = seen(image, ours)
    value = torch.from_numpy(ours.preprocess(views, size).value).view(-1, 3, ours.patch, ours.patch)
    return value, [(view.shape[0] // ours.patch, view.shape[1] // ours.patch) for view in views]


@pytest.mark.slow
@pytest.mark.parametrize("version", KINDS)
def test_answers_are_those_of_the_same_network(version: float, tmp_path: Path) -> None:
    model, token = make(version, tmp_path, dropped=version == 2.6), len(seeing.NAMES) + 256
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    assert ours.token == token
    a, b = picture(60, 40, 1), picture(33, 30, 2)
    llm = engine(tmp_path, max_model_len=640, num_gpu_blocks_override=200)
    try:
        chats = [([a], asks(a, f"what {TOKEN}?")), ([a, b], asks("see ", a, " and ", b)), ([], asks("hello"))]
        outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
        for (images, _), out in zip(chats, outs, strict=True):
            ids = list(out.prompt_token_ids)
            found = [model.vectors(*read(ours, image)) for image in images]
            vectors = torch.cat(found) if found else torch.zeros(0, 256)
            assert ids.count(token) == len(vectors)
            for token_id in out.outputs[0].token_ids:
                assert int(model.logits(ids, token, vectors)[-1].argmax()) == token_id
                ids.append(token_id)
        scored = llm.chat(chats[1][1], msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        ids = list(scored.prompt_token_ids)
        mine = [each[token_id].logprob for each, token_id in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        vectors = torch.cat([model.vectors(*read(ours, image)) for image in (a, b)])
        want = model.logits(ids, token, vectors)[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        np.testing.assert_allclose(mine, want.numpy(), atol=2e-4)
        assert "<image_id>0</image_id><image>" in str(scored.prompt)
    finally:
        llm.shutdown()


SHAPES: dict[tuple[int, int], list[tuple[int, int]]] = {
    (60, 40): [(40, 24), (28, 36), (28, 36)], (33, 30): [(32, 32)], (90, 30): [(56, 16), *[(32, 32)] * 3],
    (500, 300): [(40, 24), *[(28, 36)] * 8], (7, 40): [(12, 76)], (200, 200): [(32, 32)] * 10,
    (31, 150): [(16, 72), *[(32, 32)] * 5], (1, 1): [(32, 32)],
}  # fmt: skip
"""Size of an image -> sizes of its views, by the authors' image processor with `READS`."""


@pytest.mark.parametrize("size", SHAPES)
def test_views_have_the_sizes_of_the_authors_processor(size: tuple[int, int], tmp_path: Path) -> None:
    make(2.6, tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    views, found = seen(picture(*size), ours)
    assert [(view.shape[1], view.shape[0]) for view in views] == SHAPES[size]
    assert ours.count(found) == 6 * len(views)


@pytest.mark.slow
def test_the_text_part_alone_and_tensors_for_audio(tmp_path: Path) -> None:
    """MiniCPM-o has more tensors, for audio."""
    model = make(2.6, tmp_path, tensors={"apm.layer.weight": torch.zeros(2), "tts.weight": torch.zeros(3)})
    for more in ({}, {"language_model_only": True}):
        llm = engine(tmp_path, **more)
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        llm.shutdown()
        ids = list(out.prompt_token_ids)
        assert int(model.logits(ids, -1, torch.zeros(0, 256))[-1].argmax()) == out.outputs[0].token_ids[0]


def test_other_versions_are_refused(tmp_path: Path) -> None:
    make(2.6, tmp_path)
    config = {**read_config(tmp_path), "version": 2.5}
    with pytest.raises(UnsupportedModelError, match=r"version: 2.5 is not supported; supported: 2.6, 4.0, 4.5"):
        registry.family(config)(config)


def test_a_configuration_with_modules_declares_none(tmp_path: Path) -> None:
    """The text part of MiniCPM-V 4.6 is Qwen3.5's, whose configuration counts modules that its files do not have."""
    seeing.settings("minicpm-v4.6", tmp_path)
    config = {**read_config(tmp_path), "mtp_num_hidden_layers": 1}
    assert registry.family(config)(config).mtp is None
