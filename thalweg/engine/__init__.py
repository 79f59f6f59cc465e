"""The engine: control (schedules steps), worker (runs them), ipc (between processes), client (owns requests)."""
