"""Benchmarks: ratios to a named peer, measured side by side in one process."""
