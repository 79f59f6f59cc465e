"""Vision and audio encoders, built from `spec.VisionSpec` and `spec.AudioSpec`."""
