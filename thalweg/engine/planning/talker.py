"""The engine of a talker, which speaks the answers of an engine that writes them. Both load parts of one repository."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from thalweg.checkpoint.config import facts
from thalweg.checkpoint.talker import name_talker
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config, resolve

COPIED = (
    "model", "tokenizer", "tokenizer_mode", "revision", "tokenizer_revision", "hf_token", "hf_config_path", "dtype", "seed",
    "download_dir", "ignore_patterns", "load_format", "safetensors_load_strategy", "use_tqdm_on_load", "device",
    "strict_kernels", "batch_invariant", "attention_backend", "enforce_eager", "threads", "additional_config", "block_size",
    "heartbeat_timeout", "hang_timeout", "max_restarts",
)  # fmt: skip
"""Arguments of the engine that writes answers which are the talker's too."""
SEQUENCES, LENGTH = 32, 16_384
"""At most so many answers are spoken at once, and at most so many positions long: the user's turns and the frames."""
TOGETHER = 4
"""Sequences of full length whose keys and values fit in the talker's cache, at most."""


def talker_args(args: EngineArgs) -> EngineArgs:
    """The arguments of the talker's engine. args: of the engine that writes answers, with a local directory as model. The size
    of its cache is fixed, so that either engine knows it. CheckpointError."""
    from thalweg.engine.planning.memory import plan

    name = name_talker(checkpoint_config.read(args, Path(args.model)))
    result = EngineArgs(
        **{field: getattr(args, field) for field in COPIED}, hf_overrides={"architectures": [name]},
        max_num_seqs=min(args.max_num_seqs or SEQUENCES, SEQUENCES), enable_prefix_caching=False, kv_cache_memory_bytes=1 << 40,
    )  # fmt: skip
    read = facts(checkpoint_config.read(result, Path(result.model)), result.model)
    length = min(resolve.max_len(result, read), LENGTH)
    first = plan(replace(result, max_model_len=length))
    blocks = 2 + min(first.max_num_seqs, TOGETHER) * -(-length // max(1, first.block_tokens))
    size = sum(group["bytes_per_block"] for group in first.groups) * blocks
    return replace(result, max_model_len=length, kv_cache_memory_bytes=size)


def talker_bytes(args: EngineArgs) -> int:
    """Bytes of a device that the talker's engine uses. 0: there is none."""
    from thalweg.engine.planning.memory import plan

    return plan(talker_args(args)).total if args.enable_talker else 0
