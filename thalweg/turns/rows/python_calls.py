"""Calls as in Python."""

from thalweg.turns.format import Calls, PythonCalls

LIST = PythonCalls()
PYTHONIC = Calls("pythonic", LIST, bare=True, separator=", ")
LLAMA4 = Calls(
    "llama4_pythonic", LIST, "<|python_start|>", "<|python_end|>", bare=True, separator=", ", markers=("<|python_start|>",)
)
OLMO3 = Calls(
    "olmo3", PythonCalls(list=False), "<function_calls>", "</function_calls>", separator="\n", markers=("<function_calls>",)
)
LFM2 = Calls("lfm2", LIST, "<|tool_call_start|>", "<|tool_call_end|>", separator=", ", markers=("<|tool_call_start|>",))

ROWS = {"pythonic": PYTHONIC, "llama4_pythonic": LLAMA4, "olmo3": OLMO3, "lfm2": LFM2}
