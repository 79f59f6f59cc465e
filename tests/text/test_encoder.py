"""Encoding beside an event loop: the loop turns while a long text is encoded, and short texts wait for nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import vocabularies as v

import thalweg
from thalweg.errors import RequestError
from thalweg.template.chat import LONG as LONG_CHAT
from thalweg.template.chat import Chat, _end
from thalweg.text.encoder import HUGE, INLINE, LONG, MARGIN, AsyncTokenizer
from thalweg.text.tokenizer import load_tokenizer


class Slow:
    """A tokenizer that takes until `go` for any text of more than LONG characters."""

    max_token_chars = 1.0
    special_tokens: dict[str, str] = {}
    special_texts = ("</s>",)

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > LONG:
            assert self.go.wait(60)
        return [len(text)]

    def encode_with_data(self, text: str, data: Sequence[tuple[int, int]], add_special_tokens: bool = True) -> list[int]:
        return self.encode(text)


async def test_short_and_middling_texts_do_not_wait_for_long_ones() -> None:
    slow = Slow()
    encoder = AsyncTokenizer(slow, 10 * LONG)
    long = [asyncio.ensure_future(encoder.encode(["x" * (LONG + 1)])) for _ in range(8)]
    await asyncio.sleep(0)
    for n in (1, INLINE, INLINE + 1, LONG):
        assert await encoder.encode(["x" * n]) == [[n]]
    assert not any(f.done() for f in long)
    slow.go.set()
    assert await asyncio.gather(*long) == [[[LONG + 1]]] * 8


async def test_conversations_do_not_wait_for_a_long_one_to_be_encoded() -> None:
    slow = Slow()
    chat = Chat(slow, "{{ messages[0].content }}")
    ask = lambda n: chat.prompt_async(lambda: ([{"role": "user", "content": "x" * n}], None))  # noqa: E731
    long = [asyncio.ensure_future(ask(LONG + 1)) for _ in range(4)]
    for n in (1, 100, LONG_CHAT - 1):
        assert (await ask(n))["prompt_token_ids"] == [n]
    assert not any(f.done() for f in long)
    slow.go.set()
    assert [p["prompt_token_ids"] for p in await asyncio.gather(*long)] == [[LONG + 1]] * 4
    chat.close()


async def test_many_short_texts_are_one_long_one() -> None:
    """Otherwise a list of prompts would hold up the loop for their sum."""
    threads: list[str] = []

    class Noting(Slow):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            threads.append(threading.current_thread().name)
            return [1]

    encoder = AsyncTokenizer(Noting(), 100)
    assert await encoder.encode(["x" * 100] * 2) == [[1], [1]]
    assert set(threads) == {threading.current_thread().name}
    threads.clear()
    assert await encoder.encode(["x" * 100] * 100) == [[1]] * 100
    assert threading.current_thread().name not in threads


async def test_a_text_that_cannot_fit_is_refused_unread_unless_it_will_be_cut() -> None:
    slow = Slow()
    encoder = AsyncTokenizer(slow, LONG)
    with pytest.raises(RequestError, match="cannot fit the context of 65536 tokens") as e:
        await encoder.encode(["x", "x" * (LONG + 1)], param="input")
    assert e.value.param == "input"
    slow.go.set()
    assert await encoder.encode(["x" * (LONG + 1)], keep=LONG) == [[LONG + 1]]
    chat = Chat(slow, "{{ messages[0].content }}")
    with pytest.raises(RequestError, match="3 characters"):
        await chat.prompt_async(lambda: ([{"role": "user", "content": "xxx"}], None), most_chars=2)
    chat.close()


async def test_text_that_is_no_unicode_is_named() -> None:
    encoder = AsyncTokenizer(v.byte_level(), 10**6)
    for n in (1, INLINE + 1):
        with pytest.raises(RequestError, match="prompt: not valid Unicode") as e:
            await encoder.encode(["\ud800" * n])
        assert e.value.param == "prompt"


@pytest.mark.slow
async def test_other_threads_run_while_the_library_encodes() -> None:
    """The library must leave the interpreter to others: a thread alone would not help."""
    tok = load_tokenizer(Path(thalweg.__file__).parent / "nano/weights")
    text = "the river runs where the bed is deepest; " * 25_000
    turns = 0
    task = asyncio.ensure_future(AsyncTokenizer(tok, 10**9).encode([text]))
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len(task.result()[0]) > 100_000
    assert turns > 20
    assert task.result()[0] == list(tok.backend.encode(text, add_special_tokens=True).ids)


async def test_of_a_text_that_will_be_cut_only_the_end_is_read() -> None:
    tok = load_tokenizer(Path(thalweg.__file__).parent / "nano/weights")
    text = "the river runs where the bed is deepest; " * 5_000
    whole = tok.encode(text)
    read: list[int] = []

    class Noting:
        max_token_chars = tok.max_token_chars

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            read.append(len(text))
            return tok.encode(text, add_special_tokens)

    for keep in (1, 7, 100):
        (ids,) = await AsyncTokenizer(Noting(), 256).encode([text], keep=keep)
        assert ids[-keep:] == whole[-keep:]
        assert read.pop() <= (keep + MARGIN) * tok.max_token_chars
    for short in ("", "a", "the river"):
        assert await AsyncTokenizer(tok, 256).encode([short], keep=5) == [tok.encode(short)]


async def test_long_texts_of_one_tenant_delay_another_by_one_turn() -> None:
    slow, order = Slow(), list[str]()
    encoder = AsyncTokenizer(slow, 10 * LONG)

    async def ask(tenant: str) -> None:
        await encoder.encode(["x" * (LONG + 1)], tenant=tenant)
        order.append(tenant)

    tasks = [asyncio.ensure_future(ask("loud")) for _ in range(8)]
    await asyncio.sleep(0)
    tasks += [asyncio.ensure_future(ask("quiet")) for _ in range(2)]
    await asyncio.sleep(0)
    tasks.pop(3).cancel()
    slow.go.set()
    await asyncio.gather(*tasks)
    assert order[:5] == ["loud", "loud", "quiet", "loud", "quiet"]
    assert order.count("loud") == 7


def test_the_end_of_a_conversation_keeps_its_spans() -> None:
    assert _end("abcdef", [(0, 1), (1, 4), (5, 6)], 3) == ("def", [(0, 1), (2, 3)])
    assert _end("abcdef", [(1, 4)], None) == _end("abcdef", [(1, 4)], 6) == ("abcdef", [(1, 4)])


async def test_memory_of_huge_texts_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    for module in ("text.encoder", "template.chat"):
        monkeypatch.setattr(f"thalweg.{module}.give_back", lambda m=module: given.append(m))
    slow = Slow()
    slow.go.set()
    for n in (LONG, HUGE + 1):
        await AsyncTokenizer(slow, 2 * HUGE).encode(["x" * n])
        chat = Chat(slow, "{{ messages[0].content }}")
        await chat.prompt_async(lambda n=n: ([{"role": "user", "content": "x" * n}], None))
        chat.close()
    assert given == ["text.encoder", "template.chat"]
