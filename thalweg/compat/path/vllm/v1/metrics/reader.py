"""Names of vllm.v1.metrics.reader, served by thalweg (thalweg.compat)."""

from thalweg.offline.metrics import Counter, Gauge, Metric, Vector

__all__ = ["Counter", "Gauge", "Metric", "Vector"]
