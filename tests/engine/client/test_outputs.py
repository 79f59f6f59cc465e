"""What callers read: text, stop strings, logprobs, reasons, in every output kind."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import vocabularies as v
from hypothesis import given, settings
from hypothesis import strategies as st
from test_inputs import config

from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.outputs import OutputProcessor, ProcessedFrame
from thalweg.engine.messages import Outputs, PromptScores, SequenceFinished, SequenceStarted, TokenLogprobs
from thalweg.outputs import RequestOutput
from thalweg.params import ReasoningDelimiters, RequestOutputKind, SamplingParams

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
TOK = v.byte_level()
EOS = TOK.eos_ids[0]


class Rig:
    """An OutputProcessor fed by hand."""

    def __init__(self, tokenizer: Any = TOK, interval: int = 1) -> None:
        self.inputs = InputProcessor(config(max_len=500), tokenizer, eos_ids=(EOS,))
        self.processor = OutputProcessor(tokenizer, interval)
        self.handles = itertools.count(1)
        self.time = 100.0

    def add(self, request_id: str = "r", prompt: Any = "the", **params: Any) -> list[int]:
        s = self.inputs.process(request_id, prompt, SamplingParams(**params), handles=self.handles)
        self.processor.add(s, self.time)
        return [r.handle for r in s.requests]

    def frame(self, *pairs: tuple[int, int], **news: Any) -> ProcessedFrame:
        self.time += 1
        handles, tokens = np.array([h for h, _ in pairs], np.int64), np.array([t for _, t in pairs], np.int32)
        return self.processor.process(Outputs(handles=handles, tokens=tokens, time=self.time, **news))

    def run(self, handle: int, ids: list[int], end: SequenceFinished | None = None) -> list[RequestOutput]:
        """One frame a token; `end` comes with the last."""
        out = []
        for i, t in enumerate(ids):
            last = i == len(ids) - 1 and end is not None
            out += self.frame((handle, t), finished=[end] if last else []).outputs
        return out


def encode(text: str) -> list[int]:
    return TOK.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("interval", [1, 3, 4, 100])
def test_pieces_of_a_stream_have_as_many_tokens_as_told_but_for_the_first_and_the_last(interval: int) -> None:
    rig, ids = Rig(interval=interval), [*encode("all rivers run into the sea")][:10]
    (h,) = rig.add(output_kind=DELTA, max_tokens=None)
    told = rig.run(h, ids, SequenceFinished(h, "length"))
    sizes = [len(o.outputs[0].token_ids) for o in told]
    assert sizes == {1: [1] * 10, 3: [1, 3, 3, 3], 4: [1, 4, 4, 1], 100: [1, 9]}[interval]
    assert "".join(o.outputs[0].text for o in told) == TOK.decode(ids, True)


def test_who_wants_everything_so_far_is_told_after_every_token() -> None:
    rig = Rig(interval=5)
    (h,) = rig.add(output_kind=CUMULATIVE, max_tokens=None)
    assert len(rig.run(h, encode("all rivers run")[:4])) == 4


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
@given(text=st.text(st.sampled_from("ab river\n😀川é"), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
@pytest.mark.sampled(2)
def test_every_output_kind_tells_the_same_story(kind: RequestOutputKind, text: str) -> None:
    rig, ids = Rig(), encode(text)
    (h,) = rig.add(output_kind=kind, max_tokens=None, logprobs=0)
    told: list[RequestOutput] = []
    for i, t in enumerate(ids):
        logprobs = TokenLogprobs(np.array([0]), np.array([[t]]), np.array([[-float(i)]]), np.array([1]))
        end = [SequenceFinished(h, "length")] if i == len(ids) - 1 else []
        told += rig.frame((h, t), logprobs=logprobs, finished=end).outputs
    choices = [o.outputs[0] for o in told]
    if kind is DELTA:
        assert "".join(c.text for c in choices) == text
        assert [t for c in choices for t in c.token_ids] == ids
        assert [next(iter(p)) for c in choices for p in c.logprobs or []] == ids
    else:
        assert len(told) == (1 if kind is FINAL else len(ids))
        assert (choices[-1].text, choices[-1].token_ids) == (text, ids)
        assert all(text.startswith(c.text) and ids[: len(c.token_ids)] == c.token_ids for c in choices)
        assert len(choices[-1].logprobs or []) == len(ids)
    assert choices[-1].cumulative_logprob == -sum(range(len(ids)))
    assert (told[-1].finished, choices[-1].finish_reason, choices[-1].stop_reason) == (True, "length", None)
    assert not any(o.finished for o in told[:-1])
    assert rig.processor.open_requests == 0


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("stop_id", "reason"), [(-1, None), (7, 7)])
def test_the_token_that_stops_is_in_the_ids_but_not_in_the_text(include: bool, stop_id: int, reason: int | None) -> None:
    rig, last = Rig(), EOS if stop_id < 0 else stop_id
    (h,) = rig.add(stop_token_ids=[7], include_stop_str_in_output=include, skip_special_tokens=False)
    out = rig.run(h, [*encode("abc"), last], SequenceFinished(h, "stop", stop_id))[-1].outputs[0]
    assert out.token_ids == [*encode("abc"), last]
    assert out.text == "abc" + (TOK.name_of(last) if include else "")
    assert (out.finish_reason, out.stop_reason) == ("stop", reason)


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one two")])
def test_a_stop_string_cuts_the_text_and_stops_the_engine(include: bool, text: str) -> None:
    rig, ids = Rig(), encode("one two three")
    (h,) = rig.add(stop=["two", "zzz"], include_stop_str_in_output=include, output_kind=DELTA, max_tokens=100)
    shown, abort, used = "", [], 0
    for t in ids:
        news = rig.frame((h, t))
        shown += "".join(o.outputs[0].text for o in news.outputs)
        abort += news.abort
        used += bool(news.outputs)
    assert (shown, abort) == (text, [h])
    assert "two" in TOK.decode(ids[:used])
    assert used < len(ids), "tokens after the stop are dropped"
    assert rig.processor.open_requests == 0


def test_no_text_of_a_possible_stop_string_is_shown_and_all_of_it_when_it_was_none() -> None:
    rig, ids = Rig(), encode("a STO")
    (h,) = rig.add(stop="STOP", output_kind=DELTA)
    told = rig.run(h, ids, SequenceFinished(h, "length"))
    assert "S" not in "".join(o.outputs[0].text for o in told[:-1])
    assert "".join(o.outputs[0].text for o in told) == "a STO"


@pytest.mark.parametrize("text", ["<t>a STOP b</t>an STOP", "b STOP", "<t>a STOP b"])
def test_stop_strings_do_not_count_before_the_answer(text: str) -> None:
    rig, ids = Rig(), encode(text)
    (h,) = rig.add(stop="STOP", stop_aside=ReasoningDelimiters(opens=["<t>"], close="</t>"), output_kind=DELTA, max_tokens=100)
    out = [
        o.outputs[0] for o in rig.run(h, ids, SequenceFinished(h, "length") if "</t>" not in text and "<t>" in text else None)
    ]
    answer = "</t>" in text or "<t>" not in text
    assert "".join(c.text for c in out) == (text[: text.rindex("STOP")] if answer else text)
    assert (out[-1].finish_reason, out[-1].stop_reason) == (("stop", "STOP") if answer else ("length", None))


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    rig, ids = Rig(), encode("x")
    (h,) = rig.add(stop="x", min_tokens=3, max_tokens=10)
    told = rig.run(h, ids * 6)
    assert (told[-1].outputs[0].text, len(told), told[-1].finished) == ("xxx", 4, True)


def test_a_stop_string_and_the_engines_end_in_one_frame() -> None:
    rig = Rig()
    (h,) = rig.add(stop="b")
    news = rig.frame((h, encode("a")[0]), (h, encode("b")[0]), (h, encode("c")[0]), finished=[SequenceFinished(h, "length")])
    out = news.outputs[0].outputs[0]
    assert (out.text, out.finish_reason, out.stop_reason, news.abort) == ("a", "stop", "b", [])
    assert out.token_ids == encode("a") + encode("b")


def test_choices_finish_one_by_one_and_the_request_with_the_last() -> None:
    rig = Rig()
    a, b = rig.add(n=2, output_kind=DELTA)
    first = rig.frame((a, 5), (b, 6)).outputs
    assert [(c.index, c.token_ids) for c in first[0].outputs] == [(0, [5]), (1, [6])]
    second = rig.frame((a, 7), finished=[SequenceFinished(a, "length")]).outputs
    assert [(o.finished, [c.index for c in o.outputs]) for o in second] == [(False, [0])]
    third = rig.frame((a, 9), (b, 8), finished=[SequenceFinished(b, "length")]).outputs
    assert [(o.finished, [(c.index, c.token_ids) for c in o.outputs]) for o in third] == [(True, [(1, [8])])]


def test_logprobs_name_the_chosen_token_first_and_only_as_many_as_asked() -> None:
    rig = Rig()
    plain, two = *rig.add("plain"), *rig.add("two", logprobs=2)
    arrays = TokenLogprobs(
        rows=np.array([1]), tokens=np.array([[9, 4, 9, 5]]), values=np.array([[-2.0, -0.5, -2.0, -3.0]]), ranks=np.array([2])
    )
    outs = rig.frame((plain, 3), (two, 9), logprobs=arrays).outputs
    assert outs[0].outputs[0].logprobs is None
    assert outs[0].outputs[0].cumulative_logprob is None
    (position,) = outs[1].outputs[0].logprobs or []
    got = [(t, lp.logprob, lp.rank, lp.decoded_token) for t, lp in position.items()]
    assert got == [(9, -2.0, 2, TOK.name_of(9)), (4, -0.5, 1, TOK.name_of(4))]
    assert outs[1].outputs[0].cumulative_logprob == -2.0


@pytest.mark.parametrize("columns", [4, 65, 400])
def test_rows_of_any_width_are_cut_to_what_was_asked(columns: int) -> None:
    rig = Rig()
    (h,) = rig.add(logprobs=3)
    tokens, values = np.arange(columns)[None] + 5, -np.arange(columns, dtype=np.float32)[None]
    out = rig.frame((h, 5), logprobs=TokenLogprobs(np.array([0]), tokens, values, np.array([1]))).outputs[0].outputs[0]
    assert out.logprobs is not None
    assert [(t, lp.logprob, lp.rank) for t, lp in out.logprobs[0].items()] == [(5 + r, -r, max(r, 1)) for r in range(4)]


def test_prompt_logprobs_are_filled_by_position_and_told_once_in_deltas() -> None:
    rig = Rig()
    (h,) = rig.add(prompt=[3, 4, 5, 6], prompt_logprobs=1, output_kind=DELTA)

    def scores(start: int, ids: list[int]) -> PromptScores:
        n = len(ids)
        tokens = np.stack([np.array(ids), np.full(n, 9), np.full(n, 8)], 1)
        return PromptScores(h, start, tokens, np.tile([-2.0, -1.0, -9.0], (n, 1)), np.full(n, 7))

    assert rig.frame(prompt_scores=[scores(1, [4])]).outputs == []
    assert rig.processor.resubmit()[0].sampling.prompt_logprobs == 1
    first = rig.frame((h, 1), prompt_scores=[scores(1, [4, 5]), scores(3, [6])]).outputs[0]
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [list(p) for p in first.prompt_logprobs[1:] if p] == [[4, 9], [5, 9], [6, 9]]
    assert first.prompt_logprobs[1] is not None
    assert [(x.logprob, x.rank) for x in first.prompt_logprobs[1].values()] == [(-2.0, 7), (-1.0, 1)]
    assert rig.frame((h, 2)).outputs[0].prompt_logprobs is None
    assert rig.processor.resubmit()[0].sampling.prompt_logprobs == -1, "known scores are not computed again"


def test_abort_ends_what_is_open_and_forgets_it() -> None:
    rig = Rig()
    a, b = rig.add(n=2)
    rig.frame((a, 5), (b, 6), finished=[SequenceFinished(a, "length")])
    handles, last = rig.processor.abort("r")
    assert handles == [b]
    assert last is not None
    assert last.finished
    assert [c.finish_reason for c in last.outputs] == ["length", "abort"]
    assert rig.processor.abort("r") == ([], None)
    assert rig.frame((b, 7), finished=[SequenceFinished(b, "abort")]) == ProcessedFrame([], [])


def test_errors_reach_the_caller_in_words() -> None:
    rig = Rig()
    (h,) = rig.add("one")
    rig.add("two", n=2)
    out = rig.frame(finished=[SequenceFinished(h, "error", error="its logits were not finite")]).outputs[0]
    assert (out.error, out.outputs[0].finish_reason, out.finished) == ("its logits were not finite", "error", True)
    (dead,) = rig.processor.fail_all("the engine died")
    assert (dead.request_id, dead.error, [c.finish_reason for c in dead.outputs]) == ("two", "the engine died", ["error"] * 2)
    assert rig.processor.open_requests == 0
    assert rig.processor.resubmit() == []


def test_resubmission_continues_after_what_was_emitted() -> None:
    rig = Rig()
    a, b, c = rig.add(n=3, prompt=[3, 4], seed=5, max_tokens=9)
    before = rig.processor.resubmit()
    rig.frame((a, 5), (b, 6), (c, 7), finished=[SequenceFinished(c, "length")])
    rig.frame((a, 8))
    after = rig.processor.resubmit()
    assert [r.tokens.tolist() for r in after] == [[3, 4, 5, 8], [3, 4, 6]]
    assert [(r.handle, r.prompt_len, r.sampling) for r in after] == [(r.handle, r.prompt_len, r.sampling) for r in before[:2]]
    assert after[0].tokens.dtype == np.int32
    # The text goes on where it was.
    assert rig.frame((a, 9)).outputs[0].outputs[0].token_ids == [5, 8, 9]


def test_metrics_and_cached_tokens_come_from_the_engine() -> None:
    rig = Rig()
    (h,) = rig.add()
    rig.frame(started=[SequenceStarted(h, 2, 101.0, 102.0), SequenceStarted(999, 0, 0.0, 0.0)])
    rig.run(h, [5, 6], SequenceFinished(h, "length"))
    (h,) = rig.add("again")
    out = rig.frame((h, 5), started=[SequenceStarted(h, 0, 1.0, 2.0)], finished=[SequenceFinished(h, "length")]).outputs[0]
    assert out.num_cached_tokens == 0
    rig = Rig()
    (h,) = rig.add()
    rig.frame(started=[SequenceStarted(h, 2, 101.0, 102.0)])
    out = rig.run(h, [5, 6], SequenceFinished(h, "length"))[-1]
    m = out.metrics
    assert m is not None
    assert (m.arrival_time, m.queued_ts, m.scheduled_ts, m.first_token_ts, m.last_token_ts) == (
        100.0,
        101.0,
        102.0,
        102.0,
        103.0,
    )
    assert (m.num_generation_tokens, out.num_cached_tokens) == (2, 2)


@pytest.mark.parametrize("tokenizer", [TOK, None])
def test_without_detokenizing_there_are_tokens_and_no_text(tokenizer: Any) -> None:
    rig = Rig(tokenizer)
    (h,) = rig.add(prompt=[1, 2], detokenize=tokenizer is None, logprobs=0)
    logprobs = TokenLogprobs(np.array([0]), np.array([[5]]), np.array([[-1.0]]), np.array([1]))
    out = rig.frame((h, 5), logprobs=logprobs).outputs[0].outputs[0]
    assert (out.text, out.token_ids) == ("", [5])
    assert out.logprobs is not None
    assert out.logprobs[0][5].decoded_token is None


def test_half_a_character_at_the_end_is_shown_as_broken_only_then() -> None:
    rig, ids = Rig(), encode("😀")
    assert len(ids) > 1
    (h,) = rig.add(output_kind=DELTA)
    told = rig.run(h, ids[:-1], SequenceFinished(h, "length"))
    assert [o.outputs[0].text for o in told] == [""] * (len(told) - 1) + ["\ufffd"]


def test_one_id_cannot_be_open_twice() -> None:
    rig = Rig()
    rig.add("r")
    with pytest.raises(ValueError, match="already open"):
        rig.add("r")


def test_preemptions_are_those_of_all_choices_of_a_request() -> None:
    rig = Rig()
    first, second = rig.add(n=2)
    (other,) = rig.add("other")
    rig.frame((first, 5), preempted=[second, second, 999])
    rig.run(first, [6], SequenceFinished(first, "length"))
    out = rig.run(second, [5], SequenceFinished(second, "length"))[-1]
    assert out.metrics is not None
    assert out.metrics.num_preemptions == 2
    alone = rig.run(other, [5], SequenceFinished(other, "length"))[-1]
    assert alone.metrics is not None
    assert alone.metrics.num_preemptions == 0
