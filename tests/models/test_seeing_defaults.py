"""Absent keys of a configuration have the values of transformers' configuration class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers

from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor
from thalweg.models import registry

PARTS = ("vision_config", "qformer_config", "perceiver_config", "adapter_config")
MARKS = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>")
WHOLE = ("Molmo2ForConditionalGeneration",)
"""Of these published files name all sizes of the decoder."""
FAMILIES: list[tuple[str, str, dict[str, Any]]] = [
    ("Blip2ForConditionalGeneration", "Blip2Config", {"image_token_index": 50_265}),
    ("Idefics2ForConditionalGeneration", "Idefics2Config", {}),
    ("Molmo2ForConditionalGeneration", "Molmo2Config", {"text_config": {"rope_parameters": {"rope_theta": 1e6}}}),
    ("VideoLlavaForConditionalGeneration", "VideoLlavaConfig", {}),
]


@pytest.mark.parametrize(("name", "kind", "more"), FAMILIES)
def test_absent_keys_of_encoders_have_the_defaults_of_transformers(
    name: str, kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Of the spec, and of the processor."""
    whole = getattr(transformers, kind)(**more)
    whole.architectures = [name]
    whole.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    marks = [{"id": 151_936 + i, "content": name} for i, name in enumerate(MARKS)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": marks}))
    dumped = whole.to_dict()
    text = dumped["text_config"]
    said = {
        "architectures": [name], "model_type": dumped["model_type"], **more,
        "text_config": text if name in WHOLE else {"model_type": text["model_type"]},
        **{part: {} for part in PARTS if part in dumped},
    }  # fmt: skip
    found = []
    for config in (json.loads((tmp_path / "config.json").read_text()), said):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        made = processor(read, tmp_path)
        assert made is not None
        found.append((registry.family(read)(read), msgspec.structs.asdict(made)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((20, 3), (1184, 192)),
        ((3, 20), (192, 1184)),
        ((1, 1), (448, 448)),
        ((31, 640), (128, 2048)),
        ((5000, 4000), (1728, 1376)),
    ],
)
def test_ovis_2_5_resizes_images_as_its_authors(size: tuple[int, int], fitted: tuple[int, int]) -> None:
    """Numbers of `smart_resize` in their code, for patches of 16 pixels."""
    from thalweg.media.processors.ovis2_5 import LEAST, MOST, Ovis25

    ours = Ovis25(
        token=1, patch=16, merge=2, frames=1, least=LEAST, most=MOST, head_dim=72, side=32, mean=(0.5,) * 3, std=(0.5,) * 3,
        scale=1 / 255, resample=3,
    )  # fmt: skip
    assert ours.views(*size)[0].sizes == (fitted,)


def test_a_prompt_of_blip_2_begins_with_its_image() -> None:
    """Then come the first token of texts, and the text, as `Blip2Processor` orders them."""
    from thalweg.media.processors.blip_2 import Blip2

    make = Blip2(
        token=1, marker="<image>", patch=14, shortest=0, side=224, classes=True, whole=True, queries=32, mean=(0.5,) * 3,
        std=(0.5,) * 3, scale=1.0, resample=3, bare=True,
    )  # fmt: skip
    for prompt in ("Question: who? Answer:", "<image>Question: who? Answer:", "<image></s>Question: who? Answer:"):
        assert make.complete(prompt) == "<image></s>Question: who? Answer:"
    assert make.complete("<image><image>two") == "<image><image></s>two"
