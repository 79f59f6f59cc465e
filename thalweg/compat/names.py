"""Classes and functions of vLLM, where thalweg has none of the same name and form."""

from __future__ import annotations

import argparse
import uuid
from enum import StrEnum
from typing import Any

from thalweg import llm
from thalweg.errors import NotSupportedError
from thalweg.params import StructuredOutputsParams

FAMILIES = "a family of models comes as an entry point of the group thalweg.models (docs/adding-a-model.md)"


class LLM(llm.LLM):
    """thalweg's LLM, with the tokenizer of transformers where that is installed: programs call it as one."""

    def get_tokenizer(self) -> Any:
        try:
            import transformers
        except ImportError:
            return super().get_tokenizer()
        super().get_tokenizer()  # ConfigError if it was skipped
        args = self.llm_engine.frontend.args
        return transformers.AutoTokenizer.from_pretrained(args.tokenizer or args.model)


class UsageContext(StrEnum):
    """The program that starts an engine. Nothing is reported to anyone."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


class GuidedDecodingParams:
    """The old name of StructuredOutputsParams."""

    def __new__(cls, **fields: Any) -> StructuredOutputsParams:  # type: ignore[misc]
        return StructuredOutputsParams(**fields)


class KVTransferConfig(dict[str, Any]):
    """The object that `kv_transfer_config` is, by the names of its fields. The engine checks them."""

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})


class _Refused:
    """Can be named, so that programs import, and not made."""

    __refused__ = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotSupportedError(f"{type(self).__name__}: {self.__refused__}")


class DataPrompt(_Refused):
    __refused__ = "no plugin here reads data of its own form: send text, token ids, embeddings, or images and sound beside them"


class initialize_ray_cluster(_Refused):  # noqa: N801  (a function in vLLM)
    __refused__ = "an engine joins the Ray cluster itself: distributed_executor_backend='ray'"


class ModelRegistry:
    """Architectures of this process: those of LLM and LLMEngine. An engine process knows those of packages."""

    @staticmethod
    def register_model(model_arch: str, model_cls: Any) -> None:
        """Serve an architecture as a known one, where `model_cls` is a class of that name ("module:LlamaForCausalLM" or the
        class), or by a family ("module:function"). NotSupportedError for other classes: modules of vLLM do not run here."""
        from thalweg.models import registry

        path = model_cls if isinstance(model_cls, str) else f"{model_cls.__module__}:{model_cls.__qualname__}"
        name = path.rpartition(":")[2]
        if registry.has(name):
            registry.add(model_arch, name)
        elif ":" in path and not name[:1].isupper():
            registry.add(model_arch, path)
        else:
            raise NotSupportedError(f"register_model: {name!r:.80}: it is not served here; {FAMILIES}")

    @staticmethod
    def get_supported_archs() -> set[str]:
        """Architectures that can be served."""
        from thalweg.models.registry import architectures

        return set(architectures())


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An argument parser that accepts flags with underscores too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        import sys

        words = list(sys.argv[1:] if args is None else args)
        known = {o for a in self._actions for o in a.option_strings}
        return super().parse_known_args([_normalize_flag(w, known) for w in words], namespace)


def _normalize_flag(word: str, known: set[str]) -> str:
    name, equals, value = word.partition("=")
    dashed = name.replace("_", "-")
    return dashed + equals + value if name.startswith("--") and name not in known and dashed in known else word


def random_uuid() -> str:
    return uuid.uuid4().hex


def get_tokenizer(tokenizer_name: str, *_: Any, tokenizer_mode: str = "auto", **options: Any) -> Any:
    """transformers' tokenizer of a model. ConfigError without transformers."""
    from thalweg.checkpoint.hub import resolve_model
    from thalweg.errors import ConfigError

    try:
        import transformers
    except ImportError:
        raise ConfigError("get_tokenizer: it is transformers' tokenizer; install transformers") from None
    options = {k: v for k, v in options.items() if k not in ("trust_remote_code", "download_dir")}
    return transformers.AutoTokenizer.from_pretrained(
        resolve_model(tokenizer_name), use_fast=tokenizer_mode != "slow", **options
    )


def resolve_chat_template(tokenizer: Any, chat_template: str | None = None, tools: Any = None, **_: Any) -> str | None:
    """The template that chats are rendered with: the given one (text, or a name of the tokenizer's), or the tokenizer's."""
    own = getattr(tokenizer, "chat_template", None)
    if chat_template is not None:
        return own.get(chat_template, chat_template) if isinstance(own, dict) else chat_template
    if isinstance(own, dict):
        return own.get("tool_use") if tools and "tool_use" in own else own.get("default")
    return own
