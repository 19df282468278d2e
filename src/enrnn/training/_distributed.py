"""Several processes on one run: `torchrun --standalone --nproc-per-node 2 -m enrnn train …`.

Process r of w takes the columns r, r + w, r + 2w, … of every batch, so that the joint batch is the one a single process would
have seen, and a carried state stays with its column. Gradients are averaged by torch's DistributedDataParallel, those of a loss
over what counts in a batch by how much of that each process has. All processes hold the same weights and evaluate the whole
split; process 0 writes.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """Which process this is, and of how many."""

    rank: int = 0
    count: int = 1

    @property
    def alone(self) -> bool:
        return self.count == 1

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> Any:
        return model if self.alone else DistributedDataParallel(model)

    def share(self, order: Tensor) -> Tensor:
        """This process's columns of `order` [steps, B]."""
        if order.shape[1] % self.count:
            raise ValueError(f"task.batch_size must be a multiple of the {self.count} processes, got: {order.shape[1]}")
        return order[:, self.rank :: self.count]

    def columns(self, state: Tensor) -> Tensor:
        """This process's share of a joint state [1, B, n]."""
        return state[:, self.rank :: self.count]

    def joined(self, state: Tensor) -> Tensor:
        """The joint state of all processes' shares, in the order of the batch."""
        if self.alone:
            return state
        shares = [torch.empty_like(state) for _ in range(self.count)]
        dist.all_gather(shares, state.contiguous())
        return torch.stack(shares, dim=2).flatten(1, 2)

    def weighted(self, loss: Tensor, counted: Tensor | None) -> Tensor:
        """`loss`, a mean over `counted`, such that the processes' mean of it, and of its gradient, is that of the joint batch."""
        if self.alone or counted is None:
            return loss
        return loss * (counted / self.mean(counted))

    def mean(self, value: Tensor) -> Tensor:
        """Over all processes; each has the same then."""
        if not self.alone:
            value = value / self.count
            dist.all_reduce(value)
        return value

    def largest(self, value: int, device: torch.device) -> int:
        """The largest of all processes' values: how they agree to stop."""
        if self.alone:
            return value
        values = torch.tensor(value, device=device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return int(values)

    def wait(self) -> None:
        if not self.alone:
            dist.barrier()


@contextlib.contextmanager
def processes_of(device: str) -> Iterator[tuple[Processes, str]]:
    """The processes that torchrun has started, and the device of this one; outside of torchrun, one process."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(), device
        return
    if device.startswith("cuda"):
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    started_here = not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size()), device
    finally:
        if started_here:
            dist.destroy_process_group()
