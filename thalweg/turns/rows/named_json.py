"""Calls with the name outside their JSON arguments."""

from thalweg.turns.format import CallHead, Calls, Header, JsonArgs, JsonCalls

ARGS = JsonArgs()
MISTRAL = Calls(
    "mistral",
    ARGS,
    "[TOOL_CALLS]",
    head=CallHead(then=(("[CALL_ID]", "id"), ("[ARGS]", "args")), or_json=True),
    markers=("[TOOL_CALLS]",),
    ids="nine",
)
DEEPSEEK_V3 = Calls(
    "deepseek_v3",
    ARGS,
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "```<｜tool▁call▁end｜>",
    head=CallHead(then=(("\n```json\n", "args"),)),
    around="\n",
    separator="\n",
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    markers=("<｜tool▁calls▁begin｜>", "```json"),
)
DEEPSEEK_V31 = Calls(
    "deepseek_v31",
    ARGS,
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    head=CallHead(then=(("<｜tool▁sep｜>", "args"),)),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    markers=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
)
KIMI_K2 = Calls(
    "kimi_k2",
    ARGS,
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    head=CallHead("id", (("<|tool_call_argument_begin|>", "args"),), ("functions.", ":")),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ids="indexed",
    markers=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
)
SOLAR = Calls(
    "solar_open",
    ARGS,
    "<|tool_call:begin|>",
    "<|tool_call:end|>",
    head=CallHead("id", (("<|tool_call:name|>", "name"), ("<|tool_call:args|>", "args"))),
    section=("<|tool_calls|>", "<|calls|>"),
    markers=("<|tool_call:begin|>", "<|tool_call:args|>"),
    wrap=("<|content|>", "<|begin|>assistant"),
)
PLAMO3 = Calls(
    "plamo3",
    ARGS,
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
    head=CallHead(
        then=(
            ("<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>", "args"),
        )
    ),
    section=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
    markers=("<|plamo:begin_tool_request",),
)
FUNCTIONARY = Calls(
    "functionary",
    ARGS,
    "<function=",
    "</function>",
    head=CallHead(then=((">", "args"),)),
    markers=("<function=", "</function>", '{"example_name"'),
)
INKLING = Calls(
    "inkling",
    JsonCalls(args=("args", "arguments")),
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    wrap=("<|message_model|>", "<|content_text|>", "<|end_message|>"),
    markers=("<|content_invoke_tool_json|>",),
)
HARMONY = Header(
    "<|start|>",
    "<|message|>",
    ("<|end|>", "<|call|>", "<|return|>"),
    "analysis",
    "<|channel|>final",
    "to=functions.",
    ("<|channel|>", "<|constrain|>"),
)
OPENAI = Calls("openai", ARGS, close="", header=HARMONY, markers=("<|channel|>", "commentary"))

ROWS = {
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "kimi_k2": KIMI_K2,
    "openai": OPENAI,
    "plamo3": PLAMO3,
    "inkling": INKLING,
}
OTHERS = (SOLAR, FUNCTIONARY)
