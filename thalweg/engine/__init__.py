"""The engine: control (what to run next), worker (running it), ipc (between processes), client (who asked)."""
