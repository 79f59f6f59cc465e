"""Model files: the one place that finds, reads and distrusts them. No tensor framework, no device, no model code."""
