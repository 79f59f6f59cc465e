"""Frames: what goes in comes out, and nothing but our own messages does."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import HEADER, Codec, FrameError, body_length

TO_CORE, FROM_CORE = Codec(m.ToCore), Codec(m.FromCore)


def request(**sampling):
    return m.EngineRequest(
        handle=7,
        tokens=np.arange(5, dtype=np.int32),
        prompt_len=5,
        sampling=m.TokenSampling(max_tokens=3, **sampling),
        cache_salt="tenant",
    )


def round_trip(codec, message):
    frame = codec.encode(message)
    assert body_length(frame[: HEADER.size]) == len(frame) - HEADER.size
    return codec.decode(frame[HEADER.size :])


def test_a_request_survives_the_wire_with_infinite_bias_and_arrays_intact():
    extra = {"size": 3, "words": ["a", "b"], "share": 0.5}
    sent = request(logit_bias=((3, -float("inf")),), eos_ids=(1, 2), bad_words=((4, 5), (6,)), extra=extra)
    (got,) = round_trip(TO_CORE, m.Add([sent])).requests
    assert got.sampling == sent.sampling
    assert got.cache_salt == "tenant"
    assert got.tokens.dtype == np.int32
    np.testing.assert_array_equal(got.tokens, sent.tokens)


def test_arguments_survive_the_wire():
    args = EngineArgs(model="x", hf_overrides={"a": {"b": 1}}, max_num_seqs=3)
    assert round_trip(TO_CORE, m.Start(args)).args == args
    assert round_trip(TO_CORE, m.StartHint(args)).args == args
    assert round_trip(TO_CORE, m.StartHint(None)).args is None


def test_outputs_keep_shapes_and_types():
    scores = m.TokenLogprobs(
        np.array([0], np.int32), np.ones((1, 3), np.int32), np.full((1, 3), -1.5, np.float32), np.array([2], np.int32)
    )
    sent = m.Outputs(np.array([7], np.int64), np.array([42], np.int32), 1.5, [m.SequenceFinished(7, "stop", 3)], [], scores)
    got = round_trip(FROM_CORE, sent)
    assert got.finished == sent.finished
    assert got.logprobs.values.shape == (1, 3)
    assert got.logprobs.values.dtype == np.float32


def test_a_message_of_the_other_direction_is_refused():
    body = FROM_CORE.encode(m.Reply(1, True))[HEADER.size :]
    with pytest.raises(FrameError):
        TO_CORE.decode(body)


def test_a_length_beyond_the_limit_is_refused_before_reading():
    with pytest.raises(FrameError, match="limit"):
        body_length(HEADER.pack(2**31))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_never_crash(body):
    with pytest.raises(FrameError):
        TO_CORE.decode(body)


@given(st.data())
def test_a_damaged_frame_gives_a_message_or_a_frame_error(data):
    body = bytearray(TO_CORE.encode(m.Add([request(eos_ids=(1,))]))[HEADER.size :])
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    try:
        TO_CORE.decode(bytes(body))
    except FrameError:
        return


@pytest.mark.parametrize("dtype", ["<U4", "|O", "<f8"])
def test_only_plain_number_arrays_are_built(dtype):
    raw = dtype[:3].encode() + b"\x01" + (1).to_bytes(4, "big") + b"\0" * 8
    body = msgspec.msgpack.encode({"type": "Abort", "handles": msgspec.msgpack.Ext(1, raw)})
    with pytest.raises(FrameError):
        TO_CORE.decode(body)
