"""Programs around the package: replay of recordings, training runs, benchmarks."""
