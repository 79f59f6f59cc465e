"""LLMEngine, a step at a time, and what LLM offers around it: sleep, metrics, traces, refusals in words."""

from __future__ import annotations

import gzip
import inspect
import json
from types import SimpleNamespace

import pytest

from thalweg import LLM, EngineArgs, FlatLogprobs, LLMEngine, RepetitionDetectionParams, RequestOutputKind, SamplingParams
from thalweg.engine.planning.arguments import engine_args
from thalweg.errors import ConfigError, NotSupportedError, RequestError, UnavailableError
from thalweg.outputs import Logprob
from thalweg.params import SamplingType

SIZES = {"device": "null", "max_model_len": 256, "max_num_seqs": 4, "enable_sleep_mode": True}
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, seed=1)


@pytest.fixture
def engine():
    made = LLMEngine.from_engine_args(EngineArgs(**SIZES))
    yield made
    made.shutdown()


def run(engine: LLMEngine) -> dict[str, list[int]]:
    """Steps until nothing is open. Tokens of each request that finished."""
    done = {}
    while engine.has_unfinished_requests():
        for out in engine.step():
            if out.finished:
                done[out.request_id] = out.outputs[0].token_ids
    return done


def test_requests_go_in_by_id_and_come_out_by_steps(engine):
    for i, text in enumerate(("a", "b")):
        assert engine.add_request(f"r{i}", text, PARAMS) == f"r{i}"
    with pytest.raises(RequestError, match="request_id"):
        engine.add_request("r0", "again", PARAMS)
    assert engine.get_num_unfinished_requests() == 2
    first = engine.step()
    assert {o.request_id for o in first} <= {"r0", "r1"}
    done = run(engine)
    assert sorted(done) == ["r0", "r1"]
    assert all(len(tokens) == 6 for tokens in done.values())
    assert engine.step() == []


def test_the_text_of_a_prompt_of_ids_is_told_back(engine):
    engine.add_request("ids", [5, 6], PARAMS, prompt_text="known")
    engine.add_request("fields", {"prompt_token_ids": [5, 6]}, PARAMS, prompt_text="known")
    told = []
    while engine.has_unfinished_requests():
        told += [(out.prompt, out.prompt_token_ids) for out in engine.step() if out.finished]
    assert told == [("known", [5, 6])] * 2


def test_deltas_put_together_are_the_whole(engine):
    engine.add_request("whole", "a", PARAMS)
    whole = run(engine)["whole"]
    delta = SamplingParams(max_tokens=6, ignore_eos=True, seed=1, output_kind=RequestOutputKind.DELTA)
    engine.add_request("parts", "a", delta)
    parts = []
    while engine.has_unfinished_requests():
        for out in engine.step():
            parts += out.outputs[0].token_ids
    assert parts == whole


def test_an_aborted_request_ends_in_the_next_step(engine):
    engine.add_request("r", "a", PARAMS)
    engine.abort_request(["r", "unknown"])
    (last,) = engine.step()
    assert (last.request_id, last.outputs[0].finish_reason, last.finished) == ("r", "abort", True)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_kept_over_a_sleep_goes_on_and_says_what_it_would_have_said(engine, level):
    engine.add_request("before", "a", PARAMS)
    want = run(engine)["before"]
    engine.add_request("kept", "a", PARAMS)
    engine.step()
    engine.step()
    engine.sleep(level, mode="keep")
    assert engine.is_sleeping()
    assert engine.step() == []
    with pytest.raises(UnavailableError, match="wake_up"):
        engine.add_request("new", "a", PARAMS)
    engine.wake_up()
    assert run(engine)["kept"] == want


def test_a_sleep_aborts_or_waits(engine):
    engine.add_request("waited", "a", PARAMS)
    engine.sleep(mode="wait")
    done = [o for o in engine.step() if o.finished]
    assert [(o.request_id, o.outputs[0].finish_reason) for o in done] == [("waited", "length")]
    engine.wake_up()
    engine.add_request("aborted", "a", PARAMS)
    engine.sleep()
    assert [o.outputs[0].finish_reason for o in engine.step()] == ["abort"]
    engine.wake_up()
    for wrong in ({"level": 3}, {"mode": "now"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            engine.sleep(**wrong)
    with pytest.raises(ConfigError, match="tags"):
        engine.wake_up(["weights"])


def test_metrics_count_what_ran(engine):
    engine.add_request("r", {"prompt_token_ids": [1, 2, 3]}, PARAMS)
    run(engine)
    values = {m.name: getattr(m, "value", None) for m in engine.get_metrics()}
    assert values["vllm:prompt_tokens"] == 3
    assert values["vllm:generation_tokens"] == 6
    assert values["vllm:num_requests_running"] == 0


@pytest.mark.slow
def test_a_trace_is_written_where_it_was_asked_for(tmp_path):
    pytest.importorskip("torch")
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "torch_profiler_with_stack": False}
    llm = LLM(profiler_config=config, **SIZES)
    with pytest.raises(ConfigError, match="profiler_config"):
        LLM(profiler_config={"profiler": "torch", "torch_profiler_dir": "/x", "shape": 1}, **SIZES)
    llm.start_profile("mine")
    with pytest.raises(RequestError, match="is running"):
        llm.start_profile()
    llm.generate("a", PARAMS, use_tqdm=False)
    llm.stop_profile()
    (file,) = tmp_path.glob("*.gz")
    assert file.name.startswith("mine-")
    assert "traceEvents" in json.loads(gzip.decompress(file.read_bytes()))
    llm.shutdown()


@pytest.mark.slow
def test_a_trace_of_some_steps_ends_by_itself(tmp_path):
    pytest.importorskip("torch")
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "delay_iterations": 1, "max_iterations": 2}
    llm = LLM(profiler_config=config, **SIZES)
    llm.start_profile()
    llm.generate("a", PARAMS, use_tqdm=False)
    assert len(list(tmp_path.glob("thalweg-*.gz"))) == 1
    with pytest.raises(RequestError, match="no profile is running"):
        llm.stop_profile()
    llm.shutdown()


def test_a_pattern_that_repeats_ends_a_choice():
    found = RepetitionDetectionParams(max_pattern_size=3, min_count=3).found
    assert found([9, 1, 2, 1, 2, 1, 2])
    assert found([4, 4, 4])
    assert not found([1, 2, 1, 2])
    assert not found([1, 2, 3, 4] * 3)  # four tokens: longer than is looked for
    assert not RepetitionDetectionParams(max_pattern_size=3, min_pattern_size=2, min_count=3).found([7, 1, 1, 1])
    with pytest.raises(RequestError, match="min_count"):
        RepetitionDetectionParams(max_pattern_size=3, min_count=1)


def test_flat_logprobs_are_the_same_positions():
    positions = [{1: Logprob(-0.5, 1, "a"), 2: Logprob(-1.0, 2, "b")}, {3: Logprob(-0.1, 1, None)}]
    flat = FlatLogprobs(positions)
    assert list(flat) == positions
    assert (len(flat), flat[-1], list(flat[1:])) == (2, positions[1], positions[1:])
    assert flat.token_ids == [1, 2, 3]


def test_parameters_say_how_they_sample_and_take_ends_from_a_generation_config():
    kinds = [SamplingParams(**p).sampling_type for p in ({"temperature": 0}, {}, {"seed": 3})]
    assert kinds == [SamplingType.GREEDY, SamplingType.RANDOM, SamplingType.RANDOM_SEED]
    params = SamplingParams(stop_token_ids=[4])
    params.update_from_generation_config({"eos_token_id": [2, 9]}, eos_token_id=2)
    assert params.stop_token_ids == [4, 9]
    assert SamplingParams(stop=["ab", "abcd"]).output_text_buffer_length == 3
    with pytest.raises(RequestError, match="bad_words"):
        SamplingParams(bad_words=["x"]).update_from_tokenizer(SimpleNamespace(encode=lambda word, add_special_tokens: []))


@pytest.mark.parametrize("name", ["logprob_token_ids", "routed_experts_prompt_start"])
def test_parameters_that_are_not_honoured_are_refused_by_name(name):
    with pytest.raises(RequestError, match=f"^{name}: .*omit it"):
        SamplingParams(**{name: [1] if name.endswith("ids") else 1})


def test_arguments_of_the_field_are_accepted_where_they_ask_for_nothing_and_refused_in_words_elsewhere(caplog):
    made = engine_args(
        {"pipeline_parallel_size": 1, "fully_sharded_loras": False, "lora_dtype": None, "compilation_config": {"level": 0},
         "tokenizer_mode": "slow", "enable_sleep_mode": True, "optimization_level": 0, "swap_space": 4, "model": "m"}
    )  # fmt: skip
    assert (made.model, made.enforce_eager) == ("m", True)
    assert "swap_space has no effect any more" in caplog.text
    with pytest.raises(ConfigError) as e:
        engine_args(
            {"enable_tower_connector_lora": True, "data_parallel_backend": "ray", "reasoning_parser": "x", "sed": 1, "port": 1}
        )
    said = dict(p.split(": ", 1) for p in e.value.problems)
    assert "adapters of encoders" in said["enable_tower_connector_lora"]
    assert "behind a load balancer" in said["data_parallel_backend"]
    assert "thalweg serve --port" in said["port"]
    assert "did you mean seed?" in said["sed"]
    with pytest.raises(ConfigError, match=r"compilation_config.pass_config"):
        engine_args({"compilation_config": {"pass_config": {}}})


def test_methods_that_are_not_here_say_why(engine):
    llm = LLM.from_engine_args(EngineArgs(**SIZES))
    for call in (llm.collective_rpc, llm.apply_model, llm.update_weights):
        with pytest.raises(NotSupportedError, match=f"^{call.name}: "):
            call("x")
    with pytest.raises(NotSupportedError):
        llm.chat([{"role": "user", "content": "a"}], mm_processor_kwargs={"a": 1})
    assert llm.get_world_size() == 1
    assert llm.supported_tasks == ("generate",)
    llm.shutdown()


def test_prompts_may_be_cut_and_every_keyword_of_the_field_is_taken():
    llm = LLM(**SIZES)
    ids = list(range(10, 60))
    (out,) = llm.generate(
        ids, PARAMS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 5, "truncation_side": "left"}
    )
    assert out.prompt_token_ids == ids[-5:]
    llm.enqueue(ids, PARAMS)
    with pytest.raises(RequestError, match="output_type"):
        llm.wait_for_completion(int, use_tqdm=False)
    taken = set(inspect.signature(llm.chat).parameters)
    assert taken >= {"lora_request", "chat_template_content_format", "tokenization_kwargs", "mm_processor_kwargs"}
    with pytest.raises(RequestError, match="chat_template_content_format"):
        llm.chat([{"role": "user", "content": "a"}], chat_template_content_format="html")
    llm.shutdown()
