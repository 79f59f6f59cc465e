"""What those can do who have no business here: half requests, borrowed addresses and names, pages of other origins, old TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine

from thalweg.errors import ConfigError
from thalweg.server.http.certificates import refresh
from thalweg.server.settings import ServerSettings

get, post = partial(httpx.get, timeout=60), partial(httpx.post, timeout=60)
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HALF = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n%s\r\n{"


def connect(running, data: bytes = b"") -> socket.socket:
    s = socket.create_connection(running.sock.getsockname())
    s.settimeout(60)
    s.sendall(data)
    return s


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
def test_heads_without_bodies_take_no_place_in_the_queue(start, path, logged):
    running = start(max_queued_requests=4)
    idle = [connect(running, HALF % (path.encode(), b"X-Forwarded-For: 10.0.0.%d\r\n" % i)) for i in range(50)]
    until(lambda: len(running._server.server_state.connections) >= 50 and running.app.lifecycle.inside >= 50)
    assert running.post(TEXT, {"prompt": "abc", "max_tokens": 2}).status_code == 200
    assert running.app.serving.admission.places == 0
    for s in idle:
        s.close()
    until(lambda: not running.app.lifecycle.inside)
    assert "Traceback" not in "".join(logged)


def test_a_body_that_has_arrived_is_refused_where_the_queue_is_full(start):
    """Also if there was a place when its head came."""
    running = start(FakeEngine(delay=0.2), max_queued_requests=0)
    s = connect(running, HALF % (TEXT.encode(), b""))
    until(lambda: running.app.lifecycle.inside == 1)
    body = {"prompt": ["abc"] * 10, "max_tokens": 1000, "stream": True}
    with running.http.stream("POST", TEXT, json=body) as answer:
        chunks = answer.iter_bytes()  # kept: an iterator that is dropped closes the connection
        next(chunks)
        s.sendall(b'"prompt":"abc"'.ljust(98) + b"}")
        assert s.recv(65536).startswith(b"HTTP/1.1 429")
    s.close()


def test_addresses_are_believed_only_of_proxies_the_operator_named(start):
    seen: list[str] = []
    for trusted, wanted in (([], "127.0.0.1"), (["127.0.0.1"], "10.1.2.3")):
        running = start(forwarded_allow_ips=trusted)
        admission = running.app.serving.admission
        admission.look = seen.append
        running.post(TEXT, {"prompt": "abc", "max_tokens": 1}, headers={"X-Forwarded-For": "10.1.2.3"})
        assert seen.pop() == wanted
        del admission.look


def test_the_operator_may_say_so_as_to_uvicorn(start, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    running, seen = start(), []
    running.app.serving.admission.look = seen.append
    running.post(TEXT, {"prompt": "abc", "max_tokens": 1}, headers={"X-Forwarded-For": "10.1.2.3"})
    assert seen[0] == "10.1.2.3"


def test_a_path_writes_no_line_and_no_escape_into_the_access_log(start, logged):
    running = start(api_key=["k"])
    with connect(running, b"GET /x%0d%0aINFO%20forged%1b%5b2J%22 HTTP/1.1\r\nHost: localhost\r\n\r\n") as s:
        assert s.recv(65536).startswith(b"HTTP/1.1 401")
    (line,) = [line for line in logged if "forged" in line]
    assert line.isprintable()
    assert '"GET /x%0D%0AINFO%20forged%1B%5B2J%22 HTTP/1.1" 401' in line


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize"])
def test_a_client_that_leaves_in_its_body_is_no_error_of_ours(start, path, logged):
    running = start()
    for _ in range(3):
        connect(running, HALF % (path.encode(), b"")).close()
    counted = f'handler="{path}",method="POST",status="499"}} 3.0'
    until(lambda: counted in running.get("/metrics").text)
    assert 'status="500"' not in running.get("/metrics").text
    assert not [line for line in logged if "Traceback" in line or '" 500' in line]


# ------------------------------------------------------------------ browsers


@pytest.mark.parametrize("path", ["/v1/models", TEXT])
def test_pages_of_other_origins_read_nothing_by_default(start, path):
    running = start()
    asks = {"Origin": "http://attacker.example", "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "content-type"
    for answer in (
        httpx.options(running.url + path, headers=asks),
        httpx.request("GET" if path != TEXT else "POST", running.url + path, headers={"Origin": asks["Origin"]}, json={}),
    ):
        assert not [k for k in answer.headers if k.startswith("access-control-")]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "app.localhost:8000", "127.0.0.1:9", "[::1]:8000", "10.1.2.3"]
)
def test_a_server_on_loopback_goes_by_its_names_and_by_addresses(server, host):
    assert server.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "[::1"]
)
def test_a_server_on_loopback_without_a_key_goes_by_no_other_name(server, host):
    answer = server.get("/v1/models", headers={"Host": host})
    if host != "[::1":  # no host at all
        assert answer.status_code == 403
        assert "--allowed-hosts" in answer.json()["error"]["message"]
        assert server.get("/health", headers={"Host": host}).status_code == 200
    assert answer.status_code in (400, 403)


def test_names_are_the_operators_to_give(start):
    for settings, wanted in (
        ({"allowed_hosts": ["api.example"]}, 200),
        ({"allowed_hosts": ["*"]}, 200),
        ({"allowed_hosts": ["other.example"], "api_key": ["k"]}, 403),
        ({"api_key": ["k"]}, 200),
        ({"host": "0.0.0.0"}, 200),
    ):
        running = start(**settings)
        headers = {"Host": "API.example:8000", "Authorization": "Bearer k"}
        assert running.get("/v1/models", headers=headers).status_code == wanted, settings
    with pytest.raises(ConfigError, match="--allowed-hosts: 'http://a' is no name"):
        ServerSettings(allowed_hosts=["http://a"])


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost"]
    subprocess.run(words, check=True, capture_output=True)
    return {"ssl_keyfile": key, "ssl_certfile": cert}


def shake(running, ciphers: str) -> str:
    """The suite agreed on over TLS 1.2; "" if there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    try:
        with connect(running) as s, context.wrap_socket(s) as tls:
            return tls.cipher()[0]
    except ssl.SSLError:
        return ""


@pytest.mark.slow
def test_tls_12_speaks_modern_suites_only(start, certificate):
    running = start(**certificate)
    for suite in ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"):
        assert shake(running, suite) == suite
    for suite in ("ECDHE-RSA-AES256-SHA", "AES256-GCM-SHA384", "AES256-SHA"):
        assert shake(running, suite) == ""


def test_a_tls_connection_that_says_nothing_is_closed_with_the_header_timeout(start, certificate):
    running = start(**certificate, header_timeout=0.3)
    with connect(running) as s:
        s.settimeout(40)
        assert s.recv(1) == b""  # else after a minute
    answer = get(running.url.replace("http:", "https:") + "/livez", verify=False)
    assert answer.status_code == 200


async def test_a_certificate_is_read_again_when_its_file_changes_and_a_bad_one_changes_nothing(certificate, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(certificate["ssl_certfile"], cert)
    shutil.copy(certificate["ssl_keyfile"], key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    read: list[bytes] = []

    class Watched:
        def load_cert_chain(self, file, keyfile):
            context.load_cert_chain(file, keyfile)  # ssl.SSLError for what is none
            read.append(Path(file).read_bytes())

    settings = ServerSettings(ssl_certfile=str(cert), ssl_keyfile=str(key), enable_ssl_refresh=True)
    task = asyncio.create_task(refresh(Watched(), settings, every=0.01))
    whole = cert.read_bytes()
    await asyncio.sleep(0.05)
    assert read == []  # nothing changed
    cert.write_bytes(whole[:200])
    await asyncio.sleep(0.1)
    assert read == []
    cert.write_bytes(whole + b"\n")
    for _ in range(6000):
        if read:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    assert read == [whole + b"\n"]
