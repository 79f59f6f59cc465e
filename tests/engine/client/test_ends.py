"""What ends an answer: the union of what each of a model's files says, wherever ends are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import thalweg
from thalweg import LLM, BeamSearchParams, EngineArgs, SamplingParams
from thalweg.checkpoint.config import eos_ids, read_config
from thalweg.engine.client.frontend import load_frontend, locate
from thalweg.errors import CheckpointError

NANO = Path(thalweg.__file__).parent / "nano" / "weights"
PAD, START, END = 0, 1, 2
"""<|endoftext|>, <|im_start|> and <|im_end|> of the bundled model."""


def nano(path: Path, **edits: dict) -> Path:
    """The bundled model, with keys of its JSON files replaced."""
    shutil.copytree(NANO, path, dirs_exist_ok=True)
    for stem, change in edits.items():
        file = path / f"{stem}.json"
        file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | change))
    return path


def ends(path: Path, **args: object) -> tuple[int, ...]:
    return load_frontend(locate(EngineArgs(model=str(path), **args))).eos_ids


SILENT = {
    "config": {"eos_token_id": None},
    "generation_config": {"eos_token_id": None},
    "tokenizer_config": {"eos_token": None},
}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config", {"eos_token_id": END}),
        ("config", {"eos_token_id": [END]}),
        ("generation_config", {"eos_token_id": END}),
        ("generation_config", {"eos_token_id": [END]}),
        ("tokenizer_config", {"eos_token": "<|im_end|>"}),
        ("tokenizer_config", {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}}),
        ("special_tokens_map", {"eos_token": "<|im_end|>"}),
        (
            "config",
            {"eos_token_id": None, "text_config": {**json.loads((NANO / "config.json").read_text()), "eos_token_id": 2}},
        ),
    ],
)
@pytest.mark.sampled(2)
def test_each_source_is_read_where_the_others_say_nothing_and_where_they_say_another(tmp_path, file, change):
    path = nano(tmp_path, **{**SILENT, file: change})
    assert ends(path) == (END,)
    others = {"config": {"eos_token_id": PAD}, "generation_config": {"eos_token_id": PAD}}
    for other, said in others.items():
        if other != file:
            nano(tmp_path, **{**SILENT, other: said, file: change})
            assert set(ends(tmp_path)) == {PAD, END}


def test_a_generation_config_that_the_user_names_adds_its_ends(tmp_path):
    path = nano(tmp_path / "model", **SILENT)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2]}')
    assert ends(path, generation_config=str(tmp_path)) == (END,)
    assert ends(path, override_generation_config={"eos_token_id": END}) == (END,)
    with pytest.raises(CheckpointError, match="eos_token_id: 'two' is not a token id"):
        ends(path, override_generation_config={"eos_token_id": "two"})


@pytest.mark.parametrize("nest", [lambda text: {"text_config": text}, lambda text: {"thinker_config": {"text_config": text}}])
def test_of_a_text_part_special_tokens_count_beside_the_wholes(tmp_path, nest):
    """The part's class has 301 for a default, which this vocabulary has for ordinary text."""
    path = nano(tmp_path, **{**SILENT, "config": {"eos_token_id": PAD}})
    text = {**json.loads((NANO / "config.json").read_text()), "eos_token_id": [END, 301]}
    (path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "eos_token_id": PAD, **nest(text)}))
    config = read_config(path)
    tokenizer = load_frontend(locate(EngineArgs(model=str(nano(tmp_path / "plain"))))).tokenizer
    assert eos_ids(path, config, tokenizer) == (PAD, END)
    assert eos_ids(path, config) == (PAD,), "without a tokenizer nobody knows which of them are special"


@pytest.mark.slow
def test_an_answer_ends_where_only_the_tokenizer_names_its_end(tmp_path):
    """Generation, beams, min_tokens and ignore_eos read the same ends."""
    path = nano(tmp_path, config={"eos_token_id": PAD}, generation_config={"eos_token_id": PAD})
    llm = LLM(str(path), device="cpu", kv_cache_memory_bytes=40_000_000, max_model_len=256)
    try:
        ask = [{"role": "user", "content": "Hello"}]

        def answer(**fields):
            params = SamplingParams(**{"temperature": 0, "max_tokens": 24, **fields})
            return llm.chat(ask, params, use_tqdm=False)[0].outputs[0]

        plain = answer()
        assert (plain.finish_reason, plain.token_ids[-1]) == ("stop", END)
        assert answer(ignore_eos=True).token_ids[: len(plain.token_ids)] == plain.token_ids
        assert answer(ignore_eos=True).finish_reason == "length"
        longer = answer(min_tokens=len(plain.token_ids) + 1).token_ids
        assert len(longer) > len(plain.token_ids)
        assert END not in longer[: len(plain.token_ids)], "no end before min_tokens"
        (prompt,) = llm.preprocess_chat(ask)
        beams = llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=24))[0].sequences
        assert beams[0].finish_reason == "stop"
    finally:
        llm.shutdown()
