"""Makes this package look absent: Keras imports it where it is installed, which takes seconds."""

raise ImportError("hidden by tests/hidden")
