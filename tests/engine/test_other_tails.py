"""Tails that few families have: weights of words (SPLADE), GPT-2 as a classifier, a Llama that sees both ways as a reranker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from zoo import SMALL, VOCAB, edit_config, make_bert_tokenizer, make_encoder, spread

from thalweg import LLM
from thalweg.errors import RequestError
from thalweg.models.heads import lexical


def texts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, n).tolist() for n in (31, 1, 50, 7)]


@pytest.mark.parametrize("rows", [256, 20])
def test_weights_of_words_are_those_of_the_head_that_guesses_them(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step has more tokens than are computed at once."""
    monkeypatch.setattr(lexical, "ROWS", rows)
    path = make_encoder("bert", tmp_path, transformers.AutoModelForMaskedLM)
    model = transformers.AutoModelForMaskedLM.from_pretrained(path, attn_implementation="eager").eval()
    edit_config(path, architectures=["BertSpladeSparseEmbeddingModel"])
    llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True)
    try:
        each = llm.encode(texts(), pooling_task="token_embed", use_tqdm=False)
        for out, one, ids in zip(llm.embed(texts(), use_tqdm=False), each, texts(), strict=True):
            with torch.inference_mode():
                want = torch.log1p(torch.relu(model(torch.tensor([ids])).logits[0])).numpy()
            np.testing.assert_allclose(one.outputs.data, want, atol=2e-5)
            np.testing.assert_allclose(out.outputs.embedding, want.max(0), atol=2e-5)
            assert 0 < np.count_nonzero(out.outputs.embedding) < VOCAB
    finally:
        llm.shutdown()


def test_gpt2_classifies(tmp_path: Path) -> None:
    path, config = tmp_path / "gpt2", transformers.GPT2Config(**{**SMALL, "num_labels": 3, "pad_token_id": 0})
    model = transformers.GPT2ForSequenceClassification(config).eval()
    spread(model, 4)
    model.save_pretrained(path)
    llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True)
    try:
        for out, ids in zip(llm.classify(texts(), use_tqdm=False), texts(), strict=True):
            with torch.inference_mode():
                want = model(torch.tensor([ids])).logits[0].softmax(-1)
            np.testing.assert_allclose(out.outputs.probs, want.numpy(), atol=1e-5)
    finally:
        llm.shutdown()


def test_a_llama_that_sees_both_ways_reranks(tmp_path: Path) -> None:
    """In the form of pairs that its card gives."""
    path = make_encoder("llama", tmp_path)
    base = transformers.LlamaModel.from_pretrained(path, attn_implementation="eager").eval()
    score = torch.empty(1, base.config.hidden_size).normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file({**tensors, "score.weight": score}, path / "model.safetensors")
    name = "LlamaBidirectionalForSequenceClassification"
    edit_config(path, architectures=[name], pooling="avg", id2label={"0": "LABEL_0"})
    make_bert_tokenizer(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    llm = LLM(str(path), device="cpu", dtype="float32")
    try:
        for query, document in (("which way", "up the river"), ("question:a", "b")):
            ids = tokenizer(f"question:{query} \n \n passage:{document}")["input_ids"]
            with torch.inference_mode():
                seen = base(torch.tensor([ids]), attention_mask=torch.zeros(1, 1, len(ids), len(ids))).last_hidden_state[0]
            (out,) = llm.score(query, document, use_tqdm=False)
            assert out.prompt_token_ids == ids
            assert out.outputs.score == pytest.approx(float(torch.sigmoid(seen.mean(0) @ score[0])), abs=1e-5)
        (cut,) = llm.score(query, document, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": len(ids) - 3})
        assert cut.prompt_token_ids == [*ids[:-4], ids[-1]]
        with pytest.raises(RequestError, match="leaves no room"):
            llm.score("a", "b", tokenization_kwargs={"truncate_prompt_tokens": 2})
    finally:
        llm.shutdown()
