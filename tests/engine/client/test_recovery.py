"""Who runs after a death: innocents always go on, a poison is found by running alone, kills from outside convict nobody."""

from __future__ import annotations

from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.engine.client.recovery import KILLS, PROOF, Recovery


def test_a_kill_from_outside_suspects_nobody():
    recovery = Recovery()
    recovery.token(1)
    verdict = recovery.handle_death([1, 2], [1, 2, 3], crashed=False)
    assert verdict.submit == [1, 2, 3]
    assert recovery.on_trial is None
    assert not verdict.convicted


def test_a_crash_makes_those_that_ran_run_alone_and_the_second_crash_convicts():
    recovery = Recovery()
    assert recovery.handle_death([1, 2], [1, 2, 3], crashed=True).submit == [1]
    for _ in range(PROOF - 1):
        assert recovery.token(1).hold is None
    assert recovery.token(1).hold == 1
    assert recovery.handle_end(1, [1, 2, 3]).submit == [2]
    verdict = recovery.handle_death([2], [1, 2, 3], crashed=True)
    assert verdict.convicted == [2]
    assert verdict.submit == [1, 3]
    assert recovery.on_trial is None


def test_kills_during_a_trial_are_bad_luck_until_there_are_three_in_a_row():
    recovery = Recovery()
    recovery.handle_death([1], [1, 2], crashed=True)
    for _ in range(KILLS - 1):
        again = recovery.handle_death([1], [1, 2], crashed=False)
        assert again.submit == [1]
        assert not again.convicted
    assert recovery.handle_death([1], [1, 2], crashed=False).convicted == [1]


def test_a_token_between_kills_says_that_the_suspect_was_not_to_blame_for_them():
    recovery = Recovery()
    recovery.handle_death([1], [1, 2], crashed=True)
    for _ in range(3 * KILLS):
        assert not recovery.handle_death([1], [1, 2], crashed=False).convicted
        recovery.token(1)


def test_deaths_without_progress_are_suspicious_whoever_killed():
    recovery = Recovery()
    recovery.token(9)
    assert recovery.handle_death([1, 2], [1, 2], crashed=False).submit == [1, 2]
    assert recovery.handle_death([1, 2], [1, 2], crashed=False).submit == [1]


def test_a_suspect_whose_client_left_is_skipped():
    recovery = Recovery()
    recovery.handle_death([1, 2, 3], [1, 2, 3], crashed=True)
    assert recovery.handle_end(1, [3]).submit == [3]


@settings(max_examples=some(60, 300), deadline=None)
@given(
    n=st.integers(1, 12),
    poisons=st.sets(st.integers(0, 11), max_size=3),
    lengths=st.lists(st.integers(1, 12), min_size=12, max_size=12),
    kills=st.lists(st.integers(1, 60), max_size=4),
)
def test_poisons_fail_and_everybody_else_finishes(n, poisons, lengths, kills):
    """A toy engine: each round every sequence in it gets a token, unless a poison is among them: then it crashes.
    Kills from outside strike at given rounds. Everyone innocent must finish, each poison must fail, with one crash for
    the group and one alone each."""
    recovery, left = Recovery(), {h: lengths[h] for h in range(n)}
    inside, failed, crashes, rounds, killed = list(left), set(), 0, 0, 0
    bad = poisons & set(left)
    while left:
        rounds += 1
        assert rounds < 2000, "no end: somebody is forgotten"
        assert inside, "the engine idles while sequences are open"
        crashed = bool(bad & set(inside))
        if crashed or rounds in kills:
            crashes, killed = crashes + crashed, killed + (not crashed)
            verdict = recovery.handle_death(inside, list(left), crashed=crashed)
            for h in verdict.convicted:
                failed.add(h)
                del left[h]
            inside = [h for h in verdict.submit if h in left]
            continue
        for h in list(inside):
            if h not in inside:
                continue
            held = recovery.token(h).hold
            left[h] -= 1
            if left[h] == 0:
                del left[h]
            if held is not None or h not in left:
                inside.remove(h)
                inside += [x for x in recovery.handle_end(h, list(left)).submit if x not in inside]
    assert failed >= bad
    if killed == 0:
        assert failed == bad
        assert crashes <= 2 * len(bad)
