"""Names of vllm.renderers, served by thalweg (thalweg.compat)."""
