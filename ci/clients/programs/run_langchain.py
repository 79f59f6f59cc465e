"""python run_langchain.py ADDRESS MODEL QUESTION [--once]. Prints the answer."""

import subprocess
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def shell(command: str) -> str:
    """Run a command."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout


def main(url: str, model: str, question: str, *flags: str) -> None:
    chat = ChatOpenAI(model=model, base_url=url + "/v1", api_key="none", max_tokens=200, stream_usage=True)
    messages = [HumanMessage(question)]
    if "--once" in flags:
        print(chat.invoke(messages).content)
        return
    bound = chat.bind_tools([shell])
    message = None
    for chunk in bound.stream(messages):
        message = chunk if message is None else message + chunk
    assert message.usage_metadata["total_tokens"] > 0, message
    messages.append(message)
    messages += [ToolMessage(shell(**c["args"]), tool_call_id=c["id"]) for c in message.tool_calls]
    whole = bound.invoke(messages).content
    streamed = "".join(c.content for c in bound.stream(messages))
    assert streamed == whole, (streamed, whole)
    print(streamed)


main(*sys.argv[1:])
