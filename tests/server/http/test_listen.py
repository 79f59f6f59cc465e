"""The listening socket's name belongs to whoever made it last."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from thalweg.errors import ConfigError
from thalweg.server.http.listen import listen_all, listening
from thalweg.server.settings import ServerSettings


def test_a_server_takes_its_own_name_away(tmp_path):
    path = tmp_path / "a.sock"
    with listening(ServerSettings(uds=str(path))):
        assert path.is_socket()
    assert not path.exists()


def test_a_name_that_another_server_took_over_stays(tmp_path):
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as other, listening(ServerSettings(uds=str(path))):
        path.rename(tmp_path / "kept.sock")  # so that its number is not used again
        other.bind(str(path))
    assert path.is_socket()


@pytest.mark.parametrize("what", ["file", "nothing"])
def test_whatever_lies_there_at_the_end_is_left_alone(tmp_path, what):
    path = Path(tmp_path / "a.sock")
    with listening(ServerSettings(uds=str(path))):
        path.rename(tmp_path / "kept.sock")
        if what == "file":
            path.write_text("mine")
    assert path.exists() == (what == "file")


def test_a_metrics_port_in_use_fails_before_anything_else():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = listen_all(ServerSettings(port=0, metrics_port=port))
        with pytest.raises(ConfigError, match=f"--metrics-port: cannot listen on 127.0.0.1:{port}"):
            listen.__enter__()
    with pytest.raises(ConfigError, match="--metrics-port: 8000 is --port already"):
        ServerSettings(metrics_port=8000)
