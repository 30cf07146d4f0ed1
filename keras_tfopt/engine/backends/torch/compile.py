"""Compiling functions of tensors once, for any size, where PyTorch's compiler works.

Compiling takes seconds. Meanwhile steps run operation by operation, so that training starts at
once; compiled code takes over when it is there. Both compute the same, up to the last place.
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

# PyTorch 2.13 counts in one number for all threads how often compiled code was used, and raises an
# error where another thread has set it back. What is patched for compiling is global as well.
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
    """A function that is compiled in the background, from its first call on.

    Args:
        function: A function of tensors and of lists and dictionaries of them.
        name: For profiles.
        otherwise: What is called until the compiled function is there, or if nothing can be
            compiled here.
        examples: From the arguments of the first call to arguments to compile with, which may be
            overwritten.
        checks: Whether each call looks if what is compiled fits its arguments, and compiles again
            if not. False uses what is compiled for all arguments.
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
        self._own: Callable | None = None  # what Dynamo has compiled

    def __call__(self, *args: Any) -> Any:
        if not _compiler_works:
            return self._otherwise(*args)
        if self._compiling is None:
            self._compiling = self._begin(args, in_background=_may_run_uncompiled())
        if not self._compiling.done() or _is_compiling.is_set():
            return self._otherwise(*args)
        if self._is_lost():
            # Now the program waits.
            self._compiling = self._begin(args, in_background=False)
        try:
            compiled = self._compiling.result()
            with _one_at_a_time:
                return compiled(*args)
        except Exception as error:  # whatever a missing or broken tool chain may raise
            if "Observed exception" in str(error):
                # The rule itself raises an error, of which Dynamo says nothing but where.
                return self._otherwise(*args)
            _give_up_compiling(error)
            return self._otherwise(*args)

    def _is_lost(self) -> bool:
        """Return whether compiling failed in the background, or what it made was cleared since.

        What the program did may be the reason, as `keras.utils.clear_session` is. Dynamo would
        compile anew by itself, for the arguments of a call in place of the examples; and code for
        sizes of 1 takes no others.
        """
        assert self._compiling is not None
        if self._compiling.exception() is not None:
            return self._is_from_background
        return self._own is not None and not is_compiled(self._own)

    def _begin(self, args: tuple, in_background: bool) -> concurrent.futures.Future:
        """Start compiling for these arguments, or do it now."""
        examples = self._examples(*args)
        set_torch_device_attribute()  # of this thread, as compiled code may look for it here
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
        # Recompilations are counted per code object, and past a limit code silently runs as it is.
        # Without checks, what is compiled for a code object is used for all functions that have it.
        # `isolate_recompiles` of `torch.compile` does this, but PyTorch 2.8 does not have it.
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
    """Return whether steps may differ in the last place from compiled ones, until these are there.

    Processes that train one model must not: they would take over compiled code at different steps,
    and their weights, which nobody exchanges, would drift apart.
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
    """Return in words whether an optimizer's last step ran compiled."""
    if not any(key[0] in ("step", "pieces") for key in getattr(engine, "_fast", ())):
        return "not compiled: operation by operation"
    if not _compiler_works:
        return "not compiled: torch.compile found no working compiler"
    if _is_compiling.is_set():
        return "not compiled yet: torch.compile works in the background"
    return f"compiled by torch.compile ({compilations()} graphs in this process)"
