"""The example of a format of adapters outside the repository: installed as a package of its own, found, and served as the
merged model is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from installed import installed
from safetensors.torch import load_file, save_file
from zoo import load_reference, make_checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapter"
MOST_LINES = 60
PROMPTS = [[5, 6, 7, 8, 9], [200, 3], list(range(40, 60))]
SCRIPT = """
import json, sys
from thalweg import LLM, LoRARequest, SamplingParams
base, folder, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
llm = LLM(base, device="cpu", dtype="float32", max_model_len=64, max_num_seqs=4, use_tqdm_on_load=False, enable_lora=True)
greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
said = {}
for name in ("mlx", "dora"):
    try:
        outs = llm.generate([{"prompt_token_ids": p} for p in prompts], greedy, use_tqdm=False,
                            lora_request=[LoRARequest(name, 1 + (name == "dora"), f"{folder}/{name}"), None, None])
        said[name] = [list(o.outputs[0].token_ids) for o in outs]
    except Exception as e:
        said[name] = f"{type(e).__name__}: {e}"
print(json.dumps(said))
"""


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"rank": 4, "scale": 3.0}, **config}))
    save_file(tensors, folder / "adapters.safetensors")


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_adapter/*.py")) < MOST_LINES


@pytest.mark.slow
@torch.inference_mode()
def test_its_adapters_are_served_as_the_merged_model_is(tmp_path: Path) -> None:
    base, rng = make_checkpoint("qwen3", tmp_path), torch.Generator().manual_seed(4)
    weights, tensors, merged = load_file(base / "model.safetensors"), dict[str, torch.Tensor](), tmp_path / "merged"
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "down_proj.weight")):
            a = torch.randn(weight.shape[1], 4, generator=rng) / weight.shape[1] ** 0.5
            b = torch.randn(4, weight.shape[0], generator=rng) * 0.2
            tensors |= {name.replace("weight", "lora_a"): a, name.replace("weight", "lora_b"): b}
            weights[name] = weight + 3.0 * (a @ b).T
    write_adapter(tmp_path / "mlx", tensors)
    write_adapter(tmp_path / "dora", tensors, fine_tune_type="dora")
    make_checkpoint("qwen3", merged)
    save_file(weights, merged / "qwen3" / "model.safetensors", {"format": "pt"})
    command = [sys.executable, "-c", SCRIPT, str(base), str(tmp_path), json.dumps(PROMPTS)]
    environment = installed(EXAMPLE, tmp_path / "site")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for tokens, prompt, path in zip(said["mlx"], PROMPTS, (merged / "qwen3", base, base), strict=True):
        logits = load_reference(path, torch.float32)(torch.tensor([[*prompt, *tokens]])).logits[0]
        assert tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert said["dora"].startswith("UnsupportedModelError: ")
    assert "fine_tune_type: 'dora'" in said["dora"]
