"""Describe, create, encode and convert the state of optimizers."""
