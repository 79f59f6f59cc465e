"""Kernels in Pallas. These modules import JAX and each other, nothing else of this project and nothing of torch. So
another runtime that takes Pallas functions can adopt them. Each runs interpreted on any host, and lowers for TPU."""
