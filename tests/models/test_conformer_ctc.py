"""CTC models of spectra with conformer layers (LASR, w2v-BERT 2.0) against transformers: spectra, tokens and frames."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from parakeet_zoo import collapse, read
from test_wav2vec import make_prompt, open_llm
from transformers.audio_utils import mel_filter_bank, spectrogram
from wav2vec_zoo import VOCAB
from whisper_zoo import sound
from zoo import spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.models import registry

ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "conv_kernel_size": 6,
    "subsampling_conv_channels": 24, "num_mel_bins": 20,
}  # fmt: skip
W2V = {
    "vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "feature_projection_input_dim": 40, "conv_depthwise_kernel_size": 5, "left_max_position_embeddings": 6,
    "right_max_position_embeddings": 3,
}  # fmt: skip
GRANITE = {
    "vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48,
    "num_mel_bins": 20, "context_size": 12, "max_position_embeddings": 16, "conv_kernel_size": 5,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "lasr": {}, "granite5": {}, "w2v-bert": {}, "w2v-bert-relative": {"position_embeddings_type": "relative"},
    "w2v-bert-adapter": {"add_adapter": True, "num_adapter_layers": 2},
    "w2v-bert-rotary": {"position_embeddings_type": "rotary"},
}  # fmt: skip
DAY = ("lasr", "w2v-bert")
LENGTHS = (0.4, 1.1, 2.37)


class GraniteFeatures:
    """As Granite Speech 5's extractor computes them with torchaudio, which is not installed everywhere."""

    def __call__(self, wave: np.ndarray, **_: Any) -> Any:
        count = 2 * -(-(wave.size // 160) // 2)
        wave = np.pad(wave, (0, max(0, (count - 1) * 160 + 1 - wave.size)))
        filters = mel_filter_bank(257, 20, 0, 8000, 16_000, None, "htk")
        mel = spectrogram(
            wave, np.hanning(401)[:-1], 400, 160, 512, power=2, mel_filters=filters, mel_floor=1e-10, log_mel="log10"
        )[:, :count]
        mel = torch.from_numpy(np.maximum(mel, mel.max() - 8) / 4 + 1).float()
        around = torch.nn.functional.pad(mel[None], (1, 1), mode="replicate")[0]
        both = torch.cat((mel, (around[:, 2:] - around[:, :-2]) / 2))
        made = both.T.reshape(1, count // 2, -1)
        return SimpleNamespace(input_features=made, attention_mask=torch.ones(1, count // 2))

    def save_pretrained(self, path: Path) -> None:
        (path / "preprocessor_config.json").write_text(json.dumps({"num_mel_bins": 20}))


def make(name: str, path: Path) -> tuple[Any, Any]:
    """(the model of transformers, its feature extractor), saved."""
    if name == "lasr":
        config = transformers.LasrCTCConfig(vocab_size=len(VOCAB), pad_token_id=0, encoder_config=ENCODER)
        model = transformers.LasrForCTC._from_config(config, attn_implementation="eager").eval()
        extractor = transformers.LasrFeatureExtractor(feature_size=20)
        head = model.ctc_head
    elif name == "granite5":
        config = transformers.GraniteSpeech5CTCConfig(vocab_size=len(VOCAB), pad_token_id=0, encoder_config=GRANITE)
        model = transformers.GraniteSpeech5ForCTC._from_config(config, attn_implementation="eager").eval()
        extractor, head = GraniteFeatures(), model.encoder.out
    else:
        config = transformers.Wav2Vec2BertConfig(**W2V, **CASES[name])
        model = transformers.Wav2Vec2BertForCTC._from_config(config, attn_implementation="eager").eval()
        extractor = transformers.SeamlessM4TFeatureExtractor(feature_size=20, num_mel_bins=20)
        head = model.lm_head
    spread(model, 5)
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, p in (*model.named_parameters(), *model.named_buffers()):
            if "conv" in key and p.ndim > 2:
                p.normal_(0, 2 / max(1, p[0].numel()) ** 0.5, generator=g)
            elif key.endswith("running_var"):
                p.uniform_(0.5, 2, generator=g)
            elif key.endswith("distance_embedding.weight"):
                p.normal_(0, 1, generator=g)
        head.weight.normal_(0, 2, generator=g)
        head.bias.sub_(logits(model, extractor, sound(9, 3.0)).mean(0))
    model.save_pretrained(path)
    extractor.save_pretrained(path)
    (path / "vocab.json").write_text(json.dumps(VOCAB))
    (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "unk_token": "<unk>"}))
    return model, extractor


def features(extractor: Any, wave: np.ndarray) -> torch.Tensor:
    """f32[1, frames, inputs]. The frame that SeamlessM4T's extractor fills up with padding is left out, as it is masked."""
    made = extractor(wave, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    return made.input_features[:, : int(made.attention_mask.sum())]


@torch.inference_mode()
def logits(model: Any, extractor: Any, wave: np.ndarray) -> torch.Tensor:
    found: torch.Tensor = model(features(extractor, wave)).logits[0]
    return found


@pytest.mark.parametrize("name", [n if n in DAY else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_transcripts_are_those_of_transformers(name, tmp_path):
    """Several clips at once."""
    model, extractor = make(name, tmp_path)
    waves = [sound(i, LENGTHS[i % 3] + 0.013 * i) for i in range(4)]
    processor = load_audio_processor(read_config(tmp_path), tmp_path)
    for wave in waves:
        np.testing.assert_allclose(processor.mel(wave), features(extractor, wave)[0].T.numpy(), atol=2e-3)
    llm = open_llm(tmp_path)
    try:
        outputs = llm.encode([make_prompt(w) for w in waves], use_tqdm=False)
    finally:
        llm.shutdown()
    known = [logits(model, extractor, wave).log_softmax(-1) for wave in waves]
    want = [collapse(each.argmax(-1).tolist(), 0) for each in known]
    assert [read(o.outputs.data) for o in outputs] == want
    assert len({token for each in want for token, _, _ in each}) > 2, "sounds change nothing"
    best = known[2].max(-1).values.numpy()
    for _, value, first, end in outputs[2].outputs.data[1 : 1 + 4 * len(want[2])].reshape(-1, 4):
        assert value == pytest.approx(best[int(first) : int(end)].mean(), abs=1e-3)


def test_what_is_refused():
    bert = {"architectures": ["Wav2Vec2BertForCTC"], "model_type": "wav2vec2-bert", **W2V}
    medical = {"architectures": ["LasrForCTC"], "model_type": "lasr_ctc", "vocab_size": 17, "encoder_config": ENCODER}
    for config, said, error, words in (
        (bert, {"add_adapter": True, "output_hidden_size": 16}, UnsupportedModelError, "output_hidden_size"),
        (bert, {"use_intermediate_ffn_before_adapter": True}, UnsupportedModelError, "use_intermediate_ffn"),
        (bert, {"position_embeddings_type": "x"}, UnsupportedModelError, "position_embeddings_type"),
        (bert, {"conv_depthwise_kernel_size": 4}, CheckpointError, "conv_depthwise_kernel_size"),
        (bert, {"num_attention_heads": 5}, CheckpointError, "num_attention_heads"),
        (medical, {"encoder_config": {**ENCODER, "conv_residual_weights": [1]}}, CheckpointError, "conv_residual_weights"),
        (medical, {"pad_token_id": 99}, CheckpointError, "pad_token_id"),
    ):
        changed = {**config, **said}
        with pytest.raises(error, match=words):
            registry.family(changed)(changed)
