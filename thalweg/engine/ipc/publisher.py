"""Numbered batches over ZeroMQ, for subscribers outside: a PUB socket, and a ROUTER socket that sends past batches again.

A batch is three frames: the topic, its number (8 bytes, big-endian), and a payload. A request for a replay is a first number.
The answers are (topic, number, payload) of each kept batch from there on, and then (empty, -1, empty).

A new subscription is answered with an empty batch, whose number shows the subscriber what it missed. Routers ask for a replay
only after a live batch, so one that restarts would otherwise know nothing until the cache changes.

pyzmq is optional: `pip install 'thalweg[kv-events]'`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.errors import ConfigError
from thalweg.options.kv_events import KvEventsConfig

logger = logging.getLogger(__name__)
ABSENT = "kv_events_config: pyzmq is not installed: pip install 'thalweg[kv-events]'"
END = (-1).to_bytes(8, "big", signed=True)
"""Number that follows the last batch of a replay."""
SUBSCRIBED = b"\x01"
"""The first byte of a message about a subscription. Others end one."""
CLOSE_SECONDS = 1.0
"""Seconds for batches under way at the end."""
WAKE = "inproc://wake"
"""Address of the messages that wake the thread."""


class BatchPublisher:
    """The publisher of one engine. A thread owns the sockets.

    Numbers begin at 0, as vLLM's do. vllm-router rejects a replay of a whole history that begins elsewhere, and subscribers
    recognise a new server by a lower number."""

    def __init__(self, config: KvEventsConfig, rank: int, empty: Callable[[], bytes]) -> None:
        """empty: the payload of a batch without events. ConfigError if pyzmq is missing, or an address cannot be bound."""
        try:
            import zmq
        except ImportError:
            raise ConfigError(ABSENT) from None
        self._zmq = zmq
        self.endpoint = config.endpoint_of(config.endpoint, rank)
        self.replay_endpoint = config.replay_endpoint and config.endpoint_of(config.replay_endpoint, rank)
        self.topic = config.topic
        self._topic = config.topic.encode()
        self._empty = empty
        self._next, self._numbering = 0, threading.Lock()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._queue: deque[tuple[int, Callable[[], bytes]]] = deque(maxlen=config.max_queue_size)
        self._closing = False
        self._context = zmq.Context()
        try:
            self._pub = self._open(zmq.XPUB, "endpoint", self.endpoint, config.hwm)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # a second subscriber of a topic is announced too
            self._replay: Any = None
            if self.replay_endpoint is not None:
                self._replay = self._open(zmq.ROUTER, "replay_endpoint", self.replay_endpoint, config.buffer_steps + 1)
            self._wakes = self._open(zmq.PULL, "", WAKE, 1)
            self._waker = self._open(zmq.PUSH, "", WAKE, 1)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
        self._thread.start()

    def publish(self, payload: Callable[[], bytes]) -> None:
        """Queue a batch. The thread calls `payload`. Never waits: beyond the queue's limit, the oldest batch is lost."""
        self._enqueue(payload)
        self._wake()

    def close(self) -> None:
        """Send what is queued, and close the sockets."""
        self._closing = True
        self._wake()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._waker.close()
            self._context.term()

    def _enqueue(self, payload: Callable[[], bytes]) -> None:
        with self._numbering:
            self._queue.append((self._next, payload))
            self._next += 1

    def _wake(self) -> None:
        try:
            self._waker.send(b"", self._zmq.NOBLOCK)
        except self._zmq.ZMQError:  # it has been woken already
            return

    def _open(self, kind: int, name: str, endpoint: str, hwm: int) -> Any:
        zmq = self._zmq
        opened = self._context.socket(kind)
        opened.set_hwm(hwm)
        opened.setsockopt(zmq.IPV6, "[" in endpoint)
        opened.setsockopt(zmq.LINGER, int(1000 * CLOSE_SECONDS / 2))
        if (kind == zmq.XPUB and not is_bound(endpoint)) or kind == zmq.PUSH:
            opened.connect(endpoint)
            return opened
        try:
            opened.bind(endpoint)
        except zmq.ZMQError as e:
            raise ConfigError(f"kv_events_config: {name}: {endpoint} cannot be bound: {e.strerror}; choose another") from None
        return opened

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        for each in (self._wakes, self._replay, self._pub):
            if each is not None:
                poller.register(each, zmq.POLLIN)
        while not self._closing or self._queue:
            ready = dict(poller.poll())
            if self._wakes in ready:
                self._wakes.recv()
            if self._pub in ready and self._pub.recv()[:1] == SUBSCRIBED:
                self._enqueue(self._empty)
            while self._queue:
                self._send(*self._queue.popleft())
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
        for each in (self._pub, self._replay, self._wakes):
            if each is not None:
                each.close()

    def _send(self, number: int, payload: Callable[[], bytes]) -> None:
        body = payload()
        self._kept.append((number, body))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), body))

    def _answer(self, request: Sequence[bytes]) -> None:
        """Send past batches to a subscriber. request: its identity, perhaps an empty frame (of a REQ socket), and a number."""
        if not 2 <= len(request) <= 3 or len(request[-1]) != 8:
            logger.warning("kv events: a replay request of %d frames was ignored; it has one frame of 8 bytes", len(request))
            return
        first, to = int.from_bytes(request[-1], "big"), tuple(request[:-1])
        for number, body in self._kept:
            if number >= first:
                self._replay.send_multipart((*to, self._topic, number.to_bytes(8, "big"), body))
        self._replay.send_multipart((*to, b"", END, b""))


def is_bound(endpoint: str) -> bool:
    """Is an address of a PUB socket bound, and not connected to? As in vLLM: of every interface, ipc and inproc. Also of
    loopback."""
    kind, _, rest = endpoint.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    return kind != "tcp" or "*" in host or host in ("::", "0.0.0.0", "::1", "localhost") or host.startswith("127.")
