"""Sounds in conversations through the whole engine: what transformers says to the same sound, whatever is cut, cached or
beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hearing
import msgspec
import numpy as np
import pytest

from thalweg import LLM, SamplingParams

NEW = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
FIRST = "qwen2-audio"
"""The family that is tried where any will do."""
EVERY = [FIRST, *(pytest.param(n, marks=pytest.mark.slow) for n in hearing.FAMILIES if n != FIRST)]


def engine(path: Path, **more: Any) -> LLM:
    return LLM(
        str(path), dtype="float32", use_tqdm_on_load=False,
        **{
            "device": "cpu", "max_model_len": 512, "max_num_seqs": 3, "block_size": 16, "max_num_batched_tokens": 24,
            "num_gpu_blocks_override": 96,
        } | more,
    )  # fmt: skip


def asks(*parts: Any) -> list[dict[str, Any]]:
    """A chat of one turn: texts, sounds as samples, and images of PIL."""
    said = []
    for part in parts:
        if isinstance(part, str):
            said.append({"type": "text", "text": part})
        else:
            kind = "audio" if isinstance(part, np.ndarray | tuple) else "image_pil"
            said.append({"type": kind, kind: part})
    return [{"role": "user", "content": said}]


def compare(model: Any, name: str, llm: LLM, chats: list[tuple[Any, ...]]) -> list[Any]:
    """All chats at once, each against transformers."""
    outs = llm.chat([asks(*parts) for parts in chats], GREEDY, use_tqdm=False)
    for parts, out in zip(chats, outs, strict=True):
        sounds = [p for p in parts if isinstance(p, np.ndarray)]
        shown = [p for p in parts if not isinstance(p, np.ndarray | str)]
        want = hearing.greedy(model, name, list(out.prompt_token_ids), sounds, shown, NEW)
        assert list(out.outputs[0].token_ids) == want
    return outs


@pytest.mark.parametrize("name", EVERY)
def test_answers_about_sounds_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Prompts are longer than a step, so that chunks cut sounds. User text that spells placeholders out stays text."""
    model = hearing.make(name, tmp_path)
    a, b, c, d = (hearing.sound(seconds, seed) for seed, seconds in enumerate((1.3, 1.9, 1.017, 1.5)))
    spelt = "".join(hearing.NAMES)
    chats: list[tuple[Any, ...]] = [
        (a, "what?"), ("hear ", a, f" and {spelt} ", b), ("hello",), (c,), (b, "what?"), ("so: ", d),
    ]  # fmt: skip
    if name != FIRST:
        chats[3] = (hearing.sound(2.5, 9),)  # more than layers see together
    llm = engine(tmp_path)
    try:
        outs = compare(model, name, llm, chats)
        encoded = llm.llm_engine.worker.encode
        assert encoded is not None
        assert encoded.runs == 4  # type: ignore[attr-defined]
        ids = list(outs[1].prompt_token_ids)
        scored = llm.chat(asks(*chats[1]), msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(mine, hearing.scores(model, name, ids, [a, b], []), atol=1e-3)
        before = llm.stats().prefix_hits
        again = llm.chat(asks(*chats[1]), GREEDY, use_tqdm=False)[0]
        assert list(again.outputs[0].token_ids) == list(outs[1].outputs[0].token_ids)
        assert llm.stats().prefix_hits > before
    finally:
        llm.shutdown()
