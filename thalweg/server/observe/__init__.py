"""What the server tells of itself: metrics, and the line in the log."""
