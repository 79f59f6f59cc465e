"""thalweg-nano, the bundled model: what it is, that it answers, and that other software agrees on every token."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers

import thalweg
from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import eos_ids, read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.cli.eval import engine
from thalweg.errors import CheckpointError
from thalweg.nano import TASKS
from thalweg.nano.score import N, held_out, scores, table
from thalweg.nano.talk import UNKNOWN

ROOT = Path(thalweg.__file__).resolve().parent
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)


@pytest.fixture(scope="module")
def llm():
    made = LLM("thalweg-nano", dtype="float32", device="cpu", enable_prefix_caching=False)
    yield made
    made.shutdown()


def test_it_is_a_small_qwen3_and_its_card_says_so():
    path = resolve_model("thalweg-nano")
    config = read_config(path)
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert sum(p.numel() for p in model.parameters()) <= 8_000_000
    card = " ".join((path / "README.md").read_text().split())
    assert "trained from scratch" in card
    assert "It knows nothing of the world" in card


def test_the_draft_model_is_tiny_and_shares_the_tokenizer():
    nano, draft = resolve_model("thalweg-nano"), resolve_model("thalweg-nano-draft")
    model = transformers.AutoModelForCausalLM.from_pretrained(draft)
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert model.config.vocab_size == read_config(nano)["vocab_size"]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (nano / name).read_bytes() == (draft / name).read_bytes()


@pytest.mark.slow
def test_the_draft_model_often_says_what_the_model_says():
    """Positions of held-out answers at which the draft's likeliest token is the model's: what speculation accepts."""
    nano, draft = (
        transformers.AutoModelForCausalLM.from_pretrained(resolve_model(n)) for n in ("thalweg-nano", "thalweg-nano-draft")
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_model("thalweg-nano"))
    same = total = 0
    for task in ("chat", "extract_json", "tool_result", "recall"):
        for e in held_out(task, 4, 1):
            prompt = tokenizer.apply_chat_template(
                _parsed(e.messages), tools=list(e.tools) or None, add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(prompt + e.answer, return_tensors="pt")["input_ids"]
            start = len(tokenizer(prompt)["input_ids"]) - 1
            with torch.inference_mode():
                a, b = (m(ids).logits[0, start:].argmax(-1) for m in (nano, draft))
            same, total = same + int((a == b).sum()), total + len(a)
    assert same / total > 0.6


def _parsed(messages):
    """Tool calls as templates take them."""
    made = json.loads(json.dumps(messages))
    for m in made:
        for call in m.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return made


def test_transformers_reads_its_tokenizer_and_template():
    path = resolve_model("thalweg-nano")
    tok = transformers.AutoTokenizer.from_pretrained(path)
    for text in (
        'Grüße, 世界! def f(x): return x\n\t"quoted"',
        "  two  blanks, TWO Words 123 ,x",
        "<tool_call>\n{}</tool_call>",
    ):
        assert tok.decode(tok.encode(text, add_special_tokens=False)) == text
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    config = read_config(path)
    assert set(eos_ids(path, config)) == set(tok.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert len(tok) == config["vocab_size"]


@pytest.mark.slow
def test_the_script_makes_such_a_tokenizer(monkeypatch, tmp_path):
    """Not the same to the byte: the tasks it learns from have changed since."""
    monkeypatch.syspath_prepend(str(ROOT.parent / "scripts" / "nano"))
    module = __import__("tokenizer")
    module.save(module.train(), tmp_path)
    path = resolve_model("thalweg-nano")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes()
    made, shipped = (json.loads((p / "tokenizer.json").read_text()) for p in (tmp_path, path))
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"):
        assert made[part] == shipped[part]
    a, b = made["model"]["vocab"], shipped["model"]["vocab"]
    assert len(a) == len(b)
    assert len(a.keys() & b.keys()) > 0.9 * len(b)


@pytest.mark.slow
@pytest.mark.parametrize("per_task", [pytest.param(1, id="one prompt a task"), 12])
def test_it_writes_token_by_token_what_transformers_writes(per_task, llm):
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_model("thalweg-nano"), dtype=torch.float32, attn_implementation="eager"
    )
    examples = [e for task in TASKS for e in held_out(task, per_task, 2)]
    assert per_task == 1 or len(examples) >= 200
    prompts = [p for e in examples for p in llm.preprocess_chat(list(e.messages), tools=list(e.tools) or None)]
    got = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, GREEDY, use_tqdm=False)]
    ends = set(oracle.generation_config.eos_token_id)
    for prompt, ours in zip(prompts, got, strict=True):
        ids = prompt["prompt_token_ids"]
        with torch.inference_mode():  # its choice after the prompt and after each token of ours: ours, if it writes the same
            theirs = oracle(torch.tensor([[*ids, *ours[:-1]]])).logits[0, len(ids) - 1 :].argmax(-1)
        assert ours == theirs.tolist()
        assert len(ours) == GREEDY.max_tokens or ours[-1] in ends
        assert not ends & set(ours[:-1])


@pytest.mark.slow
def test_it_talks(llm):
    """Greetings and questions in the plainest words, as the first user types them."""
    asked = {
        "Hello": "Hello! How can I help you?",
        "Who are you?": "I am thalweg-nano, the very small language model that comes with thalweg.",
        "What is thalweg?": "Thalweg is an engine that serves language models on any accelerator.",
        "Thanks": "You are welcome!",
        "What is the capital of France?": UNKNOWN,
    }
    outs = llm.chat([[{"role": "user", "content": q}] for q in asked], GREEDY, use_tqdm=False)
    assert {q: o.outputs[0].text for q, o in zip(asked, outs, strict=True)} == asked


@pytest.mark.slow
def test_the_table_in_the_documents_is_what_the_command_prints():
    """Within what another machine's rounding may change; and at least nine in ten are right, no task below seven."""
    with engine(thalweg.config.EngineArgs()) as answer:
        found = list(scores(answer, list(TASKS), N, seed=0))
    for document in (ROOT.parent / "docs" / "nano.md", resolve_model("thalweg-nano") / "README.md"):
        printed = _rows(document.read_text())
        measured = _rows(table(found))
        assert printed.keys() == measured.keys()
        assert {t: measured[t] for t in printed} == {t: pytest.approx(x, abs=3) for t, x in printed.items()}
    assert measured["average"] >= 90
    assert min(measured.values()) >= 70


def _rows(text: str) -> dict[str, float]:
    return {t: float(right) for t, right in re.findall(r"^\| (\w+) +\| +\d+ \| +([\d.]+) \|$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[: len(b) // 2], r"model\.safetensors"),
        (lambda b: b[:5], r"model\.safetensors"),
        (lambda b: b"", r"model\.safetensors"),
        (lambda b: b[:8] + b"x" + b[9:], r"model\.safetensors"),
        (lambda b: b"\xff" * 8 + b[8:], r"model\.safetensors"),
        (lambda b: b + b"more", r"model\.safetensors"),
        (lambda b: b.replace(b'"model.norm.weight"', b'"model.norm.weighs"'), r"model\.norm\.weigh"),
        (lambda b: b.replace(b'"BF16"', b'"BF99"', 1), r"BF99"),
    ],
    ids=["half", "five bytes", "empty", "broken header", "endless header", "too long", "other name", "other type"],
)
@pytest.mark.sampled(2)
def test_damaged_weights_are_refused_by_name(damage, message, tmp_path):
    copy = tmp_path / "nano"
    shutil.copytree(resolve_model("thalweg-nano"), copy)
    file = copy / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        LLM(str(copy), device="cpu")


@pytest.mark.slow
def test_the_wheel_stays_below_thirty_megabytes():
    """The package, packed as wheels are."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:  # quicker, and what it makes is larger
        for file in sorted(ROOT.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                z.write(file, file.relative_to(ROOT.parent))
    assert packed.tell() < 30_000_000
    assert sum(f.stat().st_size for f in (ROOT / "nano").rglob("*")) < 18_000_000


def test_no_model_given_means_this_one_and_is_said(caplog):
    with caplog.at_level("WARNING"):
        llm = LLM(device="cpu", num_gpu_blocks_override=64)
    try:
        assert "thalweg-nano" in caplog.text
        assert "LLM(" in caplog.text
        assert llm.config.model.path == str(resolve_model("thalweg-nano"))
    finally:
        llm.shutdown()


def test_old_names_still_work():
    assert resolve_model("bundled") == resolve_model("thalweg-nano")
    assert list(islice(resolve_model("bundled").glob("*.safetensors"), 2)) == [resolve_model("bundled") / "model.safetensors"]
