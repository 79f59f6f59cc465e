"""Options of the model: its files, the parts read, and its use."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec

from thalweg.options.option import Option
from thalweg.options.values import context_length

BUNDLED = "thalweg-nano"
"""Name of the model inside the package: the default, so that nothing needs a download."""
BUNDLED_FOLDERS = {BUNDLED: "weights", "thalweg-nano-draft": "draft", "bundled": "weights"}
"""Names of the checkpoints inside the package, and their folders in it. "bundled" is the default's name of old."""
BUNDLED_ADAPTERS = {"thalweg-nano-shout": "shout"}
"""Names of the adapters inside the package, and their folders in it."""
BUNDLED_WORDS = (
    "using thalweg-nano, the bundled model: five million parameters, made for trying things out; pass {how} for a real one"
)
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_TOKENIZER = "the tokenizer of the model's files gives the same tokens; leave the mode at auto"
TOKENIZER_REFUSED = {
    "deepseek_v32": f"messages of these models are written by their chat template; {_TOKENIZER}",
    "deepseek_v4": f"messages of these models are written by their chat template; {_TOKENIZER}",
    "fastokens": _TOKENIZER,
}
"""Unsupported values of `tokenizer_mode` -> the alternative."""
_option = partial(Option, group="ModelConfig")


def check_code(trusted: bool) -> Iterator[str]:
    if trusted:
        yield "code from model repositories is never run; remove the flag"


class TailOptions(msgspec.Struct, frozen=True):
    """The user's choice of output: generated text, embeddings or classes (`checkpoint.tail`)."""

    runner: str = "auto"
    convert: str = "auto"
    pooler: dict[str, Any] | None = None


class ModelOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The model, and the location of its files."""

    model: Annotated[str, _option("Directory or hub id of the model (option form of the positional argument)")] = BUNDLED
    tokenizer: Annotated[str | None, _option("Tokenizer id or path if different")] = None
    tokenizer_mode: Annotated[str, _option(
        "hf or slow: tokenizer.json, or files that transformers reads; mistral: tekken.json or tokenizer.model.v*; "
        "auto: whichever exists, tokenizer.json first", choices=("auto", "hf", "slow", "mistral"), refused=TOKENIZER_REFUSED,
    )] = "auto"  # fmt: skip
    revision: Annotated[str | None, _option("Hub revision of the model")] = None
    tokenizer_revision: Annotated[str | None, _option("Hub revision of the tokenizer")] = None
    hf_token: Annotated[str | bool | None, _option("Hub access token; bare flag uses stored login")] = None
    skip_tokenizer_init: Annotated[bool, _option("Token ids in and out only")] = False
    trust_remote_code: Annotated[
        bool, _option("Not supported: code from model repositories is never run", check=check_code)
    ] = False
    served_model_name: Annotated[list[str] | None, _option("Public model names; first appears in replies")] = None
    hf_overrides: Annotated[dict[str, Any] | None, _option("Patch fields of the model's HF config")] = None
    hf_config_path: Annotated[str | None, _option("Take config.json from another directory")] = None
    config_format: Annotated[str, _option(
        "hf: config.json; mistral: params.json and consolidated weights; auto: either, config.json first",
        choices=("auto", "hf", "mistral"),
    )] = "auto"  # fmt: skip
    model_impl: Annotated[str, _option(
        "thalweg (or vllm): its own implementation; transformers: that library's module; auto: the first available",
        choices=("auto", "thalweg", "vllm", "transformers"),
        refused={"terratorch": "models of images of the earth are not served; leave it at auto"},
    )] = "auto"  # fmt: skip
    runner: Annotated[str, _option(
        "Generate text, or give vectors, classes and scores; auto: as the model's files say",
        choices=("auto", "generate", "pooling"),
    )] = "auto"  # fmt: skip
    convert: Annotated[str, _option(
        "embed: vectors from a model that generates; none: the model as it is", choices=("auto", "none", "embed", "classify"),
    )] = "auto"  # fmt: skip
    pooler_config: Annotated[dict[str, Any] | None, _option(
        'Pooling that replaces that of the model files: {"pooling_type": "MEAN", "use_activation": false}',
    )] = None  # fmt: skip
    generation_config: Annotated[
        str, _option("Source of sampling defaults: auto (the model), thalweg or vllm (none), or a directory")
    ] = "auto"
    override_generation_config: Annotated[dict[str, Any] | None, _option("Override individual sampling defaults")] = None
    dtype: Annotated[str, _option("Numeric type of weights and activations", choices=DTYPES)] = "auto"
    seed: Annotated[int, _option("Global random seed")] = 0
    max_model_len: Annotated[int | None, _option(
        "Context length limit; auto or -1 fits memory", kind="human-int", ge=1, also=(-1,), note="-1: as much as fits",
        read=context_length,
    )] = None  # fmt: skip

    @property
    def tail(self) -> TailOptions:
        """runner, convert and pooler_config."""
        return TailOptions(self.runner, self.convert, self.pooler_config)
