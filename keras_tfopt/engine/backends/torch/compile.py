"""Compiling functions of tensors once, for any size, where PyTorch's compiler works."""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from keras_tfopt.engine.backends.torch.private import (
    compilations,
    compiler_options,
    constant_hyperparameters,
    known_processor,
    look_for_no_symbolic_tensors,
)
from keras_tfopt.engine.keras_private import set_torch_device_attribute

_compiler_works = True

# PyTorch 2.13 counts in one number for all threads how often compiled code was used, and raises an
# error where another thread has set it back. What is patched for compiling is global as well.
_one_at_a_time = threading.RLock()


class Compiled:
    """A function, compiled at its first call.

    Args:
        function: A function of tensors and of lists and dictionaries of them.
        name: For profiles.
        otherwise: What is called if nothing can be compiled here.
        like_many: From the arguments to arguments of usual sizes: what is compiled for them is used
            for all later ones without a look at them. None checks at each call.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        otherwise: Callable,
        like_many: Callable[..., tuple] | None,
    ):
        # Recompilations are counted per code object, and past a limit code silently runs as it is.
        own = types.FunctionType(
            function.__code__.replace(co_name=name),
            function.__globals__,
            closure=function.__closure__,
        )
        options = compiler_options()
        if like_many is not None:
            options["guard_filter_fn"] = lambda guards: [False] * len(guards)
        look_for_no_symbolic_tensors()
        self._compiled = torch.compile(own, dynamic=True, fullgraph=True, options=options)
        self._otherwise, self._like_many = otherwise, like_many
        self._is_ready = False

    def __call__(self, *args: Any) -> Any:
        if not _compiler_works:
            return self._otherwise(*args)
        try:
            with _one_at_a_time:
                return self._call(*args)
        except Exception as error:  # whatever a missing or broken tool chain may raise
            if "Observed exception" in str(error):
                # The rule itself raises an error, of which Dynamo says nothing but where.
                return self._otherwise(*args)
            _give_up_compiling(error)
            return self._otherwise(*args)

    def _call(self, *args: Any) -> Any:
        if self._is_ready:
            return self._compiled(*args)
        with constant_hyperparameters(), known_processor():
            set_torch_device_attribute()
            if self._like_many is None:
                return self._compiled(*args)
            self._compiled(*self._like_many(*args))
            self._is_ready = True
        return self._compiled(*args)


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
    return f"compiled by torch.compile ({compilations()} graphs in this process)"
