"""Batch inference in actors of a local cluster of Ray. `test_embedded_server.py` runs the class in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from thalweg import LLM, SamplingParams
from thalweg.integrations.ray.data import BatchGenerator

OPTIONS = {"model": "thalweg-nano", "max_model_len": 512, "max_num_seqs": 4}
SAMPLING = {"max_tokens": 8, "temperature": 0.0}
PROMPTS = ["Sort: pear, fig", "Count to 5", "x " * 2000, "Sort: b, a"]
ROOT = Path(__file__).parents[2]


def generate_expected() -> list[str]:
    """Texts of PROMPTS, "" for the one that is too long."""
    llm = LLM(**OPTIONS)
    good = [p for p in PROMPTS if len(p) < 500]
    texts = iter([o.outputs[0].text for o in llm.generate(good, SamplingParams(**SAMPLING), use_tqdm=False)])
    return [next(texts) if p in good else "" for p in PROMPTS]


@pytest.fixture(scope="module")
def data() -> Iterator[Any]:
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        pytest.skip("not installed: ray[data]")
    import ray
    import ray.data

    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": variables}, log_to_driver=False,
    )  # fmt: skip
    yield ray.data
    ray.shutdown()


@pytest.mark.nightly
@pytest.mark.parametrize("column", ["prompt", "messages"])
def test_actors_of_ray_answer_as_an_engine_does(data: Any, column: str) -> None:
    if column == "prompt":
        rows: list[dict[str, Any]] = [{"id": i, "prompt": p} for i, p in enumerate(PROMPTS)]
        wanted = generate_expected()
    else:
        talks = [[{"role": "user", "content": p}] for p in PROMPTS if len(p) < 500]
        rows = [{"id": i, "messages": talk} for i, talk in enumerate(talks)]
        outputs = LLM(**OPTIONS).chat(talks, SamplingParams(**SAMPLING), use_tqdm=False)
        wanted = [o.outputs[0].text for o in outputs]
    answered = data.from_items(rows).map_batches(
        BatchGenerator, fn_constructor_kwargs={"options": OPTIONS, "sampling": SAMPLING}, batch_size=2, concurrency=1
    )
    found = sorted(answered.take_all(), key=lambda row: row["id"])
    assert [row["generated_text"] for row in found] == wanted
    assert [row["id"] for row in found if row["error"]] == ([2] if column == "prompt" else [])
