"""Files of media, decoded in processes of their own: for each kind its tasks and words, and the process that does them."""
