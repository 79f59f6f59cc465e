"""Calls are a JSON array of objects with their names in them."""

from thalweg.turns.format import Calls, JsonCalls

ARRAY = JsonCalls(array=True)
SECTION = Calls("jamba", ARRAY, "<tool_calls>", "</tool_calls>", lead="\n", markers=("<tool_calls>[",))
HUNYUAN = Calls("hunyuan_a13b", ARRAY, "<tool_calls>", "</tool_calls>", lead="\n", markers=("<tool_calls>[", "<answer>"))
NEMOTRON = Calls("toolcall", ARRAY, "<TOOLCALL>", "</TOOLCALL>", markers=("<TOOLCALL>", "</TOOLCALL>"))
PHI4 = Calls("phi4_mini_json", ARRAY, "functools", markers=("functools[",))
GRANITE = Calls("granite", ARRAY, "<|tool_call|>", also=("<tool_call>",), bare=True, markers=("<|tool_call|>", "JSON list"))
XLAM = Calls(
    "xlam",
    ARRAY,
    "",
    also=("[TOOL_CALLS]", "<tool_call>", "```json\n"),
    close="",
    bare=True,
    markers=("xLAM",),
    wrap=("</tool_call>",),
)
COHERE = Calls(
    "cohere_command3",
    JsonCalls(names=("tool_name", "name"), ids=("tool_call_id",), array=True, args=("parameters",), id_first=True),
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    markers=("<|START_ACTION|>", "<|END_ACTION|>"),
    wrap=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
APERTUS = Calls(
    "apertus",
    JsonCalls(array=True, keyed=True),
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    markers=("<|tools_prefix|>", "<|tools_suffix|>"),
)

ROWS = {
    "jamba": SECTION,
    "hunyuan_a13b": HUNYUAN,
    "phi4_mini_json": PHI4,
    "granite": GRANITE,
    "xlam": XLAM,
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "apertus": APERTUS,
}
OTHERS = (NEMOTRON,)
"""Rows without a parser name, found by their markers."""
