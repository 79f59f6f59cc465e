"""Idefics 2: text around images, and images that are too small to be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
import transformers
from PIL import Image

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError
from thalweg.media.processors import processor

PROMPTS = ("<image>", "see <image> this", "<image>this", "<image><image>two, <image>\nthree", "<image> <image><image>. x")


@pytest.mark.parametrize(("before", "adjacent", "following"), [("x", False, "y"), ("", True, " y"), ("", False, "<y")])
def test_text_joins_its_neighbours_as_in_transformers(before: str, adjacent: bool, following: str, tmp_path: Path) -> None:
    seeing.settings("idefics2", tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    around, shown = "<fake_token_around_image>", "<image>" * 5
    text = ours.join(ours.text((30, 30), "<image>"), adjacent, following)
    assert text == f"{'' if adjacent else around}{shown}{around}{' ' if following == 'y' else ''}"


def test_an_image_without_quarters_is_refused(tmp_path: Path) -> None:
    seeing.settings("idefics2-split", tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    with pytest.raises(ValueError, match="is 9 x 1 pixels: an image that is cut into quarters has 2 x 2 at least"):
        ours.views(9, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["idefics2", "idefics2-split"])
def test_prompts_have_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    seeing.make(name, tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    theirs = transformers.Idefics2Processor(seeing.processor(name), tokenizer, image_seq_len=5)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_model_len=256, max_num_seqs=2, num_gpu_blocks_override=64)
    try:
        for prompt in PROMPTS:
            images = [Image.new("RGB", (30, 20), (9 * i, 8, 7)) for i in range(prompt.count("<image>"))]
            asked = {"prompt": prompt, "multi_modal_data": {"image": images}}
            out = llm.generate(asked, SamplingParams(max_tokens=1), use_tqdm=False)[0]
            assert list(out.prompt_token_ids) == theirs(images=images, text=prompt)["input_ids"][0]
        if name == "idefics2-split":
            with pytest.raises(RequestError, match="quarters"):
                llm.generate({"prompt": "<image>", "multi_modal_data": {"image": Image.new("RGB", (9, 1))}}, use_tqdm=False)
    finally:
        llm.shutdown()
