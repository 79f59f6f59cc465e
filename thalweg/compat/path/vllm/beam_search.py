"""Names of vllm.beam_search, served by thalweg (thalweg.compat)."""

from thalweg.outputs import BeamSearchOutput, BeamSearchSequence

__all__ = ["BeamSearchOutput", "BeamSearchSequence"]
