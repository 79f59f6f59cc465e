"""The GPU device end to end on the host, with streams that do their work as late as they may: what it serves is what the
reference serves, captured or not, and what it stages is never touched too early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import LLM, SamplingParams
from thalweg.backends.torch_gpu import executable as exe_module
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.testing import HostGpuOptions, HostGpuPlatform
from thalweg.errors import DeviceError
from thalweg.hal import ops
from thalweg.hal.device import DeviceInfo
from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.scores import Scores
from thalweg.hal.platform import Place
from thalweg.hal.step import Features, SamplingArrays, StateBox, StepBatch, StepResult, StepShape

INFO = DeviceInfo("test", "test", 1 << 30, 1, ("float32",))
PARAMS = {
    "greedy": {},
    "random": {"temperature": 0.8, "seed": 5},
    "truncated": {"temperature": 1.0, "seed": 6, "top_k": 20, "top_p": 0.9},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.2},
    "biased": {"logit_bias": {5: 4.0, 9: -100.0}, "min_tokens": 6},
    "logprobs": {"logprobs": 3},
}


HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> list[GpuDevice]:
    """The devices that HOST opened."""
    opened: list[GpuDevice] = []
    opens = HostGpuPlatform.open

    def remember(self: Any, place: Place) -> Any:
        opened.append(opens(self, place))
        return opened[-1]

    monkeypatch.setattr(HostGpuPlatform, "open", remember)
    return opened


def _serve(device: str, **args: Any) -> list[tuple[list[int], Any]]:
    rng = np.random.default_rng(3)
    llm = LLM(device=device, dtype="float32", max_model_len=192, seed=0, **args)
    try:
        prompts = [{"prompt_token_ids": rng.integers(1, 200, int(n)).tolist()} for n in rng.integers(3, 90, 12)]
        kinds = list(PARAMS.values())
        params = [SamplingParams(max_tokens=12 + 3 * i, ignore_eos=True, **kinds[i % len(kinds)]) for i in range(len(prompts))]
        outputs = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
        return [
            (list(o.token_ids), o.logprobs and [{t: round(v.logprob, 4) for t, v in p.items()} for p in o.logprobs])
            for o in outputs
        ]
    finally:
        llm.shutdown()


@pytest.fixture(scope="module")
def want() -> list[tuple[list[int], Any]]:
    """What the definition serves."""
    return _serve("reference")


@pytest.mark.slow
def test_every_kind_of_request_gets_the_tokens_of_the_reference_from_graphs(want: Any, hosted: list[GpuDevice]) -> None:
    assert _serve(HOST) == want
    runtime: Any = hosted[0]._runtime
    assert runtime.captures >= 4
    assert runtime.replays > runtime.captures


@pytest.mark.slow
def test_steps_with_prompts_are_replayed_from_graphs_too(
    want: Any, hosted: list[GpuDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of prompts among decodes, padded to a few sizes: the tokens are those of the reference."""
    replayed: list[StepShape | None] = []
    replay = exe_module.GpuExecutable._replay

    def note(self: Any, *args: Any) -> Any:
        replayed.append(self.shape)
        return replay(self, *args)

    monkeypatch.setattr(exe_module.GpuExecutable, "_replay", note)
    assert _serve(HOST, additional_config={"mixed": True}, max_num_batched_tokens=48, max_num_seqs=8) == want
    assert sum(shape is not None and not shape.uniform for shape in replayed) > 3


@pytest.mark.slow
@pytest.mark.parametrize("said", [{"additional_config": {"graphs": False}}, {"enforce_eager": True}], ids=str)
def test_without_graphs_the_tokens_are_the_same(want: Any, hosted: list[GpuDevice], said: dict[str, Any]) -> None:
    assert _serve(HOST, **said) == want
    assert hosted[0]._runtime.captures == 0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_what_is_prepared_is_captured_before_the_first_request_and_nothing_is_captured_after_it(
    hosted: list[GpuDevice],
) -> None:
    """Requests of many lengths and numbers, greedy and drawn, come and go; steps in which all decode replay a graph."""
    llm = LLM(device=HOST, dtype="float32", max_model_len=192, max_num_seqs=4, additional_config={"prepare": "graphs"})
    try:
        runtime: Any = hosted[0]._runtime
        ready, replayed = runtime.captures, runtime.replays
        assert ready >= 3 * 3  # three sizes, three widths
        rng = np.random.default_rng(8)
        kinds = [PARAMS["greedy"], PARAMS["random"], PARAMS["truncated"], {"temperature": 0.5, "min_p": 0.1}]
        prompts = [{"prompt_token_ids": rng.integers(1, 200, int(n)).tolist()} for n in rng.integers(1, 120, 12)]
        params = [SamplingParams(max_tokens=int(n), **kinds[i % 4]) for i, n in enumerate(rng.integers(1, 40, 12))]
        assert len(llm.generate(prompts, params, use_tqdm=False)) == 12
        assert runtime.captures == ready
        assert runtime.replays > replayed
    finally:
        llm.shutdown()


def _device(late: bool = True, graphs: bool = True, prepare: str = "none") -> GpuDevice:
    return GpuDevice(INFO, HostRuntime(late=late), KernelSet(), graphs=graphs, prepare=prepare)


def _batch(n: int, first: int, uniform: int = 1) -> StepBatch:
    i32 = np.int32
    return StepBatch(
        tokens=np.arange(first, first + n, dtype=i32), token_seq=np.arange(n, dtype=i32), positions=np.zeros(n, i32),
        slots=np.arange(1, n + 1, dtype=i32), context=np.zeros(n, i32), query=np.ones(n, i32),
        last_row=np.arange(n, dtype=i32), emit=np.ones(n, bool), block_tables=(np.zeros((n, 1), i32),),
        sampling=SamplingArrays.greedy(n), uniform=uniform,
    )  # fmt: skip


SHAPE = StepShape(4, 4, 1, True)


def _sum_step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    """Adds the batch's tokens up, and tells the sum before and the tokens."""
    return {"sum": state["sum"] + batch.tokens.sum(), "log": [state["log"][0] * 3 + batch.tokens[0]]}, StepResult(
        batch.tokens[:, None], batch.query, extras={"before": state["sum"]}
    )


def _box(device: GpuDevice) -> StateBox:
    return StateBox({"sum": device.alloc((), "int64"), "log": [device.alloc((), "int64")]})


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_batches_and_results_keep_their_bytes_however_many_are_in_flight(graphs: bool, depth: int) -> None:
    device = _device(graphs=graphs)
    box = _box(device)
    run, any_shape = (device.compile(_sum_step, None, box, s, Features() if s else None) for s in (SHAPE, None))
    flying: list[Any] = []
    total, at = 0, 0

    def land() -> None:
        nonlocal total, at
        result = flying.pop(0).result()
        assert result.tokens[:, 0].tolist() == list(range(at, at + 4))
        assert int(result.extras["before"]) == total
        total, at = total + sum(range(at, at + 4)), at + 1

    for i in range(25):
        flying.append((any_shape if i % 5 == 3 else run)(_batch(4, i)))
        if len(flying) > depth:
            land()
    while flying:
        land()
    device.synchronize()
    assert int(box.value["sum"]) == total


def test_a_result_stays_as_it_was_when_later_ones_arrive() -> None:
    device = _device()
    run = device.compile(_sum_step, None, _box(device), SHAPE, Features())
    kept = [run(_batch(4, i)).result() for i in range(6)]
    assert [int(r.tokens[0, 0]) for r in kept] == list(range(6))


def test_numbers_in_a_plan_belong_to_the_graph_that_was_captured_with_them() -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return state, StepResult(batch.tokens[:, None] * batch.metadata[0]["times"], batch.query)

    device = _device()
    run = device.compile(step, None, _box(device), SHAPE, Features())
    for times in (1, 1, 1, 7, 7, 7, 1, 7):
        batch = _batch(4, 3)
        batch.metadata = ({"times": times},)
        assert run(batch).result().tokens[0, 0] == 3 * times


def test_padded_bad_words_ban_what_the_words_ban() -> None:
    """Through the op itself: words of any number and length, of which only those given end a row."""

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        lengths = torch.full((4,), 3, dtype=torch.int32, device=batch.slots.device)
        logits = torch.zeros((4, 50), device=batch.slots.device)
        bad = batch.get(BadWords)
        assert bad is not None
        left = ops.bad_words(logits, state, batch.slots, lengths, bad.row, bad.words)
        return state, StepResult(batch.tokens[:, None], batch.query, extras={"left": left})

    device = _device()
    history = device.put(torch.tensor([[0, 0, 0], [5, 6, 7], [5, 6, 8], [1, 2, 3], [9, 9, 9]], dtype=torch.int32))
    run = device.compile(step, None, StateBox(history), SHAPE, Features().plus(BadWords))
    for words in ([[-1, 7, 20], [-1, -1, 30]], [[6, 8, 21]], [[-1, -1, 9], [6, 7, 22], [5, 6, 23]], [[5, 6, 7, 24]]):
        for _ in range(3):
            batch = _batch(4, 0)
            batch.parts = (BadWords(np.arange(len(words), dtype=np.int32), np.array(words, np.int32)),)
            plain = device.compile(step, None, StateBox(history), None, None)(batch).result()
            np.testing.assert_array_equal(run(batch).result().extras["left"], plain.extras["left"])
    assert device._runtime.replays > 0  # type: ignore[attr-defined]


def test_eager_batches_of_growing_sizes_are_read_where_they_lie() -> None:
    device = _device(graphs=False)
    run = device.compile(_sum_step, None, _box(device), None, None)
    for n in (4, 3000, 4, 9000, 3000, 4):
        assert run(_batch(n, 7)).result().tokens[:, 0].tolist() == list(range(7, 7 + n))


def test_the_host_may_change_a_batch_once_it_is_launched() -> None:
    device = _device()
    run = device.compile(_sum_step, None, _box(device), SHAPE, Features())
    batch = _batch(4, 10)
    for _ in range(3):
        pending = run(batch)
        batch.tokens += 1
        assert pending.result().tokens[0, 0] == batch.tokens[0] - 1


def test_a_dropped_result_harms_no_other() -> None:
    device = _device()
    run = device.compile(_sum_step, None, _box(device), SHAPE, Features())
    for i in range(20):
        run(_batch(4, i))
    assert run(_batch(4, 77)).result().tokens[:, 0].tolist() == [77, 78, 79, 80]


def test_a_result_is_read_once_and_ready_comes_true_by_itself() -> None:
    device = _device()
    pending = device.compile(_sum_step, None, _box(device), SHAPE, Features())(_batch(4, 1))
    assert not pending.ready()
    for _ in range(20):
        if pending.ready():
            break
    assert pending.ready()
    pending.result()
    with pytest.raises(RuntimeError, match="twice"):
        pending.result()


def test_capturing_runs_nothing() -> None:
    """The state after n steps is that of n steps, though one of them was recorded as well."""
    device = _device()
    box = _box(device)
    run = device.compile(_sum_step, None, box, SHAPE, Features())
    for i in range(4):
        run(_batch(4, i)).result()
    runtime: Any = device._runtime
    assert (runtime.captures, runtime.replays) == (1, 3)
    assert int(box.value["log"][0]) == ((0 * 3 + 1) * 3 + 2) * 3 + 3


def test_graphs_of_two_sizes_share_one_state() -> None:
    device = _device()
    box = _box(device)
    small, large = (device.compile(_sum_step, None, box, StepShape(n, n, 1, True), Features()) for n in (2, 4))
    want = 0
    for i in range(12):
        n, exe = ((2, small), (4, large))[i % 3 == 1]
        assert int(exe(_batch(n, i)).result().extras["before"]) == want
        want += sum(range(i, i + n))


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("item", lambda b: b.tokens[0].item()),
        ("tolist", lambda b: b.tokens.tolist()),
        ("numpy", lambda b: b.tokens.numpy()),
        ("bool", lambda b: bool(b.tokens[0] > 0)),
        ("mask of booleans", lambda b: b.tokens[b.tokens > 2]),
        ("nonzero", lambda b: torch.nonzero(b.tokens)),
    ],
)
def test_a_step_that_cannot_be_captured_runs_all_the_same_and_says_why(
    name: str, look: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        look(batch)
        return _sum_step(params, state, batch)

    device = _device()
    box = _box(device)
    run = device.compile(step, None, box, SHAPE, Features())
    tried: list[int] = []
    capture = device._runtime.capture
    monkeypatch.setattr(device._runtime, "capture", lambda work: (tried.append(1), capture(work))[1])
    for i in range(4):
        run(_batch(4, i)).result()
    assert len(tried) == 1
    assert device._runtime.replays == 0  # type: ignore[attr-defined]
    assert int(box.value["sum"]) == 6 + 10 + 14 + 18
    assert len(caplog.records) == 1
    assert name in caplog.text


def test_a_step_that_forgets_where_its_tensors_belong_is_found() -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return state, StepResult(batch.tokens[:, None] + torch.arange(4)[:, None], batch.query)

    device = _device()
    with pytest.raises(RuntimeError, match="name the device"):
        device.compile(step, None, _box(device), None, None)(_batch(4, 0)).result()


def test_what_python_decides_while_a_step_is_captured_is_decided_for_good() -> None:
    """The host's graphs are as strict as a GPU's, or the tests above would prove little."""
    calls: list[int] = []

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        calls.append(1)
        return state, StepResult(batch.tokens[:, None] + len(calls), batch.query)

    device = _device()
    run = device.compile(step, None, _box(device), SHAPE, Features())
    got = [int(run(_batch(4, 0)).result().tokens[0, 0]) for _ in range(4)]
    assert got == [1, 2, 2, 2]


def test_batches_of_other_layouts_get_graphs_of_their_own_up_to_a_limit() -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        bias = batch.get(Bias)
        return state, StepResult(
            batch.tokens[:, None], batch.query, extras={"bias": bias.value.sum() if bias else batch.tokens[0] * 0}
        )

    device = _device()
    run = device.compile(step, None, _box(device), SHAPE, Features().plus(Bias))
    for round in range(3):
        for n in (0, 1, 3, 16, 17, 40, 100, 200, 400, 900, 2000):
            assert float(run(_biased(n) if n else _batch(4, 0)).result().extras["bias"]) == n / 2, round
    assert device._runtime.captures == exe_module.LAYOUTS  # type: ignore[attr-defined]


def _biased(n: int) -> StepBatch:
    batch = _batch(4, 0)
    batch.parts = (Bias(np.zeros(n, np.int32), np.zeros(n, np.int32), np.full(n, 0.5, np.float32)),)
    return batch


def test_a_layout_gets_the_graph_of_one_that_no_step_has_needed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exe_module, "LAYOUTS", 2)
    monkeypatch.setattr(exe_module, "IDLE", 5)
    device = _device()
    run = device.compile(_sum_step, None, _box(device), SHAPE, Features().plus(Bias))
    runtime: Any = device._runtime
    for n in (16, 16, 32, 32):
        run(_biased(n))
    for _ in range(8):
        run(_biased(32))
    for _ in range(4):
        run(_biased(64)).result()
    assert runtime.captures == 3  # in the place of 16, which is idle
    replays = runtime.replays
    run(_biased(32)).result()
    assert runtime.replays == replays + 1
    assert run(_biased(16)).result().tokens[:, 0].tolist() == [0, 1, 2, 3]
    assert len(run._graphs) == 2


def test_more_layouts_than_there_is_room_for_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exe_module, "LAYOUTS", 2)
    device = _device()
    for _ in range(2):
        run = device.compile(_sum_step, None, _box(device), SHAPE, Features().plus(Bias))
        for _ in range(5):
            for n in (16, 32, 64):
                run(_biased(n)).result()
    assert device._runtime.captures == 4  # type: ignore[attr-defined]
    assert len(caplog.records) == 1
    assert "without a graph" in caplog.text
    assert "logit_bias" in caplog.text


def test_all_graphs_read_their_batches_from_one_buffer_where_the_largest_comes_first() -> None:
    device, shapes = _device(prepare="graphs"), [StepShape(n, n, 1, True) for n in (2, 64, 8, 32)]
    box = _box(device)
    made = {s: device.compile(_sum_step, None, box, s, device.widen(Features())) for s in shapes}
    order = device.warmup_buckets([*shapes, StepShape(100, 4, 1)])
    assert [s.seqs for s in order] == [64, 32, 8, 2]
    device.rehearse([lambda s=s: (made[s], _batch(s.seqs, 0)) for s in order])
    assert device._runtime.captures == 4  # type: ignore[attr-defined]
    graphs = [g for run in made.values() for g in run._graphs.values()]
    assert len({g.buffer.data_ptr() for g in graphs}) == 1
    for i, s in enumerate(shapes):
        assert made[s](_batch(s.seqs, i)).result().tokens[:, 0].tolist() == list(range(i, i + s.seqs))
    assert device._runtime.captures == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(("prepare", "captures"), [("none", 0), ("kernels", 0), ("graphs", 1)])
def test_as_much_is_prepared_as_is_asked_for(prepare: str, captures: int) -> None:
    device = _device(prepare=prepare)
    run, rare = (
        device.compile(_sum_step, None, _box(device), SHAPE, device.widen(f)) for f in (Features(), Features().plus(Bias))
    )
    assert list(device.warmup_buckets([SHAPE])) == [SHAPE] * captures
    assert device.warms == (prepare != "none")
    device.rehearse([lambda: (run, _batch(4, 0)), lambda: (rare, _batch(4, 0))])
    assert device._runtime.captures == captures  # type: ignore[attr-defined]


def test_memory_that_runs_out_while_preparing_is_an_error_with_a_remedy() -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    device = _device(prepare="kernels")
    run = device.compile(step, None, _box(device), None, None)
    with pytest.raises(DeviceError, match=r"gpu_memory_utilization.*20\.00 GiB"):
        device.rehearse([lambda: (run, _batch(4, 0))])


def test_few_kinds_of_requests_need_graphs_of_their_own() -> None:
    device = _device()
    plain = Features(random=True, truncate=True)
    assert {device.widen(f) for f in (Features(), Features(random=True), Features(truncate=True), plain)} == {plain}
    counts = {device.widen(Features(logprobs=k)).logprobs for k in range(1, 21)}
    assert counts == {20}
    assert device.widen(Features(logprobs=0)).logprobs == 0  # of the sampled token alone: next to nothing
    assert device.widen(Features().plus(Scores, 5)).level(Scores) == 20
    assert device.widen(Features(logprobs=70)).logprobs == 70


def test_a_step_that_fails_while_replaying_fails_alone() -> None:
    device = _device()
    box = _box(device)
    run = device.compile(_sum_step, None, box, SHAPE, Features())
    for i in range(3):
        run(_batch(4, i)).result()
    graph = next(iter(run._graphs.values()))

    def broken() -> None:
        raise ArithmeticError("on purpose")

    run._graphs = {k: exe_module._CapturedGraph(g.buffer, g.packed, g.manifest, broken) for k, g in run._graphs.items() if g}
    with pytest.raises(ArithmeticError, match="on purpose"):
        run(_batch(4, 9)).result()
    run._graphs = dict.fromkeys(run._graphs, graph)
    assert run(_batch(4, 5)).result().tokens[0, 0] == 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda s: {"sum": s["sum"]}, "other keys"),
        (lambda s: {"sum": s["sum"].float(), "log": s["log"]}, "float32"),
        (lambda s: {"sum": s["sum"], "log": []}, "0 parts"),
    ],
)
def test_a_state_of_another_form_is_refused(wrong: Any, words: str) -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return wrong(state), StepResult(batch.tokens[:, None], batch.query)

    device = _device()
    with pytest.raises(RuntimeError, match=words):
        device.compile(step, None, _box(device), None, None)(_batch(4, 0)).result()


def test_parts_of_the_state_that_change_places_do_so() -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return state[::-1], StepResult(batch.tokens[:, None], batch.query)

    device = _device()
    box = StateBox([device.put(torch.tensor([1])), device.put(torch.tensor([2]))])
    device.compile(step, None, box, None, None)(_batch(4, 0)).result()
    assert [int(t) for t in box.value] == [2, 1]


def test_large_arrays_arrive_whole_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.backends.torch_gpu import staging

    monkeypatch.setattr(staging, "PIECE", 1000)
    device = _device()
    array = np.arange(5003, dtype=np.int32)
    placed = device.put(array)
    array[:] = 0
    assert placed.tolist() == list(range(5003))
    assert device.put(torch.arange(12).view(3, 4).t()).tolist() == torch.arange(12).view(3, 4).t().tolist()
    for empty in ((0,), (3, 0)):
        assert device.put(np.zeros(empty, np.float32)).shape == empty


def test_blocks_are_moved_after_the_steps_launched_before() -> None:
    device = _device()
    kv = device.alloc((4, 2), "int32")

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        state[1:2] = batch.tokens[:2]
        return state, StepResult(batch.tokens[:, None], batch.query)

    run = device.compile(step, None, StateBox(kv), None, None)
    run(_batch(4, 5))
    device.copy_blocks(kv, np.array([1], np.int32), np.array([3], np.int32))
    assert np.frombuffer(device.read_blocks(kv, np.array([3], np.int32)), np.int32).tolist() == [5, 6]


def test_options_reach_the_device() -> None:
    device = HostGpuPlatform().with_options(HostGpuOptions(graphs=False)).open(Place())
    assert not device._graphs  # type: ignore[attr-defined]


def test_made_up_weights_are_drawn_on_the_device_and_depend_on_their_seed_alone() -> None:
    device = _device()
    one, same, other = (device.normal((64, 64), "float32", std=0.02, seed=s) for s in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert abs(float(one.std()) - 0.02) < 0.002


@pytest.mark.slow
def test_a_model_of_made_up_weights_is_the_same_each_time_and_here_as_on_the_host() -> None:
    tokens = _serve(HOST, load_format="dummy")
    assert tokens == _serve(HOST, load_format="dummy")
    for (_, mine), (_, cpu) in zip(tokens, _serve("cpu", load_format="dummy"), strict=True):
        if mine:  # this device's generator is the host's: the same weights, multiplied by other kernels
            assert sorted(mine[0].values()) == pytest.approx(sorted(cpu[0].values()), abs=2e-3)
