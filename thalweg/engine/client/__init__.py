"""The client side of the engine: prompts and parameters in, outputs out. It keeps the state of every open request, so a
replacement of a dead engine can continue. Knows no device and no scheduling."""
