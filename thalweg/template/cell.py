"""The process that renders chat templates: `python -m thalweg.template.cell`."""

from __future__ import annotations

import sys
from datetime import datetime

from thalweg.errors import CheckpointError, RequestError
from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.template.sandbox import ChatTemplate, OutputLimitError, load_all
from thalweg.template.wire import RenderTask

KEPT_TEMPLATES = 4
"""Compiled templates kept for the next task."""
KEPT_BYTES = 48 << 20
"""Bytes of growth after which a process retires. Its heap is fragmented, and counts against the next task."""


class Renderer:
    def __init__(self) -> None:
        self._templates: dict[str, ChatTemplate] = {}

    def render(self, task: RenderTask) -> str:
        """The rendered text. TaskRefusedError: the template does not parse, the template or the renderer rejects the arguments,
        or the output is too long."""
        try:
            return self._fill(task)
        except OutputLimitError:
            raise TaskRefusedError("limit", f"wrote more than {task.output} characters") from None
        except CheckpointError as e:
            raise TaskRefusedError("template", str(e)) from None
        except RequestError as e:
            raise TaskRefusedError("request", str(e), e.param or "") from None

    def _fill(self, task: RenderTask) -> str:
        template = self._templates.get(task.source)
        if template is None or template.variables != task.variables:
            template = self._templates[task.source] = ChatTemplate(task.source, task.variables)
            while len(self._templates) > KEPT_TEMPLATES:
                del self._templates[next(iter(self._templates))]
        if task.messages is None:
            return ""
        return template.fill(
            task.messages,
            task.tools,
            task.add_generation_prompt,
            task.continue_final_message,
            content_format=task.content_format,
            kwargs=task.kwargs,
            signs=task.signs,
            now=datetime.fromisoformat(task.now),
            most=task.output,
        )


if __name__ == "__main__":
    load_all()
    sys.exit(serve(RenderTask, Renderer().render, KEPT_BYTES))
