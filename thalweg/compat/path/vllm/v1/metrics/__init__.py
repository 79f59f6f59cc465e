"""Names of vllm.v1.metrics, served by thalweg (thalweg.compat)."""
