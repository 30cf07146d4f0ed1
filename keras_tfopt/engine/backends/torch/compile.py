"""Compile functions of tensors in the background, once for all sizes, if PyTorch's compiler works.

Compiling takes seconds. Until compiled code is there, steps run operation by operation, so that
training starts at once. Both compute the same, up to rounding in the last place.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from keras_tfopt.engine import settings
from keras_tfopt.engine.backends.torch.private import (
    compile_operations,
    compiler_options,
    compiling_alone,
    filling,
    known_processor,
    tensors_in,
    trace_in_turns,
    trace_no_empty_module,
)

in_compiler: ContextVar[bool] = ContextVar("keras_tfopt_in_compiler", default=False)
"""Whether the caller is run by the compiler, to note its operations; tensors have no values."""

_compiler_works = True
_count = 0  # functions that were compiled in this process

_begun: set[concurrent.futures.Future] = set()
"""What is compiled in the background, or waits for it."""


class _Worker:
    """Call functions in a thread, one after the other.

    A program that ends waits for the one that is running. It does not wait for others, which
    executors of Python would call first: after a search there may be hundreds.
    """

    def __init__(self) -> None:
        self._calls: collections.deque[tuple] = collections.deque()
        self._lock, self._has_thread = threading.Lock(), False

    def submit(self, function: Callable, *args: Any) -> concurrent.futures.Future:
        """Return the future result of a call."""
        result: concurrent.futures.Future = concurrent.futures.Future()
        with self._lock:
            self._calls.append((result, function, args))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="keras_tfopt-compile").start()
        return result

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls or not threading.main_thread().is_alive():
                    self._has_thread = False
                    return
                result, function, args = self._calls.popleft()
            try:
                result.set_result(function(*args))
            except BaseException as error:
                result.set_exception(error)


@functools.cache
def _worker() -> _Worker:
    """Return the worker that compiles."""
    logging.getLogger("keras_tfopt").info(
        "PyTorch compiles the rules of optimizers in the background, which takes seconds; until "
        "then steps run operation by operation."
    )
    return _Worker()


class Compiled:
    """A function that is compiled in the background when it is called for the first time.

    Arguments are tensors, numbers, None, and lists, tuples and dictionaries of these. Compiled code
    takes new tensors in each call; all else stays as in the first call. Dictionaries may lose and
    gain names that the function does not read.

    Args:
        function: The function. It may write to its arguments.
        examples: Function that returns arguments to compile with, from those of the first call; see
            `compile_operations`.
        otherwise: The function to call until compiled code is there, or if the compiler does not
            work.
        recomputes, has_bits, contracts: See `compiler_options`.
        for_all_sizes: Whether sizes may differ between calls.
        may_stay: Whether the function stays as it is if the compiler cannot follow it, as where the
            shape of a tensor depends on values. Otherwise that is an error.
    """

    def __init__(
        self,
        function: Callable,
        examples: Callable[..., tuple],
        otherwise: Callable | None = None,
        recomputes: bool = False,
        has_bits: bool = False,
        contracts: bool = False,
        for_all_sizes: bool = True,
        may_stay: bool = False,
    ):
        self._function, self._examples = function, examples
        self._otherwise = function if otherwise is None else otherwise
        self._options = recomputes, has_bits, contracts
        self._for_all_sizes, self._may_stay = for_all_sizes, may_stay
        self._compiling: concurrent.futures.Future | None = None
        self._in_background = False
        self._compiled: Callable[..., list[torch.Tensor]] | None = None
        self._read: Any = None  # which arguments compiled code reads
        self._result: Callable[[list[torch.Tensor]], Any] | None = None  # from its tensors, if any

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled or self._when_ready(args)
        if compiled is None:
            return self._otherwise(*args)
        given: list[torch.Tensor] = []
        _add_read(args, self._read, given)
        found = compiled(*given)
        return None if self._result is None else self._result(found)

    def _when_ready(self, args: tuple) -> Callable[..., list[torch.Tensor]] | None:
        """Return the compiled function; None if there is none yet, or will be none."""
        if not _compiler_works:
            return None
        if self._compiling is None:
            self._compiling = self._begin(args, _may_run_uncompiled())
        if not self._compiling.done():
            return None
        error = self._compiling.exception()
        if error is not None and self._in_background and not _is_tool_chain_error(error):
            # Another thread may have disturbed it: `torch.export` sets modes for all threads.
            self._compiling = self._begin(args, False)
            error = self._compiling.exception()
        if error is None:
            self._compiled = self._compiling.result()
        elif not self._may_stay or _is_tool_chain_error(error):
            _give_up_compiling(error)
        return self._compiled

    def _begin(self, args: tuple, in_background: bool) -> concurrent.futures.Future:
        """Start compiling in the background, or compile now."""
        trace_in_turns()
        self._in_background = in_background
        examples = self._examples(*args)
        if in_background:
            begun = _worker().submit(self._compile, examples)
            _begun.add(begun)
            begun.add_done_callback(_begun.discard)
            return begun
        done: concurrent.futures.Future = concurrent.futures.Future()
        try:
            done.set_result(self._compile(examples))
        except Exception as error:
            done.set_exception(error)
        return done

    def _compile(self, examples: tuple) -> Callable[..., list[torch.Tensor]]:
        global _count

        given = filling(examples)

        def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
            with settings.switched(in_compiler, True):
                result = self._function(*given(tensors))
            self._result = None if result is None else filling(result)
            return tensors_in(result)

        options = compiler_options(*self._options)
        with compiling_alone(), torch.no_grad(), known_processor():
            trace_no_empty_module()
            compiled, read = compile_operations(
                function, tensors_in(examples), options, self._for_all_sizes
            )
        self._read = _only_read(given([_READ if is_read else None for is_read in read]))
        _count += 1
        return compiled


_READ = object()  # marks the place of a tensor that compiled code reads


def _only_read(tree: Any) -> Any:
    """Return whether each argument is marked as read; of dictionaries, only those that are."""
    if isinstance(tree, dict):
        each = {name: _only_read(one) for name, one in tree.items()}
        return {name: one for name, one in each.items() if one is not False}
    return list(map(_only_read, tree)) if isinstance(tree, (list, tuple)) else tree is _READ


def _add_read(tree: Any, read: Any, found: list[torch.Tensor]) -> None:
    """Add the tensors of arguments that compiled code reads to a list."""
    for one, is_read in zip(tree, read, strict=True):
        if is_read is True:
            found.append(one)
        elif isinstance(is_read, dict):
            _add_read([one[name] for name in is_read], is_read.values(), found)
        elif is_read:
            _add_read(one, is_read, found)


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


def _give_up_compiling(error: BaseException) -> None:
    """Compile nothing from now on, and say so; raise the error if it is not of the compiler."""
    global _compiler_works
    if not _is_tool_chain_error(error):
        raise error
    _compiler_works = False
    reason = str(error).strip().splitlines()[0]
    warnings.warn(
        "keras_tfopt: PyTorch's compiler does not work here, so optimizers run uncompiled and "
        "slower. It usually wants a C++ compiler. The error was: "
        f"{type(error).__name__}: {reason}",
        stacklevel=2,
    )


def _is_tool_chain_error(error: BaseException | None) -> bool:
    names = ("InvalidCxxCompiler", "CppCompileError", "InductorError", "BackendCompilerFailed")
    while error is not None:
        if type(error).__name__ in names or isinstance(error, (OSError, ImportError)):
            return True
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return False


def compilations() -> int:
    """Return how many functions were compiled in this process."""
    return _count


def compilation(engine: Any) -> str:
    kept = getattr(engine, "_fast", {}).items()
    if not any(found and key[0] in ("step", "pieces", "shapes") for key, found in kept):
        return "not compiled: operation by operation"
    if not _compiler_works:
        return "not compiled: PyTorch found no working compiler"
    if _begun:
        return "not compiled yet: PyTorch compiles it in the background"
    return f"compiled by PyTorch ({_count} functions in this process)"
