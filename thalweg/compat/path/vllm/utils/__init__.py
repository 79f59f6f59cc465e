"""Names of vllm.utils, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import FlexibleArgumentParser, random_uuid

__all__ = ["FlexibleArgumentParser", "random_uuid"]
