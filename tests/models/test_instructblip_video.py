"""InstructBLIP for videos through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="videos need Pillow: pip install 'thalweg[video]'")

import pillow_videos
import seeing
from seeing_queries import BLIP
from test_images import engine
from test_instructblip import BEGIN, QFORMER, TEXTS, VECTORS, write_qformer_tokenizer
from test_videos import decode, encode, scene
from tokenizers import Tokenizer
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.media.videos import VideoFacts, load_video_processor
from thalweg.models import registry

NEW, TOKEN, FRAMES = 8, "<|video_pad|>", 4
SETTINGS = {"size": {"height": 28, "width": 28}}


def make(path: Path) -> Any:
    config = transformers.InstructBlipVideoConfig(
        text_config=TEXTS["llama"], vision_config=BLIP, qformer_config=QFORMER, num_query_tokens=VECTORS,
        video_token_index=seeing.IDS[TOKEN],
    )  # fmt: skip
    kind = transformers.InstructBlipVideoForConditionalGeneration
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 4)
    model.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    seeing.write_tokenizer(path, "<image>")
    said = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**said, "bos_token": {"content": BEGIN}}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1], "pad_token_id": 0}))
    write_qformer_tokenizer(path / "qformer_tokenizer")
    return model


@torch.no_grad()
def greedy(model: Any, path: Path, ids: list[int], text: str, film: np.ndarray) -> tuple[list[int], np.ndarray]:
    words = Tokenizer.from_file(str(path / "qformer_tokenizer" / "tokenizer.json")).encode(text).ids
    reads = pillow_videos.load("instructblipvideo", "InstructBlipVideoVideoProcessor")(**SETTINGS)
    model.language_model.generation_config.eos_token_id = None
    out = model.generate(
        pixel_values=reads.read(film, 4.0, num_frames=FRAMES)[1]["pixel_values"][0][None], input_ids=torch.tensor([ids]),
        qformer_input_ids=torch.tensor([words]), do_sample=False, max_new_tokens=NEW, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    made = out.sequences[0].tolist()[-NEW:]
    return made, torch.cat(out.logits).log_softmax(-1).gather(1, torch.tensor(made)[:, None])[:, 0].numpy()


@pytest.mark.slow
def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    """Two prompts about one video, and one about two, in a batch, and again from caches."""
    model = make(tmp_path)
    files = [encode(scene(12, 60, 40, 3)), encode(scene(9, 40, 50, 4))]
    pairs = [("what is this", 0), ("where is it?", 0), ("what is this", 1)]
    llm = engine(tmp_path, max_model_len=96, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            asked = [{"prompt": text, "multi_modal_data": {"video": files[i]}} for text, i in pairs]
            outs = llm.generate(asked, params, use_tqdm=False)
            for (text, i), out in zip(pairs, outs, strict=True):
                ids = list(out.prompt_token_ids)
                assert ids[: FRAMES * VECTORS + 1] == [seeing.IDS[TOKEN]] * FRAMES * VECTORS + [seeing.IDS[BEGIN]]
                tokens, scores = greedy(model, tmp_path, ids, text, decode(files[i]))
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
    finally:
        llm.shutdown()


def test_frames_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = load_video_processor(read_config(tmp_path), tmp_path)
    for total in (3, 4, 9, 200):
        facts = VideoFacts(total, 4.0, 30, 40)
        metadata = transformers.video_utils.VideoMetadata(total_num_frames=total, fps=4.0)
        theirs = transformers.video_utils.default_sample_indices_fn(metadata, min(FRAMES, total))
        assert ours.choose(facts) == theirs.tolist()


def test_t5_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    config = {**read_config(tmp_path), "model_type": "t5"}
    with pytest.raises(UnsupportedModelError, match="only Vicuna"):
        registry.family(config)(config)
