"""Stop strings against brute force over the whole text."""

from __future__ import annotations

from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.text.stops import ReasoningStream, StopStream, StopStrings, automaton

words = st.text(st.sampled_from("ab<"), min_size=1, max_size=4)


def brute_force(text: str, stops: list[str], include: bool, ignored: int) -> tuple[str, str | None]:
    """The match that ends first (beyond the first `ignored` characters), the longest of those that end there."""
    for end in range(ignored + 1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(st.lists(words, min_size=1, max_size=4), st.lists(st.text("ab<c", max_size=5)), st.booleans(), st.integers(0, 4))
@settings(max_examples=some(100, 500), deadline=None)
def test_streamed_text_equals_brute_force(stops: list[str], pieces: list[str], include: bool, free: int) -> None:
    stream, shown = StopStream(StopStrings(stops), include), ""
    for i, piece in enumerate(pieces):
        shown += stream.push(piece, counts=i >= free)
        if stream.matched is not None:
            break
    shown += stream.finish()
    ignored = len("".join(pieces[:free]))
    assert (shown, stream.matched) == brute_force("".join(pieces), stops, include, ignored)


@given(st.lists(words, min_size=1, max_size=4), st.lists(st.text("ab<c", max_size=5)))
@settings(max_examples=some(60, 300), deadline=None)
def test_no_more_is_held_back_than_may_become_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    stream, shown, text = StopStream(StopStrings(stops)), "", ""
    for piece in pieces:
        shown += stream.push(piece)
        text += piece
        if stream.matched is not None:
            return
        held = text[len(shown) :]
        proper = [s[:k] for s in stops for k in range(1, len(s))]
        assert text.startswith(shown)
        assert held == max((p for p in proper if text.endswith(p)), key=len, default="")


def test_work_is_linear_when_every_character_nearly_matches() -> None:
    """Counted, not timed: each character takes at most two automaton moves on average."""
    stops = StopStrings(["a" * 200 + "b", "a" * 150 + "c"])
    moves = 0

    class Counting(list):
        def __getitem__(self, i: int) -> int:
            nonlocal moves
            moves += 1
            return super().__getitem__(i)

    stops.fail = Counting(stops.fail)
    stream = StopStream(stops)
    for _ in range(2000):
        stream.push("aaaaa")
    assert moves <= 10_000


def test_a_set_of_stop_strings_is_built_once() -> None:
    assert automaton(("one", "two")) is automaton(("one", "two"))


def test_text_before_an_answer_is_told_from_it_however_it_is_cut() -> None:
    cases = [
        (("<think>",), "</think>", False, "<think>a </thin</think>b", ("<think>a </thin</think>", "b")),
        (("<think>",), "</think>", False, "\n <think>a", ("\n <think>a", "")),
        (("<think>", "<t>"), "</t>", False, "<t>a</t></t>", ("<t>a</t>", "</t>")),
        (("<think>",), "</think>", False, "<thing </think>", ("", "<thing </think>")),
        (("<think>",), "</think>", False, "b <think>a</think>", ("", "b <think>a</think>")),
        (("<think>",), "</think>", True, "a</think>b", ("a</think>", "b")),
        ((), "</think>", True, "a</think>b</think>", ("a</think>", "b</think>")),
        (("<think>",), "</think>", False, "<thi", ("<thi", "")),
        (("<think>",), "</think>", True, "a</thi", ("a</thi", "")),
    ]
    for opens, close, inside, text, expected in cases:
        for i in range(len(text) + 1):
            for pieces in ([text[:i], text[i:]], list(text)):
                stream, before, after = ReasoningStream(opens, close, inside), "", ""
                for piece in pieces:
                    first, second = stream.push(piece)
                    before, after = before + first, after + second
                assert (before + stream.finish(), after) == expected, (text, i)
