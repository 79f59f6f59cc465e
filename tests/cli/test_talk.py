"""`thalweg chat` without a model: what is typed, commands, and how answers look."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from thalweg.cli import chat, sampling
from thalweg.cli.talk import DIM, PLAIN, Screen, Session
from thalweg.errors import ConfigError, RequestError
from thalweg.template.select import Templates
from thalweg.turns.events import Call, CallArguments, CallStart, Content, Message, Thought


class Partner:
    """Answers with what it was told, counted; `script` says otherwise for single answers."""

    def __init__(self, *script: object) -> None:
        self.sampling: dict = {"temperature": 0.5}
        self.heard: list[list[dict]] = []
        self._script = list(script)

    def answer(self, messages, show) -> Message:
        self.heard.append([dict(m) for m in messages])
        said = self._script.pop(0) if self._script else Message(f"answer {len(self.heard)}")
        if isinstance(said, BaseException):
            raise said
        show([Content(said.content)])
        return said


def talk(partner: Partner, *lines: str, messages: list | None = None) -> Session:
    rest = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    session = Session(partner, messages or [], read, lambda said: sampling.params(said, {}) and None)
    session.run()
    return session


def spoken(session: Session) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in session.messages]


def test_a_conversation_grows_and_each_answer_hears_all_of_it(capsys):
    partner = Partner()
    session = talk(partner, "one", "", "two")
    assert spoken(session) == [("user", "one"), ("assistant", "answer 1"), ("user", "two"), ("assistant", "answer 2")]
    assert [len(h) for h in partner.heard] == [1, 3]
    assert capsys.readouterr().out == "answer 1\nanswer 2\n"


def test_messages_of_several_lines():
    partner = Partner()
    talk(partner, "a \\", "b", '"""', "/not a command", "", "end", '"""')
    assert [h[-1]["content"] for h in partner.heard] == ["a \nb", "/not a command\n\nend"]


def test_commands_change_the_conversation_and_never_reach_the_model(capsys, tmp_path):
    file = tmp_path / "talk.json"
    partner = Partner()
    session = talk(
        partner, "one", "/system Be brief.", "two", "/undo", "/retry", "/set temperature=0.25", "/set", f"/save {file}",
        "/nope", "/help", "/clear", "/quit", "never said",
    )  # fmt: skip
    assert [h[-1]["content"] for h in partner.heard] == ["one", "two", "one"]
    assert partner.heard[-1][0] == {"role": "system", "content": "Be brief."}
    assert partner.sampling == {"temperature": 0.25}
    saved = json.loads(file.read_text())
    assert [m["role"] for m in saved] == ["system", "user", "assistant"]
    assert spoken(session) == [("system", "Be brief.")]
    said = capsys.readouterr().err
    assert "/nope is no command" in said
    assert '{"temperature": 0.25}' in said


def test_a_parameter_that_is_wrong_changes_nothing(capsys):
    partner = Partner()
    talk(partner, "/set temperature=-1", "/set colour=1", "/undo", "/retry")
    assert partner.sampling == {"temperature": 0.5}
    said = capsys.readouterr().err
    assert "temperature" in said
    assert "colour: is no sampling parameter" in said
    assert said.count("no message to forget") == 2


@pytest.mark.parametrize(("error", "told"), [(RequestError("too long"), "too long"), (KeyboardInterrupt(), "stopped")])
def test_a_message_without_an_answer_is_forgotten_and_the_conversation_goes_on(capsys, error, told):
    session = talk(Partner(error), "one", "two")
    assert spoken(session) == [("user", "two"), ("assistant", "answer 2")]
    assert told in capsys.readouterr().err


def test_results_of_tools_are_asked_for_and_go_back_to_the_model():
    asking = Message("", "", [Call("look", '{"at": 1}', "c1"), Call("count", "{}", "c2")])
    partner = Partner(asking)
    session = talk(partner, "how many?", "a stone", "3")
    assert [m["role"] for m in session.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert session.messages[2] == {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a stone"}
    assert session.messages[1]["tool_calls"][1]["function"] == {"name": "count", "arguments": "{}"}
    assert len(talk(Partner(asking), "how many?").messages) == 2  # nobody to ask


def test_reasoning_is_dimmed_in_a_terminal_and_calls_are_named(capsys):
    events = [
        Thought("hm"),
        Thought("m"),
        Content("so"),
        CallStart(0, "i", "look"),
        CallArguments(0, "{}"),
        CallStart(1, "j", "go"),
    ]
    for terminal, want in ((True, f"{DIM}hmm\n{PLAIN}so\n-> look{{}}\n-> go\n"), (False, "hmm\nso\n-> look{}\n-> go\n")):
        screen = Screen(terminal)
        screen.show(events)
        screen.end()
        assert capsys.readouterr().out == want


def test_functions_are_read_from_a_file_in_both_forms(tmp_path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "a"}, {"type": "function", "function": {"name": "b"}}]))
    assert [t["function"]["name"] for t in chat._tools(str(file))] == ["a", "b"]
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"--tools: .*JSON list"):
        chat._tools(str(file))


@pytest.mark.parametrize(
    ("templates", "words"),
    [
        (
            {"tool_use": "T:"},
            r"chat templates named tool_use and none named 'default'; use `thalweg serve --chat-template NAME`",
        ),
        ({}, "this model has no chat template; use `thalweg generate`"),
    ],
)
def test_a_model_without_a_template_for_the_conversation_says_which_it_has(templates, words):
    with pytest.raises(ConfigError, match=words):
        answer(Templates(templates), "generate")


def answer(templates: Templates, *tasks: str) -> None:
    """A conversation with a model that has these tasks."""
    config = SimpleNamespace(model=SimpleNamespace(tasks=tasks))
    engine = SimpleNamespace(chat=SimpleNamespace(templates=templates, source=None), tokenizer=object(), config=config)
    chat._LocalChat.answer(SimpleNamespace(engine=engine, _tools=None, _parsers=(None, None)), [], print)


@pytest.mark.parametrize(
    ("task", "words"),
    [("speech", r"use LLM\.speak"), ("transcription", "use /v1/audio/transcriptions"), ("embed", r"use LLM\.embed")],
)
def test_a_model_that_does_not_generate_text_says_how_it_is_used(task, words):
    with pytest.raises(ConfigError, match=f"it does not generate text: {words}"):
        answer(Templates({}), task)
