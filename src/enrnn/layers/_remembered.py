"""Matrices that are formed once for all calls, while nobody learns.

A layer that runs on a CPU without gradients, perhaps step by step on a stream, would form the same matrices at every call: O(n³),
where a step takes O(n²). What was formed is therefore kept, with a copy of all that it was formed from, and is used again while
that is, bit for bit, what it was. The values themselves are compared, which takes O(n²): a tensor's version does not tell of
`.data`, of NumPy, nor of other processes that share its memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._operators import in_forward_mode, transforms_are_active
from .._precision import autocasting, recording
from ..matrices import Matrix
from ._watched import watched

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SIMPLE = (bool, int, float, str, type(None))
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"name"}


class _Sources(NamedTuple):
    """All that a matrix is formed from."""

    tensors: tuple[Tensor, ...]
    settings: dict[str, object]

    def copy(self) -> "_Sources":
        return _Sources(tuple(each.detach().clone() for each in self.tensors), self.settings)

    def same(self, others: "_Sources") -> bool:
        return self.settings == others.settings and all(map(_same, self.tensors, others.tensors))


class Remembered:
    """The matrices of one module, by the names of their weights. A copy of the module begins with none."""

    def __init__(self) -> None:
        self._formed: dict[str, tuple[_Sources, Tensor]] = {}

    def __reduce__(self) -> tuple[type["Remembered"], tuple[()]]:
        return Remembered, ()

    def matrix(self, name: str, chain: Any, originals: tuple[Tensor, ...], form: Callable[[], Tensor]) -> Tensor:
        """What `form` returns for these `originals` under the parametrizations of `chain`, or has returned. Not to be changed."""
        sources = _sources(chain, originals)
        if sources is None:
            self._formed.pop(name, None)
            return form()
        formed = self._formed.get(name)
        if formed is not None and formed[0].same(sources):
            return formed[1]
        before = sources.copy()
        with torch.inference_mode(False), torch.no_grad():  # one of inference mode could not be used outside of it
            matrix = form()
        if type(matrix) is Tensor and before.same(sources):  # nobody has written to them meanwhile
            self._formed[name] = before, matrix
        return matrix


def _sources(chain: Any, originals: tuple[Tensor, ...]) -> _Sources | None:
    """Tensors and settings that the matrix is a function of, if it is one, of which no derivative is wanted and which nobody
    watches being formed."""
    first = originals[0]
    if first.device.type != "cpu" or recording(first):
        return None
    if torch.is_grad_enabled() and any(each.requires_grad for each in originals):
        return None
    matrix = chain[0]
    if len(chain) > 1 or chain.training or matrix.training or not isinstance(matrix, Matrix):
        return None
    if type(matrix).__module__.partition(".")[0] != __name__.partition(".")[0]:  # another's family may do what it likes
        return None
    if watched(chain, matrix):
        return None
    tensors = *originals, *(buffer for buffer in matrix._buffers.values() if buffer is not None)
    if matrix._modules or any(type(each) not in (Tensor, nn.Parameter) or each.is_inference() for each in tensors):
        return None
    settings = {name: value for name, value in vars(matrix).items() if name not in _OF_EVERY_MODULE}
    if not all(isinstance(value, _SIMPLE) for value in settings.values()):
        return None
    watching = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return None if watching or autocasting(first) or transforms_are_active() or in_forward_mode() else _Sources(tensors, settings)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same, bit for bit: NaN is NaN, and −0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.dim() and not one.is_floating_point():
        return bool(one.item() == other.item())
    return torch.equal(_words(one), _words(other))


def _words(tensor: Tensor) -> Tensor:
    """The bits, in the longest words there are room for."""
    flat, size = tensor.detach().reshape(-1), tensor.element_size()
    return flat.view(torch.int64 if size * flat.numel() % 8 == 0 else _WORDS[size])
