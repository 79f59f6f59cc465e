"""Requests that end with an encoder's vectors, and take no step."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.encoded import EncodedRequests
from thalweg.engine.messages import EngineRequest, Input, TokenSampling


class FakeEncodings:
    """Vectors by digest, as `Encodings.find` gives them."""

    def __init__(self) -> None:
        self.known: dict[bytes, np.ndarray] = {}
        self.queued: list[bytes] = []

    def find(self, item: Input) -> np.ndarray | None:
        if item.digest not in self.known:
            self.queued.append(item.digest)
        return self.known.get(item.digest)


def make_request(handle: int, digest: bytes, positions: int = 1) -> EngineRequest:
    item = Input(kind="utterance", digest=digest, positions=np.zeros(positions, np.int32))
    return EngineRequest(
        handle=handle, tokens=np.zeros(1, np.int32), prompt_len=1, sampling=TokenSampling(max_tokens=1), inputs=(item,),
        pool=True, encode_only=True,
    )  # fmt: skip


def test_a_request_ends_with_its_vectors():
    encodings = FakeEncodings()
    open_requests = EncodedRequests(encodings, lambda: 5.0)
    for handle, digest in ((1, b"a"), (2, b"b"), (3, b"a")):
        open_requests.add(make_request(handle, digest))
    assert encodings.queued == [b"a", b"b", b"a"]
    assert open_requests.digests == {b"a", b"b"}
    open_requests.answer()
    assert not open_requests.has_news
    encodings.known[b"a"] = np.ones((3, 2), np.float32)
    open_requests.answer()
    started, finished, vectors = open_requests.take()
    assert [s.handle for s in started] == [f.handle for f in finished] == [v.handle for v in vectors] == [1, 3]
    assert {f.reason for f in finished} == {"stop"}
    assert vectors[0].values.shape == (3, 2)
    assert not open_requests.has_news
    assert open_requests.take() == ([], [], [])
    assert 2 in open_requests
    open_requests.add(make_request(4, b"a"))  # known already
    assert [f.handle for f in open_requests.take()[1]] == [4]


def test_a_request_is_aborted_or_fails():
    open_requests = EncodedRequests(FakeEncodings(), lambda: 0.0)
    for handle, digest in ((1, b"a"), (2, b"b")):
        open_requests.add(make_request(handle, digest))
    open_requests.abort(7)
    open_requests.abort(1)
    open_requests.fail({b"a": "late", b"b": "broken"})
    ends = [(f.handle, f.reason, f.error) for f in open_requests.take()[1]]
    assert ends == [(1, "abort", ""), (2, "error", "broken")]
    assert not open_requests


def test_a_request_without_an_encoded_input_is_refused():
    open_requests = EncodedRequests(FakeEncodings(), lambda: 0.0)
    assert open_requests.refuse(make_request(1, b"a")) is None
    assert open_requests.refuse(make_request(1, b"a", positions=0))
