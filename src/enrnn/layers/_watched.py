"""Whether anybody is told when a module is called: then it has to be called, and not just its `forward`."""

import torch
from torch import nn
from torch.nn.modules import module as torch_module


def watched(*modules: nn.Module) -> bool:
    """By hooks of theirs or of all modules, by a compiled call in place of theirs, or by whoever traces calls."""
    return _traced() or _every_call_is() or any(map(_hooked, modules))


def _hooked(module: nn.Module) -> bool:
    before, after = module._forward_pre_hooks or module._backward_pre_hooks, module._forward_hooks or module._backward_hooks
    return bool(before or after or module._compiled_call_impl)


def _every_call_is() -> bool:
    before = torch_module._global_forward_pre_hooks or torch_module._global_backward_pre_hooks
    return bool(before or torch_module._global_forward_hooks or torch_module._global_backward_hooks)


def _traced() -> bool:
    return bool(torch.compiler.is_compiling() or torch._C._get_tracing_state())
