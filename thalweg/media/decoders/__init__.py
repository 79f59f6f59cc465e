"""Media decoders in separate processes: for each kind its tasks and error messages, and the process that runs them."""
