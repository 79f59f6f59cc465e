"""Times of words against transformers: weights of cross attention out of the engine, dynamic time warping, tokens joined to
words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from amounts import some
from transformers import WhisperForConditionalGeneration
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words
from whisper_zoo import BINS, DE, END, SOURCES, START, TIMES, TRANSCRIBE, load, make_whisper, sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError
from thalweg.media.mel import log_mel
from thalweg.models.families.whisper import whisper
from thalweg.server.audio.alignment import align_tokens
from thalweg.server.audio.words import split_words
from thalweg.text.tokenizer import load_tokenizer

HEADS = [[0, 1], [1, 0], [1, 2]]
PROMPT = [START, DE, TRANSCRIBE]


@torch.inference_mode()
def align_with_transformers(model: Any, wave: np.ndarray, ids: list[int], frames: int) -> tuple[np.ndarray, list[float]]:
    """(weights [tokens, heads, sources] of the tokens behind the prompt, times of these tokens) as transformers has them."""
    features = torch.from_numpy(log_mel(wave, BINS, 2 * SOURCES))[None]
    out = model(input_features=features, decoder_input_ids=torch.tensor([[*PROMPT, *ids]]), output_attentions=True)
    weights = torch.stack([out.cross_attentions[layer][0, head] for layer, head in HEADS], 1)[len(PROMPT) :]
    made = GenerateEncoderDecoderOutput(
        sequences=torch.tensor([[*PROMPT, *ids, END]]), cross_attentions=(out.cross_attentions,)
    )
    times = model._extract_token_timestamps(made, HEADS, num_frames=torch.tensor([frames]), num_input_ids=len(PROMPT))
    return weights.numpy(), times[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
def test_tokens_begin_when_transformers_says(platform, tmp_path):
    """Several clips at once, in chunks, next to a request without times and one for prompt log-probabilities."""
    path = make_whisper(tmp_path, alignment_heads=HEADS)
    llm = LLM(str(path), device=platform, dtype="float32", max_num_seqs=8, max_num_batched_tokens=16, use_tqdm_on_load=False)
    rng, waves = np.random.default_rng(1), [sound(i, 0.4 + 0.1 * i) for i in range(5)]
    texts = [rng.integers(0, 255, 9 + 4 * i).tolist() for i in range(5)]
    texts[0] = [TIMES, *texts[0], TIMES + 9]
    prompts = [
        {"prompt_token_ids": [*PROMPT, *text], "multi_modal_data": {"audio": wave}}
        for text, wave in zip(texts, waves, strict=True)
    ]
    aligned = SamplingParams(max_tokens=1, temperature=0, extra_args={"alignment": len(PROMPT)})
    plain, scored = SamplingParams(max_tokens=4, temperature=0), SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate([*prompts, prompts[0], prompts[1]], [aligned] * 5 + [plain, scored], use_tqdm=False)
    assert outputs[5].alignment is None
    assert all(known is not None for known in outputs[6].prompt_logprobs[1:])
    model = load(path)
    for output, text, wave in zip(outputs[:5], texts, waves, strict=True):
        frames = wave.size // 160
        weights, times = align_with_transformers(model, wave, text, frames)
        got = output.alignment.reshape(len(text), len(HEADS), SOURCES)
        assert np.abs(got - weights).max() < 1e-5
        begins = align_tokens(got[..., : frames // 2], 0.02)
        assert np.array_equal(np.float32([*begins, begins[-1]]), np.float32(times)), (begins, times)


@pytest.mark.parametrize("seed", range(some(6, 60)))
def test_paths_are_those_of_transformers(seed):
    """Random weights of many shapes, with ties: steps of a hundredth."""
    rng = np.random.default_rng(seed)
    rows, heads, frames = int(rng.integers(2, 30)), int(rng.integers(1, 4)), int(rng.integers(1, 90))
    weights = rng.integers(1, 9, (rows, heads, frames)).astype(np.float32) / 100
    model = type("Model", (), {"config": type("Config", (), {"decoder_layers": 1, "median_filter_width": 7})()})
    made = GenerateEncoderDecoderOutput(
        sequences=torch.zeros((1, rows + 1)), cross_attentions=((torch.from_numpy(weights.transpose(1, 0, 2))[None],),)
    )
    heads_of = [[0, h] for h in range(heads)]
    want = WhisperForConditionalGeneration._extract_token_timestamps(model, made, heads_of, num_input_ids=0)
    assert not torch.isnan(want).any()
    assert np.array_equal(np.float32(align_tokens(weights, 0.02)), want[0, :rows].numpy())


def test_degenerate_weights_give_times():
    """One token, one frame, or equal weights: the deviation is zero."""
    for shape in ((1, 2, 9), (3, 1, 1), (4, 2, 12)):
        times = align_tokens(np.full(shape, 0.25, np.float32), 0.02)
        assert len(times) == shape[0]
        assert np.isfinite(times).all()
        assert min(times) >= 0


TEXTS = (
    ' Hello, (dear) world! It\'s 9.50 € – "so".',
    "今日は、いい天気。",
    " naïve 🙂 café",
    " a  b",
    " ¿Qué? [x] - y",
    "...",
    " \ufffd x",
)


@pytest.mark.parametrize("language", ["english", "japanese"])
def test_words_are_those_of_transformers(language, tmp_path):
    tokenizer = load_tokenizer(make_whisper(tmp_path))

    class Theirs:
        eos_token_id = END

        def decode(self, ids: list[int], decode_with_timestamps: bool = False) -> str:
            return tokenizer.decode(list(ids), True)

    for text in TEXTS:
        ids = tokenizer.encode(text, False)
        times = [(float(i), i + 1.0) for i in range(len(ids))]
        words, _, indices = _combine_tokens_into_words(Theirs(), ids, language)
        got = split_words(ids, times, tokenizer, {"english": "en", "japanese": "ja"}[language])
        assert [w.text for w in got] == words
        assert [(w.start, w.end) for w in got] == [(times[i[0]][0], times[i[-1]][1]) for i in indices]


def test_alignment_that_is_refused(tmp_path):
    wave = {"prompt_token_ids": [*PROMPT, 65], "multi_modal_data": {"audio": sound(1)}}
    llm = LLM(str(make_whisper(tmp_path)), device="reference", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    with pytest.raises(RequestError, match="no alignment_heads"):
        llm.generate([wave], SamplingParams(extra_args={"alignment": 3}), use_tqdm=False)
    path = make_whisper(tmp_path, alignment_heads=HEADS)
    llm = LLM(str(path), device="reference", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    for words, params in {
        "no position": SamplingParams(extra_args={"alignment": 4}),
        "whole number": SamplingParams(extra_args={"alignment": -1}),
        "n above 1": SamplingParams(extra_args={"alignment": 3}, n=2),
    }.items():
        with pytest.raises(RequestError, match=words):
            llm.generate([wave], params, use_tqdm=False)
    config = read_config(path)
    for heads in ([[2, 0]], [[0, 3]], [[0]], "x", [[0, True]]):
        with pytest.raises(CheckpointError, match="alignment_heads"):
            whisper({**config, "alignment_heads": heads})
