"""A call is a JSON object with its name in it, after a mark or between tags."""

from dataclasses import replace

from thalweg.turns.format import Calls, JsonCalls

TAGS = Calls(
    "hermes",
    JsonCalls(),
    "<tool_call>",
    "</tool_call>",
    lead="\n",
    around="\n",
    separator="\n",
    markers=("<tool_call>", "</tool_call>", '"arguments":'),
)
LONGCAT = Calls(
    "longcat",
    JsonCalls(),
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    around="\n",
    separator="\n",
    lead="\n",
    markers=("<longcat_tool_call>",),
)
INTERNLM = Calls(
    "internlm",
    JsonCalls(args=("parameters", "arguments")),
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    around="\n",
    markers=("<|action_start|>", "<|plugin|>"),
)
MINIMAX_M1 = Calls(
    "minimax",
    JsonCalls(),
    "<tool_calls>",
    "</tool_calls>",
    lead="\n",
    around="\n",
    separator="\n",
    markers=("<tool_calls>", "ai name="),
)
GRANITE_20B = Calls(
    "granite-20b-fc",
    JsonCalls(),
    "<function_call>",
    around=" ",
    separator="\n",
    markers=("<function_call>", "'<function_call> '"),
)
GIGACHAT3 = Calls(
    "gigachat3",
    JsonCalls(),
    "<|function_call|>",
    also=("<|message_sep|>\n\nfunction call<|role_sep|>\n",),
    markers=("function call", "<|role_sep|>"),
)
LLAMA3 = Calls(
    "llama3_json",
    JsonCalls(args=("parameters", "arguments")),
    "",
    also=("<|python_tag|>",),
    bare=True,
    separator="; ",
    markers=('{"name": function name, "parameters"',),
)

LOOSE = replace(TAGS, markers=("<tool_call>", "</tool_call>", "arguments"))
"""Row for chat templates that spell the key differently."""

ROWS = {
    "hermes": TAGS,
    "granite4": TAGS,
    "ernie45": TAGS,
    "qwen3_json": TAGS,
    "longcat": LONGCAT,
    "internlm": INTERNLM,
    "minimax": MINIMAX_M1,
    "granite-20b-fc": GRANITE_20B,
    "gigachat3": GIGACHAT3,
    "llama3_json": LLAMA3,
    "llama4_json": LLAMA3,
}
"""Parser name -> row."""
