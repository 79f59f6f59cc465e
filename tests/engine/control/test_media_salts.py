"""Blocks that show an image are told apart by it: placeholders are equal for all images."""

from __future__ import annotations

import dataclasses

import numpy as np

from thalweg.engine.control.request import Request
from thalweg.engine.messages import Input, TokenSampling


def request(salt: bytes, *items: tuple[bytes, int, int]) -> Request:
    """items: digest, and the positions [first, end) of its placeholders."""
    inputs = tuple(Input(kind="image", digest=d, positions=np.arange(a, b, dtype=np.int32)) for d, a, b in items)
    tokens = np.zeros(64, np.int32)
    return Request(1, TokenSampling(max_tokens=1), 64, (0, 0), salt, True, 65, 0.0, tokens, inputs=inputs)


def salts(r: Request) -> list[bytes]:
    return [r.salt_of(i, i + 16) for i in range(0, 64, 16)]


def test_blocks_of_text_share_and_blocks_of_images_do_not() -> None:
    one, other, none = (salts(r) for r in (request(b"", (b"a" * 16, 20, 40)), request(b"", (b"b" * 16, 20, 40)), request(b"")))
    assert one[0] == one[3] == other[0] == none[0] == b""
    assert len({*one[1:3], *other[1:3]}) == 4
    assert none[1:3] == [b"", b""]


def test_the_place_in_the_image_counts_and_the_place_in_the_prompt_does_not() -> None:
    early, late = salts(request(b"", (b"a" * 16, 0, 32))), salts(request(b"", (b"a" * 16, 16, 48)))
    assert early[:2] == late[1:3]
    assert early[0] != early[1]
    assert salts(request(b"", (b"a" * 16, 1, 33)))[0] == early[0]  # its first token is among others: tokens are compared, too


def test_no_salt_of_a_caller_reads_as_an_image() -> None:
    shown = salts(request(b"", (b"a" * 16, 0, 16)))[0]
    assert shown.startswith(b"\0")  # which no caller's salt may
    assert len({salts(request(s, (b"a" * 16, 0, 16)))[0] for s in (b"", b"x", b"0", b"1:x")}) == 4
    both = request(b"", (b"a" * 16, 0, 4), (b"b" * 16, 8, 12)), request(b"", (b"b" * 16, 0, 4), (b"a" * 16, 8, 12))
    assert len({salts(r)[0] for r in both}) == 2


def test_the_source_of_cross_attention_tells_every_block_apart() -> None:
    one, other, none = (salts(request(b"x", *items)) for items in ([(b"a" * 16, 0, 0)], [(b"b" * 16, 0, 0)], []))
    assert all(len({a, b, c}) == 3 for a, b, c in zip(one, other, none, strict=True))


def test_beginnings_of_a_causal_input_are_shared() -> None:
    """Each position has a digest of what it depends on, and a block the digest of its last position."""

    def build(name: bytes, common: int) -> Request:
        each = tuple(b"%d" % i if i < common else b"%d%b" % (i, name) for i in range(48))
        item = Input(kind="audio", digest=name, positions=np.arange(48, dtype=np.int32), prefix_digests=each)
        return dataclasses.replace(request(b""), inputs=(item,))

    one, other = salts(build(b"a", 40)), salts(build(b"b", 40))
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert len({*one[:3]}) == 3
    assert not {*one[:2]} & {*salts(build(b"b", 0))[:2]}
    assert one[3] == b""
