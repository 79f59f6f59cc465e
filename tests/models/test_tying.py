"""A configuration that ties the output matrix, beside files that show another one: the model is that of transformers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from rig import Rig
from safetensors.torch import load_file, save_file
from zoo import edit_config, load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.models import tying
from thalweg.models.registry import declare, family

PROMPTS = [[5, 6, 7, 200, 11], [9]]
HEADS = {
    "llama-tied": ("model.embed_tokens.weight", "lm_head.weight"),
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "gemma3": ("model.embed_tokens.weight", "lm_head.weight"),
    "bloom": ("transformer.word_embeddings.weight", "lm_head.weight"),
    "opt": ("model.decoder.embed_tokens.weight", "lm_head.weight"),
}


def edit(path, change) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})


def equal(path, **options) -> list[list[int]]:
    """Tokens, the same as transformers takes of the same files."""
    oracle, texts = load_reference(path, torch.float32), []
    for s in Rig(path, platform="cpu", **options).generate(PROMPTS, 5, 9, 9):
        with torch.inference_mode():
            logp = oracle(torch.tensor([s.tokens])).logits[0].float().log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)
        texts.append(s.tokens)
    return texts


def said(caplog) -> list[str]:
    """Without what transformers says of the same files."""
    return [r.getMessage() for r in caplog.records if r.name == tying.__name__]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.sampled(1)
def test_an_output_matrix_that_differs_is_used_and_a_copy_is_not(name, tmp_path, caplog):
    path, (table, head) = make_checkpoint(name, tmp_path, tokenizer=False), HEADS[name]
    tied = equal(path)
    edit(path, lambda t: t.update({head: t[table].clone()}))
    with caplog.at_level(logging.WARNING):
        assert equal(path) == tied
        assert not said(caplog), "nothing is wrong with such files"
        assert tying.KEY not in declare(read_config(path), path)[0]
        edit(path, lambda t: t.update({head: t[table].roll(3, 0)}))
        assert equal(path) != tied
    (line,) = said(caplog)
    assert head in line
    assert table in line
    assert "tie_word_embeddings" in line


def test_one_value_far_into_the_matrix_and_a_wider_dtype_make_it_another(tmp_path, monkeypatch):
    monkeypatch.setattr(tying, "_CHUNK", 1000)
    path, (table, head) = make_checkpoint("llama-tied", tmp_path, dtype=torch.bfloat16, tokenizer=False), HEADS["llama-tied"]
    for change, own in ((0.0, False), (1.0, True)):
        for dtype in (torch.bfloat16, torch.float32):

            def alter(t, change=change, dtype=dtype):
                t[head] = t[table].to(dtype, copy=True)
                t[head][-1, -1] += change

            edit(path, alter)
            assert (declare(read_config(path), path)[0].get(tying.KEY) == tying.OWN) == own


def test_files_that_hold_only_the_output_matrix_of_a_tied_pair_load(tmp_path):
    path, (table, head) = make_checkpoint("llama-tied", tmp_path, tokenizer=False), HEADS["llama-tied"]
    tied = equal(path)
    edit(path, lambda t: t.update({head: t.pop(table)}))
    assert equal(path) == tied


def test_the_module_of_transformers_is_untied_too(tmp_path):
    path, (table, head) = make_checkpoint("llama-tied", tmp_path, tokenizer=False), HEADS["llama-tied"]
    edit(path, lambda t: t.update({head: t[table].roll(3, 0)}))
    assert equal(path, impl="transformers") == equal(path)


def test_a_classifier_of_answers_reads_the_output_matrix_of_the_files(tmp_path):
    path, (table, head) = make_checkpoint("qwen3", tmp_path), ("model.embed_tokens.weight", "lm_head.weight")
    edit_config(path, architectures=["Qwen3ForSequenceClassification"], num_labels=1)
    asked = {"classifier_from_token": ["a", "b"], "method": "from_2_way_softmax"}
    made = declare(read_config(path, asked), path)
    assert made[1].pooling.classes.head == table
    edit(path, lambda t: t.update({head: t[table].roll(3, 0)}))
    config, spec = declare(read_config(path, asked), path)
    assert spec == family(config)(config)
    assert spec.pooling.classes.head == head


def test_an_engine_says_so_once_and_counts_the_bytes_of_both(tmp_path, caplog):
    path, (table, head) = make_checkpoint("llama-tied", tmp_path), HEADS["llama-tied"]
    edit(path, lambda t: t.update({head: t[table].roll(3, 0)}))
    with caplog.at_level(logging.WARNING):
        llm = LLM(str(path), device="cpu", dtype="float32", max_model_len=64, kv_cache_memory_bytes=1_000_000)
    try:
        assert len(said(caplog)) == 1
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        outs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
        assert [[*p, *o.outputs[0].token_ids] for p, o in zip(PROMPTS, outs, strict=True)] == equal(path)
    finally:
        llm.shutdown()
