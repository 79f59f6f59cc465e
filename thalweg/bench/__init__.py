"""Measurements anyone can repeat: latency of one batch, throughput over many requests, host cost of the control loop."""
