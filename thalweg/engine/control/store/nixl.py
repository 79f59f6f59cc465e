"""A store in the memory of engines that read from each other: `kv_connector` "nixl" or "NixlConnector". There is no server.

Each engine keeps its blocks in memory registered with NIXL. Another asks for them over TCP, gets their addresses under a lease,
and reads them. The library is optional: `pip install 'thalweg[nixl]'`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from thalweg.engine.control.store.arena import BlockArena, Pieces
from thalweg.engine.control.store.base import Store, find_unknown
from thalweg.engine.control.store.sockets import FrameSocket, Listener, connect, split_address
from thalweg.errors import ConfigError
from thalweg.host.secrets import read_secret

logger = logging.getLogger(__name__)

LISTEN, PEERS, LIMIT, SECRET, BACKENDS = "listen", "peers", "max_bytes", "secret_file", "backends"
OPTIONS = (LISTEN, PEERS, LIMIT, SECRET, BACKENDS)
ABSENT = "NIXL is not installed: pip install 'thalweg[nixl]'"
STAGED = 64 << 20
"""Bytes of one read, if no block is larger."""
LEASE_SECONDS = 10.0
READ_SECONDS = 5.0
"""Of one read. A peer that needs longer counts as ended."""
ASK_SECONDS = 2.0
AGAIN_SECONDS = 5.0
"""Between two attempts to reach a peer that has ended."""


class GetMetadata(msgspec.Struct, tag=True):
    """Asks for the metadata of the NIXL agent, in bytes."""


class FindBlocks(msgspec.Struct, tag=True):
    """Asks which blocks are here."""

    keys: list[bytes]


class TakeLease(msgspec.Struct, tag=True):
    """Asks for a lease of these blocks."""

    keys: list[bytes]


class EndLease(msgspec.Struct, tag=True):
    number: int


class DiscardBlocks(msgspec.Struct, tag=True):
    """These blocks failed their checksums."""

    keys: list[bytes]


_decode = msgspec.msgpack.Decoder(GetMetadata | FindBlocks | TakeLease | EndLease | DiscardBlocks).decode
_decode_lease = msgspec.msgpack.Decoder(tuple[int, list[Pieces | None]]).decode


class NixlStore(Store):
    """The blocks of this engine, and those of its peers."""

    shared = True

    def __init__(self, agent: Any, arena: BlockArena, secret: bytes, peers: Sequence[tuple[str, int]]) -> None:
        """agent: a `nixl_agent` with which the arena's memory is registered."""
        self._agent, self._arena = agent, arena
        self._staging = np.zeros(0, np.uint8)
        self._staged: Any = None
        """The registration of `_staging`."""
        self._listener: Listener | None = None
        self._peers = [_Peer(address, secret, agent) for address in peers]
        self._places: dict[bytes, _Peer] = {}
        """Keys of the latest look-up -> the peers that have the blocks."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        problems = find_unknown(options, OPTIONS)
        listen, peers, backends = options.get(LISTEN), options.get(PEERS, []), options.get(BACKENDS, [])
        if listen is not None and split_address(listen) is None:
            problems.append(f"{LISTEN}: must be such as 10.0.0.5:5600, not {listen!r:.60}")
        if not isinstance(peers, list) or any(split_address(peer) is None for peer in peers):
            problems.append(f'{PEERS}: must be a list such as ["10.0.0.6:5600"], not {peers!r:.60}')
        elif listen is None and not peers:
            problems.append(f"{LISTEN}: is missing, and so is {PEERS}: nothing would be shared")
        if type(options.get(LIMIT)) is not int or options[LIMIT] < 1:
            problems.append(f"{LIMIT}: must be a number of bytes above 0, not {options.get(LIMIT)!r:.40}")
        if not isinstance(options.get(SECRET), str):
            problems.append(f"{SECRET}: must be a file with a secret that all peers have, not {options.get(SECRET)!r:.60}")
        if not isinstance(backends, list) or not all(isinstance(name, str) for name in backends):
            problems.append(f'{BACKENDS}: must be a list such as ["UCX"], not {backends!r:.60}')
        return problems

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        secret = read_secret(f"kv_transfer_config: {SECRET}", options[SECRET])
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as e:
            raise ConfigError(f"kv_transfer_config: kv_connector: {ABSENT}: {e}") from None
        agent = nixl_agent(uuid.uuid4().hex, nixl_agent_config(backends=options.get(BACKENDS) or ["UCX"]))
        arena = BlockArena(options[LIMIT], LEASE_SECONDS)
        _register(agent, arena.memory)
        peers = [address for peer in options.get(PEERS, []) if (address := split_address(peer)) is not None]
        store = cls(agent, arena, secret, peers)
        if (address := split_address(options.get(LISTEN))) is not None:
            try:
                store._listener = Listener(address, secret, store.answer)
            except OSError as e:
                raise ConfigError(f"kv_transfer_config: {LISTEN}: {options[LISTEN]} is not free: {e}") from None
        return store

    def answer(self, frame: bytes) -> bytes:
        """The answer to a peer's question, both encoded. Called on other threads. ValueError for another frame."""
        try:
            question = _decode(frame)
        except msgspec.DecodeError as e:
            raise ValueError(f"an unknown question: {e}") from None
        return msgspec.msgpack.encode(self._answer(question))

    def _answer(self, question: GetMetadata | FindBlocks | TakeLease | EndLease | DiscardBlocks) -> Any:
        match question:
            case GetMetadata():
                return self._agent.get_agent_metadata()
            case FindBlocks(keys):
                return [key in self._arena for key in keys]
            case TakeLease(keys):
                return self._arena.lease(keys)
            case EndLease(number):
                return self._arena.release(number)
            case DiscardBlocks(keys):
                return self._arena.discard(keys)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        self._places = {}
        missing = [key for key in keys if key not in self._arena]
        for peer in self._peers:
            if not missing:
                break
            for key, has in zip(missing, peer.find(missing), strict=True):
                if has:
                    self._places[key] = peer
            missing = [key for key in missing if key not in self._places]
        return [key in self._places or key in self._arena for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = {key: self._arena.load(key) for key in keys}
        for peer in self._peers:
            mine = [key for key in keys if found[key] is None and self._places.get(key) is peer]
            if mine:
                found |= dict(zip(mine, self._read(peer, mine), strict=True))
        return [found[key] for key in keys]

    def _read(self, peer: _Peer, keys: Sequence[bytes]) -> list[bytes | None]:
        """Blocks of a peer. A read that fails is a missing block, and the end of the peer for a while."""
        answer = peer.ask(TakeLease(list(keys)))
        if answer is None:
            return [None] * len(keys)
        number, places = _decode_lease(answer)
        found = list[bytes | None]()
        while len(found) < len(places):
            part, size = list[Pieces | None](), 0
            for pieces in places[len(found) :]:
                more = sum(n for _, n in pieces or ())
                if part and size + more > STAGED:
                    break
                part.append(pieces)
                size += more
            self._stage(size)
            whole = peer.read(self._staging.ctypes.data, [piece for pieces in part for piece in pieces or ()])
            at = 0
            for pieces in part:
                end = at + sum(n for _, n in pieces or ())
                found.append(self._staging[at:end].tobytes() if whole and pieces else None)
                at = end
        peer.ask(EndLease(number))
        return found

    def _stage(self, size: int) -> None:
        """Have `size` bytes of registered memory to read into."""
        if size > self._staging.size:
            if self._staged is not None:
                self._agent.deregister_memory(self._staged)
            self._staging = np.zeros(max(size, min(STAGED, 2 * size)), np.uint8)
            self._staged = _register(self._agent, self._staging)

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        for key, block in zip(keys, blocks, strict=True):
            self._arena.save(key, block)

    def discard(self, keys: Sequence[bytes]) -> None:
        self._arena.discard(keys)
        for peer in self._peers:
            mine = [key for key in keys if self._places.get(key) is peer]
            if mine:
                peer.ask(DiscardBlocks(mine))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for peer in self._peers:
            peer.leave()


class _Peer:
    """Another engine. A failed call ends the connection, and a later one tries again. Used by one thread."""

    def __init__(self, address: tuple[str, int], secret: bytes, agent: Any) -> None:
        self._address, self._secret, self._agent = address, secret, agent
        self._connection: FrameSocket | None = None
        self._name = ""
        """Of its NIXL agent."""
        self._again = 0.0
        """When to try to reach it next."""

    def find(self, keys: Sequence[bytes]) -> list[bool]:
        answer = self.ask(FindBlocks(list(keys)))
        return [False] * len(keys) if answer is None else msgspec.msgpack.decode(answer, type=list[bool])

    def ask(self, question: msgspec.Struct) -> bytes | None:
        """Its answer, encoded. None: it cannot be reached now."""
        try:
            if self._connection is None:
                if time.monotonic() < self._again:
                    return None
                self._connection = connect(self._address, self._secret, ASK_SECONDS)
                self._connection.send(msgspec.msgpack.encode(GetMetadata()))
                metadata = msgspec.msgpack.decode(self._connection.receive(), type=bytes)
                name = self._agent.add_remote_agent(metadata)
                self._name = name.decode() if isinstance(name, bytes) else name
            self._connection.send(msgspec.msgpack.encode(question))
            return self._connection.receive()
        except Exception as e:  # of the library too
            logger.info("kv store: the peer at %s:%d is not reached: %s", *self._address, e)
            self.leave()
            return None

    def read(self, target: int, pieces: Pieces) -> bool:
        """Read these pieces of its memory, one after the other, to the address `target`. False: they were not read."""
        if not pieces:
            return True
        mine, at = [], target
        for _, size in pieces:
            mine.append((at, size, 0))
            at += size
        agent, until = self._agent, time.monotonic() + READ_SECONDS
        try:
            ours = agent.get_xfer_descs(mine, "DRAM")
            theirs = agent.get_xfer_descs([(*piece, 0) for piece in pieces], "DRAM")
            transfer = agent.initialize_xfer("READ", ours, theirs, self._name)
            state = agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < until:
                time.sleep(0.0002)
                state = agent.check_xfer_state(transfer)
            agent.release_xfer_handle(transfer)
        except Exception as e:  # the library has a type for each cause
            state = f"{type(e).__name__}: {e}"
        if state != "DONE":
            logger.info("kv store: the peer at %s:%d was not read: %s", *self._address, state)
            self.leave()
        return bool(state == "DONE")

    def leave(self) -> None:
        self._again = time.monotonic() + AGAIN_SECONDS
        if self._connection is not None:
            self._connection.close()
        if self._name:
            try:
                self._agent.remove_remote_agent(self._name)
            except Exception as e:  # it may have gone with the connection
                logger.debug("kv store: %s", e)
        self._connection, self._name = None, ""


def _register(agent: Any, memory: np.ndarray) -> Any:
    return agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
