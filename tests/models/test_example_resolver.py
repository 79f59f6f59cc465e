"""The example of a resolver outside the repository: installed as a package, and asked by a server for an unknown name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from installed import installed
from lora_files import ALL, write_adapter
from zoo import load_reference, make_checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "resolver"
PROMPT = list(b"which rows")
SCRIPT = """
import asyncio, json, sys
import httpx
from thalweg import AsyncLLM, EngineArgs
from thalweg.server.app import make_app
from thalweg.server.settings import ServerSettings

async def main(base, root, prompt):
    sizes = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 20}
    engine = await AsyncLLM.start(EngineArgs(model=base, device="cpu", threads=1, enable_lora=True, **sizes))
    app = make_app(engine, ServerSettings(lora_resolver=["aliases"], lora_root=[root]))
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 0,
            "return_tokens_as_token_ids": True}
    said = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for name in ("sql", "none"):
            answer = await http.post("/v1/completions", json={**body, "model": name})
            tokens = answer.json()["choices"][0]["logprobs"]["tokens"] if answer.status_code == 200 else answer.status_code
            said[name] = tokens
    await engine.shutdown()
    print(json.dumps(said))

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


@pytest.mark.slow  # installs a package and starts processes
@torch.inference_mode()
def test_a_name_in_the_file_is_served_with_its_adapter(tmp_path: Path) -> None:
    base, root = make_checkpoint("qwen3", tmp_path), tmp_path / "root"
    adapter = write_adapter(base, root / "sql-v7", 1, 4, ALL)
    (root / "aliases.json").write_text('{"sql": "sql-v7", "none": "sql-v8"}')
    words = [sys.executable, "-c", SCRIPT, str(base), str(root), json.dumps(PROMPT)]
    done = subprocess.run(words, env=installed(EXAMPLE, tmp_path / "package"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["none"] == 404
    tokens = [int(t.removeprefix("token_id:")) for t in said["sql"]]
    logits = load_reference(adapter / "merged", torch.float32)(torch.tensor([[*PROMPT, *tokens]])).logits[0]
    assert tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
