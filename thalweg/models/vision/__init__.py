"""Encoders of images, computed as `spec.Vision` declares them."""
