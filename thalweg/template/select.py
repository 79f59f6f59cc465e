"""Selects a model's chat template for a conversation, by the rules of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg.errors import RequestError

DEFAULT, TOOLS = "default", "tool_use"
"""Names of the default template, and of the template for conversations with tools."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of template names. Neither a template's text nor the path of a file with a suffix matches."""
VARIABLE = "chat_template"
"""Key for a template's name among the templates' keyword arguments."""


STARTS = Path(__file__).parents[1] / "assets" / "template_starts.json"
"""Architecture -> what its prompts begin with, where the published templates leave that to the authors' processor."""


def complete_templates(named: Mapping[str, str], architecture: str) -> Mapping[str, str]:
    """The templates of a model's files, with the start of its prompts before those that do not write it. named: name ->
    source."""
    start = json.loads(STARTS.read_bytes()).get(architecture, "")
    return {name: source if "bos_token" in source else start + source for name, source in named.items()}


@dataclass(frozen=True, slots=True)
class Templates:
    """The chat templates of a model, by name, and the operator's template."""

    named: Mapping[str, str] = field(default_factory=dict)
    """Name -> source."""
    fixed: str | None = None
    """Source of the operator's template, the default of every conversation."""

    def pick(self, tools: bool) -> str | None:
        """The default source for a conversation: the operator's, the one for tools, or the model's default. None: the model has
        no such template."""
        if self.fixed is not None:
            return self.fixed
        found = self.named.get(TOOLS) if tools else None
        return found if found is not None else self.named.get(DEFAULT)

    def find(self, template: str | None, tools: bool) -> str:
        """The source for a conversation. template: a name, the request's source, or None. RequestError: the model has no
        suitable template."""
        if template is not None:
            return self.named.get(template, template)
        source = self.pick(tools)
        if source is None:
            fix = f"name one of {', '.join(sorted(self.named))}" if self.named else "send one with the request"
            raise RequestError(f"chat_template: {self.say_missing()}; {fix}", "chat_template")
        return source

    def say_missing(self) -> str:
        """A message about the model's templates, if `pick` finds none."""
        if not self.named:
            return "this model has no chat template"
        return f"this model has chat templates named {', '.join(sorted(self.named))} and none named {DEFAULT!r}"

    def read_kwargs(self, template: str | None, kwargs: Mapping[str, Any] | None) -> tuple[str | None, dict[str, Any]]:
        """(template of a conversation, other keyword arguments). `template` overrides a name in `kwargs`. RequestError if the
        model has no template of that name."""
        rest = dict(kwargs or {})
        name = rest.pop(VARIABLE, None)
        if name is None:
            return template, rest
        if not isinstance(name, str) or name not in self.named:
            raise RequestError(
                f"chat_template_kwargs: chat_template: {name!r:.80} is not a template of this model; {self._names()}",
                "chat_template_kwargs",
            )
        return name if template is None else template, rest

    def owns(self, template: str) -> bool:
        """Is this the name or the source of a template of the model or the operator?"""
        return template in self.named or template == self.fixed or template in self.named.values()

    def prefer(self, template: str) -> Templates:
        """The templates with the operator's: a name, or a source. ValueError for an unknown name."""
        if template not in self.named and NAME.fullmatch(template):
            raise ValueError(f"{template!r} is neither a template, nor a readable file, nor a name: {self._names()}")
        return Templates(self.named, self.named.get(template, template))

    def _names(self) -> str:
        return f"its templates are {', '.join(sorted(self.named))}" if self.named else "it has no templates"
