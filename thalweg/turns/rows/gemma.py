"""Calls in Gemma's notation: call:NAME{key:value}."""

from thalweg.turns.format import CallHead, Calls, GemmaArgs

HEAD = CallHead(then=(("{", "args"),))
FUNCTIONGEMMA = Calls(
    "functiongemma",
    GemmaArgs("<escape>"),
    "<start_function_call>call:",
    "<end_function_call>",
    head=HEAD,
    markers=("<start_function_call>",),
)
GEMMA4 = Calls("gemma4", GemmaArgs(), "<|tool_call>call:", "<tool_call|>", head=HEAD, markers=("<|tool_call>", "<tool_call|>"))

ROWS = {"functiongemma": FUNCTIONGEMMA, "gemma4": GEMMA4}
