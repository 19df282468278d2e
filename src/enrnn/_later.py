"""A look at what a GPU has found, while it goes on."""

import torch
from torch import Tensor


class Later:
    """A flag on a GPU, asked for now. To know whether it is set takes waiting for what was launched before this, and not for what
    has been launched since."""

    def __init__(self, flag: Tensor) -> None:
        self._here = flag.to("cpu", non_blocking=True)
        self._come = torch.cuda.current_stream(flag.device).record_event()

    def __bool__(self) -> bool:
        self._come.synchronize()
        return bool(self._here)
