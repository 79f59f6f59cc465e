"""Names of vllm.engine.arg_utils, served by thalweg (thalweg.compat)."""

from thalweg.compat.arguments import AsyncEngineArgs, EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
