"""Names that JAX keeps private or has moved, each with the reason for it; seen with JAX 0.10."""

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # where it was in JAX 0.6
    from jax.core import get_opaque_trace_state

# It returns a value that is equal within one trace. Lookups must know whether the last lookup in a
# table was in the same trace, because notes cannot sum gradients of several traces.
__all__ = ["get_opaque_trace_state"]
