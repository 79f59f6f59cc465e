"""Kernels in Pallas. These modules import JAX and each other, nothing else of this project and nothing of torch. Another
runtime for Pallas functions can thus adopt them. Each runs interpreted on any host, and lowers for TPU."""
