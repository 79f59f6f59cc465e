"""Which of a model's chat templates a conversation gets, by the rule of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.errors import RequestError

DEFAULT, TOOLS = "default", "tool_use"
"""Names of the template for every conversation, and of the one for conversations with tools."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What may be the name of a template. Neither a template's text nor the path of a file with a suffix matches."""
VARIABLE = "chat_template"
"""A name of a template may come among the keyword arguments of templates too."""


@dataclass(frozen=True, slots=True)
class Templates:
    """The chat templates of a model, by name, and the one that its operator prefers."""

    named: Mapping[str, str] = field(default_factory=dict)
    """Name -> source."""
    fixed: str | None = None
    """The source of the operator's. It is used for every conversation that asks for none."""

    def pick(self, tools: bool) -> str | None:
        """The source for a conversation that asks for none: the operator's, the one for tools, or the default one.
        None: the model has no such template."""
        if self.fixed is not None:
            return self.fixed
        found = self.named.get(TOOLS) if tools else None
        return found if found is not None else self.named.get(DEFAULT)

    def find(self, template: str | None, tools: bool) -> str:
        """The source for a conversation. template: a name, a source that came with it, or None. RequestError: the model
        has none that fits."""
        if template is not None:
            return self.named.get(template, template)
        source = self.pick(tools)
        if source is None:
            fix = f"name one of {', '.join(sorted(self.named))}" if self.named else "send one with the request"
            raise RequestError(f"chat_template: {self.say_missing()}; {fix}", "chat_template")
        return source

    def say_missing(self) -> str:
        """What the model has where `pick` finds nothing."""
        if not self.named:
            return "this model has no chat template"
        return f"this model has chat templates named {', '.join(sorted(self.named))} and none named {DEFAULT!r}"

    def read_kwargs(self, template: str | None, kwargs: Mapping[str, Any] | None) -> tuple[str | None, dict[str, Any]]:
        """(the template of a conversation, the other keyword arguments). `template` wins over a name in `kwargs`. RequestError
        where that is no name of the model's."""
        rest = dict(kwargs or {})
        name = rest.pop(VARIABLE, None)
        if name is None:
            return template, rest
        if not isinstance(name, str) or name not in self.named:
            raise RequestError(
                f"chat_template_kwargs: chat_template: {name!r:.80} is no template of this model; {self._names()}",
                "chat_template_kwargs",
            )
        return name if template is None else template, rest

    def owns(self, template: str) -> bool:
        """Whether this is a name or the source of one of the model's or the operator's templates."""
        return template in self.named or template == self.fixed or template in self.named.values()

    def prefer(self, template: str) -> Templates:
        """The same with a template of the operator: a name, or a source. ValueError for what looks like a name and is none."""
        if template not in self.named and NAME.fullmatch(template):
            raise ValueError(f"{template!r} is neither a template, nor a readable file, nor a name: {self._names()}")
        return Templates(self.named, self.named.get(template, template))

    def _names(self) -> str:
        return f"its templates are {', '.join(sorted(self.named))}" if self.named else "it has no templates"
