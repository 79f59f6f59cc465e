"""Prompts whose tokens all attend to each other, because they show an image (PaliGemma): cached, preempted, or too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import seeing
from test_images import GREEDY, asks, engine, picture

from thalweg.errors import RequestError

NAME = "paligemma2"
BUDGET = 128


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("prefix")
    model = seeing.make(NAME, path)
    llm = engine(path, max_num_batched_tokens=BUDGET)
    yield path, model, llm
    llm.shutdown()


def check(model: Any, out: Any, images: list[Any], new: int = 8) -> None:
    assert list(out.outputs[0].token_ids) == seeing.greedy(model, NAME, list(out.prompt_token_ids), images, new)


@pytest.mark.slow
def test_only_an_equal_prompt_shares_cached_blocks(one: Any) -> None:
    """The first tokens depend on the last ones."""
    _, model, llm = one
    a, b = picture(28, 28, 1), picture(28, 28, 2)
    seen = "the same text before " * 2
    first, hits = llm.chat(asks(seen, a, "what?"), GREEDY, use_tqdm=False)[0], llm.stats().prefix_hits
    check(model, first, [a])
    for image, text in ((a, "why ?"), (b, "what?")):
        out = llm.chat(asks(seen, image, text), GREEDY, use_tqdm=False)[0]
        check(model, out, [image])
        assert len(out.prompt_token_ids) == len(first.prompt_token_ids)
        assert llm.stats().prefix_hits == hits
    again = llm.chat(asks(seen, a, "what?"), GREEDY, use_tqdm=False)[0]
    assert llm.stats().prefix_hits > hits
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.slow
def test_a_longer_prompt_than_a_step_or_the_window_is_refused(one: Any) -> None:
    _, _, llm = one
    out = llm.chat(asks(picture(28, 28), "x" * BUDGET), GREEDY, use_tqdm=False)[0]
    assert out.outputs[0].finish_reason == "error"
    with pytest.raises(RequestError, match="at most 400, the model's"):
        llm.chat(asks(picture(28, 28), "x" * 400), GREEDY, use_tqdm=False)


@pytest.mark.slow
def test_a_preempted_request_sees_the_whole_prompt_again(tmp_path: Path) -> None:
    model, images = seeing.make(NAME, tmp_path), [picture(28, 28, seed) for seed in range(3)]
    llm = engine(tmp_path, max_num_batched_tokens=BUDGET, num_gpu_blocks_override=14, max_model_len=160)
    try:
        params = msgspec.structs.replace(GREEDY, max_tokens=40)
        for image, out in zip(images, llm.chat([asks(i, "tell") for i in images], params, use_tqdm=False), strict=True):
            check(model, out, [image], 40)
        assert llm.stats().preemptions > 0
    finally:
        llm.shutdown()
