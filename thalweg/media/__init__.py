"""What is no text in a request: where it may come from (`gate`), how it is read in a process of its own (`images`, `sound`),
and what a model makes of it (`processors`)."""
