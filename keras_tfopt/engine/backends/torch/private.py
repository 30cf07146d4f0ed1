"""Private names of PyTorch that are used or patched, each with the reason for it.

Seen with PyTorch 2.13 and, where noted, with 2.8. Functions import the compiler, as that takes
seconds.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

# ---- The compiler

# Options of Inductor that PyTorch 2.8 does not have.
GRAPH_PASSES, JOINT_PASSES = "use_pre_grad_passes", "use_joint_graph_passes"
# Options: the numbers of operations or reads from which on values for two passes are stored.
KEEPING = ("realize_opcount_threshold", "realize_reads_threshold")


def compiler_options(recomputes: bool, has_bits: bool, contracts: bool) -> dict[str, Any]:
    """Return options of Inductor for rules.

    Args:
        recomputes: Whether each pass over memory repeats computations of earlier passes. Storing
            results would need new memory, which takes longer than the arithmetic.
        has_bits: Whether a rule reads floats as bits. Inductor casts them through memory, which GCC
            copies in parts of 256 bits. Processors of Intel wait if they then read several parts as
            one vector, so vectors have 256 bits there: on a Xeon, Adam with bfloat16 slots takes
            0.6 of the time. Processors of AMD do not wait: on an EPYC, it would take 1.45 times as
            long.
        contracts: Whether a product and a sum may become one instruction, which rounds once. With
            it, Adam with int8 slots takes 0.7 of the time.
    """
    from torch._inductor import config

    # A half-precision variable is compared with its master copy, so casts must round as in eager
    # steps.
    options: dict[str, Any] = {"emulate_precision_casts": True}
    # These passes look for patterns that rules do not have, such as attention. PyTorch raises an
    # error for options that it does not know.
    options |= {name: False for name in (GRAPH_PASSES, JOINT_PASSES) if hasattr(config, name)}
    if has_bits and torch.cpu._is_avx512_supported() and not _is_of_amd():
        options["cpp.simdlen"] = 256
    if contracts:
        name = "enable_floating_point_contract_flag"
        options[f"cpp.{name}"] = type(getattr(config.cpp, name))("fast")  # earlier, it was a bool
    if recomputes:
        options |= {name: 1000 for name in KEEPING if hasattr(config, name)}
    return options


@functools.cache
def _is_of_amd() -> bool:
    """Return whether the processor is one of AMD, according to Linux."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@functools.cache
def keeps_casts() -> bool:
    """Return whether compiled code rounds where it casts to half precision and back.

    PyTorch 2.11 removes such pairs of casts on processors whatever the options, and 2.8 anywhere.
    """
    return torch.__version__ >= "2.13"


@contextlib.contextmanager
def known_processor() -> Iterator[None]:
    """Tell Inductor in this context which vectors an x86 processor has, as PyTorch knows it.

    Otherwise Inductor builds four programs to find out, which takes a second unless they are
    cached. Patches `torch._inductor.cpu_vec_isa.valid_vec_isa_list`.
    """
    from torch._inductor import cpu_vec_isa

    known = _known_vectors()
    if not known:
        yield
        return
    find = cpu_vec_isa.valid_vec_isa_list
    cpu_vec_isa.valid_vec_isa_list = lambda: known
    try:
        yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = find


@functools.cache  # Inductor keeps a compiled header for each of these objects
def _known_vectors() -> list[Any]:
    from torch._inductor import cpu_vec_isa

    if platform.system() != "Linux" or not hasattr(cpu_vec_isa, "valid_vec_isa_list"):
        return []
    kinds = []
    with contextlib.suppress(AttributeError):
        if torch.cpu._is_avx512_supported():
            kinds.append(cpu_vec_isa.VecAVX512)
        if torch.cpu._is_avx2_supported():
            kinds.append(cpu_vec_isa.VecAVX2)
    return [type(kind.__name__, (kind,), {"__bool__": lambda self: True})() for kind in kinds]


@functools.cache
def trace_no_empty_module() -> None:
    """Give Inductor an empty module, which it would otherwise make by tracing a function.

    While `torch.fx` traces, it intercepts calls of modules in all threads. A model that another
    thread calls then fails with "NameError: module is not installed as a submodule". Patches
    `torch._inductor.loop_body.InterpreterShim._dummy_gm`.
    """
    from torch._inductor.loop_body import InterpreterShim

    if hasattr(InterpreterShim, "_dummy_gm"):
        graph = torch.fx.Graph()
        graph.output(graph.placeholder("x"))
        empty = torch.fx.GraphModule({}, graph)
        InterpreterShim._dummy_gm = staticmethod(lambda: empty)


_tracing = threading.RLock()
_thread = threading.local()  # `compiles` is True where functions are compiled here


@functools.cache
def trace_in_turns() -> None:
    """Have threads trace functions one after the other.

    While `torch.fx` traces a function, it replaces methods of modules, for all threads. After two
    traces at once, as one here and one of `torch.export`, a method of one of them would stay, and
    all later ones fail. Also the same for all threads is the flag that FX traces. It makes calls of
    compiled functions an error, unless another flag says that a compiler does it. Patches
    `torch.fx.Tracer.trace`.
    """
    plain = torch.fx.Tracer.trace

    @functools.wraps(plain)
    def trace(*args: Any, **kwargs: Any) -> Any:
        with _tracing:
            before = torch.compiler._is_compiling_flag
            torch.compiler._is_compiling_flag = before or getattr(_thread, "compiles", False)
            try:
                return plain(*args, **kwargs)
            finally:
                torch.compiler._is_compiling_flag = before

    torch.fx.Tracer.trace = trace  # type: ignore[method-assign]


@contextlib.contextmanager
def compiling_alone() -> Iterator[None]:
    """Keep other threads from compiling, also by `torch.compile`, in this context.

    In PyTorch 2.8, an option decides whether calls of compiled functions are an error while FX
    traces, which is the same for all threads there.
    """
    import torch._dynamo.config as options
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock, options.patch(error_on_nested_fx_trace=False):
        _thread.compiles = True
        try:
            yield
        finally:
            _thread.compiles = False


def compile_operations(
    function: Callable[..., list[torch.Tensor]],
    examples: list[torch.Tensor],
    options: dict[str, Any],
    for_all_sizes: bool,
) -> tuple[Callable[..., list[torch.Tensor]], list[bool]]:
    """Compile a function of tensors by Inductor.

    `make_fx` runs the function once and notes its operations. `torch.compile` would read them from
    Python's code by Dynamo, which knows only a part of Python. Dynamo also checks in each call
    whether compiled code fits, which takes longer than the code for small variables.

    Args:
        function: Function of tensors that returns tensors, and may write to its arguments.
        examples: Tensors like those of all calls.
        options: Options of Inductor.
        for_all_sizes: Whether sizes may differ later, but not whether one is 0 or 1, or, of two
            sizes that meet in an operation, whether they are equal.

    Returns:
        The compiled function, of only those arguments that are read, and for each argument, whether
        it is.
    """
    from torch._inductor import compile as compile_graph
    from torch.fx.experimental.proxy_tensor import make_fx

    # Of a number in float64, PyTorch would note the value, for code that asks for it; not of NaN.
    examples = [
        torch.full_like(one, torch.nan) if one.ndim == 0 and one.is_floating_point() else one
        for one in examples
    ]
    mode = "symbolic" if for_all_sizes else "fake"
    trace = make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)
    operations = trace(*examples)
    inputs = operations.graph.find_nodes(op="placeholder")
    for node in inputs:
        if not node.users:
            operations.graph.erase_node(node)
    operations.recompile()
    # PyTorch finds what it has compiled before by a hash of all attributes, and cannot hash this.
    vars(operations).pop("shape_env", None)
    symbolic = [node.meta["val"] for node in inputs if node.users]
    compiled = compile_graph(operations, symbolic, options=options)
    return compiled, [bool(node.users) for node in inputs]


# ---- Memory

# PyTorch uses these for `torch.optim`. For small variables, a call for each takes most of the time.
copy_all = torch._foreach_copy_
zero_all = torch._foreach_zero_
norm_all = torch._foreach_norm
add_to_all, scaled_all, divided_all = torch._foreach_add_, torch._foreach_mul, torch._foreach_div
limited_above, limited_below = torch._foreach_clamp_max, torch._foreach_clamp_min


def users_of(storage: Any) -> int | None:
    """Return how many tensors and other owners use this memory; None if PyTorch does not tell."""
    try:
        return torch._C._storage_Use_Count(storage._cdata)
    except AttributeError:
        return None


def memory_of(tensor: torch.Tensor) -> int:
    """Return what is equal for tensors in the same memory, also if these have no values."""
    return tensor.untyped_storage()._cdata


def writes_to(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been written to; autograd counts that to find stale values."""
    return tensor._version


# ---- Gradients of rows


def sparse_parts(gradient: Any) -> tuple[Any, Any]:
    """Return values and rows of a sparse tensor; public methods would first sum repeated rows."""
    return gradient._values(), gradient._indices()[0]


def empty_subclass(cls: type, shape: Any, values: Any) -> Any:
    """Return a tensor of a subclass that has a shape, but no memory."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=values.dtype, device=values.device)


def written_arguments(function: Any, args: tuple, cls: type) -> Iterable[Any]:
    """Return the arguments of class `cls` that an operation of the dispatcher writes to."""
    for argument, value in zip(function._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (one for one in tree_leaves(value) if isinstance(one, cls))


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested structure, in the order of `filling`."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def filling(tree: Any) -> Callable[[Iterable[Any]], Any]:
    """Return a function that puts others in the places of the tensors of a nested structure."""
    leaves, form = tree_flatten(tree)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    kept = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def filled(others: Iterable[Any]) -> Any:
        found = list(kept)
        for place, other in zip(places, others, strict=True):
            found[place] = other
        return tree_unflatten(found, form)

    return filled


def replace_all(cls: type, function: Any, tree: Any) -> Any:
    """Return a nested structure with `function(tensor)` for each tensor of class `cls`."""
    return tree_map_only(cls, function, tree)


def indices_of(node: Any) -> Any:
    """Return the indices of a lookup from its node in the autograd graph; None for other nodes."""
    name = node.name()
    if name == "EmbeddingBackward0":
        return node._saved_indices
    if name == "IndexSelectBackward0" and node._saved_dim == 0:
        return node._saved_index
    if name == "IndexBackward0" and len(node._saved_indices) == 1:
        indices = node._saved_indices[0]
        return indices if indices is not None and not indices.dtype.is_floating_point else None
    return None


def in_data_parallel() -> bool:
    """Return whether this runs within a model's `DistributedDataParallel`."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._active_ddp_module is not None
