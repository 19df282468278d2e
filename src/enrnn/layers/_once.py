"""Matrices that are formed once for many calls of a module.

torch's `parametrize.cached()` holds for the whole process: other threads are given what was formed here, and a gradient that is
wanted of a matrix is lost where the first to read it wanted none. What is formed here is handed on, and nobody else sees it.
"""

import functools
from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from ._module import RecurrentModule

Kind = TypeVar("Kind", bound=nn.Module)


def formed_once(module: Kind) -> Kind:
    """A view of `module` that forms its matrices, and whatever else is parametrized in it, once. It is for calls with the
    parameters as they are now, and shares them with the module, and buffers and hooks too. The module itself where nothing is
    to be formed."""
    children = {name: formed_once(child) for name, child in module.named_children() if name != "parametrizations"}
    changed = {name: child for name, child in children.items() if child is not module.get_submodule(name)}
    if not changed and not parametrize.is_parametrized(module):
        return module
    view = module.__new__(type(module))
    vars(view).update(vars(module))
    vars(view).pop("_compiled_call_impl", None)  # which would call the module
    view._modules = {**module._modules, **changed}
    if parametrize.is_parametrized(module):
        _form(module, view)
    return view


def _form(module: nn.Module, view: nn.Module) -> None:
    """Make plain attributes of what is parametrized. A recurrent module's own matrices are left to its `_form`, to be formed
    when they are needed first."""
    names = set(module.parametrizations)  # type: ignore[arg-type]
    if isinstance(module, RecurrentModule):
        names -= module.matrices().keys()
        vars(view)["_form"] = functools.cache(module._form)
    view.__class__ = type(module).__bases__[0]  # without the properties that torch has put into a class made for the module
    del view._modules["parametrizations"]
    vars(view).update({name: getattr(module, name) for name in names})
