"""Tokens of the files beside tokenizer.json: the same ids and special tokens as transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import vocabularies as v
from transformers import AutoTokenizer

from thalweg.errors import CheckpointError
from thalweg.text.tokenizer import load_tokenizer

SIZE = v.byte_level().vocab_size
WORD = "def"  # in the vocabulary of v.byte_level, and no added token there
TEXTS = [f"a<|new|>b <|more|> {WORD} </s><tool é><|im_end|>", *v.TEXT[:2]]
NEW = {"content": "<|new|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}


def save(path: Path, **files: object) -> Path:
    """A directory with v.byte_level and these JSON files beside it."""
    tokenizers.Tokenizer.from_str(v.byte_level().backend.to_str()).save(str(path / "tokenizer.json"))
    config = {**v.CONFIG, "tokenizer_class": "PreTrainedTokenizerFast", **files.pop("tokenizer_config", {})}
    for stem, content in {"tokenizer_config": config, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


DECODER = {str(SIZE): NEW, str(SIZE + 1): {**NEW, "content": "<|more|>", "special": False, "normalized": True}}
CASES = {
    "added_tokens_decoder": {"tokenizer_config": {"added_tokens_decoder": DECODER}},
    "a decoder that says special of a token that tokenizer.json has": {
        "tokenizer_config": {"added_tokens_decoder": {str(SIZE - 1): {**NEW, "content": "<tool é>"}}}
    },
    "added_tokens.json": {"added_tokens": {"<|more|>": SIZE + 1, "<|new|>": SIZE}},
    "added_tokens.json, special by the map": {
        "added_tokens": {"<|new|>": SIZE, "<|more|>": SIZE + 1},
        "special_tokens_map": {"extra_special_tokens": ["<|new|>"], "pad_token": {**NEW, "content": "<|more|>"}},
    },
    "a map beside a configuration that names none": {
        "tokenizer_config": {"eos_token": None, "bos_token": None},
        "special_tokens_map": {"eos_token": "<|im_end|>", "bos_token": {**NEW, "content": "<s>"}},
    },
    "a map that names another end": {"special_tokens_map": {"eos_token": "<|im_end|>"}},
    "a map under a configuration with a decoder": {
        "tokenizer_config": {"added_tokens_decoder": DECODER},
        "special_tokens_map": {"eos_token": "<|im_end|>"},
        "added_tokens": {"<|old|>": SIZE},
    },
    "a word of the vocabulary that is named": {"special_tokens_map": {"unk_token": WORD}},
    "a word of the vocabulary in a list": {"tokenizer_config": {"extra_special_tokens": [WORD]}},
    "a name of one model": {"tokenizer_config": {"image_token": WORD}},
}


@pytest.mark.parametrize("name", CASES)
def test_ids_and_special_tokens_equal_transformers(tmp_path: Path, name: str) -> None:
    save(tmp_path, **json.loads(json.dumps(CASES[name])))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert ours.eos_ids == (theirs.eos_token_id,)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.special_ids == {i for i, t in theirs.added_tokens_decoder.items() if t.special}
    assert theirs.special_tokens_map.items() <= ours.special_tokens.items()


def test_the_older_name_of_further_special_tokens_means_the_same(tmp_path: Path) -> None:
    added = {"<|new|>": SIZE, "<|more|>": SIZE + 1}
    found = []
    for key in ("extra_special_tokens", "additional_special_tokens"):
        tok = load_tokenizer(save(tmp_path, added_tokens=added, special_tokens_map={key: ["<|new|>"]}))
        found.append((tok.special_ids, tok.added_tokens))
    assert found[0] == found[1]
    assert SIZE in found[0][0]


def test_a_map_adds_what_a_newer_configuration_leaves_out(tmp_path: Path) -> None:
    """Transformers does not open the map there, and such a tokenizer has no end."""
    config = {"added_tokens_decoder": DECODER, "eos_token": None}
    tok = load_tokenizer(save(tmp_path, tokenizer_config=config, special_tokens_map={"eos_token": "<|im_end|>"}))
    assert tok.eos_ids == (tok.id_of("<|im_end|>"),)


def test_a_special_token_without_an_id_in_any_file_is_not_added(tmp_path: Path) -> None:
    """The model has no row for it."""
    tok = load_tokenizer(save(tmp_path, special_tokens_map={"pad_token": "<|pad|>", "additional_special_tokens": ["<|x|>"]}))
    assert (tok.vocab_size, tok.id_of("<|pad|>"), tok.special_tokens["pad_token"]) == (SIZE, None, "<|pad|>")


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"<|new|>": SIZE + 3}, r"added_tokens\.json gives '<\|new\|>' the id"),
        ({"<|new|>": "7"}, r"added_tokens\.json: '<\|new\|>': '7' is not a token id"),
        ({"<|new|>": -1}, r"added_tokens\.json: '<\|new\|>': -1 is not a token id"),
    ],
)
def test_ids_that_cannot_be_are_refused_by_name(tmp_path: Path, added: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_tokenizer(save(tmp_path, added_tokens=added))


def test_a_token_of_added_tokens_json_without_a_row_in_the_model_is_left_out_by_name(tmp_path: Path, caplog) -> None:
    """Old fine-tunes list a [PAD] that their embedding was never made larger for."""
    path = save(tmp_path, added_tokens={"<|new|>": SIZE, "[PAD]": SIZE + 1})
    tok = load_tokenizer(path, SIZE + 1)
    assert (tok.id_of("<|new|>"), tok.id_of("[PAD]"), tok.vocab_size) == (SIZE, None, SIZE + 1)
    assert "[PAD] left out" in caplog.text
    assert load_tokenizer(path).id_of("[PAD]") == SIZE + 1
