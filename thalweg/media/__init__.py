"""What is no text in a request: where it may come from (`gate`), how it is read (`images`, in a process of its own), and what a
model makes of it (`processors`)."""
