"""The prefix cache: which blocks already hold the keys and values of which tokens.

A node covers `unit` tokens *after one particular history*: its parent is the node of the tokens before. Nodes are found by a
keyed hash of (parent's key, salt, tokens). The key is drawn per process, so no client can aim for a collision. On every
look-up the parent, the salt and the tokens themselves are compared, so a collision costs a miss and never a wrong hit. A node
stays while a block holds it, a longer prefix hangs on it, or a running sequence has come this far.

One node serves all KV groups: `blocks[g]` is the block of group g that ends with these tokens. 0: none does, or the group has
dropped it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Protocol

from thalweg.engine.control.invariant import ensure

HashFn = Callable[[bytes, bytes, bytes], bytes]
"""(parent's key, salt, token bytes) -> key."""


def keyed_hash(secret: bytes, name: str = "blake2b") -> HashFn:
    """BLAKE2b with a secret key (RFC 7693), 128 bits; or of name "sha256" HMAC-SHA-256 (RFC 2104). The salt is preceded by its
    length, so that no salt and tokens can be read as another salt and other tokens."""
    sha256 = name == "sha256"
    start = hmac.new(secret, digestmod=hashlib.sha256) if sha256 else hashlib.blake2b(key=secret, digest_size=16)

    def digest(parent: bytes, salt: bytes, tokens: bytes) -> bytes:
        h = start.copy()
        h.update(b"%d:%b%b%b" % (len(salt), salt, parent, tokens))
        return h.digest()

    return digest


class Node:
    """`unit` tokens after one history. Compared by identity."""

    __slots__ = ("blocks", "children", "ends", "key", "parent", "salt", "tokens")

    def __init__(self, key: bytes, parent: Node | None, salt: bytes, tokens: bytes, groups: int) -> None:
        self.key = key
        self.parent = parent
        self.salt = salt
        self.tokens = tokens
        self.blocks = [0] * groups
        self.children = 0
        self.ends = 0
        """Running sequences with this as their last published node."""


class BlockObserver(Protocol):
    """Notified of blocks that become findable, and of findable ones about to be overwritten. Both calls come between the
    launch of the step that completed the block and the launch of any step that overwrites it."""

    def on_publish(self, group: int, block: int, node: Node, /) -> None: ...

    def on_evict(self, group: int, block: int, node: Node, /) -> None: ...

    def on_clear(self) -> None:
        """No block can be found any more."""
        ...


class PrefixCache:
    def __init__(self, groups: int, hash_fn: HashFn | None = None, algorithm: str = "blake2b") -> None:
        """algorithm: see keyed_hash. hash_fn: replaces it in tests that force collisions."""
        self._groups = groups
        self._hash = hash_fn or keyed_hash(secrets.token_bytes(32), algorithm)
        self._nodes: dict[bytes, Node] = {}
        self._owners: list[dict[int, Node]] = [{} for _ in range(groups)]
        self.observers: tuple[BlockObserver, ...] = ()

    def __len__(self) -> int:
        return len(self._nodes)

    def key(self, parent: bytes, salt: bytes, tokens: bytes) -> bytes:
        """The key of a node: `parent` is the key of the one before it, b"" for the first."""
        return self._hash(parent, salt, tokens)

    def find(self, key: bytes, parent: Node | None, salt: bytes, tokens: bytes) -> Node | None:
        """The node of exactly these tokens after exactly this parent, or None."""
        node = self._nodes.get(key)
        if node is None or node.parent is not parent or node.salt != salt or node.tokens != tokens:
            return None
        return node

    def insert(self, key: bytes, parent: Node | None, salt: bytes, tokens: bytes) -> Node | None:
        """Find or make the node. None if another prefix already has this key: the newcomer is then simply not cached."""
        node = self._nodes.get(key)
        if node is not None:
            same = node.parent is parent and node.salt == salt and node.tokens == tokens
            return node if same else None
        if parent is not None and self._nodes.get(parent.key) is not parent:
            return None  # the parent was forgotten meanwhile
        node = self._nodes[key] = Node(key, parent, salt, tokens, self._groups)
        if parent is not None:
            parent.children += 1
        return node

    def put(self, node: Node, group: int, block: int) -> bool:
        """Group `group` keeps the node's tokens in `block` from now on. False if it already does so elsewhere."""
        if node.blocks[group]:
            return False
        node.blocks[group] = block
        self._owners[group][block] = node
        for observer in self.observers:
            observer.on_publish(group, block, node)
        return True

    def evict(self, group: int, block: int) -> None:
        """The block is about to be overwritten. No step that writes to it has been launched."""
        node = self._owners[group].pop(block)
        node.blocks[group] = 0
        for observer in self.observers:
            observer.on_evict(group, block, node)
        self.prune(node)

    def prune(self, node: Node) -> None:
        """Drop the node and its ancestors as far as no block and no longer prefix needs them."""
        at: Node | None = node
        while at is not None and not (at.children or at.ends or any(at.blocks)) and self._nodes.get(at.key) is at:
            del self._nodes[at.key]
            at = at.parent
            if at is not None:
                at.children -= 1

    def move(self, old: Node | None, new: Node | None) -> None:
        """A running sequence that had come to `old` has come to `new`; None: nowhere."""
        if old is new:
            return
        if new is not None:
            new.ends += 1
        if old is not None:
            old.ends -= 1
            if not old.children:
                self.prune(old)

    def clear(self) -> None:
        self._nodes.clear()
        for owners in self._owners:
            owners.clear()
        for observer in self.observers:
            observer.on_clear()

    def check(self) -> None:
        children: dict[int, int] = {}
        for key, node in self._nodes.items():
            ensure(node.key == key, "a node is filed under another's key")
            ensure(node.children or node.ends or any(node.blocks), "a node is kept that nothing needs")
            if node.parent is not None:
                ensure(self._nodes.get(node.parent.key) is node.parent, "a node's parent was forgotten before it")
                children[id(node.parent)] = children.get(id(node.parent), 0) + 1
            for g, block in enumerate(node.blocks):
                ensure(not block or self._owners[g].get(block) is node, f"group {g} block {block}: owner does not agree")
        for node in self._nodes.values():
            ensure(node.children == children.get(id(node), 0), "a node's number of children is wrong")
        for g, owners in enumerate(self._owners):
            ensure(all(n.blocks[g] == b for b, n in owners.items()), f"group {g}: a block is filed under a node without it")
