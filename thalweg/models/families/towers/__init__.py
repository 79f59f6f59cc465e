"""Encoders of images, a file each: from a configuration to a `VisionSpec`."""
