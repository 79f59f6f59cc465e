"""Files, and batches: requests read from a file, with answers written to files."""
