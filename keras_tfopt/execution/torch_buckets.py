"""Elementwise rules on PyTorch over flat memory, compiled once per rule.

Small variables of one kind are laid end to end, their slots for good, variables and gradients for
the duration of a step; large ones are used where they are. One function, compiled for some flat
tensors of any length, then runs the rule in a single pass over the memory of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.execution.binding import Kind, Update, bind_rule, with_values
from keras_tfopt.execution.settings import is_plain

if TYPE_CHECKING:
    from keras_tfopt.execution.engine import Engine

LARGE = 1 << 14  # elements from which a variable is used where it is
BUCKET = 1 << 18  # elements of a bucket: bounds the memory for copies of gradients
# Flat tensors of one call of compiled code, which costs as much as some 20,000 elements. Each takes
# a third of a second to compile.
BATCH = 2
BLOCK = 256  # elements summed together where a rule takes norms: in one pass, and exactly
CHUNK = 1 << 17  # elements that stay in cache while an uncompiled rule makes its passes

_compiled: dict[tuple, Callable] = {}
_scratches: dict[tuple, torch.Tensor] = {}
_compiler_works = True


@dataclasses.dataclass
class Bucket:
    """Variables whose slots lie end to end in `flat`, one tensor a slot."""

    positions: list[int]  # in the list of updates
    flat: list[torch.Tensor]
    slots: list[Any]  # slot variables
    addresses: list[int]  # at which they must be found
    # For rules with norms, memory is a matrix of whole blocks, each of one variable: the number of
    # each block's variable, and a zero for each variable.
    blocks: tuple[torch.Tensor, torch.Tensor] | None
    # Gradient and variable laid out as the slots are, for the time of a step, and the parts of
    # them that belong to each variable. None for a variable that is used where it is.
    joined: tuple[torch.Tensor, torch.Tensor] | None = None
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])

    def gather(self, g: list[torch.Tensor], x: list[torch.Tensor]) -> tuple:
        """Flat gradient, variable and slots, and the blocks: what the compiled step takes."""
        if self.joined is None:
            return g[0].reshape(-1), x[0].detach().view(-1), self.flat, None
        for whole, parts, tensors in zip(self.joined, self.parts, (g, x), strict=True):
            if self.blocks is not None:
                whole.zero_()  # what fills up blocks must not count in norms
            torch._foreach_copy_(parts, tensors)
        return *self.joined, self.flat, self.blocks

    def scatter(self, x: list[torch.Tensor]) -> None:
        """Writes the variables back."""
        if self.joined is not None:
            torch._foreach_copy_(x, self.parts[1])

    def is_intact(self) -> bool:
        """Whether the slots are still views: moving or replacing them detaches them."""
        return [slot._value.data_ptr() for slot in self.slots] == self.addresses


def run_fused(
    engine: Engine, updates: list[Update], scalars: dict[str, dict[str, Any]]
) -> list[Update]:
    """Runs what can be run over flat memory; returns the other updates."""
    if is_plain() or not (engine.scope == "element" or engine.flat):
        return updates
    fused = [u for u in updates if _is_plain_update(u)]
    if not fused:
        return updates
    key = ("plan", tuple([u.index for u in fused]))
    plan = engine._fast.get(key)
    if plan is None or not all(bucket.is_intact() for group in plan for bucket in group):
        plan = engine._fast[key] = _plan(fused, engine.scope)
    for group in plan:
        members = [[fused[position] for position in bucket.positions] for bucket in group]
        first = members[0][0]
        step = _step(engine, first, group[0].blocks is not None)
        x = [[u.variable._value for u in one] for one in members]
        gathered = [
            bucket.gather([u.gradient for u in one], values)
            for bucket, one, values in zip(group, members, x, strict=True)
        ]
        step(gathered, scalars[first.kind.dtype])
        for bucket, values in zip(group, x, strict=True):
            bucket.scatter(values)
    if len(fused) == len(updates):
        return []
    done = {id(update) for update in fused}
    return [update for update in updates if id(update) not in done]


def _is_plain_update(update: Update) -> bool:
    """Whether it is of a whole variable by a gradient that is a tensor and nothing more."""
    # Compiled code does not look again: subclasses may do anything.
    return (
        update.kind.mode == "dense"
        and type(update.gradient) is torch.Tensor
        and 0 not in update.like.shape
    )


def _plan(updates: list[Update], scope: str) -> list[list[Bucket]]:
    """All variables in buckets, and these in groups for one call of compiled code each."""
    alike: dict[tuple, list[list[int]]] = {}
    filled: dict[tuple, int] = {}
    for position, update in enumerate(updates):
        value = update.variable._value
        size = value.numel()
        small = size < LARGE
        key = (small and scope != "element", update.kind, update.names, value.dtype, value.device)
        lists = alike.setdefault(key, [[]])
        if small and filled.get(key, 0) + size <= BUCKET:
            lists[0].append(position)
            filled[key] = filled.get(key, 0) + size
        elif small:
            lists.insert(0, [position])
            filled[key] = size
        else:
            lists.append([position])
    plan = []
    for (blocks, *_), lists in alike.items():
        lists = [positions for positions in lists if positions]
        size = 1 if blocks else BATCH
        for start in range(0, len(lists), size):
            group = lists[start : start + size]
            plan.append([_bucket(updates, p, blocks, number) for number, p in enumerate(group)])
    return plan


def _bucket(updates: list[Update], positions: list[int], in_blocks: bool, number: int) -> Bucket:
    members = [updates[position] for position in positions]
    values = [u.variable._value for u in members]
    sizes = [value.numel() for value in values]
    rooms = [size + (-size % BLOCK if in_blocks else 0) for size in sizes]
    blocks = None
    if in_blocks:
        counts = torch.tensor([room // BLOCK for room in rooms])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), counts).to(values[0].device)
        blocks = owner, members[0].gradient.new_zeros(len(sizes))
    bucket = Bucket(positions, [], [], [], blocks)

    def split(whole: torch.Tensor) -> list[torch.Tensor]:
        pieces = zip(whole.view(-1).split(rooms), sizes, values, strict=True)
        return [piece[:size].view(value.shape) for piece, size, value in pieces]

    for slots in zip(*(u.slots for u in members), strict=True):
        whole = slots[0]._value.new_zeros(sum(rooms))
        for slot, view in zip(slots, split(whole), strict=True):
            view.copy_(slot._value.detach())
            slot._value = torch.nn.Parameter(view, requires_grad=False)
            bucket.slots.append(slot)
            bucket.addresses.append(view.data_ptr())
        bucket.flat.append(whole.view(-1, BLOCK) if in_blocks else whole)
    if len(members) > 1 or in_blocks or not values[0].is_contiguous():
        room = sum(rooms)
        g = _scratch(("g", number), members[0].gradient, room)
        x = _scratch(("x", number), values[0], room)
        bucket.parts = split(g), split(x)
        bucket.joined = (g.view(-1, BLOCK), x.view(-1, BLOCK)) if in_blocks else (g, x)
    return bucket


def _scratch(use: tuple[str, int], like: torch.Tensor, size: int) -> torch.Tensor:
    """Memory for the time of a call of compiled code, the same for all calls."""
    key = (*use, like.dtype, like.device)
    if key not in _scratches or _scratches[key].numel() < size:
        _scratches[key] = torch.empty(max(size, BUCKET), dtype=like.dtype, device=like.device)
    return _scratches[key][:size]


def _step(engine: Engine, update: Update, in_blocks: bool) -> Callable[[list, dict], None]:
    """The in-place step over some flat tensors: compiled where possible, else in pieces."""
    value, kind, names = update.variable._value, update.kind, update.names
    key = ("step", kind, names, value.dtype, value.device.type, in_blocks)
    if key not in engine._fast:
        changing = tuple(engine._changing)
        # Without the state, which compiled code would keep alive.
        rule = with_values(engine, dict.fromkeys(changing))
        shared = (type(engine), repr(sorted(vars(rule).items())), changing, *key)
        if shared not in _compiled:
            _compiled[shared] = _compile(rule, kind, names, changing, in_blocks, engine.scope)
        engine._fast[key] = _compiled[shared]
    return engine._fast[key]


def _compile(
    rule: Any,
    kind: Kind,
    names: tuple[str, ...],
    changing: tuple[str, ...],
    in_blocks: bool,
    scope: str,
) -> Callable[[list, dict], None]:
    call = bind_rule(rule, kind, names, torch.linalg.vector_norm, changing)

    def step(members: list[tuple], scalars: dict[str, Any]) -> None:
        for g, x, slots, blocks in members:

            def norm(values: Any, blocks: Any = blocks) -> Any:
                squares = values * values
                if blocks is None:
                    whole = squares.shape[0] // BLOCK * BLOCK
                    sums = torch.sum(squares[:whole].view(-1, BLOCK), 1)
                    return torch.sqrt(torch.sum(sums) + torch.sum(squares[whole:]))
                owner, zeros = blocks
                sums = zeros.index_add(0, owner, torch.sum(squares, 1))
                return torch.sqrt(sums)[owner].unsqueeze(1)

            y, changed = call(g, x, slots, scalars, None, norm)
            x.copy_(y)
            for slot, new in zip(slots, changed, strict=True):
                if new is not None:
                    slot.copy_(new)

    def uncompiled(members: list[tuple], scalars: dict[str, Any]) -> None:
        if scope != "element":
            step(members, scalars)
            return
        for g, x, slots, _ in members:
            parts = [tensor.split(CHUNK) for tensor in (g, x, *slots)]
            for g_part, x_part, *slot_parts in zip(*parts, strict=True):
                step([(g_part, x_part, slot_parts, None)], scalars)

    # Recompilations are counted per code object, and past a limit code silently runs uncompiled.
    own = types.FunctionType(
        step.__code__.replace(co_name=f"{type(rule).__name__}_step"),
        step.__globals__,
        closure=step.__closure__,
    )
    # A half-precision variable is compared with its copy, so casts must round as they do eagerly.
    options: dict[str, Any] = {"emulate_precision_casts": True}
    # Rules have none of the patterns that these look for, such as attention.
    options.update(use_pre_grad_passes=False, use_joint_graph_passes=False)
    if not in_blocks:
        # All that could differ between calls is in the keys of this module: no call checks again.
        options["guard_filter_fn"] = lambda guards: [False] * len(guards)
    compiled = torch.compile(own, dynamic=True, fullgraph=True, options=options)
    fillers: list[tuple] = []

    def step_or_fall_back(members: list[tuple], scalars: dict[str, Any]) -> None:
        # Sizes 0 and 1 would be compiled apart, which is not worth it.
        if not _compiler_works or any(x.numel() < 2 for _, x, *_ in members):
            uncompiled(members, scalars)
            return
        try:
            if in_blocks:
                with _constant_hyperparameters(), _known_processor():
                    compiled(members, scalars)
                return
            if not fillers:
                # Of distinct sizes, or the compiler would take some to be always the same.
                fillers.extend(_filler(members[0], 5000 + 16 * n) for n in range(BATCH))
                with _constant_hyperparameters(), _known_processor():
                    compiled(fillers, scalars)
                fillers[:] = [_filler(members[0], 2) for _ in range(BATCH)]
            compiled([*members, *fillers[len(members) :]], scalars)
        except Exception as error:  # whatever a missing or broken tool chain may raise
            _give_up_compiling(error)
            uncompiled(members, scalars)

    return step_or_fall_back


def _filler(member: tuple, size: int) -> tuple:
    """Flat tensors of the same dtypes, to compile with and to fill up a call."""
    g, x, slots, _ = member
    return g.new_ones(size), x.new_ones(size), [slot.new_ones(size) for slot in slots], None


def _constant_hyperparameters() -> contextlib.AbstractContextManager:
    # Or numbers become inputs, which the compiled loop would load again for each element.
    import torch._dynamo.config

    return torch._dynamo.config.patch(specialize_float=True)


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
    if not any(key[0] == "step" for key in getattr(engine, "_fast", ())):
        return "not compiled: operation by operation"
    if not _compiler_works:
        return "not compiled: torch.compile found no working compiler"
    return f"compiled by torch.compile ({compilations()} graphs in this process)"


def compilations() -> int:
    """How many graphs Dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
