"""Calls with name and keys in tags, and values as bare text."""

from thalweg.turns.format import CallHead, Calls, Header, TaggedArgs, Value

PARAMETER = TaggedArgs("<parameter=", ((">", None),), "</parameter>", newline=True, between="\n", after="\n")
QWEN3_CODER = Calls(
    "qwen3_coder",
    PARAMETER,
    "<function=",
    "</function>",
    head=CallHead(then=((">", "args"),)),
    around="\n",
    lead="\n\n",
    section=("<tool_call>", "</tool_call>"),
    section_around="\n",
    separator="\n",
    markers=("<tool_call>", "<function=", "<parameter="),
)
SEED_OSS = Calls(
    "seed_oss",
    TaggedArgs("<parameter=", ((">", None),), "</parameter>", after="\n"),
    "<function=",
    "</function>",
    head=CallHead(then=((">", "args"),)),
    around="\n",
    section=("<seed:tool_call>", "</seed:tool_call>"),
    section_around="\n",
    separator="\n",
    lead="\n\n",
    markers=("seed:tool_call", "<function="),
)


def _invoke(
    name: str,
    section: str,
    prefix: str = "",
    key_close: tuple[tuple[str, Value | None], ...] = (('">', None),),
    newline: bool = False,
    markers: tuple[str, ...] = (),
) -> Calls:
    """<invoke name="..."><parameter name="...">...</parameter></invoke>, each tag's word after a prefix."""
    tag = TaggedArgs(
        f'<{prefix}parameter name="',
        key_close,
        f"</{prefix}parameter>",
        newline=newline,
        between="\n" if newline else "",
        after="\n",
    )
    return Calls(
        name,
        tag,
        f'<{prefix}invoke name="',
        f"</{prefix}invoke>",
        head=CallHead(then=(('">', "args"),)),
        around="\n",
        separator="\n",
        section=(f"<{section}>", f"</{section}>"),
        section_around="\n",
        lead="\n\n",
        markers=markers or (f"{prefix}invoke", section),
    )


FLAGGED: tuple[tuple[str, Value | None], ...] = (('" string="true">', "string"), ('" string="false">', "json"), ('">', None))
DSML = "｜DSML｜"
MINIMAX_M2 = _invoke("minimax_m2", "minimax:tool_call")
DEEPSEEK_V32 = _invoke("deepseek_v32", f"{DSML}function_calls", DSML, FLAGGED, markers=(f"{DSML}", "function_calls"))
DEEPSEEK_V4 = _invoke("deepseek_v4", f"{DSML}tool_calls", DSML, FLAGGED, markers=(f"{DSML}", "tool_calls"))
DEEPSEEK_V41 = _invoke("deepseek_v41", f"{DSML} calls", f"{DSML} ", FLAGGED, markers=(f"{DSML} ", " calls>"))
DOTS = _invoke("dots", "dots_function_call", newline=True)
MUSE = Header("<|start|>", "<|message|>", ("<|eom|>", "<|eot|>"), "to=self", "to=user", role="assistant ")
MUSE_GLIMMER = Calls(
    "muse_glimmer",
    TaggedArgs('<atem:parameter name="', (('">', None),), "</atem:parameter>", after="\n"),
    '<atem:invoke name="',
    "</atem:invoke>",
    head=CallHead(then=(('">', "args"),)),
    around="\n",
    separator="\n",
    header=MUSE,
    section=("<atem:function_calls>", "</atem:function_calls>"),
    section_around="\n",
    markers=("<atem:invoke",),
)
STEP3 = Calls(
    "step3",
    TaggedArgs('<steptml:parameter name="', (('">', None),), "</steptml:parameter>"),
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
    "</steptml:invoke><｜tool_call_end｜>",
    also=('<｜tool_call_begin｜><steptml:invoke name="',),
    head=CallHead(then=(('">', "args"),)),
    separator="\n",
    section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    section_around="\n",
    markers=("steptml:invoke",),
)
MINICPM5 = Calls(
    "minicpm5",
    TaggedArgs('<param name="', (('">', None),), "</param>", quote=("<![CDATA[", "]]>")),
    '<function name="',
    "</function>",
    head=CallHead(then=(('">', "args"),)),
    separator="\n",
    lead="\n",
    markers=('<function name="', "<param name="),
)


def _pairs(
    name: str,
    suffix: str = "",
    section: str = "",
    sep: str = "",
    newline: bool = True,
    markers: tuple[str, ...] = (),
    prefix: str = "",
) -> Calls:
    """<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> </tool_call>. Tags' words have prefix, suffix."""
    line = "\n" if newline else ""
    end = f"{suffix}>"
    args = TaggedArgs(
        f"<{prefix}arg_key{end}",
        ((f"</{prefix}arg_key{end}", None),),
        f"</{prefix}arg_value{end}",
        f"<{prefix}arg_value{end}",
        between=line,
        after=line,
    )
    then = ((f"<{sep}{end}", "args"),) if sep else ()
    around = (f"<{section}{end}", f"</{section}{end}") if section else ("", "")
    return Calls(
        name,
        args,
        f"<{prefix}tool_call{end}",
        f"</{prefix}tool_call{end}",
        head=CallHead(then=(*then, (args.key_open, "key"))),
        around=line,
        lead=line,
        separator=line,
        section=around,
        section_around=line,
        markers=markers,
    )


GLM45 = _pairs("glm45", markers=("<tool_call>", "<arg_key>", "</arg_key>\\n<arg_value>"))
GLM47 = _pairs("glm47", newline=False, markers=("<tool_call>", "<arg_key>"))
HY_V3 = _pairs("hy_v3", "", "tool_calls", "tool_sep", markers=("<tool_calls", "<tool_sep"))
HY_V3_OPEN = _pairs("hy_v3:opensource", ":opensource", "tool_calls", "tool_sep", markers=("tool_sep", ":opensource"))
HY_V4 = _pairs("hy_v4", "", "tool_calls", newline=False, markers=("<tool_calls", "<arg_key", "<arg_value"))
K2_HORIZON = _pairs("k2_horizon", "", "ifm|tool_calls", newline=False, markers=("<ifm|tool_call>",), prefix="ifm|")
SOLAR_OPEN2 = Calls(
    "solar_open2",
    TaggedArgs("<|tool_arg:start|>", (("<|tool_arg:value|>", None),), "<|tool_arg:end|>", after="\n"),
    "<|tool_call:start|>",
    "<|tool_call:end|>",
    head=CallHead(then=(("\n", "args"), ("<|tool_arg:start|>", "key"))),
    separator="\n",
    markers=("<|tool_call:start|>",),
)
KIMI_K3_TYPES: tuple[tuple[str, Value | None], ...] = tuple(
    (f'" type="{t}"<|sep|>', "string" if t == "string" else "json")
    for t in ("string", "number", "integer", "boolean", "object", "array", "null")
)
KIMI_K3 = Calls(
    "kimi_k3",
    TaggedArgs('<|open|>argument key="', KIMI_K3_TYPES, "<|close|>argument<|sep|>"),
    '<|open|>call tool="',
    "<|close|>call<|sep|>",
    section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    head=CallHead(then=(('" index="', "id"), ('"<|sep|>', "args"))),
    markers=("<|open|>", "<|sep|>"),
    wrap=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)
MM = "]<]minimax[>["
MINIMAX_M3 = Calls(
    "minimax_m3",
    TaggedArgs(f"{MM}<", ((">", None),), f"{MM}</", nested=True),
    f'{MM}<invoke name="',
    f"{MM}</invoke>",
    head=CallHead(then=(('">', "args"),)),
    section=(f"{MM}<tool_call>", f"{MM}</tool_call>"),
    section_around="\n",
    separator="\n",
    markers=("]<]minimax[>[",),
)

ROWS = {
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "mimo": QWEN3_CODER,
    "step3p5": QWEN3_CODER,
    "seed_oss": SEED_OSS,
    "minimax_m2": MINIMAX_M2,
    "deepseek_v32": DEEPSEEK_V32,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek_v41": DEEPSEEK_V41,
    "step3": STEP3,
    "glm45": GLM45,
    "glm47": GLM47,
    "poolside_v1": GLM47,
    "hy_v3": HY_V3,
    "hy_v4": HY_V4,
    "ling3": GLM45,
    "dots": DOTS,
    "muse_glimmer": MUSE_GLIMMER,
    "minicpm5": MINICPM5,
    "k2_horizon": K2_HORIZON,
    "solar_open2": SOLAR_OPEN2,
    "kimi_k3": KIMI_K3,
    "minimax_m3": MINIMAX_M3,
}
OTHERS = (HY_V3_OPEN,)
