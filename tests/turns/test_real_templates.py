"""Real chat templates: what they write of a turn is read back, however it is cut.

Optional: THALWEG_CHAT_TEMPLATES names a folder of *.jinja files, as `models/templates` of llama.cpp, which the sdist of
llama-cpp-python carries under vendor/llama.cpp.
"""

from __future__ import annotations

import json
import os
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import turn_samples as spec

from thalweg.errors import CheckpointError, RequestError
from thalweg.template.messages import normalise
from thalweg.template.sandbox import ChatTemplate
from thalweg.turns.bind import bind
from thalweg.turns.choose import choose
from thalweg.turns.derive.template import derive
from thalweg.turns.events import Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.reader import Reader, read

FOLDER = os.environ.get("THALWEG_CHAT_TEMPLATES")
FILES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
ENDS = [
    "<|im_end|>", "<EOS>", "<|eot_id|>", "<|end_of_text|>", "<seed:eos>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|role_end|>", "</assistant>", "<turn|>", "<|tool_response>", "<|message_sep|>", "<end_of_turn>", "<|end|>", "<sep>",
    "<end_of_sentence>", "<|eom_id|>", "<SPECIAL_12>", "<｜hy_eos:opensource｜>", "<|end_of_msg|>", "<|eot|>", "<|call|>",
    "<|return|>", "<|calls|>",
]  # fmt: skip
"""Tokens that end a turn: an engine stops there."""
ASK = {"role": "user", "content": "QUESTION"}
CITIES = ["Paris", "a b", "x < y", "é日", '"q"']

pytestmark = pytest.mark.skipif(not FILES, reason="THALWEG_CHAT_TEMPLATES names no folder of templates")


def rendered(template: ChatTemplate, messages: list[Any], prompt: bool) -> str:
    chat = normalise(messages, "openai")
    return template.fill(chat, spec.TOOLS, prompt, False, content_format=None, kwargs={}, now=datetime(2026, 1, 1), most=10**6)


def a_turn(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": rng.choice(["", "Certainly.", "One\n\ntwo."])}
    if rng.random() < 0.5:
        made["reasoning"] = made["reasoning_content"] = "Hmm, so be it."
    calls = []
    for i in range(rng.choice([0, 1, 2])):
        args: dict[str, Any] = {"city": rng.choice(CITIES)}
        if rng.random() < 0.5:
            args["days"] = rng.randrange(9)
        call = {"name": rng.choice(list(spec.SCHEMAS)), "arguments": json.dumps(args)}
        calls.append({"id": f"call{i:05d}", "type": "function", "function": call})
    return {**made, "tool_calls": calls} if calls else made


def ended(text: str) -> str:
    """A turn's text up to the token that ends it."""
    while True:
        shorter = text.rstrip("\n")
        end = next((e for e in ENDS if shorter.endswith(e)), None)
        if end is None:
            return text
        text = shorter.removesuffix(end)


def split_off(whole: str, prompt: str) -> tuple[str, str]:
    """The prompt as far as the turn has it, and the turn. A prompt that differs ends where a token may."""
    same = next((i for i, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), min(len(whole), len(prompt)))
    if same < len(prompt):
        same = max(whole.rfind(c, 0, same) + 1 for c in ">\n]:")
    return whole[:same], ended(whole[same:]).rstrip()


OTHERWISE = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "writes the next turn's beginning",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "writes content as a turn of its own",
    "meetkai-functionary-medium-v3.2": "of no row, and content has a name there",
    "moonshotai-Kimi-K2": "writes lists of parts as Python does",
    "openai-gpt-oss-120b": "writes content before a call as reasoning",
}
"""Templates whose history is not what a model writes."""


def thinks(before: str, text: str, opened: str) -> bool:
    return bool(opened) and (before.rstrip().endswith(opened.rstrip()) or opened.rstrip() in text)


UNDERIVED = {
    "Apertus-8B-Instruct", "CohereForAI-c4ai-command-r-plus-tool_use", "HuggingFaceTB-SmolLM3-3B", "Kimi-K2-Instruct",
    "Kimi-K2-Thinking", "Kimi-K3", "LFM2-8B-A1B", "LFM2.5-Instruct", "MiniMax-M3", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "fireworks-ai-llama-3-firefunction-v2", "google-gemma-2-2b-it", "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct", "muse-glimmer",
}  # fmt: skip
"""Templates whose calls are not derived, beside those of OTHERWISE. Most write none, or do not render."""
UNJUDGED = {"deepseek-ai-DeepSeek-V3.2"}
"""Derived, but its history never shows what a prompt begins."""


def writer(source: str):
    template = ChatTemplate(source, {"bos_token": "<BOS>", "eos_token": "<EOS>"})

    def render(messages, tools, prompt):
        made = normalise(messages, "openai")
        return template.fill(made, tools, prompt, False, content_format=None, kwargs={}, now=datetime(2026, 1, 1), most=10**6)

    return render


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_what_a_template_writes_is_read(file):
    if not judge(file, choose(None, None, file.read_text(encoding="utf-8"))):
        pytest.skip("it writes no calls of messages in this form")


@pytest.mark.parametrize("file", [f for f in FILES if f.stem not in {*OTHERWISE, *UNDERIVED}], ids=lambda f: f.stem)
def test_its_format_is_derived_without_the_table(file):
    source = file.read_text(encoding="utf-8")
    turn = derive(source, writer(source), TurnFormat())
    assert turn is not None
    assert turn.calls is not None
    if file.stem not in UNJUDGED:
        assert judge(file, turn)


def test_so_many_of_the_templates_are_derived():
    """Of the 70 of llama.cpp 0c1e57098. The number may only grow."""
    known = {*OTHERWISE, *UNDERIVED, *UNJUDGED}
    if len(FILES) != 70:
        pytest.skip("another collection of templates")
    assert len([f for f in FILES if f.stem not in known]) >= 47


def judge(file: Path, turn: TurnFormat) -> int:
    """Turns of a real template that were read back. What is not, fails."""
    source, rng = file.read_text(encoding="utf-8"), random.Random(file.name)
    if file.stem in OTHERWISE:
        pytest.skip(OTHERWISE[file.stem])
    try:
        template = ChatTemplate(source, {"bos_token": "<BOS>", "eos_token": "<EOS>"})
        prompt = rendered(template, [ASK], True)
    except (CheckpointError, RequestError) as e:
        pytest.skip(f"it does not render: {e}")
    bound, tried = bind(turn, None), 0
    for _ in range(12):
        turn = a_turn(rng)
        try:
            whole = rendered(template, [ASK, turn], False)
        except RequestError:  # some take one call, or none
            continue
        before, text = split_off(whole, prompt)
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in turn.get("tool_calls", ())]
        if any(n not in text for n, _ in calls) or len(calls) > text.count("city") or turn["content"] not in text:
            continue  # not all of it was written
        reasoning = bound.turn.reasoning
        if not (calls or turn["content"]) or (reasoning and thinks(before, text, reasoning.open) != (reasoning.close in text)):
            continue  # history is written without what a prompt begins
        thought = turn.get("reasoning", "") if "Hmm" in text else ""
        said = read(bound, text, before, spec.SCHEMAS)
        said.content = said.content.lstrip() if before.endswith(":") else said.content
        assert spec.plain(said) == (turn["content"], thought, calls), (before[-40:], text)
        for i in range(len(text)):
            reader, streamed = Reader(bound, before, spec.SCHEMAS), Message()
            for piece in (text[:i], text[i:]):
                streamed.add(reader.push(piece))
            streamed.add(reader.finish())
            assert (streamed.content.lstrip(), *spec.plain(streamed)[1:]) == (said.content.lstrip(), *spec.plain(said)[1:])
        tried += 1
    return tried
