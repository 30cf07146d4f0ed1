"""Makes steps of an optimizer in the same way on all backends and in all modes.

A `Runner` owns the variables of one optimizer, takes NumPy gradients and hides the rest:

    runner = Runner(keras_tfopt.Momentum(), {"layer/kernel": values}, mode="compiled")
    runner.step({"layer/kernel": gradient})
    runner.values["layer/kernel"], runner.slots["layer/kernel"]["momentum"]

A gradient is an array, `Rows(values, indices)` for a row gradient, or None.

Modes, and where they exist:

    eager      all         `apply`, op by op, without the engine's fast paths
    fast       TensorFlow  `apply` called eagerly, fast paths on
    compiled   all         TensorFlow: in a tf.function; JAX: jax.jit of `stateless_apply`;
                           torch: `apply`, where the engine itself compiles
    xla        TensorFlow  in a tf.function with jit_compile=True
"""

import contextlib
import importlib.metadata
import json
from typing import NamedTuple

import keras
import numpy as np
import pytest

import keras_tfopt

BACKEND = keras.backend.backend()


def parsed(version):
    """Return a version as (major, minor)."""
    return tuple(map(int, version.split(".")[:2]))


def version_of(package):
    """Return the version of an installed package as (major, minor)."""
    return parsed(importlib.metadata.version(package))


MODES = {
    "tensorflow": ("eager", "compiled", "fast", "xla"),
    "jax": ("eager", "compiled"),
    "torch": ("eager", "compiled"),
}[BACKEND]
# Modes in which a user's call of `apply` runs at once, and can therefore refuse values.
IMMEDIATE = {
    "tensorflow": ("eager", "fast"),
    "jax": ("eager",),
    "torch": ("eager", "compiled"),
}[BACKEND]

every_mode = pytest.mark.parametrize("mode", MODES)
eager_and_compiled = pytest.mark.parametrize("mode", ("eager", "compiled"))
needs_new_xla = pytest.mark.skipif(
    BACKEND == "jax" and version_of("jax") < (0, 10),
    reason="compilers of older versions of JAX store or exchange more arrays",
)
several_only = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this version of Keras has no MultiOptimizer",
)


class Rows(NamedTuple):
    """A row gradient in NumPy: `values[i]` belongs to row `indices[i]`; rows may repeat."""

    values: np.ndarray
    indices: np.ndarray


def make_variable(path, value, dtype="float32"):
    """Return a Keras variable with this path, which may contain slashes."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(np.asarray(value), dtype=dtype, name=name)


@contextlib.contextmanager
def policy(name):
    """A context in which Keras has another policy of data types."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def plain_unless(is_compiled):
    """Return a context in which PyTorch does not compile, which takes longer than all else."""
    return contextlib.nullcontext() if is_compiled else keras_tfopt.engine.plain()


def to_numpy(x):
    """Return a copy as a NumPy array; float32, which is exact, if `x` is in half precision."""
    if keras.backend.standardize_dtype(x.dtype) in ("float16", "bfloat16"):
        x = keras.ops.cast(x, "float32")
    return np.array(keras.ops.convert_to_numpy(x))


def innermost(optimizer):
    """Return the optimizer inside of a wrapper, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def through_json(thing, custom_objects=None):
    """Return what another process would load: a copy made from a configuration in JSON."""
    text = json.dumps(keras.saving.serialize_keras_object(thing), allow_nan=False)
    return keras.saving.deserialize_keras_object(json.loads(text), custom_objects)


def slots_of(optimizer, variable):
    """Return {name: slot} of a variable. Rules may create other slots for other shapes."""
    found = {}
    for name in optimizer.slot_names:
        with contextlib.suppress(KeyError):
            found[name] = optimizer.slot(variable, name)
    return found


class Runner:
    def __init__(self, optimizer, values, mode="eager", dtype="float32"):
        assert mode in MODES, mode
        self.optimizer, self.mode = optimizer, mode
        self.variables = [make_variable(path, value, dtype) for path, value in values.items()]
        optimizer.build(self.variables)
        self.compiled, self.traced = None, 0
        if mode == "compiled" and BACKEND == "jax":
            import jax

            self.compiled = jax.jit(self._stateless)
        if mode in ("compiled", "xla") and BACKEND == "tensorflow":
            import tensorflow as tf

            self.compiled = tf.function(self._apply_flat, jit_compile=mode == "xla")

    # Reading

    @property
    def values(self):
        return {v.path: to_numpy(v) for v in self.variables}

    @property
    def slots(self):
        """{path: {name: array}}. The path is None for slots that all variables share."""
        if innermost(self.optimizer).scope == "model":
            shared = slots_of(self.optimizer, None)
            return {None: {name: to_numpy(slot) for name, slot in shared.items()}}
        owned = {v.path: slots_of(self.optimizer, v) for v in self.variables}
        return {path: {n: to_numpy(s) for n, s in slots.items()} for path, slots in owned.items()}

    def snapshot(self):
        """Return all arrays: variables, and the state of the optimizer."""
        return [to_numpy(v) for v in (*self.variables, *self.optimizer.variables)]

    def traces(self):
        """Return how many programs were built for this runner (torch: in this process) so far."""
        if BACKEND == "tensorflow":
            return self.compiled.experimental_get_tracing_count()
        if BACKEND == "jax":
            return self.traced  # JAX's own count forgets programs, if there are thousands
        from keras_tfopt.engine.backends.torch.compile import compilations

        return compilations()

    # Stepping

    def step(self, gradients):
        """Make a step. Variables whose paths are not in `gradients` get the gradient None."""
        assert set(gradients) <= {v.path for v in self.variables}, list(gradients)
        gradients = [self._lift(gradients.get(v.path), v) for v in self.variables]
        with unwritten(gradients):
            self._step(gradients)

    def minimize(self, gradient, steps):
        """Make steps by `gradient(x)` of the only variable, on JAX all in one compiled program."""
        if BACKEND != "jax":
            (variable,) = self.variables
            for _ in range(steps):
                self.step({variable.path: gradient(keras.ops.convert_to_tensor(variable))})
            return
        import jax

        def step(_, values):
            state, (x,) = values
            new, state = self._stateless(state, [gradient(x)], [x])
            return [list(state), [keras.ops.convert_to_tensor(value) for value in new]]

        values = [[v.value for v in own] for own in (self.optimizer.variables, self.variables)]
        new = jax.jit(lambda values: jax.lax.fori_loop(0, steps, step, values))(values)
        for own, kept in zip((self.optimizer.variables, self.variables), new, strict=True):
            for variable, value in zip(own, kept, strict=True):
                variable.assign(value)

    def _step(self, gradients):
        if self.mode == "eager":
            with keras_tfopt.engine.plain():
                self.optimizer.apply(gradients, self.variables)
        elif self.compiled is None:
            self.optimizer.apply(gradients, self.variables)
        elif BACKEND == "jax":
            trained, state = self.compiled(
                [v.value for v in self.optimizer.variables],
                gradients,
                [v.value for v in self.variables],
            )
            targets = (*self.variables, *self.optimizer.variables)
            for variable, value in zip(targets, (*trained, *state), strict=True):
                variable.assign(value)
        else:
            self.compiled(*_flatten(gradients))

    def _stateless(self, state, gradients, variables):
        self.traced += 1
        return self.optimizer.stateless_apply(state, gradients, variables)

    def _apply_flat(self, kinds, tensors):
        self.optimizer.apply(_unflatten(kinds, tensors, self.variables), self.variables)

    def _lift(self, gradient, variable):
        """Return a gradient in NumPy as what a training loop would pass to `apply`."""
        if gradient is None:
            return None
        if isinstance(gradient, Rows):
            return keras_tfopt.RowGradient(
                keras.ops.convert_to_tensor(gradient.values, dtype=variable.dtype),
                keras.ops.convert_to_tensor(gradient.indices),
                tuple(variable.shape),
            )
        if isinstance(gradient, np.ndarray | np.floating | float):
            return keras.ops.convert_to_tensor(gradient, dtype=variable.dtype)
        return gradient  # is of the backend already


@contextlib.contextmanager
def unwritten(gradients):
    """Assert that this context writes to no gradient. Only tensors of PyTorch can be written."""
    tensors = _flatten(gradients)[1] if BACKEND == "torch" else []
    dense = [x for x in tensors if keras.ops.is_tensor(x) and not x.is_sparse]
    kept = [(tensor, tensor.clone()) for tensor in dense]
    yield
    assert all(bool(((now == before) | (now != now)).all()) for now, before in kept)


def row_pair(case, mode, table, momentum_steps=2):
    """Return two runners in the same state, after some steps: a table, and the same as a kernel."""
    rng = np.random.default_rng(0)
    by_rows = Runner(case.make(), {"embeddings": table}, mode)
    dense = Runner(case.make(), {"kernel": table}, mode)
    for _ in range(momentum_steps):
        g = rng.normal(size=table.shape)
        every_row = Rows(g, np.arange(len(table), dtype="int32"))
        by_rows.step({"embeddings": every_row})
        dense.step({"kernel": g})
    for source, target in zip(by_rows.optimizer.variables, dense.optimizer.variables):
        target.assign(source.value)
    dense.variables[0].assign(by_rows.variables[0].value)
    return by_rows, dense


def _flatten(gradients):
    """Return the kinds of gradients, and their tensors in a list, as a tf.function takes them."""
    kinds, tensors = [], []
    for g in gradients:
        if g is None:
            kinds.append("none")
        elif isinstance(g, keras_tfopt.RowGradient):
            kinds.append("rows")
            tensors += [g.values, g.indices]
        else:
            kinds.append("dense")
            tensors.append(g)
    return tuple(kinds), tensors


def _unflatten(kinds, tensors, variables):
    tensors = iter(tensors)
    gradients = []
    for kind, variable in zip(kinds, variables, strict=True):
        if kind == "none":
            gradients.append(None)
        elif kind == "rows":
            values, indices = next(tensors), next(tensors)
            gradients.append(keras_tfopt.RowGradient(values, indices, tuple(variable.shape)))
        else:
            gradients.append(next(tensors))
    return gradients
