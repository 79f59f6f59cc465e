"""Files, and batches of requests that are read from them and answered into them."""
