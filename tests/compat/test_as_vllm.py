"""Programs written for vLLM, with thalweg under that name: only where it was asked for, and never over the real one."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import python_names

from thalweg import compat, config
from thalweg.cli import main
from thalweg.compat.arguments import AsyncEngineArgs, EngineArgs
from thalweg.compat.engines import AsyncLLM, LLMEngine
from thalweg.compat.names import KVTransferConfig, ModelRegistry, UsageContext
from thalweg.engine.control.store.connect import check_store
from thalweg.errors import ConfigError, NotSupportedError, RequestError
from thalweg.models import registry
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.prompts import drop_empty

ROOT = Path(compat.__file__).parents[2]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 2}
PROGRAMS = {
    "basic": r"'3 \+ 4 =' -> '.*' \((stop|length)\)\n'reverse: stone' -> .*\n(None|'.*') -> .*\n",
    "chat": r"(.+\n){3}",
    "embed": r"1\.000 (\d+) a stone in the river\n-?\d\.\d{3} \1 a rock in the stream\n-?\d\.\d{3} \1 3 \+ 4 = 7\n",
    "structured": r"(yes|no)\n\d{3}-[a-z]{2}\n\{'name': '(Ada|Bo)', 'age': -?\d+\}\n",
}


def as_vllm(*words: str, **more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "thalweg", "as-vllm", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **more}, check=False)


@pytest.mark.slow
def test_programs_of_the_shape_that_vllm_shows_run():
    files = [str(ROOT / "examples" / "vllm_names" / f"{name}.py") for name in PROGRAMS]
    one_process = "import runpy, sys\nfor file in sys.argv[1:]:\n    runpy.run_path(file)\n    print('---')"
    done = as_vllm(sys.executable, "-c", one_process, *files, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    for (name, pattern), said in zip(PROGRAMS.items(), done.stdout.split("---\n"), strict=False):
        assert re.fullmatch(pattern, said), (name, said)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with a package called vllm that is not ours, on the path."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("real = True\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *[p for p in sys.path if p != str(compat.PATH)]])
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_the_real_one_is_never_hidden(elsewhere, monkeypatch):
    for ask in (compat.as_vllm, lambda: compat.environment({})):
        with pytest.raises(ConfigError, match="the real vllm is installed"):
            ask()
    assert str(compat.PATH) not in sys.path
    assert main(["as-vllm", "true"]) == 2


def test_nothing_is_named_vllm_unless_somebody_asked():
    code = "import thalweg.compat, importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is not None)"
    clean = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, env=clean).returncode == 0


@pytest.mark.slow
def test_a_process_gets_the_folder_in_front_of_its_path_once():
    given = compat.environment({"PYTHONPATH": os.pathsep.join(["a", str(compat.PATH), "b"]), "HOME": "h"})
    assert given == {"PYTHONPATH": os.pathsep.join([str(compat.PATH), "a", "b"]), "HOME": "h"}
    version = "import importlib.metadata as m, vllm; print(m.version('vllm') == vllm.__version__, vllm.__version__)"
    done = as_vllm(sys.executable, "-c", version)
    assert done.stdout.startswith("True 0.32.0+thalweg"), done.stderr
    assert main(["as-vllm", "no-such-command-at-all"]) == 2


def test_engine_flags_come_from_a_parser_of_the_programs_own():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--mine")
    said = parser.parse_args(["--model", "m", "--max-model-len", "2k", "--no-enable-prefix-caching", "--mine", "x", "-tp", "1"])
    made = AsyncEngineArgs.from_cli_args(said)
    assert (made.model, made.max_model_len, made.enable_prefix_caching, made.tensor_parallel_size) == ("m", 2000, False, 1)
    with pytest.raises(ConfigError, match=r"fully_sharded_loras: one of both matrices"):
        EngineArgs.from_cli_args(parser.parse_args(["--fully-sharded-loras"]))


def test_most_names_of_vllm_are_here_and_the_others_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    every = list(python_names.names())
    fates = [fate for *_, fate in every]
    here, refused = fates.count(python_names.HAS), fates.count(python_names.REFUSES)
    assert here >= 350
    assert here + refused >= 525
    assert python_names.main(["--missing"]) == 0
    assert f"{len(every)} names: {here} here, {refused} refused in words" in capsys.readouterr().out


def test_a_name_that_is_counted_as_refused_says_why(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    compat.as_vllm()
    from vllm import LLMEngine, ModelRegistry, initialize_ray_cluster
    from vllm.inputs import DataPrompt

    for call, said in ((DataPrompt, "no plugin"), (initialize_ray_cluster, "joins the Ray cluster itself")):
        with pytest.raises(NotSupportedError, match=said):
            call("x")
    with pytest.raises(NotSupportedError, match=r"thalweg\.models"):
        ModelRegistry.register_model("x", LLMEngine)
    assert "LlamaForCausalLM" in ModelRegistry.get_supported_archs()


def test_what_asks_for_nothing_is_accepted_whatever_its_name():
    """Programs copy all arguments of a configuration, and give every prompt the same keys."""
    nothing = {"_api_process_count": 1, "_api_process_rank": 0, "mamba_config": {}, "enable_mm_processor_stats": False}
    nothing |= {"reasoning_parser": "", "reasoning_parser_plugin": "", "otlp_traces_endpoint": None}
    EngineArgs(**nothing)
    for name, value in (("mamba_config", {"a": 1}), ("_api_process_count", 2), ("otlp_traces_endpoint", "http://a")):
        with pytest.raises(ConfigError, match=rf"{name}: .*(omit it|leave it out)"):
            EngineArgs(**{name: value})
    with pytest.raises(RequestError, match="requires_token_ids"):
        PoolingParams(requires_token_ids=True)
    prompt = {"prompt": "a", "multi_modal_data": None, "multi_modal_uuids": {}, "mm_processor_kwargs": None}
    assert drop_empty(prompt) == {"prompt": "a"}
    assert drop_empty(prompt | {"mm_processor_kwargs": {"a": 1}}) == {"prompt": "a", "mm_processor_kwargs": {"a": 1}}


def test_an_architecture_is_served_as_one_that_is_here(monkeypatch):
    monkeypatch.setitem(registry._LIST.__dict__, "_local", {})
    ModelRegistry.register_model("MineForCausalLM", "vllm.model_executor.models.llama:LlamaForCausalLM")
    ModelRegistry.register_model("OtherForCausalLM", "thalweg.models.families.qwen2:qwen2")
    made = {n: registry.family({"architectures": [n]}) for n in ("MineForCausalLM", "OtherForCausalLM", "Qwen2ForCausalLM")}
    assert made["MineForCausalLM"] is registry.family({"architectures": ["LlamaForCausalLM"]})
    assert made["OtherForCausalLM"] is made["Qwen2ForCausalLM"]
    assert {"MineForCausalLM", "OtherForCausalLM"} <= ModelRegistry.get_supported_archs()


def test_arguments_of_other_names_are_those_of_ours():
    made = EngineArgs(model="m", model_weights="w", tokens_only=True, disable_custom_all_reduce=True)
    assert (made.model, made.hf_config_path, made.tokenizer, made.served_model_name) == ("w", "m", "m", ["m"])
    assert made.skip_tokenizer_init


def test_a_store_of_kv_blocks_is_asked_for_by_its_object() -> None:
    asked = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={"x": 1})
    assert EngineArgs(kv_transfer_config=asked).kv_transfer_config["kv_connector"] == "OffloadingConnector"
    with pytest.raises(ConfigError, match="kv_connector_extra_config: 'x' is not supported; this store has cpu_bytes_to_use"):
        check_store(EngineArgs(kv_transfer_config=asked))


def test_configurations_tell_what_an_engine_would_have_and_make_one():
    args = EngineArgs(max_model_len=64, max_num_seqs=3, dtype="float32", device="cpu", speculative_config=DRAFTS)
    assert isinstance(args, config.EngineArgs)
    whole = args.create_engine_config()
    assert (whole.model_config.max_model_len, whole.model_config.dtype) == (64, "float32")
    assert whole.model_config.get_vocab_size() == whole.model_config.hf_config["vocab_size"] > 1000
    assert (whole.scheduler_config.max_num_seqs, whole.parallel_config.world_size) == (3, 1)
    assert whole.cache_config.num_gpu_blocks > 1
    assert args.create_speculative_config().tokens == 2
    assert args.create_model_config() == whole.model_config
    assert args.create_load_config() == whole.load_config
    tokens, seqs = args.get_batch_defaults(1)
    assert set(tokens) == set(seqs) == set(UsageContext)
    assert tokens[UsageContext.LLM_CLASS] >= seqs[UsageContext.LLM_CLASS] > 3
    engine = LLMEngine.from_vllm_config(whole)
    try:
        assert engine.config.scheduler.max_seqs == 3
    finally:
        engine.shutdown()
    with pytest.raises(ConfigError, match="create_engine_config"):
        LLMEngine.from_vllm_config(args)


@pytest.mark.slow
async def test_an_engine_of_a_configuration_takes_requests_whose_outputs_are_collected(caplog):
    args = EngineArgs(device="null", max_model_len=64, dtype="float32")
    engine = AsyncLLM.from_vllm_config(args.create_engine_config(), enable_log_requests=True)
    try:
        asked = SamplingParams(max_tokens=3, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
        with caplog.at_level("INFO", logger="thalweg.compat.engines"):
            got = await engine.add_request("one", "3 + 4 =", asked)
            assert got.get_nowait() is None
            last = await got.get()
        assert (last.finished, len(last.outputs[0].token_ids)) == (True, 3)
        assert "request one: " in caplog.text
        wrong = await engine.add_request("two", {"prompt_token_ids": [-1]}, asked)
        with pytest.raises(RequestError, match="prompt_token_ids"):
            await wrong.get()
        long = await engine.add_request("three", "3 + 4 =", SamplingParams(max_tokens=40, ignore_eos=True))
        long.close()
        assert await engine.get_supported_tasks() == ("generate",)
    finally:
        await engine.shutdown()
