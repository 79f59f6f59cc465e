"""Chat templates render as in transformers, refuse in words, and stay in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
import vocabularies as v
from transformers import PreTrainedTokenizerFast

from thalweg.errors import CheckpointError, RequestError
from thalweg.template.sandbox import ChatTemplate, normalise

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' and tools %}{%- continue %}{%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% if thinking is defined and not thinking %}
{{- '<think></think>' }}{% endif %}{%- endif %}
"""
LLAMA3 = """{{ bos_token }}{% for message in messages %}
{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
{% set content = head + message['content'] | trim + '<|eot_id|>' %}
{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""
PARTS = """{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part.text | upper }};{% endfor %}
{% endfor %}{% if documents %}{{ documents }}{% endif %}"""
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL}
CHAT = [
    {"role": "user", "content": "How <deep> is “it”?\n"},
    {"role": "assistant", "content": "  Two & a half metres. "},
    {"role": "user", "content": "川?"},
]
TOOLS = [{"type": "function", "function": {"name": "depth", "parameters": {"é": "<b>"}}}]


def theirs(source: str, messages: Any, **kwargs: Any) -> str:
    tok = PreTrainedTokenizerFast(tokenizer_object=v.byte_level().backend, bos_token="<s>", eos_token="</s>")
    return tok.apply_chat_template(messages, chat_template=source, tokenize=False, **kwargs)


def ours(source: str, messages: Any, **kwargs: Any) -> str:
    return ChatTemplate(source, v.byte_level().special_tokens).render(messages, **kwargs)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}, {"thinking": False}, {"documents": [{"title": "t"}]}])
def test_rendering_equals_transformers(name: str, prompt: bool, extra: dict[str, Any]) -> None:
    kwargs = {"add_generation_prompt": prompt, **extra}
    assert ours(TEMPLATES[name], CHAT, **kwargs) == theirs(TEMPLATES[name], CHAT, **kwargs)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("ending", ["It is", "It is ", " \n"])
def test_continued_message_equals_transformers(name: str, ending: str) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": ending}]
    kwargs = {"add_generation_prompt": False, "continue_final_message": True}
    assert ours(TEMPLATES[name], chat, **kwargs) == theirs(TEMPLATES[name], chat, **kwargs)


def test_templates_that_read_parts_get_parts_and_others_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert ChatTemplate(PARTS).content_format == "openai"
    assert [ChatTemplate(t).content_format for t in TEMPLATES.values()] == ["string"] * 3
    assert ours(PARTS, parts) == theirs(PARTS, parts) == "user:A;B;"
    assert ours(PARTS, [{"role": "user", "content": "c"}]) == "user:C;"
    assert "a\nb<|im_end|>" in ours(CHATML, parts)
    assert ours(PARTS, parts, content_format="string") == "user:;;;"


def test_arguments_of_tool_calls_are_parsed_for_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "depth", "arguments": '{"at": [1, 2]}'}}
    chat = [CHAT[0], {"role": "assistant", "content": None, "tool_calls": [call]}]
    parsed = {**call, "function": {"name": "depth", "arguments": {"at": [1, 2]}}}
    expected = theirs(
        CHATML, [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [parsed]}], add_generation_prompt=True
    )
    assert ours(CHATML, chat) == expected
    assert call["function"]["arguments"] == '{"at": [1, 2]}', "the caller's messages stay as they are"


def test_the_templates_own_words_reach_the_caller() -> None:
    with pytest.raises(RequestError, match="roles must alternate user/assistant") as e:
        ours(MISTRAL, [CHAT[0], CHAT[0]])
    assert e.value.param == "messages"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("hi", "must be a list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role must be a string"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a string or a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]: parts of type 'image_url' are not supported"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], r"content\[0\].text must be a string"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\].function must be an object"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
            "must be JSON text or an object",
        ),
    ],
)
def test_wrong_messages_are_refused_by_place(messages: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as e:
        normalise(messages)
    assert e.value.param == "messages"


def test_arguments_that_exclude_each_other_or_take_reserved_names_are_refused() -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        ours(CHATML, CHAT, continue_final_message=True)
    with pytest.raises(RequestError, match="must not set namespace"):
        ours(CHATML, CHAT, namespace=[1])
    with pytest.raises(RequestError, match="does not show the final message"):
        ours("nothing", CHAT, add_generation_prompt=False, continue_final_message=True)


def test_a_template_that_does_not_parse_is_a_checkpoint_error_with_the_line() -> None:
    with pytest.raises(CheckpointError, match="line 2"):
        ChatTemplate("ok\n{% for %}")


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__ }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{% set f = 'x{0.__class__}'.format %}{{ f('') }}",
    "{{ ('{0.__class__}'|attr('format'))('') }}",
    "{{ messages.append(1) }}",
    "{% set _ = messages[0].update(role='system') %}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__dict__ = 1 %}",
    "{{ raise_exception.__globals__ }}",
    "{% include '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_templates_cannot_reach_python(source: str) -> None:
    try:
        out = ChatTemplate(source).render(CHAT)
    except (RequestError, CheckpointError):
        return
    assert not any(word in out for word in ("class", "object", "module", "root", "built-in")), out
