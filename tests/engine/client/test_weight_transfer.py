"""Weights from a trainer: the next text is that of the new weights, and an update that ends early leaves the old ones."""

from __future__ import annotations

import asyncio
import shutil
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from loopback import free_port
from safetensors.torch import load_file, save_file

from thalweg import LLM, SamplingParams
from thalweg.async_llm import AsyncLLM
from thalweg.checkpoint.hub import resolve_model
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.checkpoint.staging import StagedCheckpoint, TensorSpec, encode_header
from thalweg.config import EngineArgs
from thalweg.engine.client.weight_transfer import WeightTransfer
from thalweg.errors import RequestError
from thalweg.options.weight_transfer import WeightTransferConfig

NANO = resolve_model("thalweg-nano")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = [5, 9, 200, 31, 7]


def stage(tmp_path, changed):
    """A staged checkpoint with the changed tensors, as the receiver writes them."""
    staged = StagedCheckpoint(NANO, tmp_path)
    specs = staged.check(list(changed), ["bfloat16"] * len(changed), [list(t.shape) for t in changed.values()])
    data = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in changed.values())
    staged.next_shard().write_bytes(encode_header(specs, {"bfloat16": 2}) + data)
    staged.add(specs)
    return staged


def test_a_staged_checkpoint_has_the_sent_tensors_and_the_rest_of_the_old(tmp_path):
    old = load_file(NANO / "model.safetensors")
    name = next(n for n, t in old.items() if t.dim() == 2)
    staged = stage(tmp_path, {name: old[name] * 2})
    made = open_checkpoint(staged.complete())
    assert set(made.names) == set(old)
    for each in old:
        got = torch.from_numpy(made.read(each).copy()).view(torch.bfloat16)
        assert torch.equal(got, old[each] * 2 if each == name else old[each])
    assert (staged.folder / "tokenizer.json").is_file()
    staged.discard()
    assert not list(tmp_path.iterdir())


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path):
    staged = StagedCheckpoint(NANO, tmp_path)
    name = staged._old.names[0]
    dtype, shape = staged._old.entry(name)
    for names, dtypes, shapes, words in (
        (["nothing.weight"], [dtype], [[1]], "the checkpoint has no nothing.weight"),
        ([name], [dtype], [[*shape, 1]], f"{name} is {dtype}"),
        ([name], ["float64"], [shape], f"{name} is float64"),
        ([name, name], [dtype] * 2, [shape] * 2, "sent already"),
        ([name], [dtype], [], "lists of one length"),
        (["lm_head.weight"], [dtype], [[1 << 40, 1 << 20]], "lm_head.weight is"),
    ):
        with pytest.raises(RequestError, match=r".*") as caught:
            staged.check(names, dtypes, shapes)
        assert words in str(caught.value)
    with pytest.raises(RequestError, match="no weights were sent"):
        staged.complete()
    assert staged.check([name], [f"torch.{dtype}"], [shape]) == [TensorSpec(name, dtype, shape)]


@pytest.mark.parametrize(
    ("field", "value"),
    [("master_port", 0), ("master_port", 65536), ("master_address", ""), ("master_address", "a b"), ("world_size", 1 << 40)],
)
async def test_a_group_that_cannot_exist_is_refused_by_field(tmp_path, field, value):
    """torch.distributed answers with errors of its parser."""
    transfer = WeightTransfer(WeightTransferConfig(), NANO, 1)
    info = {"master_address": "::1", "master_port": 29600, "rank_offset": 1, "world_size": 2, field: value}
    with pytest.raises(RequestError, match=field):
        await transfer.init(info)


@pytest.mark.slow
async def test_a_trainer_that_does_not_come_is_waited_for_until_the_timeout():
    """The error names the address, no process is left, and the next call may try again."""
    port = free_port()
    transfer = WeightTransfer(WeightTransferConfig(timeout=1.0), NANO, 1)
    info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
    with pytest.raises(RequestError, match=f"The trainer, rank 0, must join at 127.0.0.1 port {port} during this call"):
        await transfer.init(info)
    assert transfer._receivers == []
    with pytest.raises(RequestError, match="call init_weight_transfer_engine first"):
        await transfer.start(True)


async def test_staged_weights_are_deleted_although_the_engine_does_not_end(tmp_path):
    """The server waits half a second for its engine. The files would fill the disk."""
    transfer = WeightTransfer(WeightTransferConfig(), NANO, 1)
    transfer._used = StagedCheckpoint(NANO, tmp_path)
    ending = SimpleNamespace(_warm=None, _opening=None, _transfer=transfer, _end_engines=asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await AsyncLLM._shut(ending, 0.05)
    assert not list(tmp_path.iterdir())


class Trainer:
    """Rank 0 of a group, in this process. `send` broadcasts tensors on a thread, while the engine receives."""

    def __init__(self) -> None:
        self.port = free_port()
        self.info = {"master_address": "127.0.0.1", "master_port": self.port, "rank_offset": 1, "world_size": 2}

    def join(self) -> None:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{self.port}", timedelta(seconds=60), 2, 0)

    async def meet(self, engine: AsyncLLM) -> None:
        await asyncio.gather(
            asyncio.to_thread(self.join), engine.collective_rpc("init_weight_transfer_engine", args=(self.info,))
        )

    async def send(self, engine: AsyncLLM, tensors: dict[str, torch.Tensor]) -> None:
        info = {
            "names": list(tensors),
            "dtype_names": [str(t.dtype) for t in tensors.values()],
            "shapes": [list(t.shape) for t in tensors.values()],
        }
        sending = threading.Thread(target=lambda: [dist.broadcast(t, 0) for t in tensors.values()])
        sending.start()
        await engine.update_weights(info)
        sending.join()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


async def text_of(engine, request_id, **options):
    params = SamplingParams(temperature=0.0, ignore_eos=True, **{"max_tokens": 12, **options})
    async for output in engine.generate({"prompt_token_ids": PROMPT}, params, request_id):
        last = output
    return last.outputs[0].token_ids


@pytest.mark.nightly
def test_an_update_between_two_requests_gives_the_text_of_the_new_weights(tmp_path):
    """With a real engine process and a real broadcast: new weights, a request in flight, an update that is not finished,
    weights that cannot be loaded, and a receiver that dies."""
    old = load_file(NANO / "model.safetensors")
    torch.manual_seed(3)
    new = {n: (t.float() + 0.05 * torch.randn(t.shape)).bfloat16() for n, t in old.items()}
    folder = tmp_path / "new"
    shutil.copytree(NANO, folder)
    save_file(new, folder / "model.safetensors", {"format": "pt"})
    staging = tmp_path / "staging"
    staging.mkdir()
    options = {"threads": 1, "kv_cache_memory_bytes": 1 << 24}
    expected = LLM(str(folder), **options).generate([{"prompt_token_ids": PROMPT}], GREEDY)[0].outputs[0].token_ids
    config = {"backend": "gloo", "staging_directory": str(staging), "timeout": 60}

    async def run():
        engine = await AsyncLLM.start(EngineArgs(weight_transfer_config=config, **options))
        trainer = Trainer()
        try:
            first = await text_of(engine, "first")
            assert first != expected
            await trainer.meet(engine)
            await engine.start_weight_update()
            names = list(new)
            await trainer.send(engine, {n: new[n] for n in names[:3]})
            assert await text_of(engine, "during") == first
            await engine.start_weight_update()  # the trainer begins again: what it had sent is dropped
            await trainer.send(engine, {n: new[n] for n in names[:10]})
            await trainer.send(engine, {n: new[n] for n in names[10:]})
            flying = asyncio.create_task(text_of(engine, "flying", max_tokens=400))
            await asyncio.sleep(0.05)
            await engine.finish_weight_update()
            assert engine.weights_version == 1
            assert await text_of(engine, "second") == expected
            assert len(await flying) == 400
            with pytest.raises(RequestError, match="start_weight_update"):
                await engine.finish_weight_update()
            await engine.start_weight_update()
            await trainer.send(engine, {names[0]: old[names[0]]})
            engine._weights()._staged.complete = lambda: staging  # no checkpoint
            with pytest.raises(RequestError, match="the old ones serve again"):
                await engine.finish_weight_update()
            assert engine.weights_version == 1
            assert await text_of(engine, "third") == expected
            await engine.start_weight_update()
            await trainer.send(engine, {names[0]: new[names[0]] * float("nan")})
            flying = asyncio.create_task(text_of(engine, "over-nan", max_tokens=400))
            await asyncio.sleep(0.05)
            with pytest.raises(RequestError, match=r"the old ones serve again: .* not a number"):
                await engine.finish_weight_update()
            assert await text_of(engine, "fifth") == expected
            assert len(await flying) == 400
            await engine.start_weight_update()
            await trainer.send(engine, {names[0]: old[names[0]]})
            engine._weights()._receivers[0]._process.kill()
            with pytest.raises(RequestError, match="weight transfer: the receiving process has ended"):
                await engine.update_weights(
                    {"names": [names[1]], "dtype_names": ["bfloat16"], "shapes": [[*old[names[1]].shape]]}
                )
            with pytest.raises(RequestError, match="init_weight_transfer_engine first"):
                await engine.start_weight_update()
            assert await text_of(engine, "fourth") == expected
        finally:
            trainer.close()
            await engine.shutdown()
        assert not list(staging.iterdir())

    asyncio.run(run())
