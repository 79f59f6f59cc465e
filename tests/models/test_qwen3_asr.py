"""Qwen3-ASR as its authors publish it, under vLLM's names, and its forced aligner, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hearing
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_hearing import compare, engine

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.models.registry import family

NAME, LABELS = "qwen3-asr", 11
RENAMED = (
    ("model.language_model.", "thinker.model."), ("model.audio_tower.", "thinker.audio_tower."),
    ("lm_head.", "thinker.lm_head."), ("score.", "thinker.lm_head."),
    ("model.multi_modal_projector.linear_", "thinker.audio_tower.proj"),
)  # fmt: skip
MROPE = {
    "mrope_interleaved": True, "interleaved": True, "mrope_section": [2, 2, 2], "rope_type": "default", "type": "default",
}  # fmt: skip


def publish(path: Path, architecture: str, **thinker: Any) -> None:
    """The checkpoint in the layout of the authors."""
    (file,) = path.glob("*.safetensors")
    tensors = {}
    for name, tensor in load_file(file).items():
        old, new = next(pair for pair in RENAMED if name.startswith(pair[0]))
        tensors[new + name.removeprefix(old)] = tensor
    save_file(tensors, file)
    said = json.loads((path / "config.json").read_text())
    text = said["text_config"]
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": MROPE, "tie_word_embeddings": False}
    whole = {
        "architectures": [architecture], "model_type": "qwen3_asr", "thinker_config": {
            "model_type": "qwen3_asr_thinker", "audio_config": said["audio_config"], "text_config": text,
            "audio_token_id": said["audio_token_id"], **thinker,
        },
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("architecture", ["Qwen3ASRForConditionalGeneration", "Qwen3ASRRealtimeGeneration"])
@pytest.mark.slow
def test_the_layout_of_its_authors(architecture: str, tmp_path: Path) -> None:
    model = hearing.make(NAME, tmp_path)
    publish(tmp_path, architecture)
    llm = engine(tmp_path)
    try:
        a, b = hearing.sound(1.3, 1), hearing.sound(2.5, 2)
        compare(model, NAME, llm, [(a, "what?"), ("hear ", a, " and ", b), ("hello",)])
        assert llm.llm_engine.config.model.transcribes
    finally:
        llm.shutdown()


def test_its_embedding_is_the_output_matrix_where_the_text_part_says_so(tmp_path: Path) -> None:
    hearing.make(NAME, tmp_path)
    publish(tmp_path, "Qwen3ASRForConditionalGeneration")
    file = tmp_path / "config.json"
    said = json.loads(file.read_text())
    for tied in (True, False):
        said["thinker_config"]["text_config"]["tie_word_embeddings"] = tied
        file.write_text(json.dumps(said))
        config = read_config(tmp_path)
        assert family(config)(config).tied is tied


def make_aligner(path: Path) -> Any:
    config = hearing.FAMILIES[NAME].config()
    config.id2label = {i: f"LABEL_{i}" for i in range(LABELS)}
    cls = transformers.Qwen3ASRForTokenClassification
    model = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    hearing.spread_ears(model)
    model.save_pretrained(path)
    hearing.settings(NAME, path)
    hearing.write_tokenizer(path)
    return model


@pytest.mark.parametrize("original", [False, True])
def test_the_forced_aligner(original: bool, tmp_path: Path) -> None:
    """Classes of every token, with those of timestamps among them. Prompts are longer than a step."""
    model = make_aligner(tmp_path)
    if original:
        publish(tmp_path, "Qwen3ASRForcedAlignerForTokenClassification", classify_num=LABELS)
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", max_model_len=512, max_num_seqs=3, max_num_batched_tokens=24,
        block_size=16, use_tqdm_on_load=False,
    )  # fmt: skip
    try:
        sounds = [hearing.sound(1.3, 1), hearing.sound(2.5, 2)]
        texts = [f"<|audio_bos|><|AUDIO|><|audio_eos|>{words}" for words in ("one two", "three")]
        prompts = [{"prompt": t, "multi_modal_data": {"audio": s}} for t, s in zip(texts, sounds, strict=True)]
        outputs = llm.encode(prompts, pooling_task="token_classify", use_tqdm=False)
        for output, sound in zip(outputs, sounds, strict=True):
            given = hearing.given(NAME, list(output.prompt_token_ids), [sound], [])
            with torch.no_grad():
                want = model(**given).logits[0].softmax(-1).numpy()
            got = np.asarray(output.outputs.data)
            assert got.shape == want.shape == (len(output.prompt_token_ids), LABELS)
            np.testing.assert_allclose(got, want, atol=1e-4)
            assert len(set(want.argmax(-1).tolist())) > 2
    finally:
        llm.shutdown()
