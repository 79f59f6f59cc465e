"""Classifiers with a text encoder and a decoder against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_text_to_text import BART, T5, VOCAB
from zoo import edit_config, make_tokenizer, spread

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError, UnsupportedModelError
from thalweg.models import registry

CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "Bart": (transformers.BartConfig, {**BART, "decoder_start_token_id": 5}),
    "MBart": (transformers.MBartConfig, {**BART, "scale_embedding": True}),
    "PLBart": (transformers.PLBartConfig, BART),
    "Mvp": (transformers.MvpConfig, BART),
    "T5": (transformers.T5Config, T5),
    "MT5": (transformers.MT5Config, {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "UMT5": (transformers.UMT5Config, {**T5, "feed_forward_proj": "gated-gelu"}),
}


def make_model(name: str, path: Path, labels: int = 3) -> Any:
    kind, sizes = CONFIGS[name]
    torch.manual_seed(5)
    make = getattr(transformers, f"{name}ForSequenceClassification")
    model = make(kind(**sizes, num_labels=labels)).eval()
    spread(model, 4)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "relative_attention_bias" in n:
                p.normal_(0, 2)
            elif "encoder_attn.out_proj.weight" in n or "EncDecAttention.o.weight" in n:
                p.mul_(3)  # sources must matter
    model.save_pretrained(path)
    make_tokenizer(path)
    return model


def sources(end: int) -> list[list[int]]:
    """Texts with one end token, with several, and with one that is not last, as mBART's language is."""
    rng = np.random.default_rng(8)
    each = [rng.integers(6, 256, n).tolist() for n in (1, 6, 21, 40, 60)]
    return [
        [*each[0], end],
        [*each[1], end, 77],
        [0, *each[2], end, end, *each[1], end],
        [*each[3], end, 9, 8],
        [*each[4], end],
    ]


@torch.inference_mode()
def logits(model: Any, ids: list[int]) -> np.ndarray:
    result: np.ndarray = model(torch.tensor([ids])).logits[0].numpy()
    return result


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("Bart", "MBart", "T5") else pytest.mark.slow) for name in CONFIGS]
)
def test_numbers_are_those_of_transformers(name, tmp_path):
    """In chunks, in batches of mixed lengths, more than there are slots, and again with cached prefixes."""
    model, asked = make_model(name, tmp_path), sources(CONFIGS[name][1]["eos_token_id"])
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", max_num_seqs=3, block_size=4, max_num_batched_tokens=24,
        enable_chunked_prefill=True, use_tqdm_on_load=False,
    )  # fmt: skip
    wanted = [logits(model, ids) for ids in asked]
    assert np.ptp(wanted, 0).max() > 0.1
    for _ in range(2):
        outputs = llm.encode([{"prompt_token_ids": ids} for ids in asked], pooling_task="classify", use_tqdm=False)
        for ids, out, want in zip(asked, outputs, wanted, strict=True):
            exact = np.exp(want - want.max())
            np.testing.assert_allclose(out.outputs.data, exact / exact.sum(), atol=2e-5)
            assert list(out.prompt_token_ids) == ids
    llm.shutdown()


def test_a_source_changes_what_equal_prefixes_give(tmp_path):
    """The decoder's prompts of two texts are equal up to the last block. Their sources are not."""
    model = make_model("Bart", tmp_path, labels=1)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_num_seqs=2, block_size=4, use_tqdm_on_load=False)
    ids = np.random.default_rng(1).integers(6, 256, 24).tolist()
    for end in ([2], [2, 99], [2, 98]):
        (out,) = llm.classify([{"prompt_token_ids": [*ids, *end]}], use_tqdm=False)
        np.testing.assert_allclose(out.outputs.probs, 1 / (1 + np.exp(-logits(model, [*ids, *end]))), atol=2e-5)
    assert 2 not in llm.get_tokenizer().encode("a b c")
    with pytest.raises(RequestError, match="prompt: token 2, which ends a text, is missing"):
        llm.classify(["a b c"], use_tqdm=False)
    with pytest.raises(RequestError, match="65 tokens, and the model's limit is 64"):
        llm.classify([{"prompt_token_ids": [9] * 65}], use_tqdm=False)
    with pytest.raises(RequestError, match="task: this model cannot token_classify"):
        llm.encode(["a"], pooling_task="token_classify", use_tqdm=False)
    llm.shutdown()


@pytest.mark.slow
def test_a_shorter_context_limits_texts(tmp_path):
    """Both sides read the text, so the smaller of their limits counts."""
    make_model("Bart", tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=32, max_num_seqs=2, use_tqdm_on_load=False)
    llm.classify([{"prompt_token_ids": [9] * 31 + [2]}], use_tqdm=False)
    with pytest.raises(RequestError, match="33 tokens, and the model's limit is 32"):
        llm.classify([{"prompt_token_ids": [9] * 32 + [2]}], use_tqdm=False)
    llm.shutdown()


@pytest.mark.parametrize("name", ["BigBirdPegasusForSequenceClassification", "BartModel", "PegasusModel"])
def test_other_text_to_text_models_are_refused_by_name(name, tmp_path):
    make_model("Bart", tmp_path)
    edit_config(tmp_path, architectures=[name])
    config = read_config(tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"{name}.*text-to-text model"):
        registry.family(config)(config)


def test_vectors_of_a_text_to_text_model_are_refused(tmp_path):
    make_model("Bart", tmp_path)
    edit_config(tmp_path, architectures=["BartForConditionalGeneration"])
    with pytest.raises(UnsupportedModelError, match="vectors of this text-to-text model are not implemented"):
        LLM(str(tmp_path), runner="pooling", device="cpu")


def test_the_vocabulary_bounds_the_ids_that_frame_a_text(tmp_path):
    make_model("Bart", tmp_path)
    for key in ("eos_token_id", "decoder_start_token_id"):
        config = {**read_config(tmp_path), key: VOCAB}
        with pytest.raises(Exception, match=key):
            registry.family(config)(config)
