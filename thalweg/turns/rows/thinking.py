"""Reasoning, by the names of parsers."""

from thalweg.turns.format import Header, Reasoning
from thalweg.turns.rows.named_json import HARMONY
from thalweg.turns.rows.tagged import MUSE

THINK = Reasoning(around="\n", after="\n\n")
IN_PROMPT = Reasoning(assumed=True, around="\n", after="\n\n")
WITH_CALLS = Reasoning(implicit_ends=True, around="\n", after="\n\n")
PLAIN = Reasoning()
MISTRAL = Reasoning("[THINK]", "[/THINK]")
SEED = Reasoning("<seed:think>", "</seed:think>")
COHERE = Reasoning("<|START_THINKING|>", "<|END_THINKING|>")
GEMMA4 = Reasoning("<|channel>thought\n", "<channel|>", also=("<|channel>thought",))
GRANITE = Reasoning("Here is my thought process:", "Here is my response:", also=("Here's my thought process:",), around="\n")
KIMI_K3 = Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>")
INKLING = Reasoning("<|content_thinking|>", "<|end_message|>", implicit_ends=True)
MINIMAX_M3 = Reasoning("<mm:think>", "</mm:think>")
PLAMO3 = Reasoning("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", implicit_ends=True)
SOLAR = Reasoning("<|think|>", "<|end|>", implicit_ends=True)
K2_HORIZON = Reasoning("<ifm|think>", "</ifm|think>", also=("<ifm|think_fast>", "<ifm|think_faster>"), implicit_ends=True)
HY_OPEN = Reasoning("<think:opensource>", "</think:opensource>")
APRIEL = Reasoning("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]", around="\n", after="\n")
KEPT = Reasoning(assumed=True, kept=True)
CHANNEL = Reasoning("", "")
"""Reasoning in messages with headers."""

ROWS = {
    "deepseek_r1": IN_PROMPT,
    "deepseek_v3": PLAIN,
    "deepseek_v4": PLAIN,
    "deepseek_v41": PLAIN,
    "qwen3": WITH_CALLS,
    "openai_gptoss": CHANNEL,
    "glm45": PLAIN,
    "glm47": PLAIN,
    "kimi_k2": Reasoning(implicit_ends=True),
    "kimi_k3": KIMI_K3,
    "minimax_m2": IN_PROMPT,
    "minimax_m2_append_think": KEPT,
    "minimax_m3": MINIMAX_M3,
    "mistral": MISTRAL,
    "gemma4": GEMMA4,
    "granite": GRANITE,
    "granite_thinking_parser": THINK,
    "hunyuan_a13b": THINK,
    "hy_v3": PLAIN,
    "hy_v4": PLAIN,
    "ernie45": IN_PROMPT,
    "holo2": IN_PROMPT,
    "nemotron_v3": THINK,
    "olmo3": IN_PROMPT,
    "seed_oss": SEED,
    "step3": IN_PROMPT,
    "step3p5": IN_PROMPT,
    "mimo": WITH_CALLS,
    "poolside_v1": PLAIN,
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "inkling": INKLING,
    "k2_horizon": K2_HORIZON,
    "ling3": PLAIN,
    "minicpmv": THINK,
    "muse_glimmer": CHANNEL,
    "plamo3": PLAMO3,
    "solar_open2": SOLAR,
}
WRAPS = {
    "hunyuan_a13b": ("<answer>", "</answer>"),
    "ernie45": ("<response>", "</response>"),
    "inkling": ("<|message_model|>", "<|content_text|>", "<|end_message|>"),
    "kimi_k3": ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    "cohere_command3": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "cohere_command4": ("<|START_TEXT|>", "<|END_TEXT|>"),
}
"""Parser name -> terminals around content."""
HEADERS: dict[str, Header] = {"openai_gptoss": HARMONY, "muse_glimmer": MUSE}
MARKERS: tuple[tuple[tuple[str, ...], str | Reasoning], ...] = (
    (("<|channel|>", "analysis"), "openai_gptoss"),
    (("to=self", "<|message|>"), "muse_glimmer"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<|channel>thought",), "gemma4"),
    (("<mm:think>",), "minimax_m3"),
    (("[THINK]", "[/THINK]"), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("seed:think",), "seed_oss"),
    (("<ifm|think>",), "k2_horizon"),
    (("<|plamo:begin_think",), "plamo3"),
    (("<|content_thinking|>",), "inkling"),
    (("<|open|>", "<|sep|>", "think"), "kimi_k3"),
    (("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:"), APRIEL),
    ((":opensource", "think"), HY_OPEN),
    (("<|begin|>assistant<|think|>",), SOLAR),
    (("Here is my thought process:",), "granite"),
    (("<think>",), WITH_CALLS),
    (("</think>",), WITH_CALLS),
)
"""(texts in a chat template, the reasoning they identify). The first row whose texts all occur decides."""
