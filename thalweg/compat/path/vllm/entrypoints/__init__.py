"""Names of vllm.entrypoints, served by thalweg (thalweg.compat)."""
