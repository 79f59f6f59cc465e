"""The client side of the engine: prompts and parameters in, outputs out. It owns the truth of every open request, so an
engine that died can be asked to continue. Knows no device and no scheduling."""
