"""A reference of parameter groups in NumPy, with variables and a small network."""

import re

import keras
import numpy as np

import keras_tfopt
from keras_tfopt.wrappers.decay import Decay
from tests.reference import Reference

START = {"a/kernel": np.full((3, 2), 2.0), "a/bias": np.ones(2), "b/kernel": np.full(2, 3.0)}
GRADIENTS = {path: np.full_like(value, 0.5) for path, value in START.items()}


def hyperparameters_of(case):
    """Return {name: a smaller value} of hyperparameters that groups may set."""
    optimizer = case.make()
    rule = keras_tfopt.engine.innermost(optimizer)
    fields = [] if rule.scope == "model" else list(rule._fields)
    values = {name: getattr(rule, name) for name in fields}
    if isinstance(optimizer, Decay):
        values["weight_decay"] = optimizer.weight_decay
    return {name: 0.9 * value for name, value in values.items() if type(value) is float}


class Grouped(Reference):
    """The reference of a Case with other arguments for some variables.

    Args:
        case: The Case.
        groups: Settings by regular expression, which are arguments and `learning_rate_factor`.
    """

    def __init__(self, case, groups):
        self._case, self._groups, self._references = case, groups, {}
        self._alone = case.scope != "model"
        self.divides_by_curvature = case.reference.divides_by_curvature

    def _settings(self, path):
        chosen = [s for pattern, s in self._groups.items() if re.search(pattern, path)]
        return {name: value for settings in chosen for name, value in settings.items()}

    def _reference(self, path):
        settings = self._settings(path)
        factor = settings.pop("learning_rate_factor", 1.0)
        arguments = {**self._case.variants[self._case.main], **settings}
        reference = self._case.reference(**arguments)
        reference.learning_rate = reference.learning_rate * factor
        return reference

    def start(self, x):
        if not self._alone:
            self._references = {None: self._case.make_reference()}
            return self._references[None].start(x)
        self._references = {path: self._reference(path) for path in x}
        return {path: self._references[path].slots(value) for path, value in x.items()}

    def advance(self, gradients, x, s, step):
        if not self._alone:
            return self._advance_together(gradients, x, s, step)
        new = {}
        for path, reference in self._references.items():
            own = {path: gradients[path]} if path in gradients else {}
            new[path] = reference.advance(own, {path: x[path]}, {path: s[path]}, step)
        return {p: n[0][p] for p, n in new.items()}, {p: n[1][p] for p, n in new.items()}

    def _advance_together(self, gradients, x, s, step):
        """Make a step of a rule over all variables, and scale the step of each variable."""
        moved, s = self._references[None].advance(gradients, x, s, step)
        for path, value in moved.items():
            factor = self._settings(path).get("learning_rate_factor", 1.0)
            moved[path] = x[path] + factor * (value - x[path])
        return moved, s


def network():
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3, name="embedding"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="dense"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, name="head"),
        ]
    )
    random = np.random.default_rng(0)
    model.set_weights([random.uniform(0.1, 1, size=w.shape) for w in model.get_weights()])
    return model


DATA = np.arange(24).reshape(6, 4) % 6, np.arange(12.0).reshape(6, 2)
