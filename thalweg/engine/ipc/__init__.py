"""Frames between processes: msgspec over a private unix socket, arrays as raw bytes, nothing that could run code."""
