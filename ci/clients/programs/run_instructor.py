"""python run_instructor.py ADDRESS MODEL QUESTION openai|anthropic|cohere MODE. Prints the objects that it got."""

import subprocess
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import instructor
from pydantic import BaseModel, field_validator

MARK = f"MARK-{40 + 2}"


class Draft(BaseModel):
    """What was found."""

    words: str
    number: int


class Report(Draft):
    """What was found, with the right number."""

    @field_validator("number")
    @classmethod
    def right(cls, value: int) -> int:
        if value != 42:
            raise ValueError(f"{MARK} is the right number")
        return value


class Command(BaseModel):
    """A command for the shell."""

    command: str


def connect(url: str, provider: str, mode: instructor.Mode) -> Any:
    if provider == "openai":
        from openai import OpenAI

        return instructor.from_openai(OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=mode)
    if provider == "anthropic":
        from anthropic import Anthropic

        return instructor.from_anthropic(Anthropic(base_url=url, api_key="none", max_retries=0), mode=mode)
    import cohere

    return instructor.from_cohere(cohere.ClientV2(base_url=url + "/cohere", api_key="none"), mode=mode)


def main(url: str, model: str, question: str, provider: str, name: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    client = connect(url, provider, instructor.Mode[name])
    requested: dict[str, Any] = {"model": model, "max_tokens": 200}
    messages = [{"role": "user", "content": question}]
    if name == "PARALLEL_TOOLS":
        report, command = client.create(response_model=Iterable[Report | Command], messages=messages, **requested)
        assert isinstance(report, Report), report
        output = subprocess.run(["sh", "-c", command.command], capture_output=True, text=True, check=False).stdout
        messages.append({"role": "user", "content": f"The command printed {output}"})
        print(*client.create(response_model=Iterable[Report | Command], messages=messages, **requested))
        return
    report = client.create(response_model=Report, messages=messages, max_retries=2, **requested)
    assert report.number == 42, report
    if provider == "cohere":  # streams no objects
        print(report)
        return
    messages.append({"role": "user", "content": f"{MARK} it is."})
    *_, last = client.create_partial(response_model=Report, messages=messages, **requested)
    assert last.model_dump() == report.model_dump(), (last, report)
    print(report)


main(*sys.argv[1:])
