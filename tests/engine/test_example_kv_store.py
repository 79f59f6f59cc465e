"""The example of a KV store outside the repository: one engine computes a prompt, and another finds it in the store."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import installed

EXAMPLE = Path(__file__).parents[2] / "examples" / "kv_store"
MOST_LINES = 100
SCRIPT = """
import json, sys
from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError
folder, secret = sys.argv[1:]
prompt = list(range(300, 420))
said = {}
def config(**options):
    return {"kv_connector": "folder", "kv_connector_extra_config": {"folder": folder, "max_bytes": 1 << 30} | options}
def ask(name, tokens, **engine):
    llm = LLM(dtype="float32", max_model_len=256, use_tqdm_on_load=False, **engine)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    out = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)[0]
    said[name] = out.num_cached_tokens, list(out.outputs[0].token_ids), llm.stats().store_hits
    llm.shutdown()
store = {"kv_transfer_config": config(), "kv_key_secret": secret}
ask("alone", prompt, device="reference")
ask("first", prompt[:100] + [7, 8, 9], device="reference", **store)
ask("second", prompt, device="reference", **store)
ask("other weights", prompt, device="reference", load_format="dummy", **store)
refused = []
for fields in ({"kv_transfer_config": config()}, {**store, "kv_transfer_config": config(size=1)}):
    try:
        LLM(device="reference", **fields)
    except ConfigError as e:
        refused.append(str(e))
print(json.dumps([said, refused]))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kv_store")
    (folder / "secret").write_text("violet anchor 7f2c91d0\n")
    command = [sys.executable, "-c", SCRIPT, str(folder / "blocks"), str(folder / "secret")]
    done = subprocess.run(command, capture_output=True, text=True, env=installed(EXAMPLE, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "violet" not in done.stderr + done.stdout
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_kv_store/*.py")) < MOST_LINES


@pytest.mark.slow
def test_a_prefix_that_an_engine_computed_before_it_ended_is_found_by_another(said: Any) -> None:
    engines, _ = said
    assert engines["first"][0] == 0
    cached, tokens, hits = engines["second"]
    assert cached == hits == 96
    assert tokens == engines["alone"][1]


@pytest.mark.slow
def test_blocks_of_other_weights_are_not_found(said: Any) -> None:
    engines, _ = said
    cached, tokens, _ = engines["other weights"]
    assert cached == 0
    assert tokens != engines["alone"][1]


@pytest.mark.slow
def test_a_shared_store_without_a_secret_and_an_option_it_lacks_are_refused(said: Any) -> None:
    no_secret, no_option = said[1]
    assert "--kv-key-secret" in no_secret
    assert "kv_connector_extra_config: 'size' is not known; known are folder and max_bytes" in no_option


def test_a_full_disk_keeps_no_part_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    store = importlib.import_module("thalweg_kv_store").FolderStore.open({"folder": str(tmp_path), "max_bytes": 100})

    def fail(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        store.save([b"k" * 16], [b"block"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
