"""Operators of torch's: one node under `torch.compile` and `torch.export`, with a formula for the gradient.

`torch.library.custom_op` makes such operators too, and they are used in the same way. But a call of one, with a gradient, costs
100 µs of the host's time, as much as a whole recurrence takes on a GPU; a call of one of these 33. The others check at every call
what `torch.library.opcheck` checks once, and bind arguments to names again on every layer of the dispatcher.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

_LIBRARY: Any = torch.library.Library("enrnn", "FRAGMENT")  # type: ignore[no-untyped-call]

_KEYS = torch._C.DispatchKey
_PLAIN = {torch._C.DispatchKeySet(device).raw_repr() for device in (_KEYS.CPU, _KEYS.CUDA)}
"""What is left below autograd where nothing but the operator itself is: no mode watches, nothing is traced, transformed or
functionalized, no tensor is a negative that has yet to be formed. Then there is no need to ask the dispatcher once more."""

transforms_are_active = torch._C._are_functorch_transforms_active
_NOTHING = contextlib.nullcontext()


class Operator:
    """A decorator: `enrnn::name` for a function of that name with annotated arguments, none of which it changes or returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = function.__name__.lstrip("_")
        self._setup_context: Callable[[Any, tuple[Any, ...], Any], None] = lambda *_: None
        self._backward: Callable[..., Any] = self._no_formula
        self._tangent: Callable[..., Any] = self._no_tangent
        self._many: Callable[..., Any] = self.one_by_one
        _LIBRARY.define(self._name + torch.library.infer_schema(function, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,))
        self._run = _not_compiled(function)
        self._replayed: Callable[[tuple[Any, ...]], Callable[..., Any] | None] | None = getattr(function, "again", None)
        _LIBRARY.impl(self._name, self._run, "CompositeExplicitAutograd")
        self._overload = getattr(torch.ops.enrnn, self._name).default
        _LIBRARY.impl(self._name, self._differentiable(), "Autograd", with_keyset=True)
        torch.library.register_vmap(f"enrnn::{self._name}", self._at_once, lib=_LIBRARY)

    def __call__(self, *arguments: Any) -> Any:
        if self._replayed is not None:
            found = self.again(*arguments)
            if found is not None:
                return found
        return self._overload(*arguments)

    def again(self, *arguments: Any) -> Any:
        """What comes out of it, without a way through torch's dispatcher, if it is a call that is replayed (`_replay.py`), where
        nobody but autograd has to know of it; None if it is not. What was checked of arguments before such a call need not be
        checked again: those of one that can be replayed are like others that have come as far as here."""
        if self._replayed is None or somebody_listens():
            return None
        program = self._replayed(arguments)
        if program is None:
            return None
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return self._apply(*arguments, program, None)
        return program(arguments)

    def within(self, *arguments: Any) -> Any:
        """What comes out of it, within another operator: there neither autograd nor torch's dispatcher has to know of it."""
        return self._run(*arguments)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        """What comes out of it, without values."""
        torch.library.register_fake(f"enrnn::{self._name}", fake, lib=_LIBRARY)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[[Any, tuple[Any, ...], Any], None] | None = None
    ) -> None:
        """Its gradient, as `torch.library.register_autograd` wants it."""
        self._backward = backward
        if setup_context is not None:
            self._setup_context = setup_context

    def register_tangent(self, tangent: Callable[..., Any]) -> None:
        """Its derivative in forward mode: `tangent(arguments, found, tangents)` says how what is found moves, in operations that
        can be differentiated again. The tangent of an argument is None if it has none; so may be those that are returned."""
        self._tangent = tangent

    def register_vmap(self, rule: Callable[..., Any]) -> None:
        """How it is run for many at once, as `torch.library.register_vmap` wants it; else one after the other."""
        self._many = rule

    def one_by_one(self, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        """As torch would do it of its own accord; but of that it warns."""

        def of(i: int) -> Iterator[Any]:
            return (each.select(dim, i) if isinstance(dim, int) else each for each, dim in zip(arguments, in_dims, strict=True))

        every = [self(*of(i)) for i in range(info.batch_size)]
        if isinstance(every[0], tuple):
            return tuple(map(torch.stack, zip(*every, strict=True))), (0,) * len(every[0])
        return torch.stack(every), 0

    def _at_once(self, info: Any, *call: Any) -> Any:
        if not info.batch_size:
            raise ValueError(f"enrnn::{self._name}: vmap over a dimension of size 0")
        return self._many(info, *call)

    def _no_tangent(self, *_: Any) -> Any:
        raise NotImplementedError(
            f"enrnn::{self._name} has no derivative in forward mode (torch.func.jvp, jacfwd): "
            "take it in reverse mode, or choose backend='reference'"
        )

    def _no_formula(self, *_: Any) -> Any:
        raise RuntimeError(f"enrnn::{self._name} has no formula for a gradient")

    def _differentiable(self) -> Callable[..., Any]:
        """The kernel of the dispatcher's layer that knows of gradients."""
        operator, after = self, torch._C._after_autograd_keyset

        def below(keys: Any, *arguments: Any) -> Any:
            left = keys & after
            with torch._C._AutoDispatchBelowAutograd():
                if left.raw_repr() in _PLAIN:
                    return operator._run(*arguments)
                return operator._overload.redispatch(left, *arguments)

        def forward(ctx: Any, *arguments: Any) -> Any:
            *arguments, keys, primals = arguments  # type: ignore[assignment]
            if callable(keys):
                found = keys(arguments)
            else:
                with _for_outer_transforms() if transforms_are_active() else _NOTHING:
                    found = below(keys, *arguments)
            operator._setup_context(ctx, tuple(arguments), found)
            if primals is not None:
                ctx.moved = primals, found
            return found

        def backward(ctx: Any, *gradients: Any) -> Any:
            found = operator._backward(ctx, *gradients)
            return (*found, None, None) if isinstance(found, tuple) else (found, None, None)

        def jvp(ctx: Any, *tangents: Any) -> Any:
            primals, found = ctx.moved
            del ctx.moved  # which refers to what is found, as that does to this
            with _for_outer_transforms():
                return operator._tangent(primals, found, tangents[:-2])

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "jvp": staticmethod(jvp)}
        node: Any = type(f"enrnn_{self._name}_", (torch.autograd.Function,), methods)  # of whose name torch makes the gradient's
        self._apply = super(torch.autograd.Function, node).apply  # type: ignore[misc]

        def differentiable(keys: Any, *arguments: Any) -> Any:
            primals = _primals(arguments) if in_forward_mode() else None
            if primals is not None or (torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)):
                if not transforms_are_active():
                    return node.apply(*arguments, keys, primals)
                with enable_single_level_autograd_function():  # of one transform, which the dispatcher has come to
                    return operator._apply(*arguments, keys, primals)
            return below(keys, *arguments)

        return differentiable


def somebody_listens() -> bool:
    """Whether calls of operators are traced, transformed, seen by modes or written down."""
    return bool(
        torch.compiler.is_compiling()
        or transforms_are_active()
        or in_forward_mode()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state()
        or torch._C._autograd._profiler_enabled()
        or torch._C._dispatch_tls_is_dispatch_key_excluded(_KEYS.AutogradFunctionality)  # within another operator, below autograd
    )


@contextlib.contextmanager
def _for_outer_transforms() -> Iterator[None]:
    """Inside of a node nothing is differentiated; but what is outside of the transform that the node is of may want it."""
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def differentiated(*arguments: torch.Tensor | None) -> bool:
    """Whether a derivative of what is made of these may be asked for. Within transforms that is not seen from a tensor."""
    if not torch.compiler.is_compiling() and (transforms_are_active() or in_forward_mode()):
        return True
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in arguments)


def seen(value: torch.Tensor) -> torch.Tensor:
    """What a tensor holds beneath all transforms: for `vmap`, the values of all that are run at once."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def differentiated_again() -> bool:
    """For a formula: whether a derivative of the gradient that it gives may be asked for."""
    return torch.is_grad_enabled() or in_forward_mode()


def in_forward_mode() -> bool:
    """Whether tensors may have tangents."""
    return forward_ad._current_level >= 0


def moved_by(function: Callable[..., torch.Tensor], arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> torch.Tensor | None:
    """A tangent by torch's own operations: how what the function finds moves with its arguments."""
    make: Any = forward_ad.make_dual
    pairs = zip(arguments, tangents, strict=True)
    return _unpacked(function(*(each if by is None else make(each, by, level=0) for each, by in pairs)))[1]


def _primals(arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments without their tangents, if any has one."""
    primals, tangents = zip(*map(_unpacked, arguments), strict=True)
    return primals if any(each is not None for each in tangents) else None


def _unpacked(argument: Any) -> tuple[Any, torch.Tensor | None]:
    """An argument as it is, and how it moves."""
    unpack: Any = forward_ad.unpack_dual
    return tuple(unpack(argument, level=0)) if isinstance(argument, torch.Tensor) else (argument, None)


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, into which the compiler of a caller does not look. While nobody has loaded that compiler, which takes two
    seconds, it is not loaded here."""
    disabled: Any = None

    def run(*arguments: Any) -> Any:
        nonlocal disabled
        if disabled is None and "torch._dynamo" in sys.modules:
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return (disabled or function)(*arguments)

    return run
