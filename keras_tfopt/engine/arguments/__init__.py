"""Check the arguments and options of optimizers, keep them, and choose those of each variable."""
