"""Optimizers over workers by their names in TensorFlow 1: steps, state and errors."""

import inspect
import json
import re
import types

import numpy as np
import pytest
from keras import ops

import keras_tfopt
from integration.in_process import InProcess
from keras_tfopt import legacy
from tests.helpers import threads
from tests.helpers.paths import ROOT, SIGNATURES
from tests.helpers.stepping import to_numpy
from tests.helpers.verbs import counter, variable

GETTERS = {
    "AGNOptimizer": "AGNCustomGetter",
    "ElasticAverageOptimizer": "ElasticAverageCustomGetter",
    "ModelAverageOptimizer": "ModelAverageCustomGetter",
}


def inner():
    return legacy.MomentumOptimizer(0.1, 0.9)


def getter(name):
    return getattr(legacy, GETTERS[name])("/job:worker/task:0")


MAKE = {
    "AGNOptimizer": lambda opt, workers=1: legacy.AGNOptimizer(
        opt, workers, getter("AGNOptimizer"), 2
    ),
    "DropStaleGradientOptimizer": lambda opt, workers=1: legacy.DropStaleGradientOptimizer(opt, 0),
    "ElasticAverageOptimizer": lambda opt, workers=1: legacy.ElasticAverageOptimizer(
        opt, workers, getter("ElasticAverageOptimizer"), 2, synchronous=True
    ),
    "ModelAverageOptimizer": lambda opt, workers=1: legacy.ModelAverageOptimizer(
        opt, workers, True, getter("ModelAverageOptimizer"), 2
    ),
    "SyncReplicasOptimizer": lambda opt, workers=1: legacy.SyncReplicasOptimizer(opt, workers),
}
every_name = pytest.mark.parametrize("name", MAKE)


@pytest.fixture(autouse=True)
def plainly():
    with keras_tfopt.engine.plain():
        yield


# Steps


@every_name
def test_a_single_worker_steps_as_the_optimizer_inside(name):
    x, alike = variable(), variable(name="alike")
    ours, plain, step = MAKE[name](inner()), inner(), counter()
    for scale in (1.0, -0.5, 2.0, 0.25, 1.0):
        ours.minimize(lambda: ops.sum(x * x) * scale, global_step=step, var_list=[x])  # noqa: B023
        plain.minimize(lambda: ops.sum(alike * alike) * scale, var_list=[alike])  # noqa: B023
    np.testing.assert_array_equal(to_numpy(x), to_numpy(alike))
    assert ours.get_slot_names() == plain.get_slot_names() == ["momentum"]
    np.testing.assert_array_equal(
        to_numpy(ours.get_slot(x, "momentum")), to_numpy(plain.get_slot(alike, "momentum"))
    )
    assert [v.shape for v in ours.variables()] == [v.shape for v in plain.variables()]
    # Some count exchanges, one in two steps. The others count steps.
    assert int(step) == (2 if name in GETTERS else 5)
    assert ours.get_name() == ours.keras.name


@every_name
def test_compiled_steps_are_the_same(name):
    ends = []
    for compiled in (False, True):
        x, step, optimizer = variable(), counter(), MAKE[name](inner())
        for _ in range(4):
            optimizer.minimize(
                lambda: ops.sum(x * x),  # noqa: B023
                global_step=step,
                var_list=[x],
                compiled=compiled,
            )
        ends.append((to_numpy(x), int(step)))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6)
    assert ends[0][1] == ends[1][1] == (2 if name in GETTERS else 4)


@pytest.mark.parametrize("name", [name for name in MAKE if name != "DropStaleGradientOptimizer"])
def test_two_workers(name):
    """Two workers in threads equal two workers that `InProcess` simulates."""

    def grad(rank, step):
        return np.random.default_rng(10 * rank + step).normal(size=2).astype("f")

    def program(exchange):
        with keras_tfopt.engine.plain():
            x, step = variable(np.array([1.0, 2.0]) + exchange.rank), counter()
            optimizer = MAKE[name](inner(), workers=2)
            optimizer.keras._given_exchange = exchange
            for number in range(5):
                pair = (ops.convert_to_tensor(grad(exchange.rank, number)), x)
                new = optimizer.apply_gradients([pair], global_step=step)
            assert int(new) == int(step)
            return to_numpy(x), int(step)

    ends = threads.run(2, program)
    method = MAKE[name](inner(), workers=2).keras
    run = InProcess(method, 2, {"x": np.float32([1.0, 2.0])}, synchronous=True)
    for number in range(5):
        for rank in range(2):
            run.step(rank, [grad(rank, number)])
    for site, (x, step) in zip(run.workers, ends):
        np.testing.assert_allclose(x, site.values["x"], rtol=1e-5)
        assert step == run.global_step


def test_a_gradient_is_as_old_as_its_computation():
    x, step = variable(), counter()
    optimizer = legacy.DropStaleGradientOptimizer(legacy.GradientDescentOptimizer(0.1), 1)

    def compute():
        return optimizer.compute_gradients(lambda: ops.sum(x), var_list=[x])

    returned = [optimizer.apply_gradients(compute(), global_step=step) for _ in range(2)]
    old = compute()
    returned += [optimizer.apply_gradients(old, global_step=step) for _ in range(3)]
    # The gradients of `old` are two steps old at their third use, and are dropped.
    assert [float(r) for r in returned] == [0, 0, 0, 0, 1]
    assert int(step) == 4
    np.testing.assert_allclose(to_numpy(x), [0.6, 1.6], rtol=1e-6)


def test_maps_of_a_getter_hold_copies_of_variables():
    """They are filled by the first step."""
    x, step = variable(), counter()
    maps = {
        "AGNOptimizer": {"_global_map": "center", "_grad_map": "gradient_sum"},
        "ElasticAverageOptimizer": {"_global_map": "center", "_local_map": "local_center"},
    }
    for name, attributes in maps.items():
        given = getter(name)
        assert given(lambda *args: args, "v", 3) == ("v", 3)
        cls = getattr(legacy, name)
        optimizer = cls(inner(), 1, given)
        assert given._global_map == {}
        optimizer.apply_gradients([(np.ones(2, "f"), x)])
        for attribute, slot in attributes.items():
            assert getattr(given, attribute)["x"] is optimizer.keras.slot(x, slot)
            assert optimizer.get_slot(x, slot) is optimizer.keras.slot(x, slot)
    given = getter("ModelAverageOptimizer")
    optimizer = legacy.ModelAverageOptimizer(inner(), 1, False, given)
    optimizer.apply_gradients([(np.ones(2, "f"), x)], global_step=step)
    assert given._local_2_global == {"x": x}


def test_the_center_is_saved_under_the_names_of_the_variables(tmp_path):
    x = variable()
    optimizer = legacy.ElasticAverageOptimizer(inner(), 1, None, 2)
    with pytest.raises(RuntimeError, match="no center yet"):
        optimizer.swapping_saver()
    for _ in range(3):
        optimizer.apply_gradients([(np.ones(2, "f"), x)])
    center = to_numpy(optimizer.get_slot(x, "center"))
    assert (center != to_numpy(x)).all()
    saver = optimizer.swapping_saver(name="mine", max_to_keep=3)
    path = saver.save(None, str(tmp_path / "center.npz"))
    with np.load(path) as file:
        np.testing.assert_array_equal(file["x"], center)
        np.testing.assert_array_equal(file["x/local"], to_numpy(x))
    with pytest.raises(TypeError, match="no arguments"):
        optimizer.swapping_saver(nothing=3)
    with pytest.raises(ValueError, match="have a center.*'y'"):
        optimizer.swapping_saver([variable(name="y")])


def test_averages_of_variables():
    """`variable_averages` keeps averages of `variables_to_average` alone."""
    x, y, step = variable(), variable(name="y"), counter()
    decay = types.SimpleNamespace(_decay=0.5)  # like a tf.train.ExponentialMovingAverage
    optimizer = legacy.SyncReplicasOptimizer(legacy.GradientDescentOptimizer(1.0), 1, 1, decay, [x])
    optimizer.apply_gradients([(np.ones(2, "f"), x), (np.ones(2, "f"), y)], global_step=step)
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "average")), [0.5, 1.5])
    assert optimizer.get_slot(y, "average") is None
    # As in the original, `variables_to_average` has no effect without averages.
    legacy.SyncReplicasOptimizer(inner(), 1, variables_to_average=[x])


# Errors


@every_name
def test_gradients_that_are_missing(name):
    """Missing gradients, and a missing `global_step` that is needed, are refused."""
    optimizer, x, step = MAKE[name](inner()), variable(), counter()
    with pytest.raises(ValueError, match="at least one"):
        optimizer.apply_gradients([], global_step=step)
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply_gradients([(None, x)], global_step=step)
    if name in ("ModelAverageOptimizer", "SyncReplicasOptimizer"):
        with pytest.raises(ValueError, match=f"`global_step` of {name}.*None"):
            optimizer.apply_gradients([(np.ones(2, "f"), x)])
    else:
        optimizer.apply_gradients([(np.ones(2, "f"), x)])


@pytest.mark.parametrize("name", GETTERS)
def test_numbers_of_workers(name):
    """`num_worker` must be the number of workers that are connected."""
    with pytest.raises(ValueError, match=r"`num_worker`.*connected, 1\. Received: 2.*connect\(\)"):
        MAKE[name](inner(), workers=2).apply_gradients(
            [(np.ones(2, "f"), variable())], global_step=counter()
        )
    with pytest.raises(ValueError, match="`num_worker`.*>= 1.*0"):
        MAKE[name](inner(), workers=0)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: legacy.AGNOptimizer(3, 1, None), TypeError, "`optimizer` must be an optimizer"),
        (lambda: legacy.AGNOptimizer(inner(), 1, 3), TypeError, "`custom_getter`.*AGNCustom"),
        (lambda: legacy.AGNOptimizer(inner(), 1, None, 0), ValueError, "`communication_period`"),
        (lambda: legacy.AGNCustomGetter(3), TypeError, "`worker_device`"),
        (
            lambda: legacy.ElasticAverageOptimizer(inner(), 1, None, 2, synchronous="yes"),
            TypeError,
            "`synchronous`",
        ),
        (lambda: legacy.ElasticAverageOptimizer(inner(), 1, None, 2, "x"), TypeError, "moving_"),
        (lambda: legacy.ModelAverageOptimizer(inner(), 1, "yes", None), TypeError, "`is_chief`"),
        (
            lambda: legacy.ModelAverageOptimizer(inner(), 1, True, None, 0),
            ValueError,
            "`interval_steps`",
        ),
        (lambda: legacy.DropStaleGradientOptimizer(inner(), "x"), TypeError, "`staleness`"),
        (lambda: legacy.SyncReplicasOptimizer(inner(), 0), ValueError, "`replicas_to_aggregate`"),
        (
            lambda: legacy.SyncReplicasOptimizer(inner(), 2).apply_gradients(
                [(np.ones(2, "f"), variable())], global_step=counter()
            ),
            ValueError,
            "number of workers, 1",
        ),
    ],
)
def test_refused_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


# Methods that are meant for graphs and sessions


def test_get_init_op():
    """It returns None, and checks its arguments."""
    for name in ("AGNOptimizer", "ElasticAverageOptimizer"):
        assert MAKE[name](inner()).get_init_op(0) is None
        with pytest.raises(ValueError, match="`task_index`"):
            MAKE[name](inner()).get_init_op(-1)
    assert MAKE["ModelAverageOptimizer"](inner()).get_init_op() is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AGNOptimizer", (True, 0)),
        ("ElasticAverageOptimizer", (True, 0)),
        ("ModelAverageOptimizer", ()),
        ("SyncReplicasOptimizer", (True,)),
    ],
)
def test_hooks_of_sessions(name, arguments):
    """The error says to call `connect` instead."""
    with pytest.raises(NotImplementedError, match=r"keras_tfopt\.distributed\.connect\(\)"):
        MAKE[name](inner()).make_session_run_hook(*arguments)


def test_tokens_and_queues():
    """Tokens have no effect, and queues are refused. Both are asked for after the first step."""
    x, step = variable(), counter()
    optimizer = legacy.SyncReplicasOptimizer(inner(), 1)
    for method in ("get_chief_queue_runner", "get_init_tokens_op"):
        with pytest.raises(ValueError, match=f"`{method}` should be called after"):
            getattr(optimizer, method)()
    optimizer.apply_gradients([(np.ones(2, "f"), x)], global_step=step)
    assert optimizer.get_init_tokens_op() is optimizer.get_init_tokens_op(0) is None
    with pytest.raises(NotImplementedError, match="no queues.*connect"):
        optimizer.get_chief_queue_runner()
    optimizer = legacy.SyncReplicasOptimizer(inner(), 3, 1)
    optimizer._applied = True  # only graphs can make three steps on one worker
    for tokens in (0, 1):
        with pytest.raises(ValueError, match=f"too few tokens.*2 are needed.*{tokens}"):
            optimizer.get_init_tokens_op(tokens)
    assert optimizer.get_init_tokens_op(2) is optimizer.get_init_tokens_op(-1) is None


@pytest.mark.spread
def test_the_table_of_the_guide_is_complete():
    """Each argument and method that only these classes have has a row."""
    text = (ROOT / "guides" / "tf1_workers.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name for line in rows for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    recorded = json.loads((SIGNATURES / "tf1.json").read_text())
    wanted = {*GETTERS, *GETTERS.values(), *MAKE, "get_slot", "get_slot_names", "compute_gradients"}
    for name, method in (n.split(".") for n in recorded["methods"] if "." in n):
        if name in MAKE:
            wanted.add(method)
    arguments = {
        argument["name"]
        for name in MAKE
        for argument in recorded["constructors"][name]["arguments"]
    }
    ours = {
        a for name in MAKE for a in inspect.signature(getattr(keras_tfopt, row(name))).parameters
    }
    others = {"opt", "optimizer", "custom_getter", "ea_custom_getter", "ma_custom_getter"}
    wanted |= arguments - ours - others
    assert wanted <= named, wanted - named
    for line in rows:
        assert line.split("|")[2].strip() in ("works", "work", "accepted", "refused", "differs")


def row(name):
    return legacy.names()[name].maps_to.removeprefix("keras_tfopt.")
