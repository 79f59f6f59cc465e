"""Fetches of several callers and hosts: a host that stalls delays its own items alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from thalweg.engine.client import media as media_module
from thalweg.engine.client.media import MediaPreprocessor
from thalweg.errors import RequestError
from thalweg.media.fetches import PER_HOST, TOGETHER, Fetches
from thalweg.media.gate import MediaConnector
from thalweg.media.kinds.base import MediaItem, MediaSource

AT = "messages[0].content[0]"
HOSTS = [f"{name}.test" for name in ("slow", "quick", *(f"slow{i}" for i in range(8)))]


class Web:
    """A gate whose hosts answer when they are let go: `go[host]`. quick.test answers at once."""

    def __init__(self) -> None:
        self.go = {host: threading.Event() for host in HOSTS}
        self.go["quick.test"].set()
        self.begun: list[str] = []
        self._lock = threading.Lock()
        self.now, self.most = Counter[str](), Counter[str]()
        self._gate = MediaConnector(HOSTS)

    def host(self, url: str, at: str) -> str:
        return self._gate.host(url, at)

    def read(self, url: str, at: str) -> bytes:
        host = urlsplit(url).hostname or ""
        with self._lock:
            self.begun.append(url)
            for name in (host, "all"):
                self.now[name] += 1
                self.most[name] = max(self.most[name], self.now[name])
        assert self.go[host].wait(60)
        with self._lock:
            self.now.subtract([host, "all"])
        if "broken" in url:
            raise RequestError(f"{at}: broken", at)
        return url.encode()

    def let_go(self) -> None:
        for event in self.go.values():
            event.set()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.let_go()


def begin(fetches: Fetches, tenant: str, urls: list[str]) -> list[asyncio.Task[bytes]]:
    async def one(url: str) -> bytes:
        async with fetches.fetch(url, AT, tenant) as data:
            return data

    return [asyncio.create_task(one(url)) for url in urls]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def end(web: Web, *tasks: asyncio.Task[bytes]) -> None:
    web.let_go()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_host_that_stalls_leaves_places_to_others(web: Any) -> None:
    fetches = Fetches(web)
    stalled = begin(fetches, "a", [f"http://slow.test/{i}" for i in range(50)])
    await until(lambda: len(web.begun) == PER_HOST)
    quick = begin(fetches, "a", [f"http://quick.test/{i}" for i in range(50)])
    assert await asyncio.gather(*quick) == [f"http://quick.test/{i}".encode() for i in range(50)]
    assert (web.now["slow.test"], web.most["quick.test"] <= PER_HOST) == (PER_HOST, True)
    await end(web, *stalled)


async def test_another_caller_waits_for_nobody(web: Any) -> None:
    """Neither for the places of all, nor for those of the same host."""
    fetches = Fetches(web)
    hogs = begin(fetches, "hog", [f"http://{host}/{i}" for host in HOSTS if host.startswith("slow") for i in range(9)])
    await until(lambda: web.now["all"] == TOGETHER)
    (guest,) = begin(fetches, "guest", ["http://quick.test/guest"])
    assert await guest == b"http://quick.test/guest"
    (guest,) = begin(fetches, "guest", ["http://slow.test/guest"])
    await until(lambda: "http://slow.test/guest" in web.begun)
    assert web.most["all"] == TOGETHER + 1
    await end(web, guest, *hogs)
    assert not fetches._hosts, "nothing is kept of hosts that nobody asks"


async def test_callers_that_leave_hold_no_more_threads_than_those_that_stay(web: Any) -> None:
    fetches = Fetches(web)
    for _ in range(5):
        tasks = begin(fetches, "hog", [f"http://slow.test/{i}" for i in range(10)])
        await until(lambda: web.now["slow.test"] == PER_HOST)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert web.most["slow.test"] == PER_HOST
    web.let_go()
    assert await begin(fetches, "hog", ["http://slow.test/last"])[0] == b"http://slow.test/last"


async def test_what_is_not_allowed_waits_for_no_place(web: Any) -> None:
    fetches = Fetches(web)
    hogs = begin(fetches, "hog", [f"http://slow.test/{i}" for i in range(9)])
    await until(lambda: web.now["slow.test"] == PER_HOST)
    for url in ("http://other.test/", "http://slow.test:22/"):
        with pytest.raises(RequestError, match="--allowed-media-domains"):
            await begin(fetches, "hog", [url])[0]
    await end(web, *hogs)


# ------------------------------------------------------------------ images of requests


def media(web: Any, read: Callable[[MediaSource, bytes], bytes] = lambda source, data: data) -> MediaPreprocessor:
    """One that takes images: an image is its bytes."""
    made = MediaPreprocessor({}, None, web)  # type: ignore[arg-type]
    made._taken["image"] = SimpleNamespace(reader=SimpleNamespace(read=read))  # type: ignore[assignment]
    return made


def image(url: str = "", at: str = AT, **more: Any) -> MediaSource:
    return MediaSource("image", at, url, **more)


def values(media: Sequence[MediaItem]) -> list[Any]:
    return [item.value for item in media]


async def test_images_that_are_sent_do_not_wait_for_hosts(web: Any) -> None:
    made = media(web)
    stalled = asyncio.create_task(made.read_async([image(f"http://slow.test/{i}") for i in range(16)], "hog"))
    await until(lambda: web.now["slow.test"] == PER_HOST)
    for tenant in ("hog", "guest"):
        assert values(await made.read_async([image(data=b"abc")], tenant)) == [b"abc"]
    assert not stalled.done()
    web.let_go()
    assert values(await stalled) == [f"http://slow.test/{i}".encode() for i in range(16)]


def test_programs_that_wait_for_nothing_else_are_the_same(web: Any) -> None:
    """`read`, which blocks: two slow hosts once held both threads that decode."""
    made = media(web)
    thread = threading.Thread(target=made.read, args=([image(f"http://slow.test/{i}") for i in range(4)],))
    thread.start()
    assert values(made.read([image(data=b"a"), image("http://quick.test/b")])) == [b"a", b"http://quick.test/b"]
    assert thread.is_alive()
    web.let_go()
    thread.join(60)


async def test_the_first_that_cannot_be_read_is_named(web: Any) -> None:
    made = media(web)
    with pytest.raises(RequestError, match="second: broken"):
        await made.read_async([image("http://slow.test/a", "first"), image("http://quick.test/broken", "second")], "a")


async def test_decoding_takes_turns_by_caller(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image may take seconds of a decoding process."""
    monkeypatch.setattr(media_module, "READERS", 1)
    go, order = threading.Event(), list[bytes]()

    def read(source: MediaSource, data: bytes) -> bytes:
        assert go.wait(60)
        order.append(source.data)
        return source.data

    made = media(web, read)
    hog = asyncio.create_task(made.read_async([image(data=b"h%d" % i) for i in range(5)], "hog"))
    await asyncio.sleep(0.01)
    guest = asyncio.create_task(made.read_async([image(data=b"g")], "guest"))
    await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(hog, guest)
    assert order.index(b"g") <= 2
