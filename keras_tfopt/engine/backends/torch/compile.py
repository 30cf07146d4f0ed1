"""Compile functions of tensors in the background, once for all sizes, if PyTorch's compiler works.

Compiling takes seconds. Until compiled code is there, steps run operation by operation, so that
training starts at once. Both compute the same, up to rounding in the last place.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from keras_tfopt.engine import settings
from keras_tfopt.engine.backends.torch.private import (
    compilations,
    compiler_options,
    compiling_alone,
    constant_hyperparameters,
    is_compiled,
    known_processor,
    look_for_no_symbolic_tensors,
    trace_no_empty_module,
)
from keras_tfopt.engine.keras_private import set_torch_device_attribute

_compiler_works = True

# PyTorch 2.13 counts calls of compiled code in one number for all threads, and raises an error if
# another thread resets it. Patches for compiling are global as well.
_one_at_a_time = threading.RLock()
_is_compiling = threading.Event()


@functools.cache
def _worker() -> concurrent.futures.ThreadPoolExecutor:
    """Return the thread that compiles. A program waits for it before it ends."""
    logging.getLogger("keras_tfopt").info(
        "torch.compile compiles the rules of optimizers in the background, which takes seconds; "
        "until then steps run operation by operation."
    )
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="keras_tfopt-compile")


class Compiled:
    """A function that is compiled in the background when it is called for the first time.

    Args:
        function: A function of tensors and of lists and dictionaries of them.
        name: Its name in profiles.
        otherwise: The function to call until compiled code is there, or if the compiler does not
            work.
        examples: Function that returns arguments to compile with, which may be overwritten, from
            those of the first call.
        checks: Whether each call checks that compiled code fits the arguments, and otherwise
            compiles again. False uses the same code for all arguments.
        recomputes, has_bits, contracts: See `compiler_options`.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        otherwise: Callable,
        examples: Callable[..., tuple],
        checks: bool = False,
        recomputes: bool = False,
        has_bits: bool = False,
        contracts: bool = False,
    ):
        self._function, self._name = function, name
        self._otherwise, self._examples, self._checks = otherwise, examples, checks
        self._options = recomputes, has_bits, contracts
        self._compiling: concurrent.futures.Future | None = None
        self._is_from_background = False
        self._own: Callable | None = None  # the function that Dynamo has compiled code for

    def __call__(self, *args: Any) -> Any:
        if not _compiler_works:
            return self._otherwise(*args)
        if self._compiling is None:
            self._compiling = self._begin(args, in_background=_may_run_uncompiled())
        if not self._compiling.done() or _is_compiling.is_set():
            return self._otherwise(*args)
        if self._is_lost():
            self._compiling = self._begin(args, in_background=False)
        try:
            compiled = self._compiling.result()
            with _one_at_a_time:
                return compiled(*args)
        except Exception as error:  # a missing or broken tool chain may raise any
            # If the rule itself raises an error, the uncompiled step shows it better than Dynamo.
            if "Observed exception" not in str(error):
                _give_up_compiling(error)
            return self._otherwise(*args)

    def _is_lost(self) -> bool:
        """Return whether compiling failed in the background, or compiled code was cleared since.

        The program may be the cause, as `keras.utils.clear_session` clears code. Dynamo would then
        compile again for the arguments of the next call instead of the examples. Such code may fit
        no other sizes.
        """
        assert self._compiling is not None
        if self._compiling.exception() is not None:
            return self._is_from_background
        return self._own is not None and not is_compiled(self._own)

    def _begin(self, args: tuple, in_background: bool) -> concurrent.futures.Future:
        """Start compiling in the background, or compile now."""
        examples = self._examples(*args)
        set_torch_device_attribute()  # for this thread, in which compiled code may read it
        self._is_from_background = in_background
        if in_background:
            return _worker().submit(self._compile, examples)
        done: concurrent.futures.Future = concurrent.futures.Future()
        try:
            done.set_result(self._compile(examples))
        except Exception as error:
            done.set_exception(error)
        return done

    def _compile(self, examples: tuple) -> Callable:
        # Dynamo keeps compiled code by code object. Beyond a limit of recompilations it silently
        # runs a code object uncompiled; without checks, it takes any code that it has for one. So
        # each function gets a code object of its own. The option `isolate_recompiles` of
        # `torch.compile` would do the same, but PyTorch 2.8 does not have it.
        own = types.FunctionType(
            self._function.__code__.replace(co_name=self._name),
            self._function.__globals__,
            closure=self._function.__closure__,
        )
        options = compiler_options(*self._options)
        if not self._checks:
            options["guard_filter_fn"] = lambda guards: [False] * len(guards)
        with _one_at_a_time, compiling_alone():
            _is_compiling.set()
            try:
                look_for_no_symbolic_tensors()
                trace_no_empty_module()
                compiled = torch.compile(own, dynamic=True, fullgraph=True, options=options)
                with torch.no_grad(), constant_hyperparameters(), known_processor():
                    set_torch_device_attribute()
                    compiled(*examples)
                self._own = own if is_compiled(own) else None
            finally:
                _is_compiling.clear()
        return compiled


def _may_run_uncompiled() -> bool:
    """Return whether the first steps may run uncompiled, and so differ in the last place.

    Not so in several processes that train one model: they would switch to compiled code at
    different steps, and their weights, which they do not exchange, would drift apart.
    """
    if torch.are_deterministic_algorithms_enabled():
        return False
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several and torch.distributed.get_world_size() > 1:
        return False
    return settings.compiles_in_background()


def _give_up_compiling(error: Exception) -> None:
    global _compiler_works
    if not _is_tool_chain_error(error):
        raise error
    _compiler_works = False
    reason = str(error).strip().splitlines()[0]
    warnings.warn(
        "keras_tfopt: torch.compile does not work here, so optimizers run uncompiled and slower. "
        f"It usually wants a C++ compiler. The error was: {type(error).__name__}: {reason}",
        stacklevel=2,
    )


def _is_tool_chain_error(error: BaseException | None) -> bool:
    names = ("InvalidCxxCompiler", "CppCompileError", "InductorError", "BackendCompilerFailed")
    while error is not None:
        if type(error).__name__ in names or isinstance(error, (OSError, ImportError)):
            return True
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return False


def report(engine: Any) -> str:
    """Say in words whether an optimizer's last step ran compiled."""
    if not any(key[0] in ("step", "pieces") for key in getattr(engine, "_fast", ())):
        return "not compiled: operation by operation"
    if not _compiler_works:
        return "not compiled: torch.compile found no working compiler"
    if _is_compiling.is_set():
        return "not compiled yet: torch.compile works in the background"
    return f"compiled by torch.compile ({compilations()} graphs in this process)"
