"""The server's metrics, and its line in the log."""
