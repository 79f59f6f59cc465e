"""Names of vllm.utils.argparse_utils, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
