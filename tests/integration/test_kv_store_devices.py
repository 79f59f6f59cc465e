"""An engine that starts from blocks which another computed, as one that computed them itself: no bit shows the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_files import ATTENTION, write_adapter
from zoo import make_checkpoint

from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.engine.control.store.base import Store
from thalweg.errors import ConfigError
from thalweg.kv_stores import add_store

HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"


STATES = {"mamba_block_size": 8}


class TestProcessStore(Store):
    """A dict that the engines of this process share."""

    __test__ = False
    shared = True
    blocks: dict[bytes, bytes] = {}

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> TestProcessStore:
        return cls()

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self.blocks for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.blocks.get(key) for key in keys]

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        self.blocks.update(zip(keys, blocks, strict=True))


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    """Arguments of engines that share it."""
    add_store("test", f"{__name__}:TestProcessStore")
    TestProcessStore.blocks = {}
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    return {"kv_transfer_config": {"kv_connector": "test"}, "kv_key_secret": str(tmp_path / "secret")}


def serve(
    path: Path, rounds: Sequence[list[list[int]]], device: str, lora: LoRARequest | None = None, **more: Any
) -> tuple[list[Any], Any]:
    """(tokens and logprobs of every prompt of the last round, statistics)."""
    said: dict[str, Any] = {
        "dtype": "float32", "skip_tokenizer_init": True, "block_size": 4, "max_model_len": 128, "max_num_seqs": 4,
        "max_num_batched_tokens": 16, "use_tqdm_on_load": False,
    }  # fmt: skip
    llm = LLM(str(path), device=device, **(said | more))
    try:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1, detokenize=False)
        for prompts in rounds:
            outs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False, lora_request=lora)
        told = [list(zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)) for o in outs]
        return [[(t, by[t].logprob) for t, by in each] for each in told], llm.stats()
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device", "more"),
    [
        ("llama", "cpu", {}),
        ("llama", HOST, {}),
        ("llama", "cpu", {"kv_cache_dtype": "int8_per_token_head"}),
        ("gemma3", "cpu", {}),
        ("deepseek-v3", HOST, {}),
        ("qwen3-next", "cpu", {"mamba_block_size": 8}),
        ("qwen3-next", HOST, {"mamba_block_size": 8}),
        *(
            pytest.param(name, device, {"tensor_parallel_size": 2, **more}, marks=pytest.mark.nightly)
            for name, device, more in (("llama", "cpu", {}), ("deepseek-v3", "cpu", {}), ("qwen3-next", "cpu", STATES))
        ),
    ],
)
def test_no_bit_shows_where_a_prefix_came_from(
    name: str, device: str, more: dict[str, Any], store: dict[str, Any], tmp_path: Path
) -> None:
    path = make_checkpoint(name, tmp_path)
    rng = np.random.default_rng(5)
    stems = [rng.integers(3, 250, 96).tolist() for _ in range(2)]
    longer = [stem + rng.integers(3, 250, 5).tolist() for stem in stems]
    if "tensor_parallel_size" in more:  # whose processes know no store of this one
        options = {"shared_storage_path": str(tmp_path / "blocks"), "max_bytes": 1 << 26}
        store = {**store, "kv_transfer_config": {"kv_connector": "disk", "kv_connector_extra_config": options}}
    want, _ = serve(path, [stems, longer], device, **more)
    serve(path, [stems], device, **more, **store)
    got, stats = serve(path, [longer], device, **more, **store)
    assert stats.store_hits >= 2 * 88
    assert stats.store_failed == 0
    assert got == want


def test_engines_with_other_room_for_adapters_share_no_blocks(store: dict[str, Any], tmp_path: Path) -> None:
    """A sum over padded ranks may have other bits."""
    base = make_checkpoint("qwen3", tmp_path)
    lora = LoRARequest("a", 1, str(write_adapter(base, tmp_path / "a", 1, 4, ATTENTION)))
    prompt = [[(7 * i) % 200 for i in range(100)]]
    hits = []
    for rank in (8, 8, 64):
        hits.append(serve(base, [prompt], "cpu", lora, enable_lora=True, max_lora_rank=rank, **store)[1].store_hits)
    assert hits[0] == hits[2] == 0 < hits[1]


def test_a_store_that_cannot_open_is_named_with_its_reason(store: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: Mapping[str, Any]) -> None:
        raise PermissionError(13, "no access")

    monkeypatch.setattr(TestProcessStore, "open", fail)
    with pytest.raises(ConfigError, match=r"kv_transfer_config: test cannot start: PermissionError: .*no access"):
        LLM(device="null", max_model_len=64, **store)
