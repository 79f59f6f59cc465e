"""Names of vllm.usage, served by thalweg (thalweg.compat)."""
