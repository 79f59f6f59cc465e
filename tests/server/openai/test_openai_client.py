"""The official OpenAI client, sync and async, gets what the OpenAI reference promises."""

from __future__ import annotations

import asyncio

import openai
import pytest
from fake_engine import ByteTokenizer, token_at

MESSAGES = [{"role": "user", "content": "hello"}]
RENDERED = "<user>hello\n<assistant>"


def expected(prompt: str, n_tokens: int, index: int = 0, seed: int | None = None) -> str:
    ids = list(prompt.encode())
    return "".join(chr(token_at(ids, index, k, seed)) for k in range(n_tokens))


def test_completion_whole(server):
    r = server.client().completions.create(model="fake", prompt="abc", max_tokens=5)
    assert r.object == "text_completion"
    assert r.id.startswith("cmpl-")
    assert [c.text for c in r.choices] == [expected("abc", 5)]
    assert r.choices[0].finish_reason == "length"
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (3, 5, 8)
    assert r.system_fingerprint.startswith("thalweg-")


def test_completion_default_limit_is_sixteen_tokens(server):
    r = server.client().completions.create(model="fake", prompt="abc")
    assert r.usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab", "cd"], [[97, 98], [99]]])
def test_completion_takes_every_prompt_form(server, prompt):
    items = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    texts = [p if isinstance(p, str) else bytes(p).decode() for p in items]
    r = server.client().completions.create(model="fake", prompt=prompt, max_tokens=4, n=2)
    assert [c.index for c in r.choices] == list(range(2 * len(texts)))
    assert [c.text for c in r.choices] == [expected(t, 4, i) for t in texts for i in range(2)]
    assert r.usage.completion_tokens == 8 * len(texts)


def test_completion_stream_is_the_whole_in_pieces(server):
    client = server.client()
    for prompt in ("abc", ["abc", "zz"]):
        whole = client.completions.create(model="fake", prompt=prompt, max_tokens=6, n=2)
        pieces: dict[int, str] = {}
        reasons: dict[int, str] = {}
        for chunk in client.completions.create(model="fake", prompt=prompt, max_tokens=6, n=2, stream=True):
            for c in chunk.choices:
                pieces[c.index] = pieces.get(c.index, "") + c.text
                if c.finish_reason:
                    reasons[c.index] = c.finish_reason
        assert pieces == {c.index: c.text for c in whole.choices}
        assert reasons == {c.index: "length" for c in whole.choices}


def test_chat_whole(server):
    r = server.client().chat.completions.create(model="fake", messages=MESSAGES, max_tokens=5)
    assert r.object == "chat.completion"
    assert r.id.startswith("chatcmpl-")
    assert r.choices[0].message.role == "assistant"
    assert r.choices[0].message.content == expected(RENDERED, 5)
    assert r.usage.prompt_tokens == len(RENDERED)


def test_chat_fills_the_context_by_default(server):
    r = server.client().chat.completions.create(model="fake", messages=MESSAGES)
    assert r.usage.total_tokens == 256


def test_chat_stream_starts_with_the_role_and_ends_with_reason_and_usage(server):
    stream = server.client().chat.completions.create(
        model="fake", messages=MESSAGES, max_completion_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == expected(RENDERED, 5)
    assert [c.choices[0].finish_reason for c in chunks[:-1]].count("length") == 1
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (len(RENDERED), 5)
    assert all(c.usage is None for c in chunks[:-1])
    assert {c.id for c in chunks} == {chunks[0].id}


def test_continuous_usage_counts_up(server):
    stream = server.client().chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert [c.usage.completion_tokens for c in stream] == [0, 1, 2, 3, 3]


async def test_async_client_and_many_at_once(server):
    async with server.aclient() as client:

        async def one(i: int) -> str:
            stream = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": f"q{i}"}], max_tokens=8, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        texts = await asyncio.gather(*(one(i) for i in range(20)))
    assert texts == [expected(f"<user>q{i}\n<assistant>", 8) for i in range(20)]


def test_text_parts_are_joined(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    r = server.client().chat.completions.create(model="fake", messages=[{"role": "user", "content": parts}], max_tokens=3)
    assert r.choices[0].message.content == expected("<user>a\nb\n<assistant>", 3)


def test_a_reply_can_be_sent_back_as_history(server):
    client = server.client()
    first = client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=3).choices[0].message
    r = client.chat.completions.create(model="fake", messages=[*MESSAGES, first, MESSAGES[0]], max_tokens=3)
    assert r.choices[0].message.content == expected(f"<user>hello\n<assistant>{first.content}\n{RENDERED}", 3)


def test_stop_string_and_token(server):
    client = server.client()
    whole = expected("abc", 16)
    r = client.completions.create(model="fake", prompt="abc", stop=[whole[4:6]])
    assert (r.choices[0].text, r.choices[0].finish_reason, r.choices[0].stop_reason) == (whole[:4], "stop", whole[4:6])
    r = client.completions.create(model="fake", prompt="abc", stop=whole[4:6], extra_body={"include_stop_str_in_output": True})
    assert r.choices[0].text == whole[:6]
    r = client.completions.create(model="fake", prompt="abc", extra_body={"stop_token_ids": [ord(whole[4])]})
    assert (r.choices[0].finish_reason, r.choices[0].stop_reason) == ("stop", ord(whole[4]))


def test_completion_logprobs(server):
    text = expected("abc", 3)
    r = server.client().completions.create(model="fake", prompt="abc", max_tokens=3, logprobs=3)
    lp = r.choices[0].logprobs
    assert lp.tokens == list(text)
    assert lp.token_logprobs == [-1.5] * 3
    assert lp.text_offset == [0, 1, 2]
    assert [len(t) for t in lp.top_logprobs] == [3, 3, 3]


def test_completion_logprobs_stream_equals_whole(server):
    client = server.client()
    body = {"model": "fake", "prompt": "abc", "max_tokens": 4, "logprobs": 2, "echo": True}
    whole = client.completions.create(**body).choices[0]
    tokens, offsets, values, text = [], [], [], ""
    for chunk in client.completions.create(**body, stream=True):
        c = chunk.choices[0]
        text += c.text
        tokens += c.logprobs.tokens
        offsets += c.logprobs.text_offset
        values += c.logprobs.token_logprobs
    assert (text, tokens, offsets, values) == (
        whole.text,
        whole.logprobs.tokens,
        whole.logprobs.text_offset,
        whole.logprobs.token_logprobs,
    )
    assert whole.text == "abc" + expected("abc", 4)
    assert values[0] is None


def test_echo_with_no_tokens_scores_the_prompt(server):
    r = server.client().completions.create(model="fake", prompt="abc", max_tokens=0, echo=True, logprobs=1)
    assert r.choices[0].text == "abc"
    assert r.choices[0].logprobs.tokens == ["a", "b", "c"]
    assert r.choices[0].logprobs.token_logprobs == [None, -1.5, -1.5]
    assert r.usage.completion_tokens == 0


def test_chat_logprobs_are_ranked_and_carry_exact_bytes(server):
    r = server.client().chat.completions.create(model="fake", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    assert "".join(e.token for e in entries) == r.choices[0].message.content
    for e in entries:
        assert [t.logprob for t in e.top_logprobs] == [-0.5, -1.5, -2.5]
        assert e.top_logprobs[0].bytes == [0xC3]
        assert e.top_logprobs[0].token == "�"
        assert e.bytes == list(e.token.encode())


def test_chat_logprobs_without_top(server):
    r = server.client().chat.completions.create(model="fake", messages=MESSAGES, max_tokens=2, logprobs=True)
    assert [e.top_logprobs for e in r.choices[0].logprobs.content] == [[], []]


def test_seed_reaches_the_engine(server):
    texts = {s: server.client().completions.create(model="fake", prompt="a", seed=s).choices[0].text for s in (1, 2)}
    assert texts == {s: expected("a", 16, seed=s) for s in (1, 2)}


def test_models(server):
    client = server.client()
    assert [m.id for m in client.models.list()] == ["fake", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError, match="alias"):
        client.models.retrieve("other")


def test_answers_under_the_name_that_was_asked(server):
    assert server.client().completions.create(model="alias", prompt="a", max_tokens=1).model == "alias"


def test_return_token_ids(server):
    r = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 2, "return_token_ids": True}).json()
    text = expected("abc", 2)
    assert r["choices"][0]["token_ids"] == list(text.encode())
    assert r["choices"][0]["prompt_token_ids"] == [97, 98, 99]
    r = server.post(
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 2, "logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True},
    ).json()
    assert r["prompt_token_ids"] == list(RENDERED.encode())
    assert r["choices"][0]["logprobs"]["content"][0]["token"] == f"token_id:{r['choices'][0]['token_ids'][0]}"


def test_prompt_logprobs(server):
    r = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 1}).json()
    scores = r["prompt_logprobs"]
    assert len(scores) == len(RENDERED)
    assert scores[0] is None
    assert scores[1][str(ord("u"))] == {"logprob": -1.5, "rank": 2, "decoded_token": "u"}


def test_truncate_prompt_tokens_keeps_the_end(server):
    r = server.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 3, "truncate_prompt_tokens": 2, "echo": True}).json()
    assert r["usage"]["prompt_tokens"] == 2
    assert r["choices"][0]["text"] == "ef" + expected("ef", 3)


def test_continue_final_message(server):
    body = {
        "messages": [*MESSAGES, {"role": "assistant", "content": "well"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "max_tokens": 3,
    }
    r = server.post("/v1/chat/completions", body).json()
    made = expected("<user>hello\n<assistant>well", 3)
    assert r["choices"][0]["message"]["content"] == made
    r = server.post("/v1/chat/completions", {**body, "echo": True}).json()
    assert r["choices"][0]["message"]["content"] == "well" + made


def test_tokenize_and_back(server):
    r = server.post("/tokenize", {"prompt": "héllo", "return_token_strs": True}).json()
    assert r["tokens"] == list("héllo".encode())
    assert (r["count"], r["max_model_len"], len(r["token_strs"])) == (6, 256, 6)
    assert server.post("/detokenize", {"tokens": r["tokens"]}).json() == {"prompt": "héllo"}
    r = server.post("/tokenize", {"messages": MESSAGES}).json()
    assert r["tokens"] == ByteTokenizer().encode(RENDERED)


def test_every_sampling_field_reaches_the_engine(start):
    running = start()
    seen = []
    inner = running.engine.generate

    def spy(prompt, params, request_id, **kwargs):
        seen.append((prompt, params))
        return inner(prompt, params, request_id, **kwargs)

    running.engine.generate = spy
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "seed": 5, "stop": ["x"], "stop_token_ids": [9], "ignore_eos": True, "min_tokens": 1,
        "skip_special_tokens": False, "spaces_between_special_tokens": False, "include_stop_str_in_output": True,
        "bad_words": ["bad"], "allowed_token_ids": [1, 2], "prompt_logprobs": 2, "logit_bias": {"5": 1.5}, "n": 2,
    }  # fmt: skip
    assert running.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "cache_salt": "s", **body}).status_code == 200
    prompt, params = seen[0]
    assert prompt["cache_salt"] == "s"
    for name, value in {**body, "logit_bias": {5: 1.5}, "max_tokens": 3}.items():
        assert getattr(params, name) == value, name


def test_model_defaults_fill_in_what_the_client_left_out(start):
    running = start()
    running.engine.default_sampling = {"temperature": 0.25, "top_k": 3, "max_tokens": 4}
    seen = []
    inner = running.engine.generate

    def spy(prompt, params, request_id, **kwargs):
        seen.append(params)
        return inner(prompt, params, request_id, **kwargs)

    running.engine.generate = spy
    r = running.post("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0.75}).json()
    assert (seen[0].temperature, seen[0].top_k, r["usage"]["completion_tokens"]) == (0.75, 3, 4)
