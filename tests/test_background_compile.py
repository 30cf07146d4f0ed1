"""PyTorch compiles a rule in the background, and for all sizes, also after a cleared session."""

import re

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.programs import run

pytestmark = pytest.mark.backends("torch", reason="the others compile in the foreground")

# In a process of their own: in this one, other rules may wait for the compiler. Rules differ
# between sections, so that each compiles its own.
PROGRAM = """
import threading
import time
import traceback

import keras
import numpy as np
import torch
from torch.fx import Tracer

import keras_tfopt
from keras_tfopt import engine
from keras_tfopt.engine.backends.torch import compile as torch_compile
from tests.helpers.fast_paths import train, variables


def all_before():
    "Return a future that is done after all that waits for the compiler now."
    return torch_compile._worker().submit(print)


def section(function):
    try:
        function()
    except Exception:
        print("failed", function.__name__, traceback.format_exc())
    else:
        print("ok", function.__name__)


@section
def calls_in_other_threads():
    # While `torch.fx` traces a function, it intercepts calls of modules in all threads, and may
    # refuse those of compiled functions. This makes it slow, and calls both meanwhile.
    create_arg, traced = Tracer.create_arg, set()

    def slowly(self, argument):
        traced.add(threading.current_thread())
        time.sleep(0.01)
        return create_arg(self, argument)

    module = torch.nn.Linear(2, 2)
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    compiled(torch.ones(2))
    torch._inductor.config.force_disable_caches = True  # what is cached is not traced
    Tracer.create_arg = slowly
    values, optimizer = [keras.Variable(np.ones(4))], keras_tfopt.Momentum(0.1)
    train(optimizer, values, 1, [(4,)])
    compiling = all_before()
    while not compiling.done():
        module(torch.ones(2))
        compiled(torch.ones(2))
    Tracer.create_arg = create_arg
    torch._inductor.config.force_disable_caches = False
    train(optimizer, values, 1, [(4,)])
    assert torch_compile.compilation(optimizer).startswith("compiled by PyTorch")
    assert len(traced) == 1 and threading.current_thread() not in traced


@section
def traces_of_other_threads():
    # Without turns, the first trace would end before the second one, which then would put back
    # what it had found: a method of the first one.
    create_arg, call = Tracer.create_arg, torch.nn.Module.__call__

    def slowly(self, argument):
        if threading.current_thread() is not first:
            time.sleep(0.05)
        return create_arg(self, argument)

    def function(x):
        own, end = torch.nn.Module.__call__, time.monotonic() + 1
        while torch.nn.Module.__call__ is own and time.monotonic() < end:
            time.sleep(0.01)
        return x

    torch._inductor.config.force_disable_caches = True
    Tracer.create_arg = slowly
    first = threading.Thread(target=lambda: Tracer().trace(function))
    first.start()
    values, optimizer = [keras.Variable(np.ones(5))], keras_tfopt.AddSign(0.1)
    train(optimizer, values, 1, [(5,)])
    first.join()
    all_before().result()
    Tracer.create_arg = create_arg
    torch._inductor.config.force_disable_caches = False
    assert torch.nn.Module.__call__ is call
    train(optimizer, values, 1, [(5,)])
    assert torch_compile.compilation(optimizer).startswith("compiled by PyTorch")


@section
def a_compilation_that_was_disturbed():
    operations = torch_compile.compile_operations

    def disturbed(*args):
        assert threading.current_thread() is threading.main_thread()
        return operations(*args)

    torch_compile.compile_operations = disturbed
    values, optimizer = variables(), keras_tfopt.PowerSign(0.1)
    train(optimizer, values, 1)
    all_before().result()
    train(optimizer, values, 1)
    torch_compile.compile_operations = operations
    assert torch_compile.compilation(optimizer).startswith("compiled by PyTorch")


@section
def training_continues():
    values, optimizer = variables(), keras_tfopt.LARS(0.1, eeta=0.1)
    may_compile = threading.Event()
    torch_compile._worker().submit(may_compile.wait)
    train(optimizer, values, steps=2)
    assert "in the background" in torch_compile.compilation(optimizer)
    may_compile.set()
    all_before().result()
    train(optimizer, values, steps=2)
    assert torch_compile.compilation(optimizer).startswith("compiled"), "it has not switched"
    with engine.plain():
        others, plain = variables(), keras_tfopt.LARS(0.1, eeta=0.1)
        train(plain, others, steps=2)
        expected = train(plain, others, steps=2)
    found = train(optimizer, values, steps=0)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@section
def repeatable_steps_wait():
    torch.use_deterministic_algorithms(True)
    optimizer = keras_tfopt.Momentum(0.1, momentum=0.8)
    train(optimizer, variables(), steps=1)
    assert torch_compile.compilation(optimizer).startswith("compiled")
    torch.use_deterministic_algorithms(False)


@section
def a_cleared_session():
    values, optimizer = variables(), keras_tfopt.LARS(0.1, eeta=0.2)
    train(optimizer, values, steps=1)
    compiling = all_before()
    while not compiling.done():
        keras.utils.clear_session(free_memory=False)
    train(optimizer, values, steps=2)
    assert torch_compile.compilation(optimizer).startswith("compiled")


@section
def all_sizes_again():
    engine.compile_in_background(False)

    def moved(make, size):
        variable, optimizer = keras.Variable(np.ones(size)), make()
        optimizer.apply([np.ones(size, "float32")], [variable])
        return keras.ops.convert_to_numpy(variable)

    for make in (lambda: keras_tfopt.GGT(0.5), lambda: keras_tfopt.Prodigy(slice_p=5)):
        for _ in range(2):
            for size in (1, 2, 7):
                values = moved(make, size)
                with engine.plain():
                    np.testing.assert_allclose(values, moved(make, size), 1e-6)
            keras.utils.clear_session()
"""
SECTIONS = re.findall(r"@section\ndef (\w+)", PROGRAM)


@pytest.fixture(scope="module")
def done():
    return run("-c", PROGRAM)


@pytest.mark.slow
@pytest.mark.xdist_group("background compile")
@pytest.mark.parametrize("section", SECTIONS)
def test_programs_go_on_while_rules_are_compiled(section, done):
    assert f"ok {section}\n" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_program_that_ends_waits_for_one_function_only():
    """After a search over arguments, hundreds may wait to be compiled."""
    lines = (
        "import time",
        "from keras_tfopt.engine.backends.torch.compile import _worker",
        "def slow(): time.sleep(1); print('called', flush=True)",
        "results = [_worker().submit(slow) for _ in range(60)]",
        "results[0].result()",
    )
    done = run("-c", "\n".join(lines))
    assert done.returncode == 0, done.stderr[-4000:]
    assert 1 <= done.stdout.count("called") < 10


def test_row_indices_are_checked_while_another_thread_compiles(monkeypatch):
    """The flag of PyTorch that says so is one for all threads."""
    import torch

    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    table = keras.Variable(np.ones((4, 2)), name="table")
    optimizer = keras_tfopt.LazyAdam(0.1)
    optimizer.build([table])
    gradient = keras_tfopt.RowGradient(np.ones((1, 2), "float32"), np.array([9]), (4, 2))
    with pytest.raises(ValueError, match="'table' must lie between 0 and 3"):
        optimizer.apply([gradient], [table])
