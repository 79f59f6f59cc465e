"""What every store is tested by: the contract of one, and faults that an engine must find.

    python tests/engine/store_faults.py --faults 10000

damages that many files of a disk store, and compares every token of an engine that loads them. `--store lmcache` damages
objects of an LMCache server.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from thalweg import LLM, SamplingParams
from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.disk import PART

KEYS = [bytes([i]) * 16 for i in range(8)]
BLOCKS = [bytes([i]) * (100 + i) for i in range(8)]
PROMPTS = [{"prompt_token_ids": [(7 * i + j * j) % 200 + 5 for j in range(200)]} for i in range(12)]


def check_contract(store: Store) -> None:
    store.set_block_sizes([len(block) for block in BLOCKS])
    assert list(store.lookup(KEYS)) == [False] * 8
    assert list(store.load(KEYS[:2])) == [None, None]
    store.save(KEYS[:4], BLOCKS[:4])
    assert list(store.lookup(KEYS)) == [True] * 4 + [False] * 4
    assert list(store.load([KEYS[3], KEYS[5], KEYS[0]])) == [BLOCKS[3], None, BLOCKS[0]]
    store.discard(KEYS[:2])
    assert list(store.load(KEYS[:3])) == [None, None, BLOCKS[2]]
    store.save(KEYS[:1], BLOCKS[:1])  # it can be saved again
    assert list(store.load(KEYS[:1])) == [BLOCKS[0]]


def damage(rng: random.Random, block: bytes, other: bytes) -> bytes:
    """A block as a failing disk or peer returns it: flipped, cut, empty, longer, another's, or of zeros."""
    block = block or b"-"
    at = rng.randrange(len(block))
    return rng.choice(
        [
            block[:at] + bytes([block[at] ^ 1 << rng.randrange(8)]) + block[at + 1 :],
            block[:at],
            b"",
            block + b"\0",
            other,
            bytes(len(block)),
        ]
    )


def answers(llm: LLM) -> list[list[int]]:
    params = SamplingParams(max_tokens=6, ignore_eos=True, detokenize=False)
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]


def settle(llm: LLM) -> None:
    """Every block is in the store."""
    saves = llm.llm_engine.core._transfers.departures
    while llm.llm_engine.core.idle() or saves._saves:
        saves.collect(wait=True)


def start(tmp_path: Path, store: str | None = None, **options: Any) -> LLM:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    config = None if store is None else {"kv_connector": store, "kv_connector_extra_config": options}
    return LLM(
        device="null", max_model_len=512, block_size=16, num_gpu_blocks_override=64, max_num_seqs=4,
        kv_transfer_config=config, kv_key_secret=str(tmp_path / "secret"),
    )  # fmt: skip


def run_faults(llm: LLM, want: Sequence[Any], spoil: Callable[[random.Random], int], rounds: int) -> int:
    """Damage blocks between rounds, and compare every token. Returns the number of faults."""
    rng, faults = random.Random(4), 0
    for _ in range(rounds):
        assert answers(llm) == want
        settle(llm)
        faults += spoil(rng)
        llm.reset_prefix_cache()
    assert answers(llm) == want
    settle(llm)
    stats = llm.stats()
    assert stats.store_failed > faults / 4, "damaged blocks are found and counted"
    assert stats.store_hits > 0
    return faults


def files(folder: Path) -> list[Path]:
    """Of the blocks of a disk store."""
    return [f for f in folder.glob("??/*") if f.suffix != PART]


def damage_files(folder: Path, rng: random.Random, count: int = 60) -> int:
    """Damage or delete this many blocks of a disk store."""
    found = {path: path.read_bytes() for path in sorted(files(folder))}
    for path in rng.sample(list(found), count):
        if rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(damage(rng, found[path], rng.choice(list(found.values()))))
    return count


def damage_disk(folder: Path) -> tuple[dict[str, Any], Callable[[random.Random], int]]:
    """Options of a disk store, and what damages 60 of its blocks."""
    return {"folder": f"{folder}/blocks", "max_bytes": 1 << 30}, partial(damage_files, folder / "blocks")


def damage_lmcache(folder: Path) -> tuple[dict[str, Any], Callable[[random.Random], int]]:
    """As `damage_disk`, of a server that keeps its objects in a file."""
    from lmcache_server import FakeServer

    from thalweg.engine.control.store import lmcache

    lmcache.SHARED_MEMORY = folder
    server = FakeServer(folder, 1 << 30)

    def spoil(rng: random.Random) -> int:
        server.damage(rng, 60)
        return 60

    return {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": server.port}, spoil


STORES = {"disk": damage_disk, "lmcache": damage_lmcache}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--store", choices=STORES, default="disk")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        want = answers(start(Path(name)))
        options, spoil = STORES[args.store](Path(name))
        llm = start(Path(name), args.store, **options)
        faults = run_faults(llm, want, spoil, -(-args.faults // 60))
        llm.llm_engine.core.check()
        stats = llm.stats()
        found = f"{stats.store_failed} found, {stats.store_hits} tokens loaded"
        print(f"{faults} faults: {found}, {stats.blocks_used} blocks leaked, every token right")


if __name__ == "__main__":
    main()
