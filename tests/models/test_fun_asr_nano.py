"""Fun-ASR-Nano through the whole engine: what transformers says to the same clip."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hearing
import jinja2
import msgspec
import numpy as np
import pytest
import torch
import transformers
from test_hearing import GREEDY, NEW, asks
from transformers.audio_utils import mel_filter_bank, spectrogram
from transformers.models.fun_asr_nano.feature_extraction_fun_asr_nano import FunAsrNanoFeatureExtractor

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.media.audio_processors.fun_asr_nano import fun_asr_nano as processor
from thalweg.media.audio_processors.transcribers import TRANSCRIBERS
from thalweg.models.families.fun_asr_nano import fun_asr_nano

TOKEN = hearing.IDS["<|AUDIO|>"]
BINS = 20


def make(path: Path, **audio: Any) -> Any:
    config = transformers.FunAsrNanoConfig(
        text_config={**hearing.TEXT, "model_type": "qwen3", "tie_word_embeddings": False},
        audio_config={
            "model_type": "fun_asr_nano_encoder", "num_mel_bins": BINS, "hidden_size": 32, "num_attention_heads": 4,
            "intermediate_size": 48, "num_hidden_layers": 4, "num_timestamp_prediction_layers": 1, "fsmn_kernel_size": 5,
            "max_position_embeddings": 30, **audio,
        },
        adaptor_config={
            "hidden_size": hearing.TEXT["hidden_size"], "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": hearing.TEXT["hidden_size"] // 4, "projector_hidden_size": 40,
        },
        audio_token_id=TOKEN, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.FunAsrNanoForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    hearing.spread_ears(model)
    model.save_pretrained(path)
    hearing.write_tokenizer(path)
    (path / "preprocessor_config.json").write_text(f'{{"feature_size": {BINS}, "window": "hamming"}}')
    return model


def features(sound: np.ndarray) -> torch.Tensor:
    """As transformers' extractor computes them of torchaudio's spectrum, which is not installed everywhere."""
    filters = mel_filter_bank(257, BINS, 20, 8000, 16_000, None, "kaldi", True)
    logs = spectrogram(
        sound, np.hamming(400), 400, 160, 512, power=2, center=False, preemphasis=0.97, mel_filters=filters, log_mel="log",
        mel_floor=1.192092955078125e-07, remove_dc_offset=True,
    ).T  # fmt: skip
    made = FunAsrNanoFeatureExtractor._apply_lfr(SimpleNamespace(num_frames_lfr=7, stride_lfr=6), torch.from_numpy(logs))
    return made.to(torch.float32)[None]


@torch.no_grad()
def given(ids: list[int], sounds: list[np.ndarray], model: Any) -> dict[str, Any]:
    """One clip at a time: the states of others do not pad it."""
    embeds = model.get_input_embeddings()(torch.tensor([ids]))
    if sounds:
        made = []
        for sound in sounds:
            frames = features(sound)
            mask = torch.ones(frames.shape[:2], dtype=torch.long)
            made.append(model.model.get_audio_features(frames, mask, return_dict=True).pooler_output)
        shown = (torch.tensor([ids]) == TOKEN).unsqueeze(-1).expand_as(embeds)
        embeds = embeds.masked_scatter(shown, torch.cat(made))
    return {"inputs_embeds": embeds, "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


def test_spectra(tmp_path: Path) -> None:
    """Numbers of spectra with every rest of the stride."""
    make(tmp_path)
    ours = load_audio_processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for samples in range(8000, 8960, 160):
        sound = hearing.sound(samples / 16_000, samples)
        got, want = ours.mel(sound), features(sound)[0].numpy().T
        assert ours.count(ours.frames(sound.size)) == want.shape[1]
        assert np.abs(got - want).max() < 2e-3


@pytest.mark.parametrize("audio", [{}, pytest.param({"hidden_size": 140, "fsmn_kernel_size": 4}, marks=pytest.mark.nightly)])
def test_answers_about_clips_are_those_of_transformers(audio: dict[str, Any], tmp_path: Path) -> None:
    """The second encoder's states are as wide as its frames, so that its first layer has a residual stream."""
    model = make(tmp_path, **audio)
    model.generation_config.eos_token_id = None
    a, b, c = (hearing.sound(seconds, seed) for seed, seconds in enumerate((1.3, 0.96, 0.15)))
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", max_model_len=512, max_num_batched_tokens=24, use_tqdm_on_load=False
    )
    try:
        chats: list[tuple[Any, ...]] = [(a, "what?"), ("hear ", b, " and ", c), ("hello",)]
        outs = llm.chat([asks(*parts) for parts in chats], GREEDY, use_tqdm=False)
        for parts, out in zip(chats, outs, strict=True):
            ids, sounds = list(out.prompt_token_ids), [p for p in parts if isinstance(p, np.ndarray)]
            want = model.generate(**given(ids, sounds, model), max_new_tokens=NEW, do_sample=False)
            assert list(out.outputs[0].token_ids) == want[0].tolist()
        scored = llm.chat(asks(*chats[1]), msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        ids = list(scored.prompt_token_ids)
        with torch.no_grad():
            logits = model(**given(ids, [b, c], model)).logits[0, :-1].log_softmax(-1)
        mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(mine, logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], atol=1e-3)
        with pytest.raises(RequestError, match="needs at least"):
            llm.chat(asks(hearing.sound(0.03)), GREEDY, use_tqdm=False)
        with pytest.raises(RequestError, match=r"accepts 1\.74 at once"):
            llm.chat(asks(hearing.sound(2)), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


def test_prompts_of_transcripts() -> None:
    """As FunASR writes them. Names of languages are those of transformers."""
    from transformers.models.fun_asr_nano.processing_fun_asr_nano import LANGUAGE_CODE_TO_NAME

    row = TRANSCRIBERS["FunAsrNanoForConditionalGeneration"]
    template = jinja2.Template(row.template)
    begin, end = "<|im_start|>user\n语音转写", "：*<|im_end|>\n<|im_start|>assistant\n"
    for code in row.languages:
        assert template.render(language=code, AUDIO="*").endswith(f"{begin}成{LANGUAGE_CODE_TO_NAME[code]}{end}")
    assert template.render(language="", AUDIO="*").endswith(begin + end)


def test_what_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    config = read_config(tmp_path)
    around = config["beside_text"]

    def change(**said: Any) -> dict[str, Any]:
        return {**config, "beside_text": {**around, **said}}

    assert len(fun_asr_nano(config).audio.encoder) == 4
    for said, words in (
        ({"adaptor_config": {**around["adaptor_config"], "hidden_size": 64}}, "adaptor_config: hidden_size"),
        ({"audio_config": {**around["audio_config"], "num_attention_heads": 5}}, "num_attention_heads"),
        ({"audio_config": 1}, "audio_config"),
    ):
        with pytest.raises(CheckpointError, match=words):
            fun_asr_nano(change(**said))
    with pytest.raises(UnsupportedModelError, match="stride_lfr"):
        processor(config, {"stride_lfr": 5})
    with pytest.raises(UnsupportedModelError, match="num_stacked_frames"):
        processor(change(audio_config={**around["audio_config"], "num_stacked_frames": 5}), {})
