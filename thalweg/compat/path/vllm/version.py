"""Names of vllm.version, served by thalweg (thalweg.compat)."""

__version__ = "0.32.0+thalweg"
__version_tuple__ = (0, 32, 0, "thalweg")
