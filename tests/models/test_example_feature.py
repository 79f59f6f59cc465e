"""The example of a step feature outside the repository: installed as a package of its own, found, equal to transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from installed import installed
from zoo import SMALL, load_reference, make_tokenizer, spread

EXAMPLE = Path(__file__).parents[2] / "examples" / "feature"
MOST_LINES = 100
NEW = 24
SCRIPT = """
import json, sys
from thalweg import LLM, SamplingParams
from thalweg.errors import RequestError
shared = list(range(40, 80))
work = [(shared + [5, 6, 7], 2), (shared + [9], 3), ([5, 6, 5, 6, 5], 1), (shared + [5, 6, 7, 8], 2)]
work += [([200, 3], 0), ([7] * 9, 4)]
said = {}
for device in sys.argv[2:]:
    llm = LLM(sys.argv[1], device=device, dtype="float32", max_model_len=96, max_num_seqs=3, use_tqdm_on_load=False)
    plain = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    params = [SamplingParams(**plain, extra_args={"no_repeat_ngram_size": n}) for _, n in work]
    outs = llm.generate([{"prompt_token_ids": p} for p, _ in work], params, use_tqdm=False)
    said[device] = [[p, n, list(o.outputs[0].token_ids)] for (p, n), o in zip(work, outs)], llm.stats().prefix_hits
refused = []
for extra in ({"no_repeat_ngram_size": -1}, {"no_repeat": 2}):
    try:
        llm.generate("a", SamplingParams(extra_args=extra), use_tqdm=False)
    except RequestError as e:
        refused.append(str(e))
print(json.dumps([said, refused]))
"""
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps padded to buckets, some of them captured."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL), dtype=torch.float32)
    spread(model, 7)
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    make_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def said(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    environment = installed(EXAMPLE, tmp_path_factory.mktemp("feature"))
    command = [sys.executable, "-c", SCRIPT, str(checkpoint), "reference", "cpu", HOST]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_feature/*.py")) < MOST_LINES


@torch.inference_mode()
@pytest.mark.slow
def test_it_answers_as_transformers_does_on_every_device(said: Any, checkpoint: Path) -> None:
    oracle = load_reference(checkpoint, torch.float32)
    answers, _ = said
    assert sorted(answers) == sorted(["reference", "cpu", HOST])
    changed = 0
    for device, (rows, prefix_hits) in answers.items():
        assert prefix_hits > 0, device  # what the cache held must be in the history
        for prompt, n, got in rows:
            want = [
                oracle.generate(
                    torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
                    no_repeat_ngram_size=size, pad_token_id=0,
                )[0, len(prompt) :].tolist()
                for size in (n, 0)
            ]  # fmt: skip
            assert got == want[0], (device, prompt, n)
            changed += want[0] != want[1]
    assert changed >= 6


@pytest.mark.slow
def test_what_it_does_not_take_is_refused_by_name(said: Any) -> None:
    bad, unknown = said[1]
    assert "no_repeat_ngram_size: must be an integer between 0 and 32, not -1" in bad
    message, _, known = unknown.partition("; supported: ")
    assert message.endswith("'no_repeat' is not known")
    assert "no_repeat_ngram_size" in known.split(", ")


def test_without_it_its_argument_is_refused() -> None:
    from thalweg.engine.client.sampling_reader import extra
    from thalweg.errors import RequestError

    with pytest.raises(RequestError, match=r"extra_args: 'no_repeat_ngram_size' is not known"):
        extra({"no_repeat_ngram_size": 2})
