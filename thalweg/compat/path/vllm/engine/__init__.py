"""Names of vllm.engine, served by thalweg (thalweg.compat)."""
