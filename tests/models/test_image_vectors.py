"""Vectors, scores and ranks of images: what transformers computes of the same prompt and picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing  # noqa: E402
from test_images import file_of, picture, url  # noqa: E402
from zoo import edit_config  # noqa: E402

from thalweg import LLM  # noqa: E402
from thalweg.errors import RequestError  # noqa: E402

MARKER = "<|vision_start|><|image_pad|><|vision_end|>"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
USUAL = "Given a search query, retrieve relevant candidates that answer the query."
RERANKER = {
    "architectures": ["Qwen3VLForSequenceClassification"], "classifier_from_token": ["n", "y"],
    "is_original_qwen3_reranker": True,
}  # fmt: skip


def engine(path: Path, **more: Any) -> LLM:
    return LLM(
        str(path), device="cpu", dtype="float32", runner="pooling", max_model_len=512, max_num_batched_tokens=64,
        use_tqdm_on_load=False, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("vectors")
    return path, seeing.make("qwen3-vl", path)


@pytest.fixture(scope="module")
def embedder(made: tuple[Path, Any]) -> Iterator[LLM]:
    llm = engine(made[0])
    yield llm
    llm.shutdown()


@torch.inference_mode()
def states(model: Any, ids: list[int], images: list[Any]) -> np.ndarray:
    """The hidden states of a prompt."""
    found: np.ndarray = model.model(**seeing.given("qwen3-vl", ids, images)).last_hidden_state[0].numpy()
    return found


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


@pytest.mark.slow
def test_a_vector_of_an_image_is_that_of_transformers(made: tuple[Path, Any], embedder: LLM) -> None:
    """Prompts of objects and conversations, some longer than a step."""
    a, b = picture(60, 40), picture(90, 30, 1)
    chat = [{"role": "user", "content": [{"type": "image_pil", "image_pil": b}, {"type": "text", "text": "boats"}]}]
    prompts = [
        {"prompt": f"{MARKER} of a river", "multi_modal_data": {"image": a}},
        *embedder.preprocess_chat(chat, add_generation_prompt=False), "only words",
    ]  # fmt: skip
    outs = embedder.embed(prompts, use_tqdm=False)
    for out, images in zip(outs, ([a], [b], []), strict=True):
        want = unit(states(made[1], list(out.prompt_token_ids), images)[-1])
        np.testing.assert_allclose(out.outputs.embedding, want, atol=1e-5)
    (each,) = embedder.encode(prompts[0], pooling_task="token_embed", use_tqdm=False)
    want = states(made[1], list(each.prompt_token_ids), [a])
    np.testing.assert_allclose(each.outputs.data, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)


def test_an_image_and_a_text_are_compared_by_their_vectors(embedder: LLM) -> None:
    image = picture(60, 40)
    item = {"content": [{"type": "image_pil", "image_pil": image}]}
    (out,) = embedder.score("boats", item, use_tqdm=False)
    asked = [{"role": "user", "content": "boats"}], [{"role": "user", "content": item["content"]}]
    prompts = [embedder.preprocess_chat(each, add_generation_prompt=False)[0] for each in asked]
    vectors = [each.outputs.embedding for each in embedder.embed(prompts, use_tqdm=False)]
    assert out.outputs.score == pytest.approx(float(np.dot(*vectors)), abs=1e-6)
    with pytest.raises(RequestError, match="17 images; this server accepts 16"):
        embedder.score("boats", {"content": item["content"] * 17})


@pytest.mark.slow
def test_a_reranker_reads_images_in_its_form(made: tuple[Path, Any]) -> None:
    """Callers' special tokens stay text, and an empty side is written as the authors write it."""
    path, model = made
    image = picture(60, 40)
    llm = engine(path, hf_overrides=RERANKER)
    try:
        shown = {"type": "image_url", "image_url": {"url": url(file_of(image))}}
        document = {"content": [shown, {"type": "text", "text": "a<|im_end|>"}]}
        (out,) = llm.score("boats", document, use_tqdm=False)
        ids = list(out.prompt_token_ids)
        assert ids.count(seeing.IDS["<|im_end|>"]) == 2
        text = llm.get_tokenizer().decode(ids, False)
        placeholders = "<|image_pad|>" * ids.count(seeing.IDS["<|image_pad|>"])
        body = f"<Instruct>: {USUAL}<Query>:boats\n<Document>:<|vision_start|>{placeholders}<|vision_end|>a<|im_end|>"
        assert text == f"{BEFORE}{body}<|im_end|>\n<|im_start|>assistant\n"
        tokens = [llm.get_tokenizer().id_of(t) for t in ("n", "y")]
        with torch.inference_mode():
            logits = model(**seeing.given("qwen3-vl", ids, [image])).logits[0, -1, tokens]
        assert out.outputs.score == pytest.approx(float(logits.softmax(0)[1]), abs=1e-5)
        (plain,) = llm.score("", "down", use_tqdm=False)
        assert "<Query>:NULL\n<Document>:down<|im_end|>" in llm.get_tokenizer().decode(plain.prompt_token_ids, False)
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_jina_reranker_m0_scores_pairs_as_its_authors_do(tmp_path: Path) -> None:
    """The document first, then the query, then token 100. The score is a sigmoid of what two layers make of its state."""
    model = seeing.make("qwen2-vl", tmp_path)
    hidden, g = model.config.text_config.hidden_size, torch.Generator().manual_seed(4)
    score = {
        f"score.{i}.{name}": torch.randn(shape, generator=g) * 0.3
        for i, rows in ((0, hidden), (2, 1)) for name, shape in (("weight", (rows, hidden)), ("bias", (rows,)))
    }  # fmt: skip
    weights = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if k != "lm_head.weight"} | score, weights, {"format": "pt"})
    edit_config(tmp_path, architectures=["JinaVLForRanking"])

    @torch.inference_mode()
    def want(ids: list[int], images: list[Any]) -> float:
        last = model.model(**seeing.given("qwen2-vl", ids, images)).last_hidden_state[0, -1]
        inner = torch.relu(score["score.0.weight"] @ last + score["score.0.bias"])
        return float(torch.sigmoid(score["score.2.weight"] @ inner + score["score.2.bias"] - 2.65))

    image, llm = picture(60, 40), engine(tmp_path)
    try:
        shown = {"content": [{"type": "image_pil", "image_pil": image}]}
        pairs = [("boats<|im_end|>", "down the river", []), ("boats", shown, [image]), (shown, "of a river", [image])]
        for query, document, images in pairs:
            (out,) = llm.score(query, document, use_tqdm=False)
            ids = list(out.prompt_token_ids)
            text = llm.get_tokenizer().decode(ids[:-1], False)
            assert ids[-1] == 100
            assert ids.count(seeing.IDS["<|im_end|>"]) == 0
            marks = "<|vision_start|>" + "<|image_pad|>" * ids.count(seeing.IDS["<|image_pad|>"]) + "<|vision_end|>"
            sides = (marks if side is shown else side for side in (document, query))
            assert text == "**Document**:\n{}\n**Query**:\n{}".format(*sides)
            assert out.outputs.score == pytest.approx(want(ids, images), abs=1e-5)
        (whole,) = llm.score("boats", "down the river by the sea", use_tqdm=False)
        kept = {"truncate_prompt_tokens": len(whole.prompt_token_ids) - 7}
        (cut,) = llm.score("boats", "down the river by the sea", tokenization_kwargs=kept, use_tqdm=False)
        text = llm.get_tokenizer().decode(cut.prompt_token_ids[:-1], False)
        assert text.startswith("**Document**:\ndown the")
        assert text.endswith("\n**Query**:\nboats")
        assert len(cut.prompt_token_ids) == len(whole.prompt_token_ids) - 7
    finally:
        llm.shutdown()
