"""Names of vllm.lora, served by thalweg (thalweg.compat)."""
