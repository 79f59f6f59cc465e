"""What every dialect shares: admission, the probes and the end, and running requests on the engine. Knows no dialect."""
