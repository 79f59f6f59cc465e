"""Dynamo's token requests, read and answered with the bundled model. `docs/fleets.md` says what was run behind Dynamo itself.

Dynamo is no dependency of the tests: its runtime is a package of several hundred megabytes. So the worker's class is not
covered here, and only the format of requests and chunks is.
"""

from __future__ import annotations

import pytest

from thalweg import AsyncLLM, CompletionOutput, EngineArgs, Logprob, RequestOutput, RequestOutputKind
from thalweg.errors import RequestError
from thalweg.integrations.dynamo.requests import DECODE, PREFILL, ChunkStream, read_params, read_priority, read_tokens

REQUEST = {
    "token_ids": [5, 6, 7],
    "model": "nano",
    "sampling_options": {"n": 1, "best_of": 1, "temperature": 0.5, "top_k": None, "seed": 3, "logit_bias": {"7": -2.0}},
    "stop_conditions": {
        "max_tokens": 9, "stop": ["a"], "stop_token_ids": [4], "stop_token_ids_hidden": [2, 4], "max_thinking_tokens": 8,
    },
    "output_options": {"logprobs": 2, "skip_special_tokens": True},
}  # fmt: skip


def test_every_option_of_a_request_reaches_the_engine() -> None:
    params = read_params(REQUEST, {"top_p": 0.9, "temperature": 1.0})
    assert (params.temperature, params.top_p, params.seed, params.logit_bias) == (0.5, 0.9, 3, {7: -2.0})
    assert (params.max_tokens, params.stop_token_ids, params.thinking_token_budget, params.logprobs) == (9, [2, 4], 8, 2)
    assert params.output_kind is RequestOutputKind.DELTA
    guided = read_params({"sampling_options": {"guided_decoding": {"regex": "a+", "backend": None}}}, {})
    assert guided.structured_outputs is not None
    assert guided.structured_outputs.regex == "a+"
    assert guided.max_tokens is None, "a request without a limit has the context's"
    assert params.cache_retention is None
    hinted = {**REQUEST, "agent_context": {"session_id": "s"}, "routing": {"priority": 4}}
    assert read_params(hinted, {}).cache_retention == 300, "a session's blocks are kept"
    assert (read_priority(hinted), read_priority(REQUEST)) == (-4, 0), "Dynamo's higher numbers are sooner"


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ({"sampling_options": {"best_of": 4}}, "best_of"),
        ({"sampling_options": {"use_beam_search": True}}, "use_beam_search"),
        ({"multi_modal_data": {"image_url": ["x"]}}, "multi_modal_data"),
        ({"prefill_result": {"disaggregated_params": {}}}, "prefill_result"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(request_: dict, name: str) -> None:
    with pytest.raises(RequestError, match=name):
        read_params(request_, {})


def test_tokens_are_read_in_every_form_of_the_request_plane() -> None:
    packed = b"".join(token.to_bytes(4, "little") for token in (5, 300, 70_000))
    for form in (packed, bytearray(packed), memoryview(packed), [5, 300, 70_000]):
        assert read_tokens({"token_ids": form}) == [5, 300, 70_000]
    with pytest.raises(RequestError, match="token_ids: 13 packed bytes"):
        read_tokens({"token_ids": packed + b"-"})


def test_candidates_are_shown_only_to_those_who_request_some() -> None:
    row = {7: Logprob(-0.5, 2), 9: Logprob(-0.1, 1)}
    choice = CompletionOutput(index=0, text="", token_ids=[7], cumulative_logprob=None, logprobs=[row], finish_reason=None)
    output = RequestOutput(
        request_id="a", prompt=None, prompt_token_ids=[5], prompt_logprobs=None, outputs=[choice], finished=False,
    )  # fmt: skip
    (chunk,) = ChunkStream().add(output)
    assert chunk == {"token_ids": [7], "index": 0, "log_probs": [-0.5]}
    (chunk,) = ChunkStream(1).add(output)
    assert [one["rank"] for one in chunk["top_logprobs"][0]] == [2, 1]


def test_a_prefill_worker_hands_over_and_a_decode_worker_continues() -> None:
    prefill = read_params({**REQUEST, "stop_conditions": {"max_tokens": 9, "min_tokens": 4}}, {}, PREFILL)
    assert (prefill.max_tokens, prefill.min_tokens, prefill.hands_over) == (1, 0, True)
    assert prefill.output_kind is RequestOutputKind.FINAL_ONLY, "Dynamo reads disaggregated_params in the first chunk only"
    handover = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e"}
    choice = CompletionOutput(index=0, text="", token_ids=[7], cumulative_logprob=None, logprobs=None, finish_reason="length")
    output = RequestOutput(
        request_id="a", prompt=None, prompt_token_ids=[5, 6], prompt_logprobs=None, outputs=[choice], finished=True,
        kv_transfer_params=handover,
    )  # fmt: skip
    (chunk,) = ChunkStream().add(output)
    decode = read_params({**REQUEST, "prefill_result": chunk}, {}, DECODE)
    assert decode.kv_transfer_params == handover
    assert (decode.takes_over, decode.max_tokens) == (True, 9)
    with pytest.raises(RequestError, match="prefill_result: a decode worker"):
        read_params(REQUEST, {}, DECODE)
    assert not read_params({**REQUEST, "_HEALTH_CHECK": True}, {}, DECODE).takes_over


@pytest.mark.slow
async def test_chunks_joined_are_the_answer_with_its_usage_and_logprobs() -> None:
    engine = await AsyncLLM.start(EngineArgs(max_model_len=256))
    try:
        ids = engine.get_tokenizer().encode("1, 2, 3,")
        request = {
            "sampling_options": {"n": 2, "temperature": 0.9, "seed": 1},
            "stop_conditions": {"max_tokens": 12, "ignore_eos": True},
            "output_options": {"logprobs": 2, "prompt_logprobs": 1},
        }
        params, chunks = read_params(request, {}), []
        stream = ChunkStream(params.logprobs or 0)
        async for output in engine.generate(list(ids), params, "a"):
            chunks += stream.add(output)
        whole = read_params(request, {})
        whole.output_kind = RequestOutputKind.FINAL_ONLY
        async for output in engine.generate(list(ids), whole, "b"):
            oracle = output
    finally:
        await engine.shutdown()
    for choice in oracle.outputs:
        mine = [chunk for chunk in chunks if chunk["index"] == choice.index]
        assert [t for chunk in mine for t in chunk["token_ids"]] == choice.token_ids
        expected = [row[t].logprob for row, t in zip(choice.logprobs, choice.token_ids, strict=True)]
        assert [p for chunk in mine for p in chunk["log_probs"]] == expected
        assert all(len(row) >= 2 for chunk in mine for row in chunk["top_logprobs"])
        assert [chunk["finish_reason"] for chunk in mine if "finish_reason" in chunk] == ["length"]
        usage = mine[-1]["completion_usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (len(ids), 12, len(ids) + 12)
    shown = [chunk["engine_data"]["prompt_logprobs"] for chunk in chunks if "engine_data" in chunk]
    assert len(shown) == 1
    assert shown[0][0] is None
    assert [str(t) in row for t, row in zip(ids[1:], shown[0][1:], strict=True)] == [True] * (len(ids) - 1)
