"""python run_agents.py ADDRESS MODEL QUESTION --api responses|chat [--output-type] [--once].

Runs the agent streamed, then whole, each with a question after it. --output-type: its answers are objects.
--once: no tools, streamed only.
"""

import argparse
import asyncio
import subprocess

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Report(BaseModel):
    """What the agent found."""

    words: str
    number: int


@function_tool
def shell(command: str) -> str:
    """Run a command."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("question")
    parser.add_argument("--api", choices=MODELS)
    parser.add_argument("--output-type", action="store_true")
    parser.add_argument("--once", action="store_true")
    args = parser.parse_args()
    set_tracing_disabled(True)
    model = MODELS[args.api](args.model, AsyncOpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0))
    agent = Agent(
        name="a",
        instructions="Be brief.",
        model=model,
        tools=[] if args.once else [shell],
        model_settings=ModelSettings(store=False, max_tokens=200),
        output_type=Report if args.output_type else None,
    )
    streamed = Runner.run_streamed(agent, args.question, max_turns=4)
    async for _ in streamed.stream_events():
        pass
    results = [streamed] if args.once else [streamed, await Runner.run(agent, args.question, max_turns=4)]
    for result in results:
        if args.output_type:
            assert isinstance(result.final_output, Report), result.final_output
            if not args.once:
                assert result.final_output.number == 42, result.final_output
        if not args.once:
            assert any(i.type == "tool_call_output_item" for i in result.new_items), result.new_items
        print(result.final_output)
        if not args.once:
            again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "Again."}], max_turns=2)
            assert again.final_output == result.final_output, again.final_output


asyncio.run(main())
