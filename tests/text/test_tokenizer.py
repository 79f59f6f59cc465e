"""Loading tokenizers: same ids as transformers, and a clear word about every bad file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vocabularies as v
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from thalweg.errors import CheckpointError, RequestError
from thalweg.text.tokenizer import Tokenizer, check_vocab, load_tokenizer


def save(path: Path, tok: Tokenizer, **config: object) -> Path:
    tok.backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({**v.CONFIG, **config}))
    return path


@pytest.mark.parametrize("make", [v.byte_level, v.byte_fallback, v.metaspace, v.word_piece])
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
def test_ids_and_facts_equal_transformers(tmp_path: Path, make: object, config: dict[str, bool]) -> None:
    save(tmp_path, make(), tokenizer_class="PreTrainedTokenizerFast", **config)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in [*v.TEXT, "", "</s> is special, <tool é> is not"]:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
    ids = ours.encode(v.TEXT[0] + "</s>")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.encode_batch(v.TEXT) == [ours.encode(t) for t in v.TEXT]
    assert (ours.eos_ids, ours.bos_id, ours.vocab_size) == ((theirs.eos_token_id,), theirs.bos_token_id, len(theirs))


@given(st.lists(st.integers(0, 400), max_size=20))
@settings(max_examples=some(30, 100), deadline=None)
def test_bytes_of_tokens_join_to_the_text(ids: list[int]) -> None:
    tok = v.byte_level()
    joined = b"".join(map(tok.bytes_of, ids)).decode(errors="replace")
    assert joined == tok.decode(ids, skip_special_tokens=False)


def test_names_show_the_space_a_sentencepiece_token_carries() -> None:
    tok = v.byte_fallback()
    assert tok.name_of(tok.id_of("▁the")) == " the"
    assert tok.bytes_of(tok.id_of("<0xE2>")) == b"\xe2"
    assert tok.name_of(tok.id_of("<0xE2>")) == "\ufffd"
    assert (tok.token_of(10**9), tok.name_of(10**9)) == ("", "")


def test_tokens_only_the_config_lists_are_added(tmp_path: Path) -> None:
    size = v.byte_level().vocab_size
    extra = {str(size): {"content": "<|new|>", "special": True}}
    tok = load_tokenizer(save(tmp_path, v.byte_level(), added_tokens_decoder=extra))
    assert tok.encode("a<|new|>")[-1] == size
    assert size in tok.special_ids
    extra = {str(size + 7): {"content": "<|new|>", "special": True}}
    with pytest.raises(CheckpointError, match=r"added_tokens_decoder gives '<\|new\|>' the id"):
        load_tokenizer(save(tmp_path, v.byte_level(), added_tokens_decoder=extra))


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path: Path) -> None:
    tok = v.byte_level()
    data = json.loads(tok.backend.to_str())
    data["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert load_tokenizer(tmp_path).encode(v.TEXT[0]) == tok.encode(v.TEXT[0])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "cannot be read as JSON"),
        ("tokenizer.json", "[]", "must hold a JSON object"),
        ("tokenizer.json", "{}", "no model.vocab"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": "x"}, "merges": []}}', "not a usable tokenizer"),
        ("tokenizer_config.json", "nonsense", "cannot be read as JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template must be text"),
        ("chat_template.jinja", b"\xff\xfe", "cannot be read as UTF-8"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    save(tmp_path, v.byte_level())
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=words) as e:
        load_tokenizer(tmp_path)
    assert name in str(e.value)


def test_text_that_is_no_unicode_is_a_request_error() -> None:
    for encode in (v.byte_level().encode, lambda t: v.byte_level().encode_batch(["a", t])):
        with pytest.raises(RequestError, match="not valid Unicode"):
            encode("a\ud800")


def test_missing_directory_and_missing_file_say_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        load_tokenizer(tmp_path)


def test_without_tokenizer_json_transformers_converts(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "river", "bed"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tok = load_tokenizer(tmp_path)
    assert [tok.token_of(i) for i in tok.encode("river bed", add_special_tokens=False)] == ["river", "bed"]


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    tok = v.byte_level()
    check_vocab(tok, tok.vocab_size)
    with pytest.raises(CheckpointError, match=f"token id {tok.vocab_size - 1} .*vocab_size {tok.vocab_size - 1}"):
        check_vocab(tok, tok.vocab_size - 1)


def test_the_newest_template_file_wins_and_named_ones_are_kept(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    save(tmp_path, v.byte_level(), chat_template=listed)
    tok = load_tokenizer(tmp_path)
    assert (tok.chat_template, tok.chat_templates["tool_use"]) == ("old", "tools")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "newer"}))
    assert load_tokenizer(tmp_path).chat_template == "newer"
    (tmp_path / "chat_template.jinja").write_text("newest")
    assert load_tokenizer(tmp_path).chat_template == "newest"


@given(st.text(max_size=40))
@settings(max_examples=some(30, 100), deadline=None)
def test_max_token_chars_bounds_what_a_token_covers(text: str) -> None:
    tok = v.byte_level()
    assert len(text) <= tok.max_token_chars * len(tok.encode(text))
