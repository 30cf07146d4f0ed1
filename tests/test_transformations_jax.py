"""Steps inside of JAX's own transformations: `vmap`, `scan` and `grad`."""

import keras
import numpy as np
import pytest

import keras_tfopt

pytestmark = pytest.mark.backends("jax", reason="they are JAX's")


def stepper(optimizer, *shapes):
    """Return a function from a scale of fixed gradients to new variables, and what it needs."""
    import jax

    random = np.random.default_rng(0)
    names = ("kernel", "embeddings")
    variables = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in zip(names, shapes, strict=True)
    ]
    optimizer.build(variables)
    x, state = [v.value for v in variables], [v.value for v in optimizer.variables]
    gradients = [jax.numpy.asarray(random.normal(size=shape), "float32") for shape in shapes]

    def step(scale, x=x, state=state):
        return optimizer.stateless_apply(state, [scale * g for g in gradients], x)

    return step, x, state


MAKERS = {
    "Momentum": lambda **options: keras_tfopt.Momentum(0.1, 0.9, **options),
    "LAMB": lambda **options: keras_tfopt.LAMB(0.1, **options),
    "ScheduleFree": lambda **options: keras_tfopt.ScheduleFree(keras_tfopt.Adam(0.1, **options)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_steps_in_scan_and_vmap(name):
    import jax

    step, x, state = stepper(MAKERS[name](), (4, 3), (5, 2))
    expected = []
    for scale in (1.0, 0.5):
        one = x, state
        for n in range(3):
            one = step(scale + n, *one)
        expected.append(one[0])

    def three(scale):
        def body(carry, n):
            return step(scale + n, *carry), None

        return jax.lax.scan(body, (x, state), jax.numpy.arange(3.0))[0][0]

    for several, *singles in zip(jax.vmap(three)(jax.numpy.array([1.0, 0.5])), *expected):
        np.testing.assert_allclose(several, np.stack(singles), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_through_a_step(name):
    import jax

    step, *_ = stepper(MAKERS[name](row_variables=None), (4, 3), (5, 2))

    def loss(scale):
        return sum(jax.numpy.sum(x**2) for x in step(scale)[0])

    by_differences = (loss(1.31) - loss(1.29)) / 0.02
    np.testing.assert_allclose(jax.grad(loss)(1.3), by_differences, rtol=5e-3, atol=1e-3)


def test_gradients_through_a_step_that_moves_rows_alone():
    """docs/limits.md says so."""
    import jax

    step, *_ = stepper(MAKERS["Momentum"](), (4, 3), (5, 2))
    with pytest.raises(ValueError, match="while_loop"):
        jax.grad(lambda scale: sum(jax.numpy.sum(x) for x in step(scale)[0]))(1.3)
