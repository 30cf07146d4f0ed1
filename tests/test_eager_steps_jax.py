"""Steps outside of `jit` on JAX: what has been compiled once is not compiled again."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cells import exhaustive

pytestmark = pytest.mark.backends("jax", reason="JAX tells what it compiles")

MAKERS = {
    "Adam": lambda: keras_tfopt.Adam(),
    "GGT": lambda: keras_tfopt.GGT(window=2),
    "Muon": lambda: keras_tfopt.Muon(),
    "Shampoo": lambda: keras_tfopt.Shampoo(svd_interval=2, use_iterative_root=True),
    "DistributedShampoo": lambda: keras_tfopt.DistributedShampoo(precondition_frequency=2),
    "SOAP": lambda: keras_tfopt.SOAP(precondition_frequency=2),
}


@pytest.fixture(scope="module")
def compilations():
    """The events of JAX's compiler from now on."""
    import jax

    events = []

    def note(event, seconds, **details):
        if event.startswith("/jax/core/compile"):
            events.append((event, details))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield events
    jax.monitoring.clear_event_listeners()


@pytest.mark.parametrize(
    "name",
    ["Adam", "GGT", "Shampoo", *map(exhaustive, ("Muon", "DistributedShampoo", "SOAP"))],
)
def test_later_steps_compile_nothing(name, compilations):
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.standard_normal((12, 8)), dtype="float32", name="kernel")]
    gradients = [keras.ops.convert_to_tensor(random.standard_normal((12, 8)), "float32")]
    optimizer = MAKERS[name]()
    optimizer.build(variables)
    compilations.clear()
    for _ in range(6):
        optimizer.apply(gradients, variables)
    assert compilations
    compilations.clear()
    for _ in range(4):
        optimizer.apply(gradients, variables)
    assert not compilations
