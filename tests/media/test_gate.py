"""Where media may come from: what is refused before a connection is made, and what a connection may do."""

from __future__ import annotations

import base64
import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thalweg.config import EngineArgs, check_args
from thalweg.errors import ConfigError, RequestError
from thalweg.media import fetch
from thalweg.media import gate as gate_module
from thalweg.media.gate import MOST_BYTES, MediaConnector

AT = "messages[0].content[0]"


class Canary(http.server.BaseHTTPRequestHandler):
    """Answers by path, and remembers who asked."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Host"]))
        moved = self.path == "/moved"
        self.send_response(302 if moved else 404 if self.path == "/none" else 200)
        if moved:
            self.send_header("Location", "/ok")
        self.end_headers()
        body = b"x" * (MOST_BYTES + 1) if self.path == "/large" else b"" if self.path == "/empty" else b"bytes"
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def canary() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    asked: list[tuple[str, str]] = []
    kind = type("Handler", (Canary,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


def test_data_urls_are_read() -> None:
    gate = MediaConnector()
    coded = base64.b64encode(b"abc").decode()
    for url in (
        f"data:image/png;base64,{coded}",
        f"DATA:;BASE64,{coded}",
        "data:,abc",
        f"data:;base64,{coded[:2]} \n{coded[2:]}",
    ):
        assert gate.read(url, AT) == b"abc"


@pytest.mark.parametrize(
    "url",
    ["data:", "data:image/png;base64", "data:;base64,a", "data:;base64,ab*d", "data:;base64,", "data:,", "gopher://a", "",
     "x" * 99, "javascript:1", f"data:{'a' * 2000},b"],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(RequestError, match=r"^messages\[0\].content\[0\]"):
        MediaConnector(["a"]).read(url, AT)


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MOST_BYTES", 1 << 20)
    coded = base64.b64encode(b"a" * ((1 << 20) + 3)).decode()
    with pytest.raises(RequestError, match="more than 1 MiB"):
        MediaConnector().read(f"data:;base64,{coded}", AT)


def test_hosts_are_fetched_only_where_they_are_allowed(canary: Any) -> None:
    port, asked = canary
    gate = MediaConnector([f"127.0.0.1:{port}", "127.0.0.1:9"])
    assert gate.read(f"http://127.0.0.1:{port}/ok?a=b", AT) == b"bytes"
    assert asked == [("/ok?a=b", f"127.0.0.1:{port}")]
    for path, words in (
        ("moved", "redirects, which are not followed"),
        ("none", "404"),
        ("large", "20 MiB"),
        ("empty", "is empty"),
    ):
        with pytest.raises(RequestError, match=words):
            gate.read(f"http://127.0.0.1:{port}/{path}", AT)
    assert len(asked) == 5
    with pytest.raises(RequestError, match="could not be fetched"):
        gate.read("http://127.0.0.1:9/", AT)
    for other in ([], ["example.org"]):
        with pytest.raises(RequestError):
            MediaConnector(other).read(f"http://127.0.0.1:{port}/ok", AT)
    assert len(asked) == 5


@pytest.mark.parametrize("seconds", [0.2, 0.0])  # at 0 even the request may find the connection hung up on
def test_a_server_that_drips_is_hung_up_on(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TOTAL_SECONDS", seconds)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"HTTP/1.1 200 OK\r\n")
                while not ended.wait(0.01):
                    peer.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RequestError, match="took longer than"):
            MediaConnector([place]).read(f"http://{place}/", AT)
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("domain", "reached", "refused"),
    [
        ("allowed.test", ["http://allowed.test/", "http://allowed.test:443/", "https://allowed.test:80/", "https://allowed.test./"],
         ["http://allowed.test:22/", "http://allowed.test:8000/", "https://allowed.test:8443/"]),
        (" Allowed.test.:8443 ", ["https://allowed.test:8443/"], ["https://allowed.test/", "http://allowed.test:80/"]),
        ("::1", ["http://[::1]/"], ["http://[::1]:8000/"]),
        ("[::1]:8000", ["http://[::1]:8000/"], ["http://[::1]/"]),
        ("127.0.0.1", ["http://127.0.0.1/"], ["http://127.0.0.1:6379/", "http://127.0.0.1:9200/_search"]),
    ],
)  # fmt: skip
def test_a_host_means_its_web_ports(
    domain: str, reached: list[str], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image's address must not reach the other services of a host, such as a database on loopback."""
    connected: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], _: float) -> socket.socket:
        connected.append(address)
        raise OSError

    monkeypatch.setattr(fetch.socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("93.184.215.14", 80))])
    monkeypatch.setattr(fetch.socket, "create_connection", connect)
    gate = MediaConnector([domain])
    for url in reached:
        with pytest.raises(RequestError, match="could not be fetched"):
            gate.read(url, AT)
    assert len(connected) == len(reached)
    for url in refused:
        with pytest.raises(RequestError, match="--allowed-media-domains: a host means ports 80 and 443, and HOST:PORT another"):
            gate.read(url, AT)
    assert len(connected) == len(reached)


@pytest.mark.parametrize(
    "domain",
    ["", "http://allowed.test", "allowed.test/images", "user@allowed.test", "allowed.test:0", "allowed.test:",
     "allowed.test:99999", "*", "a b", ":80", "[::1", "allowed.test?x", "b\u00fccher.test"],
)  # fmt: skip
def test_what_is_no_host_is_refused_by_name(domain: str) -> None:
    """It would never match, and nobody would know."""
    with pytest.raises(ConfigError, match=r"allowed_media_domains: .* is neither HOST nor HOST:PORT"):
        MediaConnector(["fine.test", domain])


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.test\\@127.0.0.1/", "http://user@allowed.test/", "http://127.0.0.1#@allowed.test/", "http:///allowed.test",
        "http://allowed.test:0/", "http://allowed.test:99999/", "http://allowed.test /", "http://allowed.test%2f@evil.test/",
        "http://[::1/", "http://evil.test/?allowed.test", "http://2130706433/", "http://0x7f000001/", "http://allowed.test\t.evil/",
        "http://allowed.test.evil.test/", "http://\u2024allowed.test/", "https://evil.test/",
    ],
)  # fmt: skip
def test_no_spelling_reaches_another_host(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    monkeypatch.setattr(fetch.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    with pytest.raises(RequestError):
        MediaConnector(["allowed.test"]).read(url, AT)


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:127.0.0.1"], ["fe80::1%eth0"], ["fd00::1"],
     ["0.0.0.0"], ["100.64.0.1"], ["93.184.215.14", "127.0.0.1"], ["2002:7f00:1::"], ["224.0.0.1"], []],
)  # fmt: skip
def test_names_of_private_addresses_are_refused(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (a, 80)) for a in addresses])
    monkeypatch.setattr(fetch.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    with pytest.raises(RequestError, match="private address"):
        MediaConnector(["allowed.test"]).read("http://allowed.test/", AT)


def test_a_name_is_looked_up_once_and_that_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])
    looked: list[str] = []
    reached: list[tuple[str, int]] = []

    def look(host: str, *_: Any, **__: Any) -> list[Any]:
        looked.append(host)
        return [(0, 0, 0, "", (a, 80)) for a in next(answers)]

    def connect(address: tuple[str, int], _: float) -> socket.socket:
        reached.append(address)
        raise OSError

    monkeypatch.setattr(fetch.socket, "getaddrinfo", look)
    monkeypatch.setattr(fetch.socket, "create_connection", connect)
    with pytest.raises(RequestError, match="could not be fetched"):
        MediaConnector(["allowed.test:8080"]).read("http://ALLOWED.test:8080/a", AT)
    assert (looked, reached) == (["allowed.test"], [("93.184.215.14", 8080)])


def test_files_are_read_in_one_directory(tmp_path: Path) -> None:
    inside, outside = tmp_path / "media", tmp_path / "secret"
    inside.mkdir()
    (inside / "a b.png").write_bytes(b"abc")
    outside.write_bytes(b"secret")
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    gate = MediaConnector(folder=str(inside))
    assert gate.read(f"file://{inside}/a%20b.png", AT) == b"abc"
    assert gate.read(f"file://localhost{inside}/a%20b.png", AT) == b"abc"
    for path in (
        outside,
        f"{inside}/../secret",
        f"{inside}/link",
        f"{inside}/loop",
        inside,
        f"{inside}/none",
        f"{inside}/a\0",
        "/dev/zero",
    ):
        with pytest.raises(RequestError, match="no such file in the directory"):
            gate.read(f"file://{path}".replace("\0", "%00"), AT)
    with pytest.raises(RequestError):
        gate.read(f"file://host{inside}/a%20b.png", AT)
    with pytest.raises(RequestError, match="files are not read"):
        MediaConnector().read(f"file://{inside}/a%20b.png", AT)
    with pytest.raises(ConfigError, match="allowed_local_media_path"):
        MediaConnector(folder=str(outside))


@pytest.mark.parametrize("said", [{"image": 4}, {"image": 0, "audio": 2}, {"image": {"count": 2, "width": 9}, "video": 0}, {}])
def test_limits_of_a_prompt(said: dict[str, Any]) -> None:
    check_args(EngineArgs(limit_mm_per_prompt=said))


@pytest.mark.parametrize(
    "said", [{"image": -1}, {"image": "4"}, {"image": True}, {"image": {"most": 1}}, {"film": 1}, {"audio": "1"}, {"text": 1}]
)
def test_wrong_limits_are_refused_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="limit_mm_per_prompt"):
        check_args(EngineArgs(limit_mm_per_prompt=said))
