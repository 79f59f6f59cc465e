"""`thalweg flags`, and the flags that came to be honoured with it."""

from __future__ import annotations

import re

import pytest

from thalweg.backends.cuda import CudaPlatform
from thalweg.backends.null.platform import NullPlatform
from thalweg.checkpoint import ahead
from thalweg.cli import common, flag_status, flags, main
from thalweg.config import EngineArgs, check_args
from thalweg.engine.client.frontend import load_frontend, locate
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError
from thalweg.hal.platform import Defaults
from thalweg.llm import LLM
from thalweg.options.table import GONE
from thalweg.params import SamplingParams


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["flags", *words]) == 0
    return capsys.readouterr().out


def test_every_flag_of_the_parser_is_listed_once_with_its_fate_and_the_counts_are_those_of_the_lines(capsys):
    text = printed(capsys)
    fates = re.findall(r"^(honoured|refused |gone    )  --([\w-]+)", text, re.M)
    assert sorted(name for _, name in fates) == sorted(flags.table())
    for fate, name in fates:
        assert (fate == "honoured") is flags.table()[name].is_supported
    kept = [f for f in flags.table().values() if f.option.group not in GONE]
    assert f"{sum(f.is_supported for f in kept)} of  {len(kept)} honoured" in text


def test_a_flag_is_found_by_any_of_its_names_and_a_refusal_says_why(capsys):
    for name in ("max-model-len", "--max_model_len", "MAX-MODEL-LEN"):
        assert printed(capsys, name).count("--max-model-len") == 1
    assert "--max-num-queued-reqs" in printed(capsys, "max-num-queued-reqs")
    assert "merge the" in printed(capsys, "qlora-adapter-name-or-path")
    assert "--seed" in printed(capsys, "core", "--only", "honoured")
    assert "--seed" not in printed(capsys, "core", "--only", "refused")
    assert len(printed(capsys, "--status").splitlines()) == 5


def test_a_word_that_nothing_has_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["flags", "no-such-thing-at-all"])
    assert "NAME" in capsys.readouterr().err


def test_counts_leave_out_what_the_field_removed():
    by_tier = flag_status.counts(flags.table().values())
    assert by_tier["own"][0] == by_tier["own"][1]
    assert by_tier["core"][0] >= 112


def test_a_preset_moves_defaults_and_what_is_given_wins():
    def made(**fields):
        return resolve.scheduler(EngineArgs(**fields), Defaults(max_num_seqs=8, max_num_batched_tokens=512), 4096)

    plain, quick, wide = (made(performance_mode=m) for m in ("balanced", "interactivity", "throughput"))
    assert (plain.max_seqs, plain.token_budget, plain.max_prefill_slowdown) == (8, 512, 2.0)
    assert (quick.max_seqs, quick.token_budget, quick.max_prefill_slowdown) == (8, 256, 1.25)
    assert (wide.max_seqs, wide.token_budget, wide.max_prefill_slowdown) == (16, 1024, 0.0)
    said = made(performance_mode="throughput", max_num_seqs=3, max_num_batched_tokens=100, max_prefill_slowdown=4.0)
    assert (said.max_seqs, said.token_budget, said.max_prefill_slowdown) == (3, 100, 4.0)


def test_limits_within_limits_count_and_contradictions_are_refused():
    made = resolve.scheduler(EngineArgs(max_num_seqs=8, max_num_active_seqs=2, max_num_scheduled_tokens=64), Defaults(), 4096)
    assert (made.max_seqs, made.token_budget) == (2, 64)
    with pytest.raises(ConfigError, match="max_num_active_seqs"):
        check_args(EngineArgs(max_num_seqs=2, max_num_active_seqs=3))
    with pytest.raises(ConfigError, match="performance_mode must be one of balanced"):
        check_args(EngineArgs(performance_mode="fast"))


def test_sizes_of_captured_steps_are_numbers_and_go_to_platforms_that_capture_by_size():
    namespace = common.parse("serve", ["--cudagraph-capture-sizes", "1", "4"], lambda parser: None, about="", server=True)
    args = common.engine_args(namespace)
    assert args.cudagraph_capture_sizes == [1, 4]
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes: platform 'null' captures no graphs by size"):
        resolve.configure_platform(args, NullPlatform())
    for wrong in ({"cudagraph_capture_sizes": []}, {"cudagraph_capture_sizes": [0]}, {"renderer_num_workers": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            check_args(EngineArgs(**wrong))


def test_as_many_processes_render_as_were_asked_for():
    made = load_frontend(locate(EngineArgs(renderer_num_workers=3)))
    assert made.chat is not None
    assert (made.chat.workers, made.chat._own._jobs._cells._free._value) == (3, 3)
    made.chat.close()


@pytest.mark.parametrize("strategy", ["eager", "prefetch"])
def test_files_are_read_ahead_whole_and_the_model_is_the_same(tmp_path, monkeypatch, strategy):
    """Every byte of every file, in blocks of the size asked for."""
    for name, size in (("a.safetensors", 1000), ("b.safetensors", 64), ("notes.txt", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    taken: list[int] = []
    read = ahead._read
    monkeypatch.setattr(ahead, "_read", lambda *part: taken.append(read(*part)))
    args = EngineArgs(model=str(tmp_path), safetensors_load_strategy=strategy, safetensors_prefetch_block_size=300)
    with ahead.reading(args):
        if strategy == "eager":
            assert sum(taken) == 1064
    assert sorted(taken) == [64, 100, 300, 300, 300] or strategy == "prefetch"
    taken.clear()
    with ahead.reading(EngineArgs(model=str(tmp_path))):
        assert taken == []


def test_options_of_other_loaders_say_how_files_are_read():
    for said, reading in (
        ({}, ("lazy", 8)),
        ({"model_loader_extra_config": {"enable_multithread_load": True, "num_threads": 3}}, ("prefetch", 3)),
        ({"model_loader_extra_config": {"concurrency": 4}, "safetensors_load_strategy": "eager"}, ("eager", 4)),
    ):
        args = EngineArgs(**said)
        check_args(args)
        assert args.reading == reading
    for wrong in ({"tensorizer_uri": "x"}, {"num_threads": 0}, {"enable_multithread_load": 1}):
        with pytest.raises(ConfigError, match="model_loader_extra_config"):
            check_args(EngineArgs(model_loader_extra_config=wrong))


def test_a_device_is_chosen_where_a_platform_has_several():
    args = EngineArgs(device_ids=[1])
    assert resolve.configure_platform(args, CudaPlatform()).options.device == 1
    with pytest.raises(ConfigError, match="device_ids: tensor_parallel_size is 2: name as many different devices"):
        resolve.configure_platform(EngineArgs(device_ids=[3, 3], tensor_parallel_size=2), NullPlatform())
    with pytest.raises(ConfigError, match="device_ids: ranks of platform 'null' use its first devices"):
        resolve.places(EngineArgs(device_ids=[3, 1], tensor_parallel_size=2), NullPlatform())
    chosen = EngineArgs(device_ids=[3, 1], tensor_parallel_size=2)
    assert [p.devices for p in resolve.places(chosen, resolve.configure_platform(chosen, CudaPlatform()))] == [(3,), (1,)]
    assert resolve.configure_platform(EngineArgs(device_ids=[0]), NullPlatform()) is not None
    for ids, platform in (([1], NullPlatform()), ([0, 1], CudaPlatform())):
        with pytest.raises(ConfigError, match="device_ids"):
            resolve.configure_platform(EngineArgs(device_ids=ids), platform)


def test_config_json_may_lie_elsewhere(tmp_path):
    found = locate(EngineArgs())
    text = (found.path / "config.json").read_text(encoding="utf-8")
    length = found.config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(
        text.replace(f'"max_position_embeddings": {length}', '"max_position_embeddings": 128')
    )
    assert locate(EngineArgs(hf_config_path=str(tmp_path))).config["max_position_embeddings"] == 128
    llm = LLM(hf_config_path=str(tmp_path), device="null")
    assert llm.config.model.max_len == 128
    llm.shutdown()


@pytest.mark.slow
def test_a_model_whose_files_were_read_ahead_says_the_same():
    texts = []
    for strategy in ("lazy", "eager", "prefetch"):
        llm = LLM(safetensors_load_strategy=strategy, device="cpu", kv_cache_memory_bytes=1 << 22)
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        texts.append(llm.generate("3 + 4 =", params, use_tqdm=False)[0].outputs[0].token_ids)
        llm.shutdown()
    assert texts[0] == texts[1] == texts[2]
