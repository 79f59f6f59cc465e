"""Choosing kernels: preference, refusals in words, and what strict and batch-invariant mean."""

import pytest

from thalweg.hal.attention import AttentionBackend, AttnSpec, choose_attention
from thalweg.hal.op import NOT_INVARIANT, Binder, Kernel, Op, Pack, StrictKernelError


def body(x, *, eps: float):
    return x + eps


DOUBLE = Op("double", body)
FAST = Kernel("double", "fast", lambda x, eps: x * 2)
SAFE = Kernel("double", "safe", lambda x, eps: x * 3, batch_invariant=True)
PICKY = Kernel("double", "picky", lambda x, eps: x, supports=lambda spec: None if spec["eps"] > 1 else "eps is small")


def test_the_first_kernel_that_supports_the_use_is_bound_and_the_refusals_are_kept():
    binder = Binder([PICKY, FAST])
    assert binder.bind(DOUBLE, eps=0.5)(4) == 8
    (choice,) = binder.bindings
    assert (choice.kernel, choice.refused) == ("fast", (("picky", "eps is small"),))


def test_batch_invariance_refuses_faster_kernels_and_says_why():
    binder = Binder([FAST, SAFE], batch_invariant=True)
    assert binder.bind(DOUBLE, eps=0.5)(4) == 12
    assert binder.bindings[0].refused == (("fast", NOT_INVARIANT),)
    assert "[batch-invariant]" in str(binder.bindings[0])


def test_what_others_may_stand_for_is_bound_where_a_kernel_gains_by_it():
    """`bind` takes the kernel all the same."""
    slow = Kernel("double", "slow", FAST.run, gains=lambda spec: "adding twice is faster" if spec["eps"] > 1 else None)
    binder = Binder([slow])
    assert binder.offer(DOUBLE, eps=2) is None
    assert (binder.bindings, binder.gains(DOUBLE, eps=2), binder.gains(DOUBLE, eps=1)) == ([], False, True)
    assert binder.offer(DOUBLE, eps=1)(4) == 8
    assert binder.bind(DOUBLE, eps=2).choice.kernel == "slow"
    assert Binder([PICKY]).offer(DOUBLE, eps=0.5) is None


def test_an_op_that_reads_anothers_weight_needs_a_kernel_that_packs_it_alike():
    one, other = Pack(lambda w: (w, 1)), Pack(lambda w: (w, 2))
    beside = Binder([Kernel("double", "first", FAST.run, pack=one)]).bind(DOUBLE, eps=1)
    differs, shares = (Kernel("double", n, FAST.run, pack=p) for n, p in (("differs", other), ("shares", one)))
    assert Binder([differs]).offer(DOUBLE, beside, eps=1) is None
    choice = Binder([differs, shares]).offer(DOUBLE, beside, eps=1).choice
    assert (choice.kernel, choice.refused) == (
        "shares",
        (("differs", "packs its weight otherwise than first, with which it would share it"),),
    )


def test_the_reference_body_is_the_last_resort_and_strict_forbids_it():
    assert Binder([PICKY]).bind(DOUBLE, eps=0.5)(4) == 4.5
    with pytest.raises(StrictKernelError, match=r"double.*picky: eps is small"):
        Binder([PICKY], strict=True).bind(DOUBLE, eps=0.5)


def test_a_device_without_kernels_runs_the_definition_even_when_strict():
    assert Binder([], strict=True).bind(DOUBLE, eps=0.5)(4) == 4.5


def test_a_static_argument_left_out_is_an_error_when_bound():
    with pytest.raises(TypeError, match="eps"):
        Binder([]).bind(DOUBLE)


class Attention(AttentionBackend):
    def __init__(self, name, why=None, invariant=False):
        self.name, self._why, self.batch_invariant = name, why, invariant

    def supports(self, spec):
        return self._why

    def refuses_blocks(self, block_tokens):
        return "blocks are small" if self.name == "fast" and block_tokens < 256 else None

    layout = attend = None


def test_attention_is_chosen_as_kernels_are():
    spec = AttnSpec(4, 2, 32, 0.1, "float32")
    backends = [Attention("narrow", "heads are wide"), Attention("fast"), Attention("safe", invariant=True)]
    chosen, refused = choose_attention(backends, spec)
    assert (chosen.name, refused) == ("fast", (("narrow", "heads are wide"),))
    chosen, refused = choose_attention(backends, spec, batch_invariant=True)
    assert (chosen.name, refused[1]) == ("safe", ("fast", NOT_INVARIANT))
    chosen, refused = choose_attention(backends, spec, block_tokens=16)
    assert (chosen.name, refused[1]) == ("safe", ("fast", "blocks are small"))
    assert choose_attention(backends, spec, block_tokens=256)[0].name == "fast"
    with pytest.raises(ValueError, match="narrow: heads are wide"):
        choose_attention(backends[:1], spec)
    with pytest.raises(ValueError, match="this device cannot run encoders, of text as of images"):
        choose_attention(backends[:1], AttnSpec(4, 4, 32, 0.1, "float32", kind="encoder"))
