"""What `plan` says: from headers alone, without a framework, with the flag to change where something does not fit."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint.hub import resolve_model
from thalweg.cli import main
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, DeviceError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def args(model: Path, **fields: Any) -> EngineArgs:
    return EngineArgs(**{"model": str(model), "device": "reference", "dtype": "float32", "load_format": "dummy", **fields})


def write_header(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "F32") -> None:
    """A safetensors file whose data is a hole: only the header can be read for anything."""
    header, at = {}, 0
    for name, shape in tensors.items():
        end = at + math.prod(shape) * 4
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


def test_weights_are_what_the_loader_will_hold(model: Path) -> None:
    torch = pytest.importorskip("torch")
    from thalweg.engine.worker.build import build
    from thalweg.models.build import build as build_model  # noqa: F401

    planned = plan(args(model, max_model_len=128, kv_cache_memory_bytes=1 << 20))
    worker = build(args(model, max_model_len=128, kv_cache_memory_bytes=1 << 20, use_tqdm_on_load=False))
    executable = worker.launch.__self__._any  # the eager executable holds what was loaded

    def leaves(x: Any) -> list[Any]:
        if isinstance(x, torch.Tensor):
            return [x]
        return [t for v in (x.values() if isinstance(x, dict) else x) for t in leaves(v)]

    def size(x: Any) -> int:
        return sum({t.data_ptr(): t.nbytes for t in leaves(x)}.values())

    assert planned.weights == size(executable.params)
    assert planned.kv_cache == size(executable.state.value["kv"])
    assert planned.history == size(executable.state.value["history"])
    assert planned.blocks == worker.config.cache.blocks[0]
    assert [g["bytes_per_block"] for g in planned.groups] == [g.bytes_per_block for g in worker.config.cache.groups]


def test_a_plan_of_ranks_is_that_of_each_and_names_the_fewest_that_fit(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "kv_cache_memory_bytes": 1 << 20}
    one, two, four = (plan(args(model, tensor_parallel_size=n, **flags)) for n in (1, 2, 4))
    assert (two.devices, two.kv_per_token * 2, two.kv_per_token) == (2, one.kv_per_token, four.kv_per_token)  # two KV heads
    assert 0.5 < two.weights / one.weights < 0.55
    assert two.device_bytes == one.device_bytes // 2
    with pytest.raises(ConfigError, match="tensor_parallel_size: 3 does not divide this model"):
        plan(args(model, tensor_parallel_size=3, **flags))
    words = ["plan", str(model), "--device", "cpu", "--load-format", "dummy", "-tp", "2", "--max-model-len", "128"]
    assert main(words) == 0
    assert "2 (--tensor-parallel-size); sizes are those of each rank; 1 is the smallest that fits" in capsys.readouterr().out


def test_a_plan_of_stages_is_that_of_the_one_with_the_least_room(model: Path) -> None:
    flags: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "kv_cache_memory_bytes": 1 << 20}
    whole = plan(args(model, **flags))
    staged = [plan(args(model, pipeline_parallel_size=2, pipeline_layer_partition=n, **flags)) for n in ([1, 2], [2, 1])]
    assert [(p.devices, p.kv_per_token * 3) for p in staged] == [(2, 2 * whole.kv_per_token)] * 2
    last, first = (p.weights for p in staged)
    assert first < last < whole.weights  # the last also has the norm
    with pytest.raises(ConfigError, match="pipeline_parallel_size: the model has 3 layers for 4 stages"):
        plan(args(model, pipeline_parallel_size=4, **flags))
    with pytest.raises(ConfigError, match="speculative_config: drafts are not divided among pipeline stages; omit it"):
        plan(args(model, pipeline_parallel_size=2, spec_method="ngram", spec_tokens=2, **flags))


def test_a_plan_counts_the_whole_experts_of_a_rank(tmp_path: Path) -> None:
    mixture = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts_per_tok": 2, "moe_intermediate_size": 25}
    expert = 3 * CONFIG["hidden_size"] * 25 * 4 * CONFIG["num_hidden_layers"]

    def weights(experts: int, ranks: int, **flags: Any) -> int:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | mixture | {"num_experts": experts}))
        return plan(args(tmp_path, device="cpu", max_model_len=128, tensor_parallel_size=ranks, **flags)).weights

    router = CONFIG["hidden_size"] * 4 * CONFIG["num_hidden_layers"]
    placed = [weights(n, 2, enable_expert_parallel=True) for n in (4, 5, 6)]
    assert [b - a for a, b in pairwise(placed)] == [expert + router, router]  # of five, each rank holds three
    assert weights(4, 1, enable_expert_parallel=True) == weights(4, 1)
    with pytest.raises(ConfigError, match="tensor_parallel_size: 2 does not divide this model"):  # of 25 inner values
        weights(4, 2)


def test_no_framework_is_loaded() -> None:
    code = """
import sys
from thalweg.cli import main
assert main(["plan", "--device", "cpu", "--max-model-len", "512"]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "KV cache" in done.stdout


def test_a_cache_too_small_names_the_flag_and_a_value_that_works(model: Path) -> None:
    small = plan(args(model, max_model_len=4096, kv_cache_memory_bytes=100_000))
    assert not small.fits
    assert "max_model_len" in small.problems[0]
    room = int(small.problems[0].split("lower max_model_len to ")[1].split(",")[0])
    assert plan(args(model, max_model_len=room, kv_cache_memory_bytes=100_000)).fits


def test_more_than_the_device_has_says_how_much_to_give_the_cache(model: Path) -> None:
    huge = plan(args(model, kv_cache_memory_bytes=1 << 60, max_num_seqs=1 << 20, max_num_batched_tokens=1 << 20))
    assert not huge.fits


def test_a_sequence_shorter_than_the_model_allows_is_told_with_the_bytes_for_all(model: Path) -> None:
    short = plan(args(model, kv_cache_memory_bytes=200_000))
    assert short.max_model_len < 4096
    need = int(short.advice[0].split("--kv-cache-memory-bytes to ")[1].split()[0])
    assert plan(args(model, kv_cache_memory_bytes=need)).max_model_len == 4096
    assert plan(args(model, kv_cache_memory_bytes=need - 1)).max_model_len < 4096


def test_fewer_sequences_than_asked_for_comes_with_a_length_at_which_all_fit(model: Path) -> None:
    some = plan(args(model, kv_cache_memory_bytes=2 << 20, max_model_len=1024, max_num_seqs=16))
    assert 0 < some.sequences < 16
    length = int(some.advice[0].split("(to ")[1].split()[0])
    assert plan(args(model, kv_cache_memory_bytes=2 << 20, max_model_len=length, max_num_seqs=16)).sequences == 16


def test_windows_are_their_own_group_and_let_more_sequences_fit(model: Path) -> None:
    flags: dict[str, Any] = {"kv_cache_memory_bytes": 2 << 20, "max_num_batched_tokens": 128, "max_num_seqs": 16}
    full = plan(args(model, **flags))
    mistral = CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": 256}
    (model / "config.json").write_text(json.dumps(mistral))
    window = plan(args(model, **flags))
    assert window.groups == [{**full.groups[0], "kind": "window", "window": 256}]
    assert window.sequences > full.sequences


def test_files_of_another_model_are_refused(model: Path) -> None:
    write_header(model, {"model.embed_tokens.weight": (100, 64)})
    with pytest.raises(CheckpointError, match="belongs to another model"):
        plan(args(model, load_format="auto"))


def test_files_in_another_dtype_than_config_json_names_are_the_same_model(tmp_path: Path) -> None:
    from thalweg.llm import LLM

    nano = Path(__file__).parents[3] / "thalweg/nano/weights"
    copy = shutil.copytree(nano, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    (copy / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    sizes: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 20}
    assert plan(EngineArgs(model=str(copy), **sizes)).fits
    LLM(str(copy), use_tqdm_on_load=False, **sizes).shutdown()


def test_a_tied_embedding_is_planned_twice_where_compiled_kernels_are_turned_off_or_do_not_load(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg.backends.cpu import native

    try:
        native.levels()
    except native.NoLibraryError as e:
        pytest.skip(str(e))
    (model / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    sizes: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "kv_cache_memory_bytes": 1 << 20}
    compiled = plan(args(model, **sizes))
    off = plan(args(model, **sizes, additional_config={"isa": "none"}))
    assert off.weights - compiled.weights == CONFIG["vocab_size"] * CONFIG["hidden_size"] * 4
    assert off.workspace > compiled.workspace
    (tmp_path / "broken.so").write_text("no machine code")
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "broken.so")
    assert plan(args(model, **sizes)) == off


def test_flags_the_engine_would_refuse_are_refused_in_the_same_words(model: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len 9999 exceeds"):
        plan(args(model, max_model_len=9999))
    with pytest.raises(ConfigError, match="float16"):
        plan(args(model, dtype="float16"))
    with pytest.raises(DeviceError, match="cannot be planned for"):
        plan(args(model, device="cuda"))


@pytest.mark.parametrize("start", ["plan", "build"])
def test_how_values_are_kept_is_refused_where_none_are(model: Path, start: str) -> None:
    from thalweg.engine.worker.build import build

    sizes: dict[str, Any] = {"device": "null", "max_model_len": 64}
    said: dict[str, Any] = {"quantization": "int8", "kv_cache_dtype": "fp8"}
    do: Any = plan if start == "plan" else build
    with pytest.raises(ConfigError) as refused:
        do(args(model, **sizes, **said))
    assert [p.partition(":")[0] for p in refused.value.problems] == list(said)
    assert all("platform 'null' runs no model" in p and "omit it" in p for p in refused.value.problems)
    assert do(args(model, **sizes)) is not None


def test_the_command_says_by_its_status_whether_it_fits(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(model), "--device", "cpu", "--load-format", "dummy", "--kv-cache-memory-bytes"]
    assert main([*words, "1m", "--json", "--max-model-len", "64"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main([*words, "1k"]) == 1
    assert "does not fit: kv_cache_memory_bytes" in capsys.readouterr().out


def test_loading_holds_one_parameter_beside_the_weights_and_more_where_it_rounds() -> None:
    """The largest is the embedding, which is dense either way, or of layers gate and up together."""
    model = resolve_model("thalweg-nano")
    dense, rounded = (plan(args(model, quantization=method, dtype="bfloat16")) for method in (None, "int8"))
    assert dense.loading - dense.weights == 2 * 2560 * 256 * 2
    assert rounded.weights < dense.weights
    assert dense.loading - dense.weights < rounded.loading - rounded.weights < 128 << 20
