"""Names of vllm.transformers_utils, served by thalweg (thalweg.compat)."""
