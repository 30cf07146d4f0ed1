"""Elementwise rules on PyTorch over flat memory, compiled once per rule.

Small variables of one kind are laid end to end, their slots for good, variables and gradients for
the duration of a step; large ones are used where they are. One function, compiled for flat tensors
of any length, then runs the rule in a single pass over the memory.
"""

from __future__ import annotations

import dataclasses
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.execution.binding import Kind, Update, bind_rule
from keras_tfopt.execution.settings import is_plain

if TYPE_CHECKING:
    from keras_tfopt.execution.engine import Engine

LARGE = 1 << 17  # elements from which a variable is worth a pass of its own
BUCKET = 1 << 20  # elements of a bucket: bounds the memory for copies of gradients
BLOCK = 256  # elements summed together where a rule takes norms
CHUNK = 1 << 17  # elements that stay in cache while an uncompiled rule makes its passes

_compiled: dict[tuple, Callable] = {}
_compiler_works = True


@dataclasses.dataclass
class Bucket:
    """Variables whose slots lie end to end in `flat`, one tensor a slot."""

    positions: list[int]  # in the list of updates
    sizes: list[int]
    flat: list[torch.Tensor]
    views: list[tuple[Any, int]]  # slot variables and the addresses at which they must be found
    # For rules with norms, memory is a matrix of whole blocks, each of one variable: the number of
    # each block's variable, and a zero for each variable.
    blocks: tuple[torch.Tensor, torch.Tensor] | None
    paddings: list[int]  # elements that fill up the last block of each variable

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The tensors laid end to end as the slots are."""
        if not any(self.paddings):
            flat = torch._utils._flatten_dense_tensors(tensors)
        else:
            filled = []
            for tensor, padding in zip(tensors, self.paddings, strict=True):
                filled += [tensor.reshape(-1), tensor.new_zeros(padding)]
            flat = torch.cat(filled)
        return flat if self.blocks is None else flat.view(-1, BLOCK)

    def part(self, whole: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
        """The opposite of `join`: views of the shapes of `like`."""
        flat = whole.view(-1)
        if not any(self.paddings):
            return torch._utils._unflatten_dense_tensors(flat, like)
        sizes = [size + padding for size, padding in zip(self.sizes, self.paddings, strict=True)]
        pieces = zip(flat.split(sizes), self.sizes, like, strict=True)
        return [piece[:size].view(tensor.shape) for piece, size, tensor in pieces]

    def is_intact(self) -> bool:
        """Whether the slots are still views: moving or replacing them detaches them."""
        return all(slot._value.data_ptr() == address for slot, address in self.views)


def run_fused(
    engine: Engine, updates: list[Update], scalars: dict[str, dict[str, Any]]
) -> list[Update]:
    """Runs what can be run over flat memory; returns the other updates."""
    if is_plain() or not (engine.scope == "element" or engine.flat):
        return updates
    fused = [u for u in updates if u.kind.mode == "dense" and 0 not in u.variable.shape]
    if not fused:
        return updates
    key = ("plan", tuple(u.index for u in fused))
    plan = engine._fast.get(key)
    if plan is None or not all(bucket.is_intact() for bucket in plan):
        plan = engine._fast[key] = _plan(fused, in_blocks=engine.scope != "element")
    for bucket in plan:
        members = [fused[position] for position in bucket.positions]
        first = members[0]
        step = _step(engine, first, bucket.blocks is not None)
        x = [u.variable._value for u in members]
        g = [u.gradient for u in members]
        known = scalars[first.kind.dtype]
        if len(members) == 1 and bucket.blocks is None and x[0].is_contiguous():
            step(g[0].reshape(-1), x[0].detach().view(-1), bucket.flat, known, None)
            continue
        flat = bucket.join(x)
        step(bucket.join(g), flat, bucket.flat, known, bucket.blocks)
        torch._foreach_copy_(x, bucket.part(flat, x))
    done = {id(update) for update in fused}
    return [update for update in updates if id(update) not in done]


def _plan(updates: list[Update], in_blocks: bool) -> list[Bucket]:
    groups: dict[tuple, list[list[int]]] = {}
    filled: dict[tuple, int] = {}
    buckets = []
    for position, update in enumerate(updates):
        value = update.variable._value
        size = value.numel()
        key = (update.kind, update.names, value.dtype, value.device)
        if size >= LARGE:
            buckets.append(_bucket(updates, [position], in_blocks=False))
            continue
        if key not in groups or filled[key] + size > BUCKET:
            groups.setdefault(key, []).append([])
            filled[key] = 0
        groups[key][-1].append(position)
        filled[key] += size
    for lists in groups.values():
        buckets.extend(_bucket(updates, positions, in_blocks) for positions in lists)
    return buckets


def _bucket(updates: list[Update], positions: list[int], in_blocks: bool) -> Bucket:
    members = [updates[position] for position in positions]
    sizes = [u.variable._value.numel() for u in members]
    paddings = [-size % BLOCK if in_blocks else 0 for size in sizes]
    blocks = None
    if in_blocks:
        device, dtype = members[0].variable._value.device, members[0].gradient.dtype
        counts = torch.tensor([(s + p) // BLOCK for s, p in zip(sizes, paddings, strict=True)])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), counts).to(device)
        blocks = owner, torch.zeros(len(sizes), dtype=dtype, device=device)
    bucket = Bucket(positions, sizes, [], [], blocks, paddings)
    for slots in zip(*(u.slots for u in members), strict=True):
        old = [slot._value.detach() for slot in slots]
        whole = bucket.join(old)
        bucket.flat.append(whole)
        for slot, view in zip(slots, bucket.part(whole, old), strict=True):
            slot._value = torch.nn.Parameter(view, requires_grad=False)
            bucket.views.append((slot, view.data_ptr()))
    return bucket


def _step(engine: Engine, update: Update, in_blocks: bool) -> Callable[..., None]:
    """The in-place step over flat tensors: compiled where possible, else in pieces."""
    value, kind, names = update.variable._value, update.kind, update.names
    key = ("step", kind, names, value.dtype, value.device.type, in_blocks)
    if key not in engine._fast:
        rule = _bare(engine)
        shared = (type(engine), repr(sorted(vars(rule).items())), *key)
        if shared not in _compiled:
            _compiled[shared] = _compile(rule, kind, names, in_pieces=engine.scope == "element")
        engine._fast[key] = _compiled[shared]
    return engine._fast[key]


def _bare(engine: Engine) -> Any:
    """The rule with its hyperparameters and without state, which compiled code would keep alive."""
    rule = object.__new__(type(engine))
    for name, value in engine.hyperparameters().items():
        object.__setattr__(rule, name, value)
    return rule


def _compile(rule: Any, kind: Kind, names: tuple[str, ...], in_pieces: bool) -> Callable[..., None]:
    call = bind_rule(rule, kind, names, torch.linalg.vector_norm)

    def step(
        g: Any, x: Any, slots: list[Any], scalars: dict[str, Any], blocks: tuple | None
    ) -> None:
        def norm(values: Any) -> Any:
            if blocks is None:
                return torch.sqrt(torch.sum(values * values))
            owner, zeros = blocks
            sums = zeros.index_add(0, owner, torch.sum(values * values, 1))
            return torch.sqrt(sums)[owner].unsqueeze(1)

        y, changed = call(g, x, slots, scalars, None, norm)
        x.copy_(y)
        for slot, new in zip(slots, changed, strict=True):
            if new is not None:
                slot.copy_(new)

    def uncompiled(
        g: Any, x: Any, slots: list[Any], scalars: dict[str, Any], blocks: tuple | None
    ) -> None:
        if not in_pieces:
            step(g, x, slots, scalars, blocks)
            return
        parts = [tensor.split(CHUNK) for tensor in (g, x, *slots)]
        for g_part, x_part, *slot_parts in zip(*parts, strict=True):
            step(g_part, x_part, slot_parts, scalars, blocks)

    # Recompilations are counted per code object, and past a limit code silently runs uncompiled.
    own = types.FunctionType(
        step.__code__.replace(co_name=f"{type(rule).__name__}_step"),
        step.__globals__,
        closure=step.__closure__,
    )
    # A half-precision variable is compared with its copy, so casts must round as they do eagerly.
    options = {"emulate_precision_casts": True}
    compiled = torch.compile(own, dynamic=True, fullgraph=True, options=options)

    def step_or_fall_back(
        g: Any, x: Any, slots: list[Any], scalars: dict[str, Any], blocks: tuple | None
    ) -> None:
        # Sizes 0 and 1 would be compiled apart, which is not worth it.
        if not _compiler_works or x.numel() < 2:
            uncompiled(g, x, slots, scalars, blocks)
            return
        try:
            compiled(g, x, slots, scalars, blocks)
        except Exception as error:  # whatever a missing or broken tool chain may raise
            _give_up_compiling(error)
            uncompiled(g, x, slots, scalars, blocks)

    return step_or_fall_back


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
