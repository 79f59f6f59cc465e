"""Rerankers that are language models: logits of yes and no as a score, pairs in the form they were trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from zoo import edit_config, make_causal, make_checkpoint

from thalweg import LLM
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError

BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
USUAL = "Given a web search query, retrieve relevant passages that answer the query"
ORIGINAL = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["n", "y"],
            "is_original_qwen3_reranker": True}  # fmt: skip


def written(query: str, document: str) -> tuple[str, str]:
    """As the published model's card writes a pair."""
    return f"{BEFORE}<Instruct>: {USUAL}\n<Query>: {query}\n", f"<Document>: {document}{AFTER}"


@torch.inference_mode()
def logits(path: Path, ids: list[int], tokens: list[str]) -> torch.Tensor:
    """Of these tokens after the text, in transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([ids])).logits[0, -1, tokenizer.convert_tokens_to_ids(tokens)]


@pytest.fixture(params=["qwen3", "llama"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, LLM]]:
    """With an output matrix that is the embedding, and with one of its own."""
    more: dict[str, Any] = {"head_dim": 16, "tie_word_embeddings": True} if request.param == "qwen3" else {}
    path = make_causal(request.param, tmp_path, max_position_embeddings=1024, **more)
    name = {"qwen3": "Qwen3", "llama": "Llama"}[request.param]
    over = {**ORIGINAL, "architectures": [f"{name}ForSequenceClassification"]}
    llm = LLM(str(path), device="cpu", dtype="float32", runner="pooling", hf_overrides=over)
    yield path, llm
    llm.shutdown()


def test_a_score_is_what_yes_has_against_no(made: tuple[Path, LLM]) -> None:
    path, llm = made
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    documents = ["up the river", "down"]
    for out, document in zip(llm.score("which way", documents, use_tqdm=False), documents, strict=True):
        ids = tokenizer("".join(written("which way", document)), add_special_tokens=False)["input_ids"]
        assert out.prompt_token_ids == ids
        want = logits(path, ids, ["n", "y"]).softmax(0)[1]
        assert out.outputs.score == pytest.approx(float(want), abs=1e-5)
    (own,) = llm.score(*written("which way", "down"), use_tqdm=False)
    assert own.outputs.score == pytest.approx(out.outputs.score, abs=1e-6)
    assert out.num_cached_tokens > 0  # the query's tokens were computed once


def test_special_tokens_in_a_document_are_text(made: tuple[Path, LLM]) -> None:
    _, llm = made
    (out,) = llm.score("q", "a<|im_end|>b", use_tqdm=False)
    assert out.prompt_token_ids.count(258) == 2
    assert "a<|im_end|>b" in llm.get_tokenizer().decode(out.prompt_token_ids, False)


def test_of_a_long_pair_the_end_of_the_document_is_cut(made: tuple[Path, LLM]) -> None:
    _, llm = made
    tokenizer = llm.get_tokenizer()
    keep = len(tokenizer.encode("".join(written("q", "down"))))
    (out,) = llm.score("q", "down the river", use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": keep})
    assert tokenizer.decode(out.prompt_token_ids, False) == "".join(written("q", "down"))
    with pytest.raises(RequestError, match="leaves no room"):
        llm.score("q", "d", tokenization_kwargs={"truncate_prompt_tokens": 20})


def test_logits_of_tokens_may_be_classes(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    over = {"architectures": ["LlamaForSequenceClassification"], "classifier_from_token": ["a", "b", "c"]}
    llm = LLM(str(path), device="cpu", dtype="float32", hf_overrides=over)
    try:
        (out,) = llm.classify("which way", use_tqdm=False)
        want = logits(path, out.prompt_token_ids, ["a", "b", "c"]).softmax(0)
        assert out.outputs.probs == pytest.approx(want.tolist(), abs=1e-5)
        assert llm.config.model.pooling.labels == ("a", "b", "c")
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"classifier_from_token": ["no", "y"]}, CheckpointError, "'no' is not a token"),
        ({"classifier_from_token": "y"}, CheckpointError, "must be a list"),
        ({"classifier_from_token": ["y"]}, CheckpointError, "of two tokens"),
        ({"method": "best_of_three"}, UnsupportedModelError, "best_of_three"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(said: dict, error: type, words: str, tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    edit_config(path, **{**ORIGINAL, **said})
    with pytest.raises(error, match=words):
        LLM(str(path), device="reference")
