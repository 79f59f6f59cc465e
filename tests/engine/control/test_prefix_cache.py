"""The prefix cache against a list of everything ever put in: what it finds is right, also when every key collides."""

import hashlib

import pytest
from amounts import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from thalweg.engine.control.cache.prefix import Node, PrefixCache, keyed_hash
from thalweg.engine.control.invariant import InvariantError

SALTS = st.sampled_from([b"", b"a"])
PROMPTS = st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=5)
"""A block is one letter here: many prompts share beginnings, and blocks repeat within a prompt."""


def collide(parent: bytes, salt: bytes, tokens: bytes) -> bytes:
    """Four keys for everything."""
    return hashlib.sha256(parent + salt + tokens).digest()[:1].translate(bytes(i % 4 for i in range(256)))


def test_the_hash_is_the_one_that_was_asked_for() -> None:
    import hmac

    message = (b"s", b"parent", b"tokens")
    assert keyed_hash(b"k", "sha256")(b"parent", b"s", b"tokens") == hmac.digest(b"k", b"1:sparenttokens", "sha256")
    assert (
        keyed_hash(b"k")(b"parent", b"s", b"tokens") == hashlib.blake2b(b"1:sparenttokens", key=b"k", digest_size=16).digest()
    )
    for name in ("blake2b", "sha256"):
        assert len({keyed_hash(key, name)(*message) for key in (b"k", b"l")}) == 2, "it depends on the key"
        assert len(PrefixCache(1, algorithm=name).key(*message)) == {"blake2b": 16, "sha256": 32}[name]


class Watcher:
    def __init__(self) -> None:
        self.heard: list[tuple[int, int, bytes]] = []

    def on_publish(self, group: int, block: int, node: Node) -> None: ...

    def on_evict(self, group: int, block: int, node: Node) -> None:
        self.heard.append((group, block, node.key))

    def on_clear(self) -> None: ...


class CacheMachine(RuleBasedStateMachine):
    hash_fn = staticmethod(keyed_hash(b"k"))

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(2, self.hash_fn)
        self.next = 1
        self.holds: tuple[dict, dict] = ({}, {})
        """Per group: block -> (salt, every token up to the block's end)."""

    def chain(self, salt: bytes, prompt: list[bytes]):
        """(found nodes) by walking as the engine does."""
        nodes, key = [], b""
        for tokens in prompt:
            key = self.cache.key(key, salt, tokens)
            node = self.cache.find(key, nodes[-1] if nodes else None, salt, tokens)
            if node is None:
                break
            nodes.append(node)
        return nodes

    @rule(salt=SALTS, prompt=PROMPTS, window=st.booleans())
    def publish(self, salt, prompt, window) -> None:
        """As a sequence does, block by block; group 1 may already have dropped its early blocks."""
        nodes, key = [], b""
        for i, tokens in enumerate(prompt):
            key = self.cache.key(key, salt, tokens)
            node = self.cache.insert(key, nodes[-1] if nodes else None, salt, tokens)
            if node is None:
                break
            nodes.append(node)
            for g in (0, 1):
                if (g == 0 or not window or i == len(prompt) - 1) and self.cache.put(node, g, self.next):
                    self.holds[g][self.next] = (salt, tuple(prompt[: i + 1]))
                    self.next += 1

    @rule(salt=SALTS, prompt=PROMPTS)
    def what_is_found_is_right(self, salt, prompt) -> None:
        found = self.chain(salt, prompt)
        for i, node in enumerate(found):
            for g in (0, 1):
                if node.blocks[g]:
                    assert self.holds[g][node.blocks[g]] == (salt, tuple(prompt[: i + 1]))
        self.nothing_is_missed(salt, prompt, found)

    def nothing_is_missed(self, salt, prompt, found) -> None:
        known = {p for g in (0, 1) for p in self.holds[g].values()}
        longest = max((n for n in range(len(prompt) + 1) if (salt, tuple(prompt[:n])) in known), default=0)
        assert len(found) >= longest

    @precondition(lambda self: self.holds[0] or self.holds[1])
    @rule(data=st.data())
    def evict(self, data) -> None:
        """Whoever watches hears of it while the key is known."""
        g, block = data.draw(st.sampled_from([(g, b) for g in (0, 1) for b in self.holds[g]]))
        watcher = Watcher()
        self.cache.observers = (watcher,)
        self.cache.evict(g, block)
        self.cache.observers = ()
        salt, prompt = self.holds[g].pop(block)
        key = b""
        for tokens in prompt:
            key = self.cache.key(key, salt, tokens)
        assert watcher.heard == [(g, block, key)]

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.holds[0].clear()
        self.holds[1].clear()

    @invariant()
    def consistent(self) -> None:
        self.cache.check()
        assert self.holds[0] or self.holds[1] or not len(self.cache)


class CollidingCacheMachine(CacheMachine):
    hash_fn = staticmethod(collide)

    def nothing_is_missed(self, salt, prompt, found) -> None:
        """With collisions misses are allowed; wrong hits are not."""


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=some(20, 60), stateful_step_count=30, deadline=None)
TestCollidingCacheMachine = CollidingCacheMachine.TestCase
TestCollidingCacheMachine.settings = settings(max_examples=some(20, 60), stateful_step_count=30, deadline=None)


def test_salt_and_tokens_cannot_be_read_as_each_other():
    h = keyed_hash(b"secret")
    assert h(b"", b"ab", b"c") != h(b"", b"a", b"bc")
    assert h(b"", b"", b"x") != keyed_hash(b"other")(b"", b"", b"x")
    assert h(b"p", b"", b"x") != h(b"q", b"", b"x")


def test_check_finds_a_node_that_nothing_needs():
    cache = PrefixCache(1)
    assert cache.insert(b"k", None, b"", b"x") is not None
    with pytest.raises(InvariantError, match="nothing needs"):
        cache.check()
