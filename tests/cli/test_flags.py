"""Every flag of the field is honoured or refused in words; values are read by the documented grammar."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib import resources

import pytest

from thalweg.cli import collect_env, common, flags, main
from thalweg.cli import serve as serve_command
from thalweg.config import EngineArgs
from thalweg.drafters import SpeculationConfig
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.options.command import CommandOptions
from thalweg.options.speculation import read_speculation_config
from thalweg.options.values import human_int, merge, parse_dotted
from thalweg.server import settings as settings_module
from thalweg.server.settings import ServerSettings
from thalweg.turns import table


def parse(*words: str):
    return common.parse("serve", list(words), serve_command._arguments, about="", server=True)


def engine(*words: str) -> EngineArgs:
    namespace = parse(*words)
    return common.engine_args(namespace, namespace.model_tag)


def server(*words: str) -> ServerSettings:
    return serve_command.settings(flags.server_settings(parse(*words)))


def complaint(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as e:
        parse(*words)
    assert e.value.code == 2
    return capsys.readouterr().err


def value_for(flag: flags.Flag) -> list[str]:
    """Some value of the right type that is not the default."""
    return {
        "bool": [],
        "int": ["3"],
        "float": ["0.5"],
        "human-int": ["2k"],
        "json": ['{"a": 1}'],
        "list": ["x"],
        "str": ["x"],
        "choice": [next((c for c in flag.option.choices or ("x",) if c != flag.default), "x")],
    }[flag.kind]


NOT_HONOURED = [f for f in flags.table().values() if not f.is_supported]


@pytest.mark.parametrize("flag", [f for f in NOT_HONOURED if f.option.group != "Removed"], ids=lambda f: f.name)
def test_a_flag_that_is_not_honoured_is_refused_with_why_and_what_to_do(flag):
    value = value_for(flag) if not flag.same or flag.kind != "choice" else ["something-else"]
    with pytest.raises(ConfigError) as e:
        parse(f"--{'no-' if flag.default is True else ''}{flag.name}", *value)
    assert str(e.value).startswith(f"--{flag.name}: {flag.refusal}")


@pytest.mark.parametrize("flag", [f for f in NOT_HONOURED if f.option.group == "Removed"], ids=lambda f: f.name)
def test_a_flag_the_field_removed_is_named_in_a_warning_that_says_what_holds_now(flag, capsys):
    parse(f"--{flag.name}", *value_for(flag))
    assert capsys.readouterr().err == f"warning: --{flag.name} has no effect: {flag.refusal}\n"


def test_refusals_stand_for_themselves():
    """No page that is not in the wheel; every flag they name is known; none is there for what is honoured."""
    for flag in flags.table().values():
        assert bool(flag.refusal) is (flag in NOT_HONOURED), flag.name
        assert "docs/" not in flag.refusal
        assert 30 < len(flag.refusal) < 260 or not flag.refusal, flag.name
        for named in re.findall(r"(?<!\w)--([a-z][a-z-]*)", flag.refusal):
            known = named.removeprefix("no-") in flags.table() or named in ("cpunodebind", "membind")
            assert known, (flag.name, named)
        for advised in re.findall(r"use --([a-z-]+)", flag.refusal):
            assert flags.table()[advised.removeprefix("no-")].is_supported, (flag.name, advised)


WORDS: dict[str, tuple[str, ...]] = {
    "device": ("cpu",),
    "device-ids": ("0",),
    "pipeline-layer-partition": ("1", "2"),
    "distributed-executor-backend": ("mp",),
    "cudagraph-capture-sizes": ("1", "4"),
    "kv-cache-dtype-skip-layers": ("0", "sliding_window"),
    "kv-transfer-config": ('{"kv_connector": "host"}',),
    "kv-events-config": ('{"topic": "t"}',),
    "lora-modules": ("a=/a", '{"name": "b", "path": "/b"}'),
    "default-mm-loras": ('{"image": "/a"}', "--enable-lora"),
    "lora-root": (".",),
    "lora-resolver": ("folder",),
    "limit-mm-per-prompt": ('{"image": 1}',),
    "media-io-kwargs": ('{"image": {"rgba_background_color": [1, 2, 3]}}',),
    "model-loader-extra-config": ('{"concurrency": 3}',),
    "structured-outputs-config": ('{"backend": "guidance"}',),
    "profiler-config": ('{"profiler": "torch", "torch_profiler_dir": "/p"}',),
    "weight-transfer-config": ('{"backend": "gloo"}',),
    "speculative-config": ('{"method": "ngram", "num_speculative_tokens": 4}',),
    "spec-method": ("ngram",),
    "spec-model": ("thalweg-nano-draft", "--spec-method", "draft_model", "--spec-tokens", "2"),
    "custom-histogram-buckets": ('{"request_latency": [1, 2]}',),
    "root-path": ("/x",),
    "chat-template": ("{{ a }}",),
    "files-directory": (".",),
    "tool-call-parser": ("hermes",),
    "reasoning-parser": ("qwen3",),
    "fingerprint-mode": ("custom",),
    **dict.fromkeys(("allowed-origins", "allowed-methods", "allowed-headers"), ('["x"]',)),
}
"""Values for flags that refuse most."""
BESIDE = {
    "node-rank": ("--nnodes", "4"),
    "data-parallel-rank": ("-dp", "4"),
    "data-parallel-external-lb": ("-dpn", "0"),
    "data-parallel-hybrid-lb": ("-dpl", "1"),
    "data-parallel-size-local": ("-dp", "3"),
    "elastic-ep-max-dp-size": ("--enable-elastic-ep",),
    "node-secret": ("--nnodes", "2"),
    "data-parallel-start-rank": ("-dp", "4", "-dpl", "1", "--data-parallel-hybrid-lb"),
    "enable-log-outputs": ("--enable-log-requests",),
    "fingerprint-mode": ("--fingerprint-value", "x"),
    "fingerprint-value": ("--fingerprint-mode", "custom"),
    "lora-root": ("--enable-lora-routes",),
    "lora-resolver": ("--lora-root", "."),
    "spec-method": ("--spec-tokens", "2"),
    "spec-tokens": ("--spec-method", "ngram"),
}
"""Flags without which a flag is refused."""
TESTED_BY_NAME = (
    "middleware", "trust_remote_code", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh",
    "tool_parser_plugin", "reasoning_parser_plugin", "mm_processor_cache_type",
    "kv_offloading_backend",
)  # fmt: skip
"""They need files, or have no value but their default."""


def some_value(flag: flags.Flag) -> tuple[tuple[str, ...], object]:
    """(words, value) that a flag accepts, and that is not its default."""
    words = WORDS.get(flag.name)
    if flag.kind == "bool":
        return (), flag.default is not True
    if flag.kind == "choice":
        words = words or tuple(c for c in flag.option.choices if c != flag.default)[:1]
    elif flag.kind in ("int", "human-int", "float"):
        number = next(n for n in (3, 2000, 1, 0.5) if n != flag.default and not list(flag.option.problems(n)))
        return (str(number),), number
    if flag.kind == "list":
        words = words or ("x", "y")
        return words, [int(w) if w.isdecimal() and flag.name != "kv-cache-dtype-skip-layers" else w for w in words]
    words = words or (('{"a": 1}',) if flag.kind == "json" else ("x",))
    return words, json.loads(words[0]) if flag.kind == "json" else words[0]


ARRIVING = [
    f for f in flags.table().values() if f.is_supported and not f.anyway and f.dest not in (*TESTED_BY_NAME, *flags.COMMAND)
]


@pytest.mark.parametrize("flag", ARRIVING, ids=lambda f: f.name)
def test_an_honoured_flag_arrives(flag):
    words, value = some_value(flag)
    read = engine if flag.dest in flags.ENGINE else server
    name = f"--no-{flag.name}" if value is False else f"--{flag.name}"
    assert getattr(read(name, *words, *BESIDE.get(flag.name, ())), flag.dest) == value != flag.default


def test_no_fact_of_an_honoured_flag_is_written_twice():
    """Its field declares it. The file has what is not honoured, and what asks for what happens anyway."""
    rows = json.loads((resources.files("thalweg") / "assets" / "flags.json").read_text(encoding="utf-8"))
    foreign = {row[0].replace("-", "_") for row in rows}
    declared = [*EngineArgs.__struct_fields__, *ServerSettings.__struct_fields__, *CommandOptions.__struct_fields__]
    assert len(declared) == len(set(declared))
    assert not foreign & set(declared)
    assert {f.dest for f in flags.table().values()} == foreign | set(declared)
    options = [o for f in flags.table().values() for o in f.spellings]
    assert sorted(options) == sorted(set(options)), "two flags have the same spelling"


def test_a_flag_that_asks_for_what_happens_anyway_is_accepted(capsys):
    parse("--no-fully-sharded-loras", "--no-enforce-eager", "--tensor-parallel-size", "1", "--runner", "generate", "-pcp", "1")
    parse("--tokenizer-mode", "slow", "--code-revision", "main", "--limit-mm-per-prompt", "{}")
    parse("--task", "generate", "--lora-dtype", "auto", "--distributed-executor-backend", "mp")
    assert capsys.readouterr().err == ""
    for words in (["-pcp"], ["--prefill-context-parallel-size", "2"], ["--fully-sharded-loras"]):
        with pytest.raises(ConfigError):
            parse(*words)


def test_every_flag_at_its_default_is_accepted_or_honoured():
    """It says no more than leaving it out."""
    for flag in NOT_HONOURED:
        if flag.option.group != "Removed" and flag.default is not None and flag.kind not in ("bool", "list"):
            text = json.dumps(flag.default) if flag.kind == "json" else str(flag.default)
            parse(f"--{flag.name}", text)


def test_code_of_repositories_is_not_run_whatever_its_revision():
    with pytest.raises(ConfigError, match="trust_remote_code"):
        engine("--code-revision", "main", "--trust-remote-code")


def test_a_replaced_flag_is_refused_with_what_replaced_it():
    for words, said in (
        (["--task", "embed"], "--runner pooling --convert embed"),
        (["--rope-theta", "5"], "--hf-overrides"),
        (["--enable-reasoning"], "--reasoning-parser"),
    ):
        with pytest.raises(ConfigError, match=said) as e:
            parse(*words)
        assert "leave it out" not in str(e.value)
        assert "omit it" not in str(e.value)


@pytest.mark.parametrize(
    ("words", "eager"),
    [
        (["-O3"], False),
        (["-O=1"], False),
        (["-O", "2"], False),
        (["--optimization-level", "3"], False),
        (["-O0"], True),
        (["-O0", "--no-enforce-eager"], False),
        (["--enforce-eager"], True),
        (["-cc.mode=3"], False),
        (["-cc.mode", "3", "-cc.cudagraph_mode=NONE"], True),
        (["--compilation-config", '{"level": 3, "cudagraph_mode": "FULL"}'], False),
        (["-cc", "3"], False),
    ],
)
def test_levels_of_compiling(words, eager):
    assert engine(*words).enforce_eager is eager


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-cc.mode=7"], "compilation-config.mode: 7 is not one of"),
        (["-cc.cudagraph_mode=SOME"], "cudagraph_mode: 'SOME' is not one of NONE"),
        (["-cc.mode=3", "-cc.backend=inductor"], r"--compilation-config\.backend: the platform decides"),
    ],
)
def test_what_of_compiling_is_not_honoured_is_refused_by_key(words, said):
    with pytest.raises(ConfigError, match=said):
        engine(*words)


def test_all_refusals_at_once():
    with pytest.raises(ConfigError) as e:
        parse("--fully-sharded-loras", "--data-parallel-backend", "ray", "--ec-transfer-config.ec_connector", "x")
    assert len(e.value.problems) == 3


def test_drafts_are_asked_for_by_an_object_its_keys_or_in_short():
    whole = engine("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}')
    given = ("method=ngram", "num_speculative_tokens=4", "prompt_lookup_max=3")
    parts = engine(*(f"--speculative-config.{key}" for key in given))
    short = engine("--spec-method", "ngram", "--spec-tokens", "4", "--speculative-config.prompt_lookup_max", "3")
    want = SpeculationConfig(tokens=4, options={"prompt_lookup_min": 3, "prompt_lookup_max": 3})
    assert [read_speculation_config(args) for args in (whole, parts, short)] == [want] * 3
    assert read_speculation_config(engine()) is None
    assert read_speculation_config(engine("--spec-method", "suffix")).tokens == 24
    assert read_speculation_config(engine("--spec-method", "ngram", "--spec-tokens", "2")) == SpeculationConfig(
        tokens=2, options={"prompt_lookup_min": 5, "prompt_lookup_max": 5}
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"num_speculative_tokens": 4},
            "must be one of dflash, draft_model, dspark, eagle, eagle3, mtp, ngram, peagle, suffix",
        ),
        ({"method": "eagle3", "num_speculative_tokens": 4}, "model: this method needs a directory or a hub id"),
        ({"method": "ngram"}, "num_speculative_tokens: must be a whole number from 1 to 64, not None"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 to 64, not 0"),
        ({"method": "ngram", "num_speculative_tokens": True}, "not True"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "5 exceeds"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": "3"}, "prompt_lookup_max: must be"),
        ({"method": "ngram", "num_speculative_tokens": 4, "model": "x"}, "'model' is not supported"),
        ({"method": "xpress", "num_speculative_tokens": 4}, "not 'xpress': it is not implemented; use eagle3 or mtp"),
        ({"method": "suffix", "rejection_sample_method": "fly"}, "rejection_sample_method: fly: it accepts drafts that"),
        ({"method": "suffix", "kv_cache_dtype": "fp8"}, "kv_cache_dtype: this method has no layers"),
        ({"method": "suffix", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: the drafter runs inside"),
        ({"method": "suffix", "parallel_drafting": True}, "parallel_drafting: only eagle3 and peagle read it"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 2}, "min_token_prob: must be a number from 0 to 1, not 2"),
    ],
)
def test_drafts_that_cannot_be_made_are_refused_by_field(said, words):
    with pytest.raises(ConfigError) as e:
        engine("--speculative-config", json.dumps(said))
    assert "speculative_config: " in str(e.value)
    assert words in str(e.value)


def test_drafts_asked_for_twice_must_agree():
    with pytest.raises(ConfigError, match="num_speculative_tokens is 4 there and 3 in its short flag"):
        engine("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}', "--spec-tokens", "3")


def test_underscores_and_equals_signs():
    args = engine("org/model", "--max_model_len=4k", "--no_enable_prefix_caching", "--scheduling-policy=priority")
    assert (args.model, args.max_model_len, args.enable_prefix_caching, args.scheduling_policy) == (
        "org/model",
        4000,
        False,
        "priority",
    )


def test_newer_names_of_the_field_are_known():
    made = server("--max-num-queued-reqs", "5", "--max-num-queued-tokens", "2k")
    assert (made.max_queued_requests, made.max_queued_tokens) == (5, 2000)
    assert engine("--device-memory-utilization", "0.5").gpu_memory_utilization == 0.5


def test_context_length_auto_and_minus_one():
    assert engine("--max-model-len", "auto").max_model_len == -1
    assert engine("--max-model-len", "-1").max_model_len == -1


def test_dotted_json():
    args = engine("--hf-overrides.a.b", "2k", "--hf-overrides.c=x", "--hf_overrides.l+", "1,2", "--hf-overrides.l+=3")
    assert args.hf_overrides == {"a": {"b": 2000}, "c": "x", "l": [1, 2, 3]}


def test_the_last_of_two_wins_with_a_warning(capsys):
    assert server("--port", "1", "--port", "2").port == 2
    assert "--port is given more than once" in capsys.readouterr().err


def test_lists_of_import_paths_are_joined_and_the_word_none_asks_for_the_default(capsys):
    assert flags.explicit_value(parse("--middleware", "a.b", "--middleware", "c.d", "e.f"), "middleware") == [
        "a.b",
        "c.d",
        "e.f",
    ]
    assert engine("--watermark", "None", "--attention-backend", "None", "--revision", "None") == EngineArgs()
    assert server("--root-path", "None").root_path == ""
    assert capsys.readouterr().err == ""


def test_hf_token_alone_means_the_stored_one():
    assert engine("--hf-token").hf_token is True
    assert engine("--hf-token", "abc").hf_token == "abc"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prot", "1"], "did you mean --port?"),
        (["--max-model-length", "1"], "--max-model-len"),
        (["--qqqqq"], "unknown flag --qqqqq"),
        (["--port", "abc"], "--port: 'abc' is not a whole number"),
        (["--port"], "--port"),
        (["--dtype", "int4"], "--dtype: must be one of auto, half, float16, bfloat16, float, float32, not 'int4'"),
        (["--gpu-memory-utilization", "nan"], "not a finite number"),
        (["--max-model-len", "1.5K"], "powers of 1024"),
        (["--hf-overrides", "{"], "not valid JSON"),
        (["a", "b"], "b"),
    ],
)
def test_wrong_usage_is_told_in_words(capsys, words, said):
    assert said in complaint(capsys, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port"),
        (["--ssl-certfile", "/no/file"], "--ssl-certfile"),
        (["--ssl-cert-reqs", "7"], "--ssl-cert-reqs"),
        (["--fingerprint-mode", "custom"], "--fingerprint-value"),
        (["--root-path", "x"], "--root-path"),
        (["--chat-template", "/no/such/file"], "--chat-template"),
        (["--allowed-origins", '{"a": 1}'], "--allowed-origins"),
        (["--default-chat-template-kwargs", "[1]"], "--default-chat-template-kwargs"),
        (["--api-key", ""], "--api-key"),
        (["--files-directory", "/no/such/folder"], "--files-directory"),
        (["--files-store-bytes", "-1"], "--files-store-bytes"),
        (["--responses-store-bytes", "-1"], "--responses-store-bytes"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
    ],
)
def test_wrong_server_settings(words, said):
    with pytest.raises(ConfigError, match=said):
        server(*words)


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-memory-utilization", "2"],
        ["--block-size", "0"],
        ["--max-logprobs", "-2"],
        ["--trust-remote-code"],
        ["--model", ""],
    ],
)
def test_wrong_engine_arguments(words):
    with pytest.raises(ConfigError, match=words[0][2:].replace("-", "[-_]")):
        engine(*words)


@pytest.mark.parametrize(("name", "said"), [("x", "external_launcher, mp, ray, uni")])
def test_an_executor_that_is_not_there_is_refused_by_name(name, said):
    with pytest.raises(ConfigError, match=f"distributed_executor_backend.*{said}"):
        engine("--distributed-executor-backend", name)


def test_unknown_device_names_the_known():
    with pytest.raises(ConfigError, match="reference"):
        engine("--device", "abacus")


def test_the_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("THALWEG_API_KEY", "secret")
    assert server().api_key == ["secret"]
    assert server("--api-key", "a", "b").api_key == ["a", "b"]


VARIABLES = [
    ("ALLOW_RUNTIME_LORA_UPDATING", "True", lambda: server().enable_lora_routes, True, False),
    ("API_KEY", "secret", lambda: server().api_key, ["secret"], []),
    ("BATCH_INVARIANT", "1", lambda: engine().batch_invariant, True, None),
    ("HTTP_TIMEOUT_KEEP_ALIVE", "7", envs.keep_alive_seconds, 7, 75),
    ("LOGGING_LEVEL", "debug", envs.log_level, "DEBUG", "INFO"),
    ("LOG_STATS_INTERVAL", "3", envs.log_stats_seconds, 3, 10),
    ("MAX_AUDIO_CLIP_FILESIZE_MB", "3.5", envs.audio_file_megabytes, 3.5, 25),
    ("MAX_AUDIO_DECODE_DURATION_S", "90", envs.audio_seconds, 90, 600),
    ("TORCH_PROFILER_DIR", "/p", lambda: (engine().profiler_config or {}).get("torch_profiler_dir"), "/p", None),
    ("SERVER_DEV_MODE", "1", lambda: server().server_dev_mode, True, False),
]


@pytest.mark.parametrize(("name", "text", "read", "value", "default"), VARIABLES, ids=[v[0] for v in VARIABLES])
def test_variables_of_vllm_with_a_twin_are_honoured_and_ours_come_first(monkeypatch, name, text, read, value, default):
    assert f"VLLM_{name}" in envs.TWINS
    assert read() == default
    monkeypatch.setenv(f"VLLM_{name}", text)
    assert read() == value
    monkeypatch.setenv(f"VLLM_{name}", "nonsense")
    monkeypatch.setenv(f"THALWEG_{name}", text)
    assert read() == value


def test_every_twin_is_tested():
    assert set(envs.TWINS) == {f"VLLM_{v[0]}" for v in VARIABLES}


def test_a_wrong_value_is_told_by_the_variable_it_was_set_in(monkeypatch):
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "soon")
    with pytest.raises(ConfigError, match="VLLM_HTTP_TIMEOUT_KEEP_ALIVE: 'soon' is not a number"):
        envs.keep_alive_seconds()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "yes")
    with pytest.raises(ConfigError, match="VLLM_BATCH_INVARIANT: 'yes' must be 0 or 1"):
        engine()


def test_a_flag_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert engine("--no-batch-invariant").batch_invariant is False


def test_other_variables_of_vllm_are_named_in_one_warning_without_their_values(monkeypatch, capsys):
    parse()
    assert capsys.readouterr().err == ""
    for name in (
        "VLLM_API_KEY",
        "VLLM_NO_USAGE_STATS",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_NEVER_HEARD_OF",
        "VLLM_CPU_KVCACHE_SPACE",
    ):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("VLLM_EMPTY", "")
    parse()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("warning: ")
    assert "VLLM_CPU_KVCACHE_SPACE (use --kv-cache-memory-bytes" in said
    assert all(n in said for n in ("VLLM_ATTENTION_BACKEND", "VLLM_NEVER_HEARD_OF"))
    assert not any(n in said for n in ("VLLM_API_KEY", "VLLM_NO_USAGE_STATS", "VLLM_EMPTY", "s3cret"))


def test_a_template_file_is_read(tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    assert server("--chat-template", str(tmp_path / "t.jinja")).chat_template == "{{ messages }}"
    assert server("--chat-template", "rag").chat_template == "rag", "perhaps the model has one of this name"


def test_human_numbers():
    assert [human_int(t) for t in ("7", "2k", "1.5k", "2K", "1m", "1M", "-1")] == [7, 2000, 1500, 2048, 10**6, 2**20, -1]
    for bad in ("", "k", "1.5", "1.2345k", "1.5K", "1e3", "0x10", "1 k"):
        with pytest.raises(ValueError, match="whole number"):
            human_int(bad)


def test_dotted_and_merge():
    assert merge(parse_dotted("a.b", "1"), parse_dotted("a.c", "[2]")) == {"a": {"b": 1, "c": [2]}}


def test_help_topics(capsys):
    shown = {}
    for topic in ("--help", "--help=all", "--help=Frontend", "--help=lora"):
        with pytest.raises(SystemExit) as e:
            parse(topic)
        assert e.value.code == 0
        shown[topic] = capsys.readouterr().out
    assert "--port" in shown["--help"]
    assert "SchedulerConfig" in shown["--help"]
    assert "--specialize-active-lora" not in shown["--help"]
    assert all(
        f"-{f.name}" in shown["--help=all"] or f"]{f.name}" in shown["--help=all"]
        for f in flags.table().values()
        if f.option.group not in flags.GONE
    )
    assert "--dtype" not in shown["--help=Frontend"]
    assert "[no-]enable-lora" in shown["--help=lora"]
    assert "not supported: adapters" in shown["--help=lora"]


def test_help_is_quick_and_loads_no_framework():
    for words in (["--help"], ["serve", "--help"], ["bench", "latency", "--help"]):
        code = (
            "import sys; from thalweg.cli import main\n"
            f"try: main({words!r})\nexcept SystemExit: pass\n"
            "print(sorted({'torch', 'starlette', 'transformers', 'uvicorn'} & set(sys.modules)))"
        )
        start = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
        assert out.splitlines()[-1] == "[]", f"{words} took {time.perf_counter() - start:.2f} s"


@pytest.mark.slow
def test_the_whole_server_loads_no_tensor_framework():
    code = "import sys, thalweg.server.serve; print('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "no such command"),
        (["serve-sla"], "not in this version"),
        (["launch"], "not in this version"),
        (["bench", "mm-processor"], "not in this version"),
        (["bench", "nonsense"], "no such benchmark"),
        (["serve", "--config", "/no/x.yaml"], "--config"),
        (["serve", "x", "--model", "y"], "--model"),
        (["serve", "/no/such/directory", "--port", "0"], "/no/such/directory"),
        (["serve", "--port", "-5"], "--port"),
        (["generate", ""], "PROMPT"),
        (["generate", "x", "--temperature", "-1"], "--temperature"),
        (["generate", "x", "--stop", ""], "--stop"),
        (["generate", "x", "--skip-tokenizer-init"], "--skip-tokenizer-init"),
        (["generate", "x", "--port", "1"], "--port"),
        (["chat", "--api-key", "x"], "--api-key"),
        (["chat", "model", "--url", "http://localhost:1/v1"], "MODEL"),
        (["chat", "--url", "http://localhost:1/v1", "--dtype", "float32"], "--dtype"),
        (["chat", "--url", "localhost"], "--url"),
        (["chat", "--url", "http://127.0.0.1:1/v1", "-q", "hi"], "cannot reach"),
        (["bench", "latency", "--use-beam-search"], "--use-beam-search"),
        (["bench", "latency", "--batch-size", "0"], "--batch-size"),
        (["bench", "latency", "--output-json", "/no/such/dir/x"], "--output-json"),
        (["bench", "throughput", "--dataset-name", "sonnet"], "--dataset-name"),
        (["bench", "throughput", "--random-range-ratio", "2"], "--random-range-ratio"),
        (["bench", "throughput", "--lora-path", "x"], "--lora-path"),
    ],
)
def test_commands_refuse_in_words(capsys, words, said):
    try:
        code = main(words)
    except SystemExit as e:
        code = e.code
    err = capsys.readouterr().err
    assert code in (1, 2), err
    assert said in err
    assert "Traceback" not in err


def test_version_and_usage(capsys):
    import thalweg

    assert main(["--version"]) == 0
    assert main([]) == 0
    out = capsys.readouterr().out
    assert thalweg.__version__ in out
    assert "collect-env" in out


def test_backends_and_collect_env(capsys):
    assert main(["backends", "--json"]) == 0
    rows = {r["platform"]: r for r in json.loads(capsys.readouterr().out)}
    assert rows["cpu"]["available"]
    assert all(r["reason"] for r in rows.values())
    assert sum(r["auto"] for r in rows.values()) == 1
    assert main(["backends"]) == 0
    assert "reference" in capsys.readouterr().out
    assert main(["collect-env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["libraries"]["starlette"][0].isdigit()
    assert {r["platform"] for r in report["platforms"]} == set(rows)
    assert main(["collect-env"]) == 0
    out = capsys.readouterr().out
    assert "memory:" in out
    assert all(f"  {name}: {said}" in out for name, said in report["links"].items())


def test_collect_env_names_what_ranks_exchange_over(tmp_path):
    facts = {
        "devices/system/node/node0/x": "", "devices/system/node/node1/x": "", "class/net/eth0/operstate": "up\n",
        "class/net/eth0/mtu": "9000", "class/net/eth0/speed": "25000", "class/net/eth1/operstate": "down",
        "class/net/eth1/mtu": "1500", "class/net/lo/operstate": "unknown", "class/net/lo/mtu": "65536",
        "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "class/kfd/kfd/topology/nodes/1/io_links/0/properties": "type 2\nversion_major 0\n",
        "class/kfd/kfd/topology/nodes/1/io_links/1/properties": "type 11\nversion_major 0\n",
    }  # fmt: skip
    for name, text in facts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert collect_env._links()["shared memory"].count("GiB") == 2
    assert collect_env._links(tmp_path, tmp_path / "nowhere") == {
        "memory nodes": "2",
        "shared memory": f"{tmp_path}/nowhere: No such file or directory",
        "links between accelerators": "1 (xGMI)",
        "interface eth0": "25000 Mbit/s, frames of 9000 bytes",
        "interface lo": "speed unknown, frames of 65536 bytes",
        "rdma mlx5_0 port 1": "200 Gb/sec (4X HDR), InfiniBand",
    }


def test_a_platform_that_is_not_installed_may_be_written_out() -> None:
    written = "some.package:SomePlatform"
    assert engine("--device", written).device == written
    with pytest.raises(ConfigError, match="unknown platform 'some'"):
        engine("--device", "some")


def test_a_profilers_folder_comes_whole_or_by_keys():
    said = {"profiler": "torch", "torch_profiler_dir": "/p"}
    assert engine("--profiler-config", json.dumps(said)).profiler_config == said
    parts = engine("--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir", "/p")
    assert parts.profiler_config == said


def test_structured_outputs_config_is_checked_key_by_key():
    said = {"backend": "guidance", "disable_any_whitespace": True, "reasoning_parser": "", "disable_fallback": False}
    said["enable_jump_forward"] = True
    assert engine("--structured-outputs-config", json.dumps(said)).structured_outputs_config == said
    assert engine("--structured-outputs-config.disable_any_whitespace", "true").structured_outputs_config == {
        "disable_any_whitespace": True
    }
    for wrong, words in (
        ({"backend": "xgrammar"}, "guidance"),
        ({"enable_in_reasoning": True}, "reasoning"),
        ({"disable_any_whitespace": "yes"}, "true or false"),
        ({"a": 1}, "not known"),
    ):
        with pytest.raises(ConfigError, match=words):
            engine("--structured-outputs-config", json.dumps(wrong))


@pytest.mark.parametrize("name", ["tool-parser-plugin", "reasoning-parser-plugin"])
def test_plugins_of_formats_are_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "CALLS", dict(table.CALLS))
    monkeypatch.setattr(settings_module, "CALLS", table.CALLS)
    file = tmp_path / "formats.py"
    file.write_text(
        "from thalweg.turns.format import Calls, JsonCalls\nfrom thalweg.turns.table import register\n"
        f"register(Calls({name!r}, JsonCalls(), '<x>', '</x>'))\n"
    )
    assert server(f"--{name}", str(file), "--tool-call-parser", name).tool_call_parser == name
    with pytest.raises(ConfigError, match=f"--{name}: no file"):
        server(f"--{name}", "nothing.py")


def test_an_unknown_parser_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"--tool-call-parser: 'hermos' is not one of .*hermes"):
        server("--tool-call-parser", "hermos")
