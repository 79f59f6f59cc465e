"""How arguments are read: a machine for each way of writing them."""
