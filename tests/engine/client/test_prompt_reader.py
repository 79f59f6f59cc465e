"""Prompts of every form: the blocking and the asynchronous reader of one prompt agree, and so do their refusals."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import vocabularies as v

from thalweg.engine.client.media import MEDIA, NAME
from thalweg.engine.client.prompt_reader import PromptReader
from thalweg.errors import RequestError
from thalweg.text.encoder import INLINE


class FakeMedia:
    """Reads one image, with two placeholders."""

    def prompt(self, fields: Any) -> dict[str, Any]:
        return {"prompt": fields["prompt"], "prompt_token_ids": [7, 7, 1], MEDIA: [fields[NAME]]}

    async def prompt_async(self, fields: Any) -> dict[str, Any]:
        return self.prompt(fields)


def make_reader() -> PromptReader:
    return PromptReader(SimpleNamespace(tokenizer=v.byte_level(), media=FakeMedia()), 4096)  # type: ignore[arg-type]


CUT = {"truncate_prompt_tokens": 2}


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("a short text", None),
        ("a short text", CUT),
        ([5, 6, 7], CUT),
        ({"prompt_token_ids": [5, 6, 7], "prompt": "known"}, CUT),
        ({"prompt": "x", NAME: {"image": "one"}}, None),
        ({"prompt": "x", NAME: {"image": "one"}}, CUT),
        ({"prompt": "x", NAME: None}, None),
        ("x", {"unknown": 1}),
        (3, CUT),
    ],
)
def test_both_readers_give_the_same(prompt: Any, said: Any) -> None:
    reader = make_reader()

    def outcome(read: Any) -> Any:
        try:
            return read()
        except RequestError as e:
            return str(e), e.param

    assert outcome(lambda: reader.read(prompt, said)) == outcome(lambda: asyncio.run(reader.read_async(prompt, said)))


def test_a_prompt_with_media_is_not_cut() -> None:
    """Ids that were cut would no longer agree with the places of the media."""
    with pytest.raises(RequestError, match="is not cut") as e:
        asyncio.run(make_reader().read_async({"prompt": "x", NAME: {"image": "one"}}, CUT))
    assert e.value.param == "truncate_prompt_tokens"


def test_a_long_text_is_encoded_off_the_event_loop() -> None:
    text, reader = "a" * (INLINE + 1), make_reader()
    assert reader.read(text) == text
    found = asyncio.run(reader.read_async(text))
    assert found == {"prompt": text, "prompt_token_ids": v.byte_level().encode(text)}
