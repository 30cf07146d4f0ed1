"""While PyTorch compiles a rule in the background, a program goes on as usual."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.programs import output_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.backends("torch", reason="the others compile in the foreground"),
]

# While `torch.fx` traces a function, it intercepts calls of modules in all threads, and may refuse
# those of compiled functions. This program makes it slow, and calls both meanwhile.
CALLS_MODULES = """
import threading
import time

import keras
import numpy as np
import torch
from torch.fx import Tracer

import keras_tfopt
from keras_tfopt.engine.backends.torch import compile as torch_compile
from tests.fast_paths import train

create_arg, traced = Tracer.create_arg, set()


def slowly(self, argument):
    traced.add(threading.current_thread())
    time.sleep(0.01)
    return create_arg(self, argument)


module = torch.nn.Linear(2, 2)
compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
compiled(torch.ones(2))
Tracer.create_arg = slowly
values, optimizer = [keras.Variable(np.ones(4))], keras_tfopt.Momentum(0.1)
train(optimizer, values, 1, [(4,)])
compiling = torch_compile._worker().submit(print)  # done after the rule
while not compiling.done():
    module(torch.ones(2))
    compiled(torch.ones(2))
train(optimizer, values, 1, [(4,)])
print(torch_compile.report(optimizer), "traced in", len(traced), "thread")
assert threading.current_thread() not in traced
"""


def test_calls_in_other_threads_are_not_traced_while_a_rule_is_compiled():
    text = output_of("-c", CALLS_MODULES, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert "compiled by PyTorch" in text and text.rstrip().endswith("traced in 1 thread")


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
