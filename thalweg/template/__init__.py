"""Chat templates: messages in, a prompt out, rendered in a process that can do no harm. Imports no tensor framework."""
