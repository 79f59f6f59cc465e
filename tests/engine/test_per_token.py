"""Results of each token: vectors, classes, rewards, and texts compared by them. The oracle is transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from zoo import VOCAB, edit_config, make_bert_tokenizer, make_checkpoint, make_encoder, spread

from thalweg import LLM, PoolingParams
from thalweg.engine.client.pool_shape import PoolShape
from thalweg.engine.client.pooling_outputs import PoolingOutputs, QueryVectors
from thalweg.engine.client.submission import PoolingSubmission
from thalweg.engine.messages import EngineRequest, Outputs, PooledVectors, SequenceFinished, TokenSampling, TokenVectors
from thalweg.errors import CheckpointError, ConfigError, RequestError
from thalweg.outputs import PoolingOutput, PoolingRequestOutput
from thalweg.params import LateInteractionParams

TIGHT = {"max_num_seqs": 2, "max_num_batched_tokens": 24, "block_size": 8}
SLOW = pytest.mark.slow


def texts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths or (31, 1, 50, 7, 48, 2)]


def opened(path: Path, device: str = "cpu", **more: Any) -> LLM:
    return LLM(str(path), device=device, dtype="float32", skip_tokenizer_init=True, **more)


@torch.inference_mode()
def states(path: Path, ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([ids])).last_hidden_state[0]


def units(x: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(x, dim=-1).numpy()


# ------------------------------------------------------------------ vectors


@pytest.mark.parametrize(
    ("name", "device", "more"),
    [
        ("qwen3", "cpu", TIGHT), ("bert", "cpu", {}),
        *(pytest.param(*case, marks=SLOW)
          for case in (("qwen3", "cpu", {"async_scheduling": True}), ("qwen3", "reference", TIGHT),
                       ("qwen3-next", "cpu", TIGHT), ("modernbert", "reference", {}))),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_every_token_has_a_vector(name: str, device: str, more: dict, tmp_path: Path) -> None:
    """In chunks, beside texts of which one vector is wanted, and where a prefix is cached."""
    path = make_encoder(name, tmp_path) if name in ("bert", "modernbert") else make_checkpoint(name, tmp_path)
    llm = opened(path, device, runner="pooling", **more)
    try:
        asked = [PoolingParams(task="token_embed" if i % 3 < 2 else "embed") for i in range(len(texts()))]
        for _ in range(2):
            for o, p, ids in zip(llm.encode(texts(), asked, use_tqdm=False), asked, texts(), strict=True):
                assert o.error is None
                want = units(states(path, ids))
                if p.task == "token_embed":
                    assert o.num_cached_tokens == 0
                    np.testing.assert_allclose(o.outputs.data, want, atol=1e-5)
                else:
                    assert o.outputs.data.shape == (llm.config.model.hidden,)
        llm._core.check()
        assert llm.stats().blocks_used == 0
    finally:
        llm.shutdown()


def test_the_last_token_among_decodes_has_a_vector(tmp_path: Path) -> None:
    """A prompt of one token more than a step computes: the rest is a single token, as if it were decoded."""
    path, (ids,) = make_checkpoint("qwen3", tmp_path), texts(25)
    llm = opened(path, "reference", runner="pooling", **TIGHT)
    try:
        (out,) = llm.encode([ids], pooling_task="token_embed", use_tqdm=False)
        np.testing.assert_allclose(out.outputs.data, units(states(path, ids)), atol=1e-5)
    finally:
        llm.shutdown()


def test_what_is_told_twice_counts_once() -> None:
    """As after a preemption, or from a second engine."""
    ids, values = [5, 6, 7, 8], np.arange(8, dtype=np.float32).reshape(4, 2)
    request = EngineRequest(
        handle=3, tokens=np.array(ids, np.int32), prompt_len=4, sampling=TokenSampling(max_tokens=1, each_token=True), pool=True
    )
    outputs = PoolingOutputs()
    outputs.add(PoolingSubmission("a", None, ids, PoolingParams(), PoolShape("none", each=True), request), 0.0)

    def frame(first: int, last: int, ended: bool = False) -> Outputs:
        pooled = PooledVectors(np.array([3]), values[-1:]) if ended else None
        each = [TokenVectors(3, first, values[first:last]), TokenVectors(9, 0, values)]
        end = [SequenceFinished(3, "stop")] if ended else []
        return Outputs(np.empty(0, np.int64), np.empty(0, np.int32), 0.0, finished=end, pooled=pooled, each=each)

    assert outputs.process(frame(0, 2)) == outputs.process(frame(0, 3)) == []
    (out,) = outputs.process(frame(2, 4, True))
    np.testing.assert_array_equal(out.outputs.data, values)


def test_what_becomes_of_a_tokens_vector_may_be_said(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    edit_config(path, matryoshka_dimensions=[8, 24])
    llm = opened(path, "reference")
    try:
        ids, want = texts()[0], states(path, texts()[0])
        for params, expected in (
            (PoolingParams(use_activation=False), want.numpy()),
            (PoolingParams(dimensions=8), units(want[:, :8])),
            (PoolingParams(returned_token_ids=[4, 1], use_activation=False), want[:, [4, 1]].numpy()),
            (PoolingParams(step_tag_id=ids[3]), units(want)[np.array(ids) == ids[3]]),
        ):
            (out,) = llm.encode([ids], params, pooling_task="token_embed", use_tqdm=False)
            np.testing.assert_allclose(out.outputs.data, expected, atol=1e-5)
        (none,) = llm.encode([[5, 6]], PoolingParams(step_tag_id=7), pooling_task="token_embed", use_tqdm=False)
        assert none.outputs.data.shape == (0, 48)
        with pytest.raises(RequestError, match="a token has 48 numbers") as e:
            llm.encode([ids], PoolingParams(returned_token_ids=[48]), pooling_task="token_embed")
        assert e.value.param == "returned_token_ids"
        with pytest.raises(RequestError, match="step_tag_id: it is for results per token"):
            llm.embed([ids], pooling_params=PoolingParams(step_tag_id=3))
        with pytest.raises(RequestError, match="token_embed, but this method needs embed"):
            llm.embed([ids], pooling_params=PoolingParams(task="token_embed"))
        with pytest.raises(RequestError, match="this model cannot token_classify"):
            llm.reward([ids])
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("said", "words"),
    [({"step_tag_id": -1}, "step_tag_id"), ({"returned_token_ids": []}, "returned_token_ids"), ({"task": "plugin"}, "task")],
)
def test_parameters_are_checked_when_they_are_made(said: dict, words: str) -> None:
    with pytest.raises(RequestError) as e:
        PoolingParams(**said)
    assert e.value.param == words


def test_more_than_one_step_may_tell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.engine.client.pool_shape.STEP_BYTES", 4 * 48 * 100)
    llm = opened(make_encoder("bert", tmp_path), "reference")
    try:
        with pytest.raises(RequestError, match="--max-num-batched-tokens 100 or less"):
            llm.encode([[5, 6]], pooling_task="token_embed")
    finally:
        llm.shutdown()


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "modernbert",
        "qwen3",
        *(pytest.param(n, marks=SLOW) for n in ("ernie", "roberta", "distilbert", "electra", "qwen2")),
    ],
)
def test_classes_of_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    auto = transformers.AutoModelForTokenClassification
    path = make_encoder(name, tmp_path, auto, num_labels=5)
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    llm = opened(path)
    try:
        assert llm.supported_tasks == ("token_classify",)
        off = PoolingParams(use_activation=False)
        for o, raw, ids in zip(
            llm.encode(texts(), use_tqdm=False), llm.encode(texts(), off, use_tqdm=False), texts(), strict=True
        ):
            with torch.inference_mode():
                want = model(torch.tensor([ids])).logits[0]
            np.testing.assert_allclose(raw.outputs.data, want.numpy(), atol=2e-5)
            np.testing.assert_allclose(o.outputs.data, want.softmax(-1).numpy(), atol=1e-5)
        with pytest.raises(RequestError, match="this model cannot classify"):
            llm.classify([[1]])
    finally:
        llm.shutdown()


# ------------------------------------------------------------------ rewards


def make_rewards(path: Path, labels: int) -> torch.nn.Module:
    """Qwen's reward models are classes of their own code: two layers on a Qwen2 model."""
    base = make_checkpoint("qwen2", path.parent / "of", tokenizer=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    hidden = model.config.hidden_size
    score = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, labels))
    spread(score, 7)
    model.config.architectures = ["Qwen2ForRewardModel" if labels == 1 else "Qwen2ForProcessRewardModel"]
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**model.config.to_dict(), "architectures": model.config.architectures}))
    tensors = {n: t.contiguous() for n, t in model.state_dict().items() if not n.startswith("lm_head")}
    safetensors.torch.save_file(
        {**tensors, **{f"score.{n}": t for n, t in score.state_dict().items()}}, path / "model.safetensors"
    )

    class Rewards(torch.nn.Module):
        def forward(self, ids: list[int]) -> np.ndarray:
            with torch.inference_mode():
                return score(model.model(torch.tensor([ids])).last_hidden_state[0]).numpy()

    return Rewards()


def test_rewards_are_those_of_two_layers_more(tmp_path: Path) -> None:
    want = make_rewards(tmp_path / "rm", 1)
    llm = opened(tmp_path / "rm", **TIGHT)
    try:
        for o, ids in zip(
            llm.reward(texts(), pooling_params=PoolingParams(use_activation=False), use_tqdm=False), texts(), strict=True
        ):
            np.testing.assert_allclose(o.outputs.data, want(ids), atol=2e-5)
        (usual,) = llm.reward([texts()[0]], use_tqdm=False)
        np.testing.assert_allclose(usual.outputs.data, 1 / (1 + np.exp(-want(texts()[0]).astype(np.float64))), atol=1e-5)
    finally:
        llm.shutdown()


def test_rewards_of_steps_are_at_their_tags(tmp_path: Path) -> None:
    want = make_rewards(tmp_path / "prm", 2)
    llm = opened(tmp_path / "prm", pooler_config={"pooling_type": "STEP", "step_tag_id": 9, "returned_token_ids": [1, 0]})
    try:
        ids = [5, 6, 9, 7, 9, 9, 8]
        (out,) = llm.reward([ids], use_tqdm=False)
        rows = torch.tensor(want(ids))[[2, 4, 5]][:, [1, 0]]
        np.testing.assert_allclose(out.outputs.data, rows.softmax(-1).numpy(), atol=1e-5)
        (every,) = llm.reward([ids], pooling_params=PoolingParams(step_tag_id=5), use_tqdm=False)
        assert every.outputs.data.shape == (1, 2)
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"pooling_type": "STEP"}, "STEP needs the id"), ({"tok_pooling_type": "MEAN"}, "one of ALL, STEP"),
        ({"returned_token_ids": "a"}, "a list of integers"), ({"step_tag_id": -3}, "an integer from 0"),
    ],
)  # fmt: skip
def test_what_a_pooler_cannot_be_is_refused(said: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(str(make_encoder("bert", tmp_path)), device="reference", pooler_config=said)


# ------------------------------------------------------------------ late interaction


OWN = {"HF_ColBERT": "bert.", "ColBERTJinaRobertaModel": "roberta."}
"""Whose matrix is in the model's own files, and what is before the other names there."""
KINDS = {
    "HF_ColBERT": "bert", "BertModel": "bert", "ColBERTModernBertModel": "modernbert", "ColBERTJinaRobertaModel": "jina-v3",
    "ColBERTLfm2Model": "lfm2",
}  # fmt: skip


def make_colbert(path: Path, how: str) -> torch.Tensor:
    """An encoder with a matrix behind it, as ColBERT's library or PyLate saves it. The matrix."""
    matrix = torch.empty(16, 48 if how != "ColBERTModernBertModel" else 64)
    matrix.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
    weights = path / "model.safetensors"
    if how in OWN:
        tensors = safetensors.torch.load_file(weights)
        safetensors.torch.save_file({**{f"{OWN[how]}{n}": t for n, t in tensors.items()}, "linear.weight": matrix}, weights)
        (path / "artifact.metadata").write_text(json.dumps({"dim": 16, "query_maxlen": 32}))
    else:
        (path / "1_Dense").mkdir()
        safetensors.torch.save_file({"linear.weight": matrix}, path / "1_Dense" / "model.safetensors")
        dense = {"in_features": matrix.shape[1], "out_features": 16, "bias": False, "use_residual": False,
                 "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
        (path / "1_Dense" / "config.json").write_text(json.dumps(dense))
        kinds = (("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense"))
        (path / "modules.json").write_text(json.dumps([{"path": p, "type": t} for p, t in kinds]))
    edit_config(path, architectures=[how])
    return matrix


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.sampled(1)
def test_texts_are_compared_by_the_best_of_each_token(how: str, tmp_path: Path) -> None:
    name = KINDS[how]
    whole = make_encoder(name, tmp_path / "whole")
    path = make_encoder(name, tmp_path)
    matrix = make_colbert(path, how)
    make_bert_tokenizer(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    llm = LLM(str(path), device="cpu", dtype="float32")

    def want(text: str) -> np.ndarray:
        return units(states(whole, tokenizer(text)["input_ids"]) @ matrix.T)

    try:
        assert llm.supported_tasks == ("token_embed", "score")
        query, documents = "which way", ["up the river", "down", "the lowest line of a valley " * 3]
        (out,) = llm.encode(query, use_tqdm=False)
        np.testing.assert_allclose(out.outputs.data, want(query), atol=1e-5)
        for o, d in zip(llm.score(query, documents, use_tqdm=False), documents, strict=True):
            assert o.outputs.score == pytest.approx(float((want(query) @ want(d).T).max(1).sum()), abs=1e-4)
        with pytest.raises(RequestError, match="this model cannot embed"):
            llm.embed(query)
    finally:
        llm.shutdown()


def test_documents_are_scored_by_a_query_that_is_kept(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    make_colbert(path, "HF_ColBERT")
    llm = opened(path)

    def asked(mode: str, uses: int | None = None) -> PoolingParams:
        return PoolingParams(task="token_embed", late_interaction_params=LateInteractionParams(mode, "q", uses))

    try:
        query, *documents = (out.outputs.data for out in llm.encode(texts(), use_tqdm=False))
        (kept,) = llm.encode([texts()[0]], asked("cache_query", 5), use_tqdm=False)
        assert kept.outputs.data.tolist() == [0.0]
        for out, d in zip(llm.encode(texts()[1:], asked("score_doc"), use_tqdm=False), documents, strict=True):
            assert out.outputs.data[0] == pytest.approx(float((query @ d.T).max(1).sum()), abs=1e-4)
        (late,) = llm.encode([texts()[1]], asked("score_doc"), use_tqdm=False)
        assert "no query is kept by it" in late.error
        assert not late.outputs.data.size
        for said in ({"mode": "x", "query_key": "q"}, {"mode": "score_doc", "query_key": ""}):
            with pytest.raises(RequestError):
                LateInteractionParams(**said)
        with pytest.raises(RequestError, match="late_interaction_params must be"):
            PoolingParams(late_interaction_params={"mode": "score_doc"})
    finally:
        llm.shutdown()


def test_queries_are_kept_within_a_budget() -> None:
    queries = QueryVectors(budget=40)
    for key in ("a", "b"):
        late = LateInteractionParams("cache_query", key)
        submission = PoolingSubmission("r", None, [1], PoolingParams(late_interaction_params=late), PoolShape("none"), None)
        queries.settle(submission, PoolingRequestOutput("r", PoolingOutput(np.zeros((8, 1), np.float32)), [1]))
    assert list(queries._kept) == ["b"]


def test_a_colbert_that_says_no_size_is_refused(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    make_colbert(path, "HF_ColBERT")
    (path / "artifact.metadata").unlink()
    with pytest.raises(CheckpointError, match="dim: the length of this model's vectors is missing"):
        opened(path, "reference")
    llm = opened(path, "reference", hf_overrides={"dim": 16})
    assert llm.encode([[5, 6]], use_tqdm=False)[0].outputs.data.shape == (2, 16)
    llm.shutdown()
