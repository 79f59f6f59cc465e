"""Names of vllm.logprobs, served by thalweg (thalweg.compat)."""

from thalweg.outputs import FlatLogprobs, Logprob

__all__ = ["FlatLogprobs", "Logprob"]
