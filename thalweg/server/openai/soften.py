"""Conversations as more templates take them: for dialects whose clients put system messages where many templates refuse."""

from __future__ import annotations

from thalweg.server.openai.protocol import ChatFields, Message


def softened(request: ChatFields) -> ChatFields | None:
    """System messages after the first message become a user's, and neighbours of one user are one message. None: there are
    none, so the template refused for another reason."""
    late = {i for i, m in enumerate(request.messages) if i and m.role in ("system", "developer")}
    if not late:
        return None
    out: list[Message] = []
    for i, message in enumerate(request.messages):
        role = "user" if i in late else message.role
        if role == "user" and out and out[-1].role == "user":
            text = f"{_text(out[-1])}\n\n{_text(message)}"
            out[-1] = out[-1].model_copy(update={"content": text})
        else:
            out.append(message.model_copy(update={"role": role}))
    made = request.model_copy(update={"messages": out})
    return made


def _text(message: Message) -> str:
    content = message.content
    return content if isinstance(content, str) else "\n".join(p.text for p in content or ())
