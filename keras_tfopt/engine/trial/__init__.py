"""Try rules and hooks when an optimizer is built, before anything changes."""
