"""Records what a module runs on meta tensors: products, attention, convolutions, memory traffic."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
CONVOLUTION = "convolution"
QUESTION = "_local_scalar_dense"
COPIES = frozenset({"clone", "_to_copy", "copy_", "cat", "stack", "constant_pad_nd", "copy"})
VIEWS = frozenset(
    re.findall(
        r"\w+",
        """view _unsafe_view expand permute transpose t unsqueeze squeeze slice select split unbind
        detach alias as_strided split_with_sizes unfold view_as_real view_as_complex real imag
        diagonal""",
    )
)
MAKERS = frozenset(
    re.findall(
        r"\w+",
        """empty empty_like new_empty zeros ones full arange zeros_like ones_like new_zeros new_ones
        full_like new_full linspace scalar_tensor lift_fresh _local_scalar_dense empty_strided
        new_empty_strided""",
    )
)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
Static = tuple[Any, ...]
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One operator: what never changes with the request, and the numbers that may."""

    static: Static
    sizes: Sizes


@dataclass(slots=True)
class Run:
    """Kernels between two products.

    Attributes:
        place: module in which the first runs.
        names: of the kernels.
        kernels: bytes of every tensor that each reads or writes.
        reads: parts of storages from outside, with their bytes.
        made: storages that it writes.
        leaves: those of `made` that are read later.
    """

    place: str
    names: list[str] = field(default_factory=list)
    kernels: list[list[int]] = field(default_factory=list)
    reads: dict[tuple[int, ...], int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)

    def event(self) -> Event:
        """The run as one operator; its sizes are all bytes, those from and to outside last."""
        outside = [*self.reads.values(), *(self.made[n] for n in self.made if n in self.leaves)]
        inside = [size for kernel in self.kernels for size in kernel]
        widths = tuple(len(kernel) for kernel in self.kernels)
        static = ("moves", self.place, tuple(self.names), widths, len(outside))
        return Event(static, (*inside, *outside))


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Everything that runs while it is entered.

    Attributes:
        events: operators in order; runs of memory kernels are filled in at the end.
        peak_bytes: most bytes alive at once of tensors made inside.
    """

    def __init__(self, weights: set[int], *, affirm: bool) -> None:
        """Start with the storages of the weights, which are there before anything runs.

        Args:
            weights: those storages.
            affirm: a yes-or-no question about values is answered yes (is nothing padded?).
        """
        super().__init__()
        self._affirm = affirm
        self.events: list[Event | Run] = []
        self.peak_bytes = 0
        self._alive_bytes = 0
        self._weights = weights
        self._run: Run | None = None
        self._maker: dict[int, Run] = {}
        self._numbers = {storage: number for number, storage in enumerate(weights)}
        self._next = len(weights)
        self._places: list[tuple[str, Counter[str]]] = [("", Counter())]

    def enter(self, name: str) -> None:
        """A module begins."""
        self._places.append((name, Counter()))

    def leave(self) -> None:
        """A module ends."""
        self._places.pop()

    def finished(self, result: Any) -> list[Event]:
        """All operators; `result` is read by whoever called."""
        self._close()
        for leaf in tree_leaves(result):
            if torch.is_tensor(leaf):
                self._use(self._number(leaf))
        return [event.event() if isinstance(event, Run) else event for event in self.events]

    def attention(self, query: Any, key: Any, mask: Any, *, causal: bool) -> None:
        """One call of scaled dot-product attention."""
        self._close()
        for tensor in (query, key, mask):
            self._read(tensor)
        batch = 1
        for side in query.shape[:-3]:
            batch *= side
        heads, rows, width = query.shape[-3:]
        masked = mask is not None
        static = ("attention", *self._place("attention"), key.shape[-3], width, causal, masked)
        self.events.append(Event(static, (batch, heads, rows, key.shape[-2])))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and note it."""
        name = func.overloadpacket.__name__
        if name in VIEWS:
            return func(*args, **(kwargs or {}))
        if self._affirm and name == QUESTION and args[0].is_meta and args[0].dtype is torch.bool:
            return True
        args, kwargs = _on_one_device((args, kwargs or {}))
        result = func(*args, **kwargs)
        wrote = [leaf for leaf in tree_leaves(result) if torch.is_tensor(leaf)]
        if not any(tensor.is_meta for tensor in wrote):
            return result
        if name in PRODUCTS:
            self._product(name, args)
        elif name == CONVOLUTION:
            self._convolution(args, result)
        elif name not in MAKERS:
            self._kernel(name, args, kwargs, wrote)
        for tensor in wrote:
            self._number(tensor)
        return result

    def _place(self, kind: str) -> tuple[str, int]:
        """Module that runs, and how many operators of the kind it ran before in this call."""
        name, seen = self._places[-1]
        seen[kind] += 1
        return name, seen[kind]

    def _product(self, name: str, args: Any) -> None:
        self._close()
        factors = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        left, right = factors
        for tensor in args[:3]:
            self._read(tensor)
        batch = left.shape[0] if left.dim() == 3 else 1
        weight = right.untyped_storage()._cdata in self._weights
        static = ("gemm", *self._place("gemm"), DTYPES.get(left.dtype, "fp32"), weight)
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        self.events.append(Event(static, (batch, m, n, k)))

    def _convolution(self, args: Any, result: Any) -> None:
        self._close()
        source, weight, bias, stride, _, _, transposed = args[:7]
        for tensor in (source, weight, bias):
            self._read(tensor)
        kernel = weight.shape[2:]
        missing = 3 - len(kernel)
        ones = (1,) * missing
        # A transposed convolution does its work at the positions of its input.
        work = source if transposed else result
        inside, outside = weight.shape[1], weight.shape[0]
        static = (
            "conv",
            *self._place("conv"),
            (inside, outside),
            (*ones, *kernel),
            (*ones, *stride),
            DTYPES.get(source.dtype, "fp32"),
            bias is not None,
        )
        # The kernels want channels innermost: input and output exist twice for a moment.
        self._number(result)
        copies = _stored_bytes(source) + _stored_bytes(result)
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes + copies)
        self.events.append(Event(static, (work.shape[0], *ones, *work.shape[2:])))

    def _kernel(self, name: str, args: Any, kwargs: Any, wrote: list[Any]) -> None:
        if self._run is None:
            self._run = Run(self._places[-1][0])
            self.events.append(self._run)
        run = self._run
        sources = args[1:] if name == "copy_" else args
        read = [leaf for leaf in tree_leaves((sources, kwargs)) if torch.is_tensor(leaf)]
        for tensor in read:
            number, size = self._number(tensor), _stored_bytes(tensor)
            if number not in run.made:
                run.reads[number, tensor.storage_offset(), size] = size
                self._use(number)
        for tensor in wrote:
            number = self._number(tensor)
            run.made[number] = max(_stored_bytes(tensor), run.made.get(number, 0))
            self._maker[number] = run
        run.names.append(name)
        run.kernels.append([_stored_bytes(tensor) for tensor in (*read, *wrote)])

    def _close(self) -> None:
        self._run = None

    def _read(self, tensor: Any) -> None:
        if torch.is_tensor(tensor):
            self._use(self._number(tensor))

    def _use(self, number: int) -> None:
        maker = self._maker.get(number)
        if maker is not None and maker is not self._run:
            maker.leaves.add(number)

    def _number(self, tensor: Any) -> int:
        """A number of the tensor's storage that no other ever gets; counts what is alive."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._numbers:
            self._next += 1
            self._numbers[key] = self._next
            size = storage.nbytes()
            self._alive_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
            weakref.finalize(storage, self._freed, key, size).atexit = False
        return self._numbers[key]

    def _freed(self, key: int, size: int) -> None:
        self._numbers.pop(key, None)
        self._alive_bytes -= size


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Functions that the meta device would write out in smaller ones."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is torch.nn.functional.rms_norm:
            # One kernel on a GPU, which reads and writes the map once.
            return (args[0] if args else kwargs["input"]) * 1
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Any:
        self.recorder.attention(query, key, attn_mask, causal=is_causal)
        self.recorder._read(value)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))


@dataclass(frozen=True, slots=True)
class Trace:
    """What one call ran."""

    events: list[Event]
    result: Any
    peak_bytes: int


def traced(module: Any, call: Callable[[], Any], *, affirm: bool = False) -> Trace:
    """Run `call` and record what `module` does in it.

    Args:
        module: whose submodules name the operators.
        call: what runs.
        affirm: questions about the values of tensors are answered yes.

    Raises:
        Exception: whatever the module raises on inputs that it does not take; its attribute
            ``operators`` says how many ran before.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in module.parameters()}
    recorder = Recorder(weights, affirm=affirm)
    hooks = []
    for name, child in module.named_modules():
        hooks.append(child.register_forward_pre_hook(lambda *_, n=name: recorder.enter(n)))
        hooks.append(child.register_forward_hook(lambda *_: recorder.leave()))
    try:
        with torch.no_grad(), _quiet(), _Functions(recorder), recorder:
            result = call()
        return Trace(recorder.finished(result), result, recorder.peak_bytes)
    except Exception as error:
        error.operators = len(recorder.events)  # type: ignore[attr-defined]
        raise
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without autocast, which the meta device lacks."""

    @contextlib.contextmanager
    def nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    before = torch.autocast
    torch.autocast = nothing
    try:
        yield
    finally:
        torch.autocast = before


def _on_one_device(given: Any) -> Any:
    """Tensors that hold values (masks, tables) meet meta tensors as meta tensors."""
    tensors = [leaf for leaf in tree_leaves(given) if torch.is_tensor(leaf)]
    kinds = {tensor.is_meta for tensor in tensors}
    if len(kinds) < 2:
        return given
    return tree_map(lambda leaf: leaf.to("meta") if torch.is_tensor(leaf) else leaf, given)


def _stored_bytes(tensor: Any) -> int:
    """Bytes of a tensor, dimensions that are only repeated left out."""
    if tensor.is_contiguous():
        return int(tensor.numel() * tensor.element_size())
    count = 1
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if step or size == 0 else 1
    return int(count * tensor.element_size())
