"""Pairs of wav2vec 2.0 and mBART against transformers: transcripts of clips of different lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from wav2vec_zoo import SMALL, STABLE
from whisper_zoo import sound
from zoo import _copied, spread

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

START, END, NEW = 2, 2, 12
LENGTHS = (0.3, 1.1, 2.37, 0.7)
VOCAB = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *(f"▁{chr(97 + i)}" for i in range(26))])}
MBART = {
    "vocab_size": len(VOCAB), "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "max_position_embeddings": 64,
    "scale_embedding": True, "is_decoder": True, "add_cross_attention": True,
}  # fmt: skip
ADAPTED = {**STABLE, "add_adapter": True, "num_adapter_layers": 2}


def make(directory: Path, ear: dict[str, Any], text: dict[str, Any]) -> Path:
    def write(path: Path) -> None:
        config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.Wav2Vec2Config(**{**SMALL, **ear}), transformers.MBartConfig(**{**MBART, **text})
        )
        model = transformers.SpeechEncoderDecoderModel(config).eval()
        spread(model, 6)
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "conv" in key and p.ndim > 2:
                    p.normal_(0, 2 / max(1, p[0].numel()) ** 0.5, generator=g)
                elif "original0" in key:
                    p.uniform_(0.5, 2, generator=g)
            for layer in model.decoder.model.decoder.layers:  # sounds must matter
                layer.encoder_attn.out_proj.weight.mul_(4)
                layer.encoder_attn.q_proj.weight.mul_(3)
        model.save_pretrained(path)
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(path)
        tok = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
        tok.decoder = decoders.Metaspace()
        tok.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "decoder_start_token_id": START}))

    return _copied(("speech pair", json.dumps([ear, text])), write, directory / "pair")


def load(path: Path) -> Any:
    kind = transformers.SpeechEncoderDecoderModel
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def greedy(model: Any, path: Path, wave: np.ndarray) -> tuple[list[int], list[float]]:
    """transformers' tokens behind the start token, and their log-probabilities."""
    extractor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(path)
    values = extractor(wave, sampling_rate=16_000, return_tensors="pt").input_values
    heard, out, known = model.encoder(values), [START], list[float]()
    for _ in range(NEW):
        logits = model(encoder_outputs=heard, decoder_input_ids=torch.tensor([out]), use_cache=False).logits
        logits = logits[0, -1].log_softmax(-1)
        out.append(int(logits.argmax()))
        known.append(float(logits.max()))
        if out[-1] == END:
            break
    return out[1:], known


def open_llm(path: Path, platform: str = "cpu") -> LLM:
    return LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False)


CASES = [({}, {}), (ADAPTED, {}), ({}, {"d_model": 48, "tie_word_embeddings": False})]


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.nightly), "cpu"])
@pytest.mark.parametrize(("ear", "text"), [CASES[1], *(pytest.param(*c, marks=pytest.mark.slow) for c in (CASES[0], CASES[2]))])
def test_transcripts_are_those_of_transformers(ear, text, platform, tmp_path):
    """More clips at once than there are slots for, and again with a cache."""
    path, waves = make(tmp_path, ear, text), [sound(i, LENGTHS[i % 4] + 0.2 * (i // 4)) for i in range(5)]
    llm, model = open_llm(path, platform), load(path)
    params = SamplingParams(max_tokens=NEW, temperature=0, logprobs=0)
    want = [greedy(model, path, wave) for wave in waves]
    prompts = [{"prompt_token_ids": [START], "multi_modal_data": {"audio": w}} for w in waves]
    for _ in range(2):
        for output, (ids, known) in zip(llm.generate(prompts, params, use_tqdm=False), want, strict=True):
            choice = output.outputs[0]
            assert list(choice.token_ids) == ids
            got = [p[i].logprob for i, p in zip(ids, choice.logprobs, strict=True)]
            assert got == pytest.approx(known, abs=1e-4)
    assert len({round(sum(known), 2) for _, known in want}) > 3, "sounds change nothing"


def test_what_is_refused(tmp_path):
    path = make(tmp_path, {}, {})
    config = read_config(path)
    around = config["beside_text"]
    wide = {**around["audio_config"], "output_hidden_size": 16}
    for said, words in (
        ({"model_type": "bert"}, "encoder and decoder"),
        ({"cross_attention_hidden_size": 7}, "cross_attention_hidden_size"),
        ({"beside_text": {**around, "audio_config": wide}}, "output_hidden_size"),
    ):
        changed = {**config, **said}
        with pytest.raises(UnsupportedModelError, match=words):
            registry.family(changed)(changed)
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_normalize": False}))
    with pytest.raises(UnsupportedModelError, match="do_normalize"):
        open_llm(path)
