"""Settings that files of speech models omit: what transformers' classes have for them."""

from __future__ import annotations

import json

import pytest
import transformers

from thalweg.checkpoint.spelling import canonical_config
from thalweg.models import registry

KINDS = {
    "ParakeetForCTC": "ParakeetCTCConfig", "ParakeetForRNNT": "ParakeetRNNTConfig", "ParakeetForTDT": "ParakeetTDTConfig",
    "CanaryForConditionalGeneration": "CanaryConfig", "CohereAsrForConditionalGeneration": "CohereAsrConfig",
    **{f"{name}ForCTC": f"{name}Config" for name in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "UniSpeechSat")},
    "SEWForCTC": "SEWConfig", "SEWDForCTC": "SEWDConfig",
    "Nemotron3_5AsrForRNNT": "Nemotron3_5AsrConfig", "NemotronAsrStreamingForRNNT": "NemotronAsrStreamingConfig",
    "MoonshineStreamingForConditionalGeneration": "MoonshineStreamingConfig",
    **{f"SeamlessM4T{v}For{task}": f"SeamlessM4T{v}Config" for v in ("", "v2") for task in ("SpeechToText", "TextToText")},
    "Data2VecAudioForCTC": "Data2VecAudioConfig", "Speech2TextForConditionalGeneration": "Speech2TextConfig",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_an_absent_key_means_what_it_means_to_transformers(name):
    whole = json.loads(json.dumps(getattr(transformers, KINDS[name])().to_dict())) | {"architectures": [name]}
    parts = {key: {"model_type": whole[key]["model_type"]} for key in ("encoder_config", "decoder_config") if key in whole}
    bare = {key: whole[key] for key in ("architectures", "model_type", "vocab_size")} | parts
    full, short = canonical_config(whole), canonical_config(bare)
    assert registry.family(short)(short) == registry.family(full)(full)
