"""The talker of Qwen3-Omni against transformers: codes of frames, and samples."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import omni_zoo
import pytest
import torch
from test_csm import run
from tokenizers import Tokenizer

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import BESIDE, read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.speakers.base import SpeechSettings
from thalweg.models import registry
from thalweg.params import PoolingParams

ASKED = ["hello", "what is a much longer question than that one?", "c"]
GREEDY = SpeechSettings(voice="chelsie", temperature=0)
ONLY = {"architectures": ["Qwen3OmniMoeTalkerForConditionalGeneration"]}


def open_talker(path: Any, platform: str = "cpu", **more: Any) -> LLM:
    said = {"dtype": "float32", "use_tqdm_on_load": False, "max_num_seqs": 3, "hf_overrides": ONLY, **more}
    return LLM(str(path), device=platform, **said)


@torch.inference_mode()
def answer_theirs(model: Any, ids: list[int], frames: int, words: int = 12, **more: Any) -> tuple[list[int], Any, Any]:
    """transformers' (answer, codes of frames [n, books], samples), greedy."""
    caught = []
    decode = model.code2wav.chunked_decode

    def watch(codes: torch.Tensor, **said: Any) -> torch.Tensor:
        caught.append(codes)
        made: torch.Tensor = decode(codes, **said)
        return made

    model.code2wav.chunked_decode = watch
    try:
        tokens, wave = model.generate(
            input_ids=torch.tensor([ids]), speaker="Chelsie", return_audio=True, thinker_max_new_tokens=words,
            thinker_do_sample=False, talker_max_new_tokens=frames + 1, talker_do_sample=False,
            thinker_eos_token_id=omni_zoo.IDS["<|im_end|>"],
            **{"talker_repetition_penalty": 1.0, **more},
        )  # fmt: skip
    finally:
        model.code2wav.chunked_decode = decode
    return tokens[0, len(ids) :].tolist(), caught[0][0].T.numpy(), wave[0, 0].numpy()


def read_prompt(path: Any, text: str) -> tuple[list[int], list[int]]:
    """(the user's turn, the beginning of the answer)."""
    tok = Tokenizer.from_file(str(path / "tokenizer.json"))
    ids = tok.encode(f"<|im_start|><user>\n{text}<|im_end|>\n<|im_start|><assistant>\n").ids
    return ids[:-3], ids[-3:]


def speak(llm: LLM, prompts: list[Any], frames: int, **more: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """(codes, samples) of prompts."""
    speaker = llm.llm_engine.frontend.speaker
    said = {**speaker.sampling(GREEDY), "repetition_penalty": 1.0, **more}
    params = [SamplingParams(max_tokens=frames, detokenize=False, **said)] * len(prompts)
    found = [speaker.frames(output.outputs[0]) for output in llm._run(llm._prepare(prompts, params), False)]
    decoded = llm._run(llm._prepare([speaker.decoding(each) for each in found], [PoolingParams()] * len(found)), False)
    return [(np.stack(codes), speaker.samples(out.outputs.data)) for codes, out in zip(found, decoded, strict=True)]


def compare(path: Any, llm: LLM, frames: int, **theirs: Any) -> list[int]:
    """Several prompts in the same steps: the numbers of their frames."""
    model = omni_zoo.load_omni(path)
    ours = {"repetition_penalty": theirs["talker_repetition_penalty"]} if theirs else {}
    wanted, prompts = [], []
    for text in ASKED:
        user, header = read_prompt(path, text)
        answer, codes, wave = answer_theirs(model, user + header, frames, **theirs)
        wanted.append((codes, wave))
        prompts.append(llm.llm_engine.frontend.speaker.answer_prompt(user + header, answer, GREEDY))
    for (codes, wave), (got, samples) in zip(wanted, speak(llm, prompts, frames, **ours), strict=True):
        assert np.array_equal(got, codes)
        assert len(np.unique(codes)) > 6
        assert samples.shape == wave.shape
        assert np.abs(samples - wave).max() < 1e-4
        assert 1e-3 < wave.std() < 0.6, "clipped, or silent"
    return [len(codes) for codes, _ in wanted]


@pytest.mark.parametrize("platform", [pytest.param(p, marks=pytest.mark.slow) for p in ("reference", "cpu")])
def test_speech_is_that_of_transformers(platform: str, tmp_path: Any) -> None:
    """In chunks, too."""
    path = omni_zoo.make_omni(tmp_path)
    assert compare(path, open_talker(path, platform, max_num_batched_tokens=16), 20) == [20, 20, 20]


@pytest.mark.slow
def test_preempted_sequences_keep_their_text_and_codes(tmp_path: Any) -> None:
    path = omni_zoo.make_omni(tmp_path)
    llm = open_talker(path, num_gpu_blocks_override=8, block_size=16, max_model_len=112)
    compare(path, llm, 30)
    assert llm.stats().preemptions


@pytest.mark.slow
def test_speech_ends_where_the_talker_ends_it(tmp_path: Any) -> None:
    """With the penalty on repetition that the model's authors recommend."""
    path = omni_zoo.make_omni(tmp_path, ending=-0.1)
    lengths = compare(path, open_talker(path), 40, talker_repetition_penalty=1.05)
    assert min(lengths) < 40


@pytest.mark.slow
def test_long_speech_is_decoded_in_chunks(tmp_path: Any) -> None:
    path = omni_zoo.make_omni(tmp_path)
    llm, model = open_talker(path), omni_zoo.load_omni(path)
    speaker = llm.llm_engine.frontend.speaker
    codes = np.random.default_rng(4).integers(0, omni_zoo.CODES, (640, omni_zoo.BOOKS)).astype(np.int32)
    for count in (1, 300, 310, 640):
        with torch.inference_mode():
            wave = model.code2wav.chunked_decode(torch.from_numpy(codes[:count].T[None]).long(), 300, 25)[0, 0].numpy()
        (got,) = llm._run(llm._prepare([speaker.decoding(list(codes[:count]))], [PoolingParams()]), False)
        samples = speaker.samples(got.outputs.data)
        assert samples.shape == wave.shape
        assert np.abs(samples - wave).max() < 1e-4


@pytest.mark.slow
def test_another_engine_continues_a_sequence(tmp_path: Any) -> None:
    """As after a crash: with the tokens and the codes that were emitted. The text of each position is sent again."""
    path = omni_zoo.make_omni(tmp_path)
    llm, engine = open_talker(path), open_talker(path)
    speaker = llm.llm_engine.frontend.speaker
    settings = SpeechSettings(seed=4, temperature=3.0)
    params = SamplingParams(max_tokens=24, detokenize=False, **speaker.sampling(settings))
    (submission,) = llm._prepare(speaker.prompts(ASKED[1], settings), [params])
    (request,) = submission.requests
    tokens, frames = run(llm, request)
    assert len(tokens) == 24
    for known in (1, 9):
        resumed = np.concatenate([request.tokens, np.array(tokens[:known], np.int32)])
        rest = msgspec.structs.replace(request, tokens=resumed, frames=np.stack(frames[:known]))
        more, codes = run(engine, rest)
        assert more == tokens[known:]
        assert np.array_equal(np.stack(codes), np.stack(frames[known:]))
    (item,) = rest.inputs
    wrong = msgspec.structs.replace(rest, inputs=(msgspec.structs.replace(item, spoken=np.zeros_like(item.spoken)),))
    assert not np.array_equal(np.stack(run(engine, wrong)[1]), np.stack(frames[9:])), "the text changes nothing"


def test_a_seed_means_the_same_speech(tmp_path: Any) -> None:
    """Alone or with others, of texts without a question. Codes after the first are drawn, too."""
    llm = open_talker(omni_zoo.make_omni(tmp_path))
    said = {"max_frames": 6, "use_tqdm": False, "voice": "ethan", "temperature": 3.0}
    first = llm.speak(ASKED[:2], seed=5, **said)
    (alone,) = llm.speak(ASKED[1], seed=5, **said)
    assert np.array_equal(first[1].samples, alone.samples)
    assert alone.rate == 24_000
    for change in ({"seed": 6}, {"seed": 5, "voice": "chelsie"}, {"seed": 5, "temperature": 0}):
        (other,) = llm.speak(ASKED[1], **{**said, **change})
        assert other.samples.shape != alone.samples.shape or not np.array_equal(other.samples, alone.samples)
    for wrong, words in (({"voice": "alloy"}, "chelsie, ethan"), ({"speed": 2.0}, "one speed")):
        with pytest.raises(RequestError, match=words):
            llm.speak("a", **wrong, use_tqdm=False)
    with pytest.raises(RequestError, match="speak"):
        llm.generate("hello", use_tqdm=False)


def test_configurations_that_are_refused(tmp_path: Any) -> None:
    path = omni_zoo.make_omni(tmp_path)
    config = read_config(path, ONLY)
    around = config[BESIDE]
    talker, wave = around["talker_config"], around["code2wav_config"]
    for change, error, words in (
        ({"talker_config": {**talker, "speaker_id": None}}, CheckpointError, "speaker_id"),
        ({"talker_config": {**talker, "thinker_hidden_size": 7}}, CheckpointError, "thinker_hidden_size"),
        ({"talker_config": {**talker, "codec_eos_token_id": 1 << 20}}, CheckpointError, "codec_eos_token_id"),
        (_predictor(talker, num_code_groups=9), CheckpointError, "num_code_groups"),
        (_predictor(talker, layer_types=["sliding_attention"]), UnsupportedModelError, "layer_types"),
        ({"code2wav_config": None}, CheckpointError, "code2wav_config"),
        ({"code2wav_config": {**wave, "num_quantizers": 3}}, CheckpointError, "num_quantizers"),
        ({"code2wav_config": {**wave, "upsample_rates": [0]}}, CheckpointError, "upsample_rates"),
    ):  # fmt: skip
        changed = {**config, BESIDE: {**around, **change}}
        with pytest.raises(error, match=words):
            registry.family(changed)(changed)
    (path / "config.json").write_text('{"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "hidden_size": 8}')
    with pytest.raises(CheckpointError, match="talker_config"):
        read_config(path, ONLY)


def _predictor(talker: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {"talker_config": {**talker, "code_predictor_config": {**talker["code_predictor_config"], **change}}}
