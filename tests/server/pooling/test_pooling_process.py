"""`thalweg serve` of pooling models as users start it: a process, a real engine, the official client; transformers decides."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers
from test_serve_process import Process
from zoo import describe_pooling, end_texts, make_bert_tokenizer, make_checkpoint, make_classifier, make_encoder

pytestmark = pytest.mark.slow  # each starts processes
TEXTS = ["up the river", "down", "the lowest line of a valley"]


@pytest.fixture
def serve() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(path: Path, *words: str) -> Process:
        more = ["--device", "cpu", "--dtype", "float32", "--port", "0", "--threads", "1", "--served-model-name", "m"]
        made.append(Process(str(path), *more, *words))
        return made[-1]

    yield start
    for process in made:
        process.process.kill()
        print("".join(process.log))


def client(process: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)


@torch.inference_mode()
def states(path: Path, ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([ids])).last_hidden_state[0]


def test_an_encoder(serve: Callable[..., Process], tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    make_bert_tokenizer(path)
    describe_pooling(path, "mean_tokens", max_len=64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    process = serve(path)
    api = client(process)
    as_bytes = api.embeddings.create(model="m", input=TEXTS)
    as_numbers = api.embeddings.create(model="m", input=TEXTS, encoding_format="float")
    for text, one, other in zip(TEXTS, as_bytes.data, as_numbers.data, strict=True):
        got = np.array(one.embedding, np.float32)
        np.testing.assert_array_equal(got, np.array(other.embedding, np.float32))
        want = torch.nn.functional.normalize(states(path, tokenizer(text)["input_ids"]).mean(0), dim=0)
        np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="needs a model that generates text"):
        api.completions.create(model="m", prompt="a")
    each = httpx.post(process.url() + "/pooling", json={"input": TEXTS, "task": "token_embed"}, timeout=60).json()["data"]
    for text, entry in zip(TEXTS, each, strict=True):
        want = torch.nn.functional.normalize(states(path, tokenizer(text)["input_ids"]), dim=-1)
        np.testing.assert_allclose(entry["data"], want, atol=1e-5)


def test_a_reranker(serve: Callable[..., Process], tmp_path: Path) -> None:
    path = make_classifier("bert", tmp_path, 1)
    make_bert_tokenizer(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        pairs = [tokenizer("which way", t, return_token_type_ids=True, return_tensors="pt") for t in TEXTS]
        want = [float(torch.sigmoid(model(**p).logits)[0, 0]) for p in pairs]
    url = serve(path).url()
    answer = httpx.post(f"{url}/v1/rerank", json={"model": "m", "query": "which way", "documents": TEXTS}, timeout=60).json()
    order = sorted(range(3), key=lambda i: -want[i])
    assert [r["index"] for r in answer["results"]] == order
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([want[i] for i in order], abs=1e-5)


def test_a_decoder_as_an_embedder_over_the_death_of_its_engine(serve: Callable[..., Process], tmp_path: Path) -> None:
    """Nothing that was asked is lost: the next engine computes it."""
    path = make_checkpoint("qwen3", tmp_path)
    end_texts(path)
    describe_pooling(path, "lasttoken")
    process = serve(path, "--max-num-seqs", "2", "--max-num-batched-tokens", "16")
    rng = np.random.default_rng(4)
    given = [rng.integers(3, 256, 64).tolist() for _ in range(240)]  # four steps each: seconds, on most machines
    url = process.url()
    first = _engine(process)

    async def main() -> list[list[float]]:
        api = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
        asking = asyncio.create_task(api.embeddings.create(model="m", input=given))
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        return [d.embedding for d in (await asking).data]

    made = asyncio.run(main())
    assert "is gone" in "".join(process.log)
    for i in (0, 30, 239):
        want = torch.nn.functional.normalize(states(path, given[i])[-1], dim=0)
        np.testing.assert_allclose(made[i], want, atol=1e-5)
    text = client(process).embeddings.create(model="m", input="ab")
    assert text.usage.prompt_tokens == 3  # the end token too
    assert process.end() == 0


def _engine(process: Process) -> int:
    """The engine's process id: the child of the server that runs engine.main and was told to load."""
    children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text().split()
    found = [int(c) for c in children if "thalweg.engine.main" in Path(f"/proc/{c}/cmdline").read_text()]
    return min(found)
