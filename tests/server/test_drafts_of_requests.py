"""Drafts of one request: whether it has any, and how many were right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from scripted import Scripted

from thalweg.config import SpeculationConfig
from thalweg.server.core.acceptance import count_by_position

ASKED = [{"role": "user", "content": "ab"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 4},
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/responses": {"input": "ab"},
    "/v1/messages": {"messages": ASKED, "max_tokens": 4},
    "/v2/chat": {"messages": ASKED},
    "/generate": {"prompt": "ab"},
    "/inference/v1/generate": {"token_ids": [1, 2]},
}
ROUNDS = bytes((3, 3, 3, 0, 2, 1))


class Drafting(FakeEngine):
    """Reports three steps with drafts of each request."""

    def __init__(self, drafts: int) -> None:
        super().__init__()
        speculation = SpeculationConfig(tokens=drafts) if drafts else None
        scheduler = msgspec.structs.replace(self.config.scheduler, speculation=speculation)
        self.config = msgspec.structs.replace(self.config, scheduler=scheduler)

    def _request(self, *args: Any) -> Any:
        loggers, self.loggers = self.loggers, ()
        output, self.loggers = super()._request(*args), loggers
        output.metrics = replace(output.metrics, draft_rounds=ROUNDS)
        for logger in loggers if output.finished else ():
            logger.record_request(output, args[2])
        return output


def test_a_request_of_any_dialect_declines_drafts(start) -> None:
    running = start(Scripted(*["hello"] * 14))
    for path, body in ROUTES.items():
        for declines in (False, True):
            asked: dict[str, Any] = {"disable_spec_decode": declines}
            asked = {"sampling_params": asked} if "token_ids" in body else asked
            answer = running.post(path, {"model": "fake", **body, **asked})
            assert answer.status_code == 200, (path, answer.text)
            assert running.engine.params[-1].disable_spec_decode is declines, path


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_has_the_drafts_of_its_request_where_asked_for(start, stream) -> None:
    wanted = {
        "mean_acceptance_length": 1 + 4 / 3, "draft_acceptance_rate": 0.5, "acceptance_histogram": [1, 1, 0, 1],
        "acceptance_histogram_by_draft_length": {"2": [0, 1, 0], "3": [1, 0, 0, 1]}, "num_spec_steps": 3,
        "num_accepted_draft_tokens": 4, "num_draft_tokens": 8, "num_spec_tokens": 3,
    }  # fmt: skip
    each = {"per_step_accepted": [3, 0, 1], "per_step_drafted": [3, 3, 2]}

    def ask(drafts: int, level: str, n: int = 1) -> Any:
        running = start(Drafting(drafts), per_request_spec_decode_metrics=level)
        body = {**ROUTES["/v1/chat/completions"], "n": n, "stream": stream, "max_tokens": 4}
        if not stream:
            return running.post("/v1/chat/completions", body).json().get("metrics")
        lines = running.post("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).text.split("\n\n")
        return json.loads(lines[-3].removeprefix("data: ")).get("metrics")

    assert ask(3, "summary") == {"speculative_decoding": wanted}
    assert ask(3, "detailed") == {"speculative_decoding": {**wanted, **each}}
    assert ask(3, "detailed", n=2) is None
    assert ask(0, "summary") == {"speculative_decoding": None}
    assert ask(3, "none") is None


def test_where_the_time_of_a_request_went_names_its_drafts(start) -> None:
    running = start(Drafting(3))
    name = running.post("/v1/completions", ROUTES["/v1/completions"]).json()["id"]
    (part,) = running.get(f"/v1/requests/{name}/why").json()["parts"]
    assert (part["drafts"], part["accepted_drafts"]) == ([3, 3, 2], [2, 1, 1])
    assert "4 of 8 drafts were right, in 3 steps" in {r["what"]: r["why"] for r in part["reasons"]}["decode"]
    assert count_by_position(b"") == ([], [])
