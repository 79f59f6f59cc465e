"""LLaVA in formats of others: texts around images, and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from test_images import SIZES, asks, engine, picture

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.llava import ENCODERS
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry
from thalweg.models.spec import ModelSpec


def change_config(name: str, path: Path, **more: Any) -> Any:
    """The configuration of a small model with these keys."""
    file = path / "config.json"
    file.unlink(missing_ok=True)
    seeing.settings(name, path)
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    return read_config(path)


def spec_of(config: Any) -> ModelSpec:
    return registry.family(config)(config)


def test_tokens_end_rows_of_tarsier_and_its_image(tmp_path: Path) -> None:
    """(columns + 1) * rows + 1 tokens, as `TarsierProcessor` counts them."""
    made: Any = processor(change_config("tarsier", tmp_path), tmp_path)
    text = made.text((60, 40), "<image>")
    assert text == ("<image>" * 4 + "[IMG_BREAK]") * 4 + "[IMG_END]"
    with pytest.raises(CheckpointError, match="image_newline_idx: 9 is none of the tokenizer's added tokens"):
        processor(change_config("tarsier", tmp_path, image_newline_idx=9), tmp_path)


def test_files_of_tarsier_2_may_name_tarsier(tmp_path: Path) -> None:
    names = ("TarsierForConditionalGeneration", "Tarsier2ForConditionalGeneration")
    both = [change_config("tarsier2", tmp_path, architectures=[name]) for name in names]
    assert spec_of(both[0]) == spec_of(both[1])
    assert processor(both[0], tmp_path) == processor(both[1], tmp_path) is not None


@pytest.mark.slow
def test_images_of_mantis_are_numbered_from_1(tmp_path: Path) -> None:
    seeing.make("mantis", tmp_path)
    a, b = (picture(*size) for size in SIZES[:2])
    llm = engine(tmp_path)
    try:
        (out,) = llm.chat(asks(a, "and ", b), SamplingParams(max_tokens=1), use_tqdm=False)
    finally:
        llm.shutdown()
    images = [f"(image {i}: <Image>{'<image>' * 16}</Image>)" for i in (1, 2)]
    assert f"{images[0]}\nand {images[1]}" in str(out.prompt)


def test_sizes_of_named_encoders_are_those_of_transformers() -> None:
    """As their repositories' configurations: SigLIP's class has the sizes of another model as defaults."""
    clip = transformers.CLIPVisionConfig(**ENCODERS["openai/clip-vit-large-patch14-336"])
    assert (clip.image_size // clip.patch_size, clip.projection_dim, clip.hidden_act) == (24, 512, "quick_gelu")
    siglip = transformers.SiglipVisionConfig(**ENCODERS["google/siglip-so400m-patch14-384"])
    assert (siglip.image_size // siglip.patch_size) ** 2 == 729
    assert siglip.hidden_act == "gelu_pytorch_tanh"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mm_vision_tower", "someone/eye", "mm_vision_tower: 'someone/eye' is unknown; known: google/siglip"),
        ("mm_patch_merge_type", "flat", "mm_patch_merge_type: 'flat': only 'spatial_unpad' is supported"),
        ("mm_patch_merge_type", None, "mm_patch_merge_type: None: only 'spatial_unpad' is supported"),
        ("mm_resampler_type", "qformer", "mm_resampler_type: 'qformer': only None is supported"),
        ("mm_projector_type", "mlp2x_gelu_Norm", "mm_projector_type: 'mlp2x_gelu_Norm' is not supported"),
    ],
)
def test_other_settings_of_llava_are_refused_by_name(key: str, value: Any, words: str, tmp_path: Path) -> None:
    config = change_config("llava-llama", tmp_path, **{key: value})
    with pytest.raises(UnsupportedModelError, match=words):
        spec_of(config)


@pytest.mark.parametrize(("kind", "count"), [("linear", 1), ("mlp1x_gelu", 1), ("mlp3x_gelu", 3)])
def test_projectors_have_as_many_layers_as_their_name_says(kind: str, count: int, tmp_path: Path) -> None:
    spec = spec_of(change_config("llava-llama", tmp_path, mm_projector_type=kind))
    assert spec.vision is not None
    steps = spec.vision.projector.steps  # type: ignore[union-attr]
    assert [step.act for step in steps] == ["gelu"] * (count - 1) + [""]


def test_grids_may_be_a_range(tmp_path: Path) -> None:
    made: Any = processor(change_config("llava-qwen", tmp_path, image_grid_pinpoints="(1x1),...,(2x3)"), tmp_path)
    assert made.pinpoints == tuple((28 * high, 28 * wide) for wide in (1, 2) for high in (1, 2, 3))
    for odd in ("(1,1)", [[28, 30]], []):
        with pytest.raises(CheckpointError, match="image_grid_pinpoints"):
            processor(change_config("llava-qwen", tmp_path, image_grid_pinpoints=odd), tmp_path)
    with pytest.raises(UnsupportedModelError, match="image_aspect_ratio: 'pad'"):
        processor(change_config("llava-qwen", tmp_path, image_aspect_ratio="pad"), tmp_path)


def test_a_tokenizer_without_a_placeholder_gives_another_token(tmp_path: Path) -> None:
    config = change_config("llava-llama", tmp_path)
    file = tmp_path / "tokenizer.json"
    said = json.loads(file.read_text())
    for words, want in ((("<unk>", "<s>"), 5), (("<|endoftext|>",), 5)):
        said["added_tokens"] = [{"id": 5 + i, "content": word} for i, word in enumerate(words)]
        file.write_text(json.dumps(said))
        made: Any = processor(config, tmp_path)
        assert (made.token, made.marker) == (want, "<image>")
    file.write_text(json.dumps({**said, "added_tokens": []}))
    with pytest.raises(CheckpointError, match="must have one of <image>, <unk>"):
        processor(config, tmp_path)
