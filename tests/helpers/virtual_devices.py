"""Split the CPU into several devices for JAX, in a program that has not used JAX yet."""

import os


def flags(count):
    """Return `XLA_FLAGS` with this number of devices, and what else stands there."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"


def use(count):
    os.environ["XLA_FLAGS"] = flags(count)
