"""Granite Speech through the whole engine: what transformers says to the same clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hearing
import msgspec
import numpy as np
import pytest
import torch
import transformers
from test_hearing import GREEDY, NEW, asks
from transformers.audio_utils import mel_filter_bank, spectrogram

from thalweg import LLM
from thalweg.errors import RequestError

TOKEN = hearing.IDS["<|AUDIO|>"]
BINS = 20


def make(path: Path, kept: tuple[int, ...] = ()) -> Any:
    """kept: layers that the projector of Granite Speech Plus reads too. (): Granite Speech."""
    kind = "GraniteSpeechPlus" if kept else "GraniteSpeech"
    config = getattr(transformers, f"{kind}Config")(
        text_config={**hearing.TEXT, "model_type": "granite", "attention_multiplier": 0.25, "residual_multiplier": 0.8},
        encoder_config={
            "input_dim": 2 * BINS, "num_layers": 4, "hidden_dim": 32, "num_heads": 2, "feedforward_mult": 2, "output_dim": 10,
            "context_size": 24, "max_pos_emb": 30, "conv_kernel_size": 7, **({"cat_hidden_layers": list(kept)} if kept else {}),
        },
        projector_config={
            "model_type": "blip_2_qformer", "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
            "intermediate_size": 40, "encoder_hidden_size": 32 * (1 + len(kept)), "cross_attention_frequency": 2,
        },
        audio_token_index=TOKEN, has_lora_adapter=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(config, dtype=torch.float32).eval()
    hearing.spread_ears(model)
    generator = torch.Generator().manual_seed(5)
    for layer in model.model.encoder.layers:
        layer.conv.batch_norm.running_mean.normal_(0, 0.2, generator=generator)
        layer.conv.batch_norm.running_var.uniform_(0.5, 2, generator=generator)
    model.save_pretrained(path)
    hearing.write_tokenizer(path)
    said = f'{{"feature_extractor_type": "GraniteSpeechFeatureExtractor", "melspec_kwargs": {{"n_mels": {BINS}}}}}'
    (path / "preprocessor_config.json").write_text(said)
    return model


def features(sound: np.ndarray) -> torch.Tensor:
    """As transformers' extractor computes them of torchaudio's spectrum, which is not installed everywhere."""
    filters = mel_filter_bank(257, BINS, 0, 8000, 16_000, None, "htk")
    window = np.hanning(401)[:-1]
    mel = spectrogram(sound, window, 400, 160, 512, power=2, mel_filters=filters, mel_floor=1e-10, log_mel="log10").T
    mel = np.maximum(mel, mel.max() - 8) / 4 + 1
    return torch.from_numpy(mel[: len(mel) // 2 * 2].reshape(1, -1, 2 * BINS).astype(np.float32))


@torch.no_grad()
def given(ids: list[int], sounds: list[np.ndarray], model: Any) -> dict[str, Any]:
    """One clip at a time, as if each came in its own batch: the states of others do not pad it."""
    embeds = model.get_input_embeddings()(torch.tensor([ids]))
    if sounds:
        made = [model.model.get_audio_features(features(s), return_dict=True).pooler_output[0] for s in sounds]
        shown = (torch.tensor([ids]) == TOKEN).unsqueeze(-1).expand_as(embeds)
        embeds = embeds.masked_scatter(shown, torch.cat(made))
    return {"inputs_embeds": embeds, "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


@pytest.mark.parametrize("kept", [(), pytest.param((0, 2, 3), marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_answers_about_clips_are_those_of_transformers(kept: tuple[int, ...], tmp_path: Path) -> None:
    """Clips of several blocks and windows, the last of them partly filled."""
    model = make(tmp_path, kept)
    model.generation_config.eos_token_id = None
    a, b, c = (hearing.sound(seconds, seed) for seed, seconds in enumerate((1.3, 0.96, 0.05)))
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", max_model_len=512, max_num_batched_tokens=24, use_tqdm_on_load=False
    )
    try:
        chats: list[tuple[Any, ...]] = [(a, "what?"), ("hear ", b, " and ", c), ("hello",)]
        outs = llm.chat([asks(*parts) for parts in chats], GREEDY, use_tqdm=False)
        for parts, out in zip(chats, outs, strict=True):
            ids, sounds = list(out.prompt_token_ids), [p for p in parts if isinstance(p, np.ndarray)]
            assert ids.count(TOKEN) == sum(-(-((s.size // 160 + 1) // 2) // 15) * 3 for s in sounds)
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
    finally:
        llm.shutdown()
