"""CTC models of samples against transformers: tokens with their frames and log-probabilities, and texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from parakeet_zoo import read
from wav2vec_zoo import CASES, SMALL, VOCAB, frames_of, load, make_wav2vec, transcribe
from whisper_zoo import sound

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.models import registry
from thalweg.text.tokenizer import load_tokenizer

LENGTHS = (0.3, 1.1, 2.37)
DAY = ("wav2vec2", "wavlm")


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt": "", "multi_modal_data": {"audio": wave}}


def open_llm(path, platform="cpu") -> LLM:
    return LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, use_tqdm_on_load=False)


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.nightly), "cpu"])
@pytest.mark.parametrize("name", [n if n in DAY else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_transcripts_are_those_of_transformers(name, platform, tmp_path):
    """Several clips at once."""
    path, waves = make_wav2vec(name, tmp_path), [sound(i, LENGTHS[i % 3] + 0.1 * (i // 3)) for i in range(4)]
    model = load(name, path)
    outputs = open_llm(path, platform).encode([make_prompt(w) for w in waves], use_tqdm=False)
    want = [transcribe(model, path, wave) for wave in waves]
    assert [read(o.outputs.data) for o in outputs] == want
    assert len({token for each in want for token, _, _ in each}) > 2, "sounds change nothing"
    values = transformers.Wav2Vec2FeatureExtractor()(waves[2], sampling_rate=16_000, return_tensors="pt").input_values
    with torch.inference_mode():
        known = model(values).logits[0].log_softmax(-1).max(-1).values.numpy()
    for _, value, first, end in outputs[2].outputs.data[1 : 1 + 4 * len(want[2])].reshape(-1, 4):
        assert value == pytest.approx(known[int(first) : int(end)].mean(), abs=1e-4)


@pytest.mark.slow
def test_older_names_of_weight_norms(tmp_path):
    path, wave = make_wav2vec("wav2vec2", tmp_path, old=True), sound(1, 1.3)
    (got,) = open_llm(path).encode([make_prompt(wave)], use_tqdm=False)
    new = make_wav2vec("wav2vec2", tmp_path / "new")
    assert read(got.outputs.data) == transcribe(load("wav2vec2", new), new, wave)


@pytest.mark.slow
def test_a_clip_that_is_not_normalised(tmp_path):
    path, wave = make_wav2vec("wav2vec2-large", tmp_path), sound(1, 1.3) + 0.5
    (path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
    (got,) = open_llm(path).encode([make_prompt(wave)], use_tqdm=False)
    with torch.inference_mode():
        want = load("wav2vec2-large", path)(torch.from_numpy(wave)[None]).logits[0].argmax(-1).tolist()
    rows = read(got.outputs.data)
    assert next(i for i in want if i) == rows[0][0]
    assert sum(end - begin for _, begin, end in rows) == sum(i != 0 for i in want)


@pytest.mark.parametrize("lower", [False, True])
def test_texts(lower, tmp_path):
    """Of tokens whose blanks are gone: as the tokenizer of transformers writes all frames. A word keeps double letters."""
    said = {"do_lower_case": lower, "pad_token": {"content": "<pad>"}}
    (tmp_path / "vocab.json").write_text(json.dumps(VOCAB))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    theirs = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), do_lower_case=lower)
    ours, rng = load_tokenizer(tmp_path), np.random.default_rng(2)
    for _ in range(20):
        frames = rng.choice([0, 0, 4, *range(5, len(VOCAB))], 60).tolist()
        ids = [i for i, before in zip(frames, [None, *frames], strict=False) if i != before and i]
        assert ours.decode(ids, True).strip() == theirs.decode(frames)
    twice = [VOCAB[c] for c in "HELLO"] if "L" in VOCAB else []
    assert ours.decode(twice, True) == ("hello" if lower else "HELLO")
    assert ours.encode("he ll" if lower else "HE LL", False) == [VOCAB[c] for c in "HE|LL"]


def test_the_vocabulary_of_a_language(tmp_path):
    """As MMS has them: target_lang names one. The only one needs no name."""
    other = {token: len(VOCAB) - 1 - i for token, i in VOCAB.items()}
    for vocab, said in (({"deu": other, "eng": VOCAB}, {"target_lang": "eng"}), ({"eng": VOCAB}, {})):
        (tmp_path / "vocab.json").write_text(json.dumps(vocab))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        assert load_tokenizer(tmp_path).decode([VOCAB[c] for c in "HEAT"], True) == "HEAT"


def test_vocabularies_that_are_refused(tmp_path):
    for vocab, words in (({"eng": VOCAB, "deu": VOCAB}, "for each language"), ({"a": 0, "b": 0}, "different ids")):
        (tmp_path / "vocab.json").write_text(json.dumps(vocab))
        with pytest.raises(CheckpointError, match=words):
            load_tokenizer(tmp_path)


def test_what_is_refused(tmp_path):
    path = make_wav2vec("wavlm", tmp_path)
    llm = open_llm(path)
    with pytest.raises(RequestError, match="accepts 30 at once"):
        llm.encode([make_prompt(sound(1, 30.1))], use_tqdm=False)
    config = read_config(path)
    for said, error, words in (
        ({"adapter_attn_dim": 16}, UnsupportedModelError, "adapter_attn_dim"),
        ({"add_adapter": True}, UnsupportedModelError, "add_adapter"),
        ({"num_buckets": 30}, UnsupportedModelError, "num_buckets"),
        ({"num_attention_heads": 5}, CheckpointError, "num_attention_heads"),
        ({"num_conv_pos_embedding_groups": 5}, CheckpointError, "num_conv_pos_embedding_groups"),
        ({"conv_dim": [16, 16]}, CheckpointError, "conv_dim"),
        ({"feat_extract_norm": "x"}, UnsupportedModelError, "feat_extract_norm"),
        ({"pad_token_id": 99}, CheckpointError, "pad_token_id"),
    ):
        changed = {**config, **said}
        with pytest.raises(error, match=words):
            registry.family(changed)(changed)
    assert SMALL["vocab_size"] == len(VOCAB)
    assert frames_of(load("wavlm", path), path, sound(1, 0.3))


def test_what_sew_d_lacks(tmp_path):
    config = read_config(make_wav2vec("sew-d", tmp_path))
    for said, words in (
        ({"share_att_key": False}, "share_att_key"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
    ):
        changed = {**config, **said}
        with pytest.raises(UnsupportedModelError, match=words):
            registry.family(changed)(changed)
