"""Several models behind one address: which are in memory, and where a request goes."""
