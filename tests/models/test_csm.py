"""CSM against transformers: codes of frames, and samples."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from speak_zoo import load_csm, make_csm
from tokenizers import Tokenizer

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.spelling import canonical_config
from thalweg.engine.messages import EngineRequest
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.speakers.base import SpeechSettings
from thalweg.models import registry

TEXTS = ["hello", "a much longer text than that", "c"]


def open_llm(path, platform="cpu", **more) -> LLM:
    return LLM(str(path), device=platform, dtype="float32", use_tqdm_on_load=False, **{"max_num_seqs": 3, **more})


@torch.inference_mode()
def speak_theirs(path, text: str, frames: int, voice: str = "0") -> tuple[np.ndarray, np.ndarray]:
    """transformers' (codes of frames [n, books], samples), greedy."""
    model, tok = load_csm(path), Tokenizer.from_file(str(path / "tokenizer.json"))
    ids = torch.tensor([tok.encode(f"[{voice}]{text}").ids])
    codes = model.generate(input_ids=ids, do_sample=False, depth_decoder_do_sample=False, max_new_tokens=frames)[0]
    over = (codes[:, :-1] == model.config.codebook_eos_token_id).all(1).nonzero()
    codes = codes[: int(over[0])] if len(over) else codes
    return codes.numpy(), model.codec_model.decode(codes.T[None]).audio_values[0, 0].numpy()


@pytest.mark.parametrize("platform", [pytest.param(p, marks=pytest.mark.slow) for p in ("reference", "cpu")])
def test_speech_is_that_of_transformers(platform, tmp_path):
    """Several texts in the same steps."""
    path = make_csm(tmp_path)
    got = open_llm(path, platform).speak(TEXTS, temperature=0, max_frames=20, voice="3", use_tqdm=False)
    for text, speech in zip(TEXTS, got, strict=True):
        codes, want = speak_theirs(path, text, 20, "3")
        assert len(np.unique(codes)) > 6
        assert speech.samples.shape == want.shape
        assert np.abs(speech.samples - want).max() < 1e-4 * max(1, np.abs(want).max())
        assert want.std() > 1e-3
        assert speech.rate == 800


@pytest.mark.slow
def test_preempted_sequences_keep_their_codes(tmp_path):
    """A cache for one and a half of them."""
    path = make_csm(tmp_path)
    llm = open_llm(path, num_gpu_blocks_override=5, block_size=16, max_model_len=64)
    got = llm.speak(TEXTS, temperature=0, max_frames=30, use_tqdm=False)
    assert llm.stats().preemptions
    for text, speech in zip(TEXTS, got, strict=True):
        _, want = speak_theirs(path, text, 30)
        assert np.abs(speech.samples - want).max() < 1e-4 * max(1, np.abs(want).max())


@pytest.mark.slow
def test_a_frame_that_ends_the_speech(tmp_path):
    path = make_csm(tmp_path, silent=True)
    llm = open_llm(path)
    lengths = []
    for text in ("dm", "fj", "cm"):
        codes, want = speak_theirs(path, text, 25)
        (got,) = llm.speak(text, temperature=0, max_frames=25, use_tqdm=False)
        assert got.samples.shape == want.shape
        assert np.abs(got.samples - want).max() < 1e-4 * max(1, np.abs(want).max())
        lengths.append(len(codes))
    assert lengths == [3, 5, 10]


def test_another_engine_continues_a_sequence(tmp_path):
    """As after a crash: with the tokens and the codes that were emitted."""
    path = make_csm(tmp_path)
    llm, engine = open_llm(path), open_llm(path)
    speaker = llm.llm_engine.frontend.speaker
    settings = SpeechSettings(seed=4, temperature=0.8)
    params = SamplingParams(max_tokens=24, detokenize=False, **speaker.sampling(settings))
    (submission,) = llm._prepare(speaker.prompts(TEXTS[0], settings), [params])
    (request,) = submission.requests
    tokens, frames = run(llm, request)
    assert len(tokens) == 24
    for known in (1, 9):
        rest = msgspec.structs.replace(
            request, tokens=np.concatenate([request.tokens, np.array(tokens[:known], np.int32)]),
            frames=np.stack(frames[:known]),
        )  # fmt: skip
        more, codes = run(engine, rest)
        assert more == tokens[known:]
        assert np.array_equal(np.stack(codes), np.stack(frames[known:]))
    wrong = msgspec.structs.replace(rest, frames=np.zeros_like(rest.frames))
    assert not np.array_equal(np.stack(run(engine, wrong)[1]), np.stack(frames[9:])), "codes change nothing"


def run(llm: LLM, request: EngineRequest) -> tuple[list[int], list[np.ndarray]]:
    """(tokens, codes) of a request that no client has."""
    core, tokens, frames = llm._core, list[int](), list[np.ndarray]()
    core.add([request])
    while core.has_work:
        out = core.step()
        if out is not None and out.frames is not None:
            tokens += out.tokens.tolist()
            frames += list(out.frames)
    return tokens, frames


def test_a_seed_means_the_same_speech(tmp_path):
    """Alone or with others. Codes after the first are drawn, too."""
    llm = open_llm(make_csm(tmp_path))
    said = {"max_frames": 12, "temperature": 1.0, "use_tqdm": False}
    first = llm.speak(TEXTS, seed=5, **said)
    (alone,) = llm.speak(TEXTS[1], seed=5, **said)
    assert np.array_equal(first[1].samples, alone.samples)
    (other,) = llm.speak(TEXTS[1], seed=6, **said)
    assert other.samples.shape != alone.samples.shape or not np.array_equal(other.samples, alone.samples)
    (greedy,) = llm.speak(TEXTS[1], **{**said, "temperature": 0})
    assert greedy.samples.shape != alone.samples.shape or not np.array_equal(greedy.samples, alone.samples)


def test_what_is_refused(tmp_path):
    path = make_csm(tmp_path)
    llm = open_llm(path)
    for said, words in (({"voice": "11"}, "voice"), ({"speed": 2.0}, "one speed")):
        with pytest.raises(RequestError, match=words):
            llm.speak("a", **said, use_tqdm=False)
    for method in (llm.generate, llm.encode):
        with pytest.raises(RequestError, match="speak"):
            method("hello", use_tqdm=False)
    config = canonical_config(read_config(path))
    codec, depth = config["codec_config"], config["depth_decoder_config"]
    for change, error, words in (
        ({"tie_codebooks_embeddings": False}, UnsupportedModelError, "tie_codebooks"),
        ({"codec_config": {**codec, "model_type": "dac"}}, UnsupportedModelError, "model_type"),
        ({"codec_config": {**codec, "pad_mode": "replicate"}}, UnsupportedModelError, "pad_mode"),
        ({"codec_config": {**codec, "num_quantizers": 3}}, CheckpointError, "too few"),
        ({"codec_config": {**codec, "upsampling_ratios": [0]}}, CheckpointError, "upsampling_ratios"),
        ({"codec_config": None}, CheckpointError, "codec_config"),
        ({"depth_decoder_config": {**depth, "num_codebooks": 5}}, CheckpointError, "num_codebooks"),
    ):
        with pytest.raises(error, match=words):
            registry.family({**config, **change})({**config, **change})
