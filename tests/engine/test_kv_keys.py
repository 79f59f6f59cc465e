"""Which keys engines agree on: those of one secret and one model. What cannot agree is refused before anything is loaded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from thalweg.checkpoint.identity import model_digest
from thalweg.config import EngineArgs, check_args
from thalweg.engine.control.store.connect import check_store, key_hash
from thalweg.errors import ConfigError
from thalweg.host.secrets import key_secret

BYTES = {"cpu_bytes_to_use": 1 << 20}


def test_engines_with_one_secret_have_one_key_for_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("sixteen bytes or more, and a line\n")
    (tmp_path / "two").write_text("another secret of sixteen bytes")

    def key(secret: str | None) -> bytes:
        made = key_hash(EngineArgs(model="m", kv_key_secret=secret))
        assert made is not None
        return made(b"parent", b"salt", b"tokens")

    one = key(str(tmp_path / "one"))
    assert one == key(str(tmp_path / "one"))
    assert one != key(str(tmp_path / "two"))
    assert key_hash(EngineArgs(model="m")) is None, "else each process draws its own"
    monkeypatch.setenv("THALWEG_KV_KEY_SECRET", "sixteen bytes or more, and a line")
    assert key(None) == one
    assert key(str(tmp_path / "two")) != one, "the flag wins"


def test_a_model_is_known_by_its_contents(tmp_path: Path) -> None:
    def digest(name: str, config: dict, tensors: dict[str, torch.Tensor], file: str = "model.safetensors") -> bytes:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / file)
        return model_digest(folder)

    weights = {"a": torch.ones(40, 40), "b": torch.zeros(3)}
    first = digest("first", {"x": 1}, weights)
    assert digest("a copy", {"x": 1}, weights, "other-name.safetensors") == first
    trained = {**weights, "b": torch.full((3,), 1e-3)}
    assert len({first, digest("trained", {"x": 1}, trained), digest("configured", {"x": 2}, weights)}) == 3
    data = np.arange(1 << 16, dtype=np.uint8).tobytes()
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + data)
    other = tmp_path / "n.gguf"
    other.write_bytes(b"GGUF" + data[:-1] + b"x")
    assert model_digest(tmp_path / "m.gguf") != model_digest(other)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kv_transfer_config": {"kv_connector": "P2pNcclConnector"}}, "'P2pNcclConnector' is not here; .* share a store"),
        ({"kv_transfer_config": {"kv_connector": "LMCacheFooConnector"}}, "LMCacheMPConnector keeps blocks in"),
        ({"kv_transfer_config": {"kv_connector": "host"}}, "extra_config: cpu_bytes_to_use: must be a number of bytes"),
        ({"kv_transfer_config": {"kv_connector": "host", "kv_role": "kv_some"}}, "kv_transfer_config: .*kv_role"),
        ({"kv_transfer_config": {"kv_connector": "host", "engine_id": "x"}}, "kv_transfer_config: .*engine_id"),
        (
            {"kv_transfer_config": {"kv_connector": "host", "kv_connector_extra_config": {**BYTES, "load_timeout": 0}}},
            "load_timeout: must be seconds above 0",
        ),
        ({"kv_offloading_size": 1.0, "kv_transfer_config": {"kv_connector": "host"}}, "give only one"),
        ({"kv_offloading_size": 1.0, "kv_offloading_backend": "lmcache"}, "lmcache server --l1-size-gb"),
        ({"kv_offloading_size": 1.0, "enable_prefix_caching": False}, "requires enable_prefix_caching"),
        ({"kv_key_secret": "/nowhere/secret"}, "kv_key_secret: /nowhere/secret: cannot be read"),
    ],
)
def test_what_no_store_could_do_is_refused(fields: dict, says: str) -> None:
    def check(args: EngineArgs) -> None:
        check_args(args)
        check_store(args)

    with pytest.raises(ConfigError, match=says):
        check(EngineArgs(model="m", **fields))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_secret_file_without_an_end_takes_no_memory() -> None:
    with pytest.raises(ConfigError, match="kv_key_secret: /dev/zero: a secret has at most 4096 bytes"):
        key_secret("/dev/zero")


def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("short", ""):
        monkeypatch.setenv("THALWEG_KV_KEY_SECRET", secret)
        with pytest.raises(ConfigError, match=f"THALWEG_KV_KEY_SECRET: a secret of {len(secret)} bytes is too short"):
            key_secret(None)
    monkeypatch.setenv("THALWEG_KV_KEY_SECRET", "short")
    with pytest.raises(ConfigError, match="THALWEG_KV_KEY_SECRET: a secret of 5 bytes is too short"):
        check_store(EngineArgs(model="m"))
