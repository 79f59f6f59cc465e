"""Chat templates over HTTP: those of clients only where allowed, bombs hurt nobody else, special text is text."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from fake_engine import TEMPLATE, FakeEngine

from thalweg.errors import ConfigError, UnavailableError
from thalweg.server.core.conversation import Conversation
from thalweg.server.settings import ServerSettings
from thalweg.template.chat import Chat
from thalweg.template.jail import LimitError
from thalweg.template.select import Templates

MESSAGES = [{"role": "user", "content": "hi"}]
SPIN = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def body(**fields: object) -> dict[str, object]:
    return {"messages": MESSAGES, "max_tokens": 2, **fields}


@pytest.mark.slow
def test_a_bomb_is_refused_and_others_are_served_meanwhile(start):
    server = start(trust_request_chat_template=True)
    answers: list[object] = []
    bombs = [
        threading.Thread(
            target=lambda: answers.append(server.post("/v1/chat/completions", body(chat_template=SPIN), timeout=60))
        )
        for _ in range(3)
    ]
    for bomb in bombs:
        bomb.start()
    served = 0
    while not answers:
        assert server.post("/v1/chat/completions", body()).status_code == 200
        assert server.get("/health").status_code == 200
        served += 1
    for bomb in bombs:
        bomb.join()
    assert served > 3
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "chat_template"), error
        assert "took longer" in error["message"]
    assert server.post("/v1/chat/completions", body(chat_template="x"), timeout=60).status_code == 200


def test_what_is_nobodys_doing_is_no_400(start, monkeypatch, logged):
    server = start()
    monkeypatch.setattr(server.engine.chat._own, "run", lambda job: (_ for _ in ()).throw(UnavailableError("it stood still")))
    answer = server.post("/v1/chat/completions", body())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    monkeypatch.setattr(
        server.engine.chat._own, "run", lambda job: (_ for _ in ()).throw(LimitError("chat_template: took longer"))
    )
    answer = server.post("/v1/chat/completions", body())
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith("the model's own chat_template: took longer")
    assert "Traceback" not in "".join(logged)


def test_templates_of_clients_need_the_flag_and_parse_errors_are_theirs(start):
    closed, trusting = start(), start(trust_request_chat_template=True)
    assert "--trust-request-chat-template" in closed.post("/v1/chat/completions", body(chat_template="x")).text
    for path in ("/v1/chat/completions", "/tokenize"):
        fields = body(chat_template="{% for %}")
        answer = trusting.post(path, fields if path != "/tokenize" else {k: fields[k] for k in ("messages", "chat_template")})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template"), answer.text


def test_keyword_arguments_cannot_replace_what_templates_rely_on(start):
    server = start(trust_request_chat_template=True)
    for name in ("messages", "range", "raise_exception", "strftime_now", "_x", "a-b"):
        answer = server.post("/v1/chat/completions", body(chat_template_kwargs={name: 1}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs"), name


def test_a_model_without_a_template_takes_one_from_the_client(start):
    server = start(FakeEngine(template=None), trust_request_chat_template=True)
    assert server.post("/v1/chat/completions", body()).json()["error"]["param"] == "messages"
    assert server.post("/v1/chat/completions", body(chat_template=TEMPLATE)).status_code == 200
    assert server.engine.prompts[-1]["prompt"] == "<user>hi\n<assistant>"


@pytest.mark.parametrize(
    "template", ["{{ '\\ud800' }}", "{{ raise_exception('\\udfff') }}", "{{ {}['\\ud800'].x }}", "a{{ '\\ud800\\udc00'[0] }}"]
)
def test_what_is_no_text_is_the_templates_fault(start, template):
    answer = start(trust_request_chat_template=True).post("/v1/chat/completions", body(chat_template=template))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in ("chat_template", "messages")


@pytest.mark.parametrize("codec", ["zip", "hz", "mbcs", "idna", "nowhere"])
def test_a_template_does_not_learn_where_things_are_installed(start, codec):
    template = f"{{{{ 'a'.encode('{codec}') }}}}"
    answer = start(trust_request_chat_template=True).post("/v1/chat/completions", body(chat_template=template))
    if answer.status_code != 200:
        assert answer.status_code == 400
        assert "/" not in answer.json()["error"]["message"]


NAMED = {"default": "B:{{ messages[-1].content }}", "tool_use": "T:{{ tools[0].function.name }}", "rag": "R:{{ documents[0] }}"}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


def named() -> FakeEngine:
    engine = FakeEngine()
    engine.chat = Chat(engine.tokenizer, Templates(NAMED))
    return engine


def prompt(server, **fields: object) -> str:
    answer = server.post("/tokenize", {"messages": MESSAGES, **fields})
    assert answer.status_code == 200, answer.text
    return bytes(answer.json()["tokens"]).decode()


def test_named_templates_are_chosen_by_tools_by_name_and_by_flag(start):
    server = start(named(), tool_call_parser="hermes")
    assert prompt(server) == "B:hi"
    assert prompt(server, tools=[TOOL]) == "T:lookup"
    facts = {"documents": ["facts"]}
    assert prompt(server, chat_template_kwargs={"chat_template": "rag", **facts}) == "R:facts"
    assert prompt(server, chat_template="rag", chat_template_kwargs=facts) == "R:facts", "a name needs no trust"
    answer = server.post("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"chat_template": "rga"}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")
    assert "default, rag, tool_use" in answer.json()["error"]["message"]
    for path, tools in (
        ("/v1/chat/completions", [TOOL]),
        ("/v1/messages", [{"name": "lookup", "input_schema": {"type": "object"}}]),
        ("/v1/responses", [{"type": "function", "name": "lookup", "parameters": {"type": "object"}}]),
    ):
        fields = {"input": "hi"} if path == "/v1/responses" else {"messages": MESSAGES}
        extra = {} if path == "/v1/responses" else {"max_tokens": 1}
        assert server.post(path, {"model": "fake", "tools": tools, **fields, **extra}).status_code == 200
        assert bytes(server.engine.prompts[-1]["prompt_token_ids"]).decode() == "T:lookup", path
    fixed = start(named(), chat_template="rag")
    assert prompt(fixed, tools=[TOOL], chat_template_kwargs=facts) == "R:facts"
    by_default = start(named(), default_chat_template_kwargs={"chat_template": "rag", **facts})
    assert prompt(by_default) == "R:facts"
    with pytest.raises(ConfigError, match=r"--chat-template: 'rga' is neither.* default, rag, tool_use"):
        Conversation(SimpleNamespace(engine=named(), settings=ServerSettings(chat_template="rga")))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
        ("/v2/chat", {"messages": MESSAGES}),
        ("/tokenize", {"messages": MESSAGES}),
    ],
)
def test_a_model_with_templates_and_no_default_one_says_what_they_are_called(start, path, fields):
    engine = FakeEngine()
    engine.chat = Chat(engine.tokenizer, Templates({"tool_use": NAMED["tool_use"], "rag": NAMED["rag"]}))
    server = start(engine)
    answer = server.post(path, {"model": "fake", **fields})
    assert answer.status_code == 400
    words = r"this model has chat templates named rag, tool_use and none named 'default'; name one by chat_template"
    assert words in answer.text
    assert "--chat-template NAME" in answer.text
    assert prompt(server, chat_template="rag", chat_template_kwargs={"documents": ["facts"]}) == "R:facts"


def test_a_model_without_templates_says_so(start):
    engine = FakeEngine()
    engine.chat = Chat(engine.tokenizer, Templates())
    answer = start(engine).post("/v1/chat/completions", body())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert "this model has no chat template; start the server with --chat-template" in answer.text


def test_calls_are_read_as_the_template_for_tools_writes_them(start):
    """The default one of such models knows no tools."""
    engine = named()
    hermes = '{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>{"arguments": {}}</tool_call>'
    engine.chat = Chat(engine.tokenizer, Templates({**NAMED, "tool_use": hermes}))
    server = start(engine)
    assert server.post("/v1/chat/completions", body(tools=[TOOL])).status_code == 200
    assert server.post("/v1/chat/completions", body()).status_code == 200
