"""One package for each backend of Keras; `select` imports the one in use."""
