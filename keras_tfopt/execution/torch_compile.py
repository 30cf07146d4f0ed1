"""Compiling functions of tensors once, for any size, where PyTorch's compiler works."""

from __future__ import annotations

import contextlib
import functools
import platform
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from keras.src.backend.common import global_state

from keras_tfopt.execution.versions import is_before

JOINT_PASSES = "use_joint_graph_passes"

_compiler_works = True


@functools.cache
def keeps_casts() -> bool:
    """Whether compiled code rounds where it casts to half precision and back.

    PyTorch leaves out such pairs of casts, unless it can be told not to, as 2.8 cannot.
    """
    from torch._inductor import config

    return hasattr(config, JOINT_PASSES)


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
        from torch._inductor import config

        # Recompilations are counted per code object, and past a limit code silently runs as it is.
        own = types.FunctionType(
            function.__code__.replace(co_name=name),
            function.__globals__,
            closure=function.__closure__,
        )
        # A half-precision variable is compared with its copy: casts must round as they do eagerly.
        options: dict[str, Any] = {"emulate_precision_casts": True}
        # Rules have none of the patterns that these look for, such as attention. PyTorch 2.8 has no
        # such options, and refuses what it does not know.
        passes = ("use_pre_grad_passes", JOINT_PASSES)
        options.update({name: False for name in passes if hasattr(config, name)})
        if like_many is not None:
            options["guard_filter_fn"] = lambda guards: [False] * len(guards)
        _look_for_no_symbolic_tensors()
        self._compiled = torch.compile(own, dynamic=True, fullgraph=True, options=options)
        self._otherwise, self._like_many = otherwise, like_many
        self._is_ready = False

    def __call__(self, *args: Any) -> Any:
        if not _compiler_works:
            return self._otherwise(*args)
        try:
            if self._is_ready:
                return self._compiled(*args)
            with _constant_hyperparameters(), _known_processor():
                _have_device_of_keras()
                if self._like_many is None:
                    return self._compiled(*args)
                self._compiled(*self._like_many(*args))
                self._is_ready = True
            return self._compiled(*args)
        except Exception as error:  # whatever a missing or broken tool chain may raise
            if "Observed exception" in str(error):
                # The rule itself raises an error, of which Dynamo says nothing but where.
                return self._otherwise(*args)
            _give_up_compiling(error)
            return self._otherwise(*args)


def _constant_hyperparameters() -> contextlib.AbstractContextManager:
    # Or numbers become inputs, which the compiled loop would load again for each element.
    import torch._dynamo.config

    return torch._dynamo.config.patch(specialize_float=True)


def _have_device_of_keras() -> None:
    """Sets the device that Keras looks up where it has never been set, to none as there.

    Dynamo of PyTorch 2.8 fails where it has to guard that an attribute is missing.
    """
    if not hasattr(global_state.GLOBAL_STATE_TRACKER, "torch_device"):
        global_state.set_global_attribute("torch_device", None)


@functools.cache
def _look_for_no_symbolic_tensors() -> None:
    """Spares Dynamo a question of Keras that has one answer in compiled code.

    Before 3.15, each operation of Keras asks it by flattening its arguments in a way that Dynamo
    cannot follow.
    """
    if not is_before(3, 15):
        return
    from keras.src.backend.common.keras_tensor import any_symbolic_tensors

    @torch.compiler.substitute_in_graph(any_symbolic_tensors)
    def none_is_symbolic(args: Any = None, kwargs: Any = None) -> bool:
        return False


@contextlib.contextmanager
def _known_processor() -> Iterator[None]:
    """Believes what PyTorch says of an x86 processor.

    The compiler would first build four programs to find out, in a second, where nothing is cached.
    """
    from torch._inductor import cpu_vec_isa

    kind = None
    with contextlib.suppress(AttributeError):  # nothing of this is a public interface
        find = cpu_vec_isa.valid_vec_isa_list
        if torch.cpu._is_avx512_supported():
            kind = cpu_vec_isa.VecAVX512
        elif torch.cpu._is_avx2_supported():
            kind = cpu_vec_isa.VecAVX2
    if kind is None or platform.system() != "Linux":
        yield
        return
    known = type(kind.__name__, (kind,), {"__bool__": lambda self: True})()
    cpu_vec_isa.valid_vec_isa_list = lambda: [known]
    try:
        yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = find


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
    """Whether an optimizer's last step ran compiled, in words."""
    if not any(key[0] in ("step", "pieces") for key in getattr(engine, "_fast", ())):
        return "not compiled: operation by operation"
    if not _compiler_works:
        return "not compiled: torch.compile found no working compiler"
    return f"compiled by torch.compile ({compilations()} graphs in this process)"


def compilations() -> int:
    """How many graphs Dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
