"""Optimizers inside of others, in branches, and at the edges of their numbers, in graphs.

    python integration/tf1/compositions.py OUT [MODULE]

It runs on TensorFlow 1.15.5, and on that of today with the optimizers of MODULE,
`keras_tfopt.legacy`. OUT gets an archive with the variables of each of `SCENARIOS` after each step,
one upon the other, as `<scenario>/<kind of variables>/<variable>`.
"""

import importlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

KINDS = ("reference", "resource")


# ---- Scenarios -----------------------------------------------------------------------------------


class Scenario:
    """Prescribed gradients, and the optimizer that gets them.

    Args:
        make: Function that makes it from the modules with `tf.train` and contrib's optimizers, the
            variable that counts steps, and the variables by name.
        start: Initial values by name of the variable.
        steps: For each step, gradients by name of the variable: arrays, or pairs of rows and their
            indices.
        within: How steps are made: plainly, in a branch of `tf.cond`, or by
            `DropStaleGradientOptimizer`.
        decayed: Names of the variables in `decay_var_list`; None leaves that out.
        minimized: Whether steps are made by `minimize`, or by `apply_gradients`.
    """

    def __init__(self, make, start, steps, within="plain", decayed=None, minimized=False):
        self.make, self.start, self.steps, self.within = make, start, steps, within
        self.decayed, self.minimized = decayed, minimized


def array(*numbers):
    return np.array(numbers, "float32")


def rules(train, opt, step):
    """An optimizer of each rule."""
    return {
        "Adadelta": train.AdadeltaOptimizer(0.5),
        "Adagrad": train.AdagradOptimizer(0.5),
        "AdagradDA": train.AdagradDAOptimizer(0.5, step),
        "Adam": train.AdamOptimizer(0.5),
        "Ftrl": train.FtrlOptimizer(0.5),
        "GradientDescent": train.GradientDescentOptimizer(0.1),
        "Momentum": train.MomentumOptimizer(0.1, 0.9),
        "ProximalAdagrad": train.ProximalAdagradOptimizer(0.5),
        "ProximalGradientDescent": train.ProximalGradientDescentOptimizer(0.1),
        "RMSProp": train.RMSPropOptimizer(0.5, centered=True, momentum=0.5),
        "AdaMax": opt.AdaMaxOptimizer(0.5),
        "AdamGS": opt.AdamGSOptimizer(step, 0.5),
        "AddSign": opt.AddSignOptimizer(),
        "GGT": opt.GGTOptimizer(0.1),
        "LARS": opt.LARSOptimizer(0.1),
        "LazyAdam": opt.LazyAdamOptimizer(0.5),
        "LazyAdamGS": opt.LazyAdamGSOptimizer(step, 0.5),
        "Nadam": opt.NadamOptimizer(0.5),
        "PowerSign": opt.PowerSignOptimizer(),
        "RegAdagrad": opt.RegAdagradOptimizer(0.5),
        "Shampoo": opt.ShampooOptimizer(step, learning_rate=0.1, svd_interval=2),
    }


RULES = (
    "Adadelta Adagrad AdagradDA Adam Ftrl GradientDescent Momentum ProximalAdagrad "
    "ProximalGradientDescent RMSProp AdaMax AdamGS AddSign GGT LARS LazyAdam LazyAdamGS Nadam "
    "PowerSign RegAdagrad Shampoo"
).split()
# Whose originals take no rows of resource variables, none in a wrapper, or do nothing with them.
DENSE = ("AddSign", "GGT", "PowerSign", "Shampoo")

FIRST, SECOND, TABLE = array(1, 2), array(3, -1), array(1, 2, 3, 4, 5, 6).reshape(3, 2)
START = {"a": FIRST, "b": SECOND, "table": TABLE}
ROWS = array(0.5, -1, 0.25, 2).reshape(2, 2)
# Two tasks in turns: a variable of the other task, a row that cancels, and no rows at all.
TASKS = [
    {"a": array(0.5, -1), "b": array(1, 1), "table": (ROWS, [0, 2])},
    {"a": array(0, 0), "b": array(-2, 0.5), "table": (array(1, 2, -1, -2).reshape(2, 2), [1, 1])},
    {"a": array(2, 1), "b": array(0, 0), "table": (ROWS * 0, [0, 1])},
    {"a": array(1, -1), "b": array(0.5, 0), "table": (ROWS, [2, 2])},
]
WITHOUT_ROWS = [{name: g for name, g in step.items() if name != "table"} for step in TASKS]


def _rule(name, within):
    def make(train, opt, step, variables):
        made = rules(train, opt, step)[name]
        return opt.MultitaskOptimizerWrapper(made) if within == "multitask" else made

    steps = WITHOUT_ROWS if name in DENSE else TASKS
    start = {key: START[key] for key in steps[0]}
    return Scenario(make, start, steps, "plain" if within == "multitask" else within)


SCENARIOS = {
    f"{within}, {name}": _rule(name, within)
    for within in ("multitask", "branch", "stale")
    for name in (RULES if within != "stale" else ("Adam", "Ftrl", "LARS", "RegAdagrad"))
}


def _extended(base):
    def make(train, opt, step, variables):
        arguments = {"learning_rate": 0.1, **({"momentum": 0.9} if base == "Momentum" else {})}
        source = train if hasattr(train, f"{base}Optimizer") else opt
        cls = opt.extend_with_decoupled_weight_decay(getattr(source, f"{base}Optimizer"))
        return cls(0.1, **arguments)

    return make


DECAYED = {
    "AdamW": lambda train, opt, step, variables: opt.AdamWOptimizer(0.1, learning_rate=0.1),
    "MomentumW": lambda train, opt, step, variables: opt.MomentumWOptimizer(
        0.1, learning_rate=0.1, momentum=0.9
    ),
    "extended GradientDescent": _extended("GradientDescent"),
    "extended Adagrad": _extended("Adagrad"),
    "extended LazyAdam": _extended("LazyAdam"),
}


def _multitask(make):
    return lambda train, opt, step, variables: opt.MultitaskOptimizerWrapper(
        make(train, opt, step, variables)
    )


for _name, _make in DECAYED.items():
    SCENARIOS[f"decay, {_name}"] = Scenario(_make, START, TASKS)
    SCENARIOS[f"decay of some, {_name}"] = Scenario(_make, START, TASKS, decayed=["a", "table"])
    SCENARIOS[f"multitask, {_name}"] = Scenario(_multitask(_make), START, TASKS)
    SCENARIOS[f"decay of some by minimize, {_name}"] = Scenario(
        _make, {"a": FIRST, "b": SECOND}, WITHOUT_ROWS, decayed=["a"], minimized=True
    )


def _clipped(train, opt, step, variables):
    adagrad = train.AdagradOptimizer(0.5)
    return opt.VariableClippingOptimizer(
        adagrad, {variables["a"]: [0], variables["table"]: [1]}, 1.0
    )


# No rows that repeat, which the original clips as often.
_ONCE = [TASKS[0], TASKS[2], {**TASKS[3], "table": (ROWS, [2, 1])}]
for _within in ("plain", "branch", "stale"):
    SCENARIOS[f"clipping, {_within}"] = Scenario(_clipped, START, _ONCE, _within)
SCENARIOS["clipping, minimized"] = Scenario(_clipped, START, _ONCE, minimized=True)


# ---- Names ---------------------------------------------------------------------------------------


def _lars(skipped):
    def make(train, opt, step, variables):
        return opt.LARSOptimizer(0.1, weight_decay=0.1, skip_list=skipped(variables))

    return Scenario(make, {"a": FIRST, "b": SECOND}, WITHOUT_ROWS)


SCENARIOS["skipped by full names"] = _lars(lambda variables: [variables["b"].name])
SCENARIOS["skipped by parts of names"] = _lars(lambda variables: ["b"])
SCENARIOS["skipped by the end of names"] = _lars(lambda variables: [":0"])


# ---- Shapes --------------------------------------------------------------------------------------


def _shampoo(shape, seed, **arguments):
    def make(train, opt, step, variables):
        return opt.ShampooOptimizer(step, learning_rate=0.1, **arguments)

    random = np.random.RandomState(seed)
    steps = [{"w": random.randn(*shape).astype("float32")} for _ in range(3)]
    return Scenario(make, {"w": random.randn(*shape).astype("float32")}, steps)


SCENARIOS["shampoo, many rows"] = _shampoo((800, 3), 0)
SCENARIOS["shampoo, many columns"] = _shampoo((3, 40), 1, max_matrix_size=20, svd_interval=2)
SCENARIOS["shampoo, a long vector"] = _shampoo((40,), 2, max_matrix_size=20)
SCENARIOS["shampoo, averages"] = _shampoo(
    (5, 2, 6), 3, max_matrix_size=4, gbar_decay=0.5, mat_gbar_decay=0.5, precond_update_interval=2
)


# ---- Edges of numbers ----------------------------------------------------------------------------

EDGES = {
    "Adam": lambda train, opt, step: train.AdamOptimizer(0.5, epsilon=0.0),
    "AdaMax": lambda train, opt, step: opt.AdaMaxOptimizer(0.5, epsilon=0.0),
    "AdamGS": lambda train, opt, step: opt.AdamGSOptimizer(step, 0.5, epsilon=0.0),
    "LazyAdam": lambda train, opt, step: opt.LazyAdamOptimizer(0.5, epsilon=0.0),
    "LazyAdamGS": lambda train, opt, step: opt.LazyAdamGSOptimizer(step, 0.5, epsilon=0.0),
    "Nadam": lambda train, opt, step: opt.NadamOptimizer(0.5, epsilon=0.0),
    "RMSProp": lambda train, opt, step: train.RMSPropOptimizer(0.5, decay=0.0, epsilon=0.0),
}


def _edge(make, steps):
    return Scenario(lambda t, o, step, v: make(t, o, step), {"a": FIRST}, steps)


for _name, _make in EDGES.items():
    SCENARIOS[f"no epsilon, {_name}"] = _edge(_make, [{"a": array(0, 1)}, {"a": array(0, 2)}])


def _named(name):
    return lambda train, opt, step: rules(train, opt, step)[name]


for _name in RULES:
    if _name not in ("GGT", "Shampoo"):  # refused there
        for _edge_kind, _number in (("not a number", np.nan), ("overflow", 1e25)):
            _steps = [{"a": array(_number, 1)}, {"a": array(1, 1)}]
            SCENARIOS[f"{_edge_kind}, {_name}"] = _edge(_named(_name), _steps)


# ---- Graphs --------------------------------------------------------------------------------------


def run(tf, train, opt, scenario, kind):
    """The variables after each step, in a graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        variables = {
            name: tf.get_variable(name, initializer=value, use_resource=kind == "resource")
            for name, value in scenario.start.items()
        }
        fed, pairs = {}, []
        for name, g in scenario.steps[0].items():
            if isinstance(g, tuple):
                values = tf.placeholder("float32", [None, *g[0].shape[1:]])
                indices = tf.placeholder("int64", [None])
                fed[name] = values, indices
                shape = tf.constant(scenario.start[name].shape, "int64")
                gradient = tf.IndexedSlices(values, indices, shape)
            else:
                fed[name] = gradient = tf.placeholder("float32", g.shape)
            pairs.append((gradient, variables[name]))
        more = {}
        if scenario.decayed is not None:
            more["decay_var_list"] = [variables[name] for name in scenario.decayed]
        optimizer = scenario.make(train, opt, step, variables)

        def loss():
            """Whose gradients are the prescribed ones."""
            parts = []
            for gradient, variable in pairs:
                if hasattr(gradient, "indices"):
                    found = tf.gather(variable, gradient.indices)
                    parts.append(tf.reduce_sum(gradient.values * found))
                else:
                    parts.append(tf.reduce_sum(gradient * variable))
            return tf.add_n(parts)

        def apply():
            with tf.control_dependencies([optimizer.apply_gradients(pairs, global_step=step)]):
                return tf.constant(1.0)

        if scenario.within == "stale":
            stale = opt.DropStaleGradientOptimizer(optimizer, 1)
            training = stale.minimize(loss(), global_step=step)
        elif scenario.within == "branch":
            total = sum(tf.reduce_sum(getattr(g, "values", g)) for g, _ in pairs)
            training = tf.cond(total > -1e30, apply, lambda: tf.constant(0.0))
        elif scenario.minimized:
            training = optimizer.minimize(loss(), global_step=step, **more)
        else:
            training = optimizer.apply_gradients(pairs, global_step=step, **more)
        session.run(tf.global_variables_initializer())
        after = []
        for gradients in scenario.steps:
            values = {}
            for name, g in gradients.items():
                values.update(zip(fed[name], g) if isinstance(g, tuple) else [(fed[name], g)])
            session.run(training, values)
            after.append(session.run(variables))
        return after


def main(out, module=None):
    import tensorflow

    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    train = opt = importlib.import_module(module) if module else None
    if module is None:
        from tensorflow.contrib import opt

        train = tf.train
    found = {}
    for name, scenario in SCENARIOS.items():
        for kind in KINDS:
            steps = run(tf, train, opt, scenario, kind)
            for variable in scenario.start:
                found[f"{name}/{kind}/{variable}"] = np.stack([step[variable] for step in steps])
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
