"""System messages where a template takes none: told by users' turns, and roles alternate as before."""

from __future__ import annotations

from typing import Any

import pytest
import vocabularies as v
from test_template import CHATML, MISTRAL

from thalweg.errors import RequestError
from thalweg.template.chat import Chat
from thalweg.template.fold import fold_system_messages

FIRST_ALONE = """{% for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<' + m.role + '>' + m.content + '|' }}{% endfor %}"""
LAST_ALONE = """{% set ns = namespace(s='') %}{% for m in messages %}
{%- if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}
{%- endfor %}{{ ns.s }}|{% for m in messages %}{% if m.role != 'system' %}{{ '<' + m.role + '>' + m.content + '|' }}{% endif %}
{%- endfor %}"""
NONE = """{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}""" + FIRST_ALONE


def message(role: str, text: str = "") -> dict[str, Any]:
    return {"role": role, "content": text or role[0]}


def roles(text: str) -> list[dict[str, Any]]:
    """One message per letter. Capitals, in order, are their texts."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [message(names[c], f"{c}{i}") for i, c in enumerate(text)]


@pytest.fixture(scope="module")
def chats():
    made = {source: Chat(v.byte_level(), source) for source in (FIRST_ALONE, NONE, LAST_ALONE, MISTRAL, CHATML)}
    yield made
    for chat in made.values():
        chat.close()


S = "<system>\n{}\n</system>"


@pytest.mark.parametrize(
    ("source", "said", "text"),
    [
        (FIRST_ALONE, "su", "<system>s0|<user>u1|"),
        (FIRST_ALONE, "suasu", f"<system>s0|<user>u1|<assistant>a2|<user>{S.format('s3')}\nu4|"),
        (FIRST_ALONE, "us", f"<user>u0\n{S.format('s1')}|"),
        (FIRST_ALONE, "uas", f"<user>u0|<assistant>a1|<user>{S.format('s2')}|"),
        (FIRST_ALONE, "uats", f"<user>u0|<assistant>a1|<tool>t2|<user>{S.format('s3')}|"),
        (FIRST_ALONE, "ussua", f"<user>u0|<user>{S.format('s1')}\n{S.format('s2')}\nu3|<assistant>a4|"),
        (FIRST_ALONE, "usa", f"<user>u0\n{S.format('s1')}|<assistant>a2|"),
        (NONE, "su", "<user>s0\n\nu1|"),
        (NONE, "suas", f"<user>s0\n\nu1|<assistant>a2|<user>{S.format('s3')}|"),
        (LAST_ALONE, "su", "s0|<user>u1|"),
        (LAST_ALONE, "suasu", f"s0|<user>u1|<assistant>a2|<user>{S.format('s3')}\nu4|"),
        (MISTRAL, "suasu", "\n\n\n[INST] s0\n\nu1 [/INST]\n\n\na2</s>\n\n\n[INST] <system>\ns3\n</system>\nu4 [/INST]"),
        (CHATML, "usu", "<|im_start|>user\nu0<|im_end|>\n<|im_start|>system\ns1<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n"),
    ],
)
@pytest.mark.sampled(2)
def test_what_a_template_refuses_is_told_by_the_user(chats, source: str, said: str, text: str) -> None:
    made, _ = chats[source].render(roles(said), add_generation_prompt=False)
    assert "".join(made.split("<s>")).replace("\n", "") == text.replace("\n", "")


def test_a_refusal_that_is_not_about_system_messages_stays_what_it_was(chats) -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        chats[MISTRAL].render(roles("suu"))
    with pytest.raises(RequestError, match="roles must alternate"):
        chats[MISTRAL].render(roles("uu"))


def test_nothing_is_lost_and_nothing_of_the_callers_is_changed() -> None:
    given = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in roles("ssusatsusas")]
    before = repr(given)
    for way in fold_system_messages(given):
        texts = "".join(p["text"] for m in way for p in m["content"])
        assert all(m["content"][0]["text"] in texts for m in given)
        assert [m["role"] for m in way].count("system") <= 1
    assert repr(given) == before
    assert list(fold_system_messages(given[2:3])) == []
