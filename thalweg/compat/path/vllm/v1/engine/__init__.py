"""Names of vllm.v1.engine, served by thalweg (thalweg.compat)."""
