"""python run_cohere.py ADDRESS MODEL QUESTION [--once]. Prints the answer."""

import json
import subprocess
import sys

import cohere

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [{"type": "function", "function": {"name": "shell", "description": "Run", "parameters": PARAMETERS}}]


def main(url: str, model: str, question: str, *flags: str) -> None:
    client = cohere.ClientV2(base_url=url + "/cohere", api_key="none")
    messages = [{"role": "user", "content": question}]
    requested = {"model": model, "messages": messages, "max_tokens": 200}
    if "--once" in flags:
        print(client.chat(**requested).message)
        return
    requested |= {"tools": TOOLS, "strict_tools": True}
    first = client.chat(**requested).message
    messages.append(first)
    for call in first.tool_calls:
        command = json.loads(call.function.arguments)["command"]
        process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        content = [{"type": "document", "document": {"data": process.stdout}}]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    deltas = [e.delta.message.content for e in client.chat_stream(**requested) if e.type == "content-delta"]
    streamed = "".join(d.text or "" for d in deltas)
    whole = client.chat(**requested).message
    assert streamed == whole.content[-1].text, streamed
    print(streamed)


main(*sys.argv[1:])
