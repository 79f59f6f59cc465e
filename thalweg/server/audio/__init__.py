"""Routes that hear."""
