"""The script that trains thalweg-nano: losses fall, a stopped run goes on, what it writes is a checkpoint others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from thalweg.checkpoint.hub import resolve_model
from thalweg.nano import TASKS, generate
from thalweg.template.chat import Chat
from thalweg.text.tokenizer import load_tokenizer

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "nano"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = ("--size", "draft", "--processes", "1", "--tokens", "512", "--check", "2", "--every", "1000")


@pytest.fixture(scope="module")
def module():
    """The scripts' modules, by name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield lambda name: __import__(name)
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A work directory with the tokenizer in it."""
    made = tmp_path_factory.mktemp("work")
    (made / "tokenizer.json").write_bytes((resolve_model("thalweg-nano") / "tokenizer.json").read_bytes())
    return made


def train(work: Path, *words: str) -> str:
    command = [sys.executable, str(SCRIPTS / "train.py"), "--work", str(work), *SMALL, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=True).stdout


@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_a_second_run_goes_on(work, tmp_path):
    train(work, "--steps", "16")
    losses = torch.load(work / "draft.pt", weights_only=True)["losses"]
    assert len(losses) == 16
    assert sum(losses[-3:]) / 3 < losses[0] - 0.5
    assert "goes on from step 16" in train(work, "--steps", "18", "--out", str(tmp_path))
    assert torch.load(work / "draft.pt", weights_only=True)["losses"][:16] == losses
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000


def test_the_model_trained_is_the_model_transformers_runs(module, tmp_path):
    shape = module("model").Shape(vocab=300, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, inner=96)
    torch.manual_seed(0)
    model = module("model").Nano(shape)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((torch.randn_like(p) * 0.2 + (p.ndim == 1)).bfloat16())
    module("export").export(model, tmp_path)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, 300, (2, 40))
    with torch.inference_mode():
        torch.testing.assert_close(
            model.logits(model(ids.flatten(), [(2, 40)])), oracle(ids).logits.flatten(0, 1), rtol=1e-4, atol=1e-4
        )


@pytest.fixture(scope="module")
def readers():
    """(chat of the engine, tokenizer of transformers, backend of both)."""
    path = resolve_model("thalweg-nano")
    ours = load_tokenizer(path)
    chat = Chat(ours, ours.chat_template)
    yield chat, transformers.AutoTokenizer.from_pretrained(path), Tokenizer.from_file(str(path / "tokenizer.json"))
    chat.close()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.sampled(4)
def test_training_sees_the_prompts_that_serving_makes(task, module, readers):
    """Template and tokenizer as the engine and transformers use them."""
    chat, theirs, backend = readers
    for e in islice(generate(task, "validation", 3), 4):
        text = module("dialogues").render(list(e.messages), e.tools, prompt=True)
        ids = backend.encode(text).ids
        assert chat.prompt(list(e.messages), list(e.tools) or None) == {"prompt": text, "prompt_token_ids": ids}
        parsed = json.loads(json.dumps(e.messages))
        for m in parsed:
            for call in m.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        rendered = theirs.apply_chat_template(parsed, tools=list(e.tools) or None, add_generation_prompt=True, tokenize=False)
        assert rendered == text
        assert theirs(rendered, add_special_tokens=False)["input_ids"] == ids


def test_only_what_the_assistant_writes_is_learned(module):
    tokenizer = Tokenizer.from_file(str(resolve_model("thalweg-nano") / "tokenizer.json"))
    messages = [
        {"role": "system", "content": "assistant\nBe kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "assistant\nthree"},
        {"role": "assistant", "content": "four five"},
    ]
    ids, own = module("dialogues").encode(tokenizer, module("dialogues").render(messages))
    learned = tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if mine], skip_special_tokens=False)
    assert learned == "two<|im_end|>four five<|im_end|>"


def test_batches_hold_every_dialogue_once_with_little_padding(module):
    rows = [([7] * n, [False] * (n // 2) + [True] * (n - n // 2)) for n in (5, 90, 33, 34, 35, 400, 7, 90, 91)]
    made = module("batches").batches(rows, 200)
    assert sum(n for b in made for n, _ in b.groups) == len(rows)
    assert sum(int((b.ids == 7).sum()) for b in made) == sum(len(ids) for ids, _ in rows)
    assert sum(int(b.own.sum()) for b in made) == sum(sum(own[1:]) for _, own in rows)
    assert all((b.targets == 7).all() for b in made)
    assert sum(float((b.weight**2).sum()) for b in made) == pytest.approx(len(rows)), "an answer of n tokens counts sqrt(n)"
    assert sum(len(b.ids) for b in made) < 1.15 * sum(len(ids) for ids, _ in rows)
