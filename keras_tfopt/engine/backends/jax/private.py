"""Names that JAX keeps private or has moved, each with the reason for it; seen with JAX 0.10."""

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # where it was in JAX 0.6
    from jax.core import get_opaque_trace_state

# Equal within one trace. A lookup must know whether the table was looked up in the same trace
# before: gradients of several traces cannot be summed up in the notes.
__all__ = ["get_opaque_trace_state"]
