"""Names of vllm.v1, served by thalweg (thalweg.compat)."""
