"""A matrix that is free on and above its diagonal of blocks, and zero below: Clockwork RNN's (Koutník et al., ICML 2014)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import positive_int, square_matrix
from ._contract import Matrix


class BlockTriangular(Matrix):
    """`W = [[W_11, …, W_1g], …, [0, …, W_gg]]`, block upper triangular, with g² blocks.

    The free tensors are its g rows of blocks without the zeros, `[W_ii, …, W_ig]`, so that nothing is stored that is not
    trained: with blocks of one size, n²(g + 1)/(2g) numbers. Where g does not divide n, the first blocks are larger by one.

    Arguments:
        blocks: g.
        std: the standard deviation of the normal numbers that it starts with.
    """

    slow = ()

    def __init__(self, blocks: int, std: float = 0.1) -> None:
        super().__init__()
        self.blocks = positive_int("blocks", blocks)
        self.std = std

    def sizes(self, size: int) -> list[int]:
        """The units of each block."""
        if size < self.blocks:
            raise ValueError(f"{self.blocks} blocks need a matrix of at least as many rows, got: {size}")
        return [size // self.blocks + (index < size % self.blocks) for index in range(self.blocks)]

    def forward(self, *rows: Tensor) -> Tensor:
        size = rows[0].shape[1]
        return torch.cat([F.pad(row, (size - row.shape[1], 0)) for row in rows])

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...] | Tensor:
        """The blocks on and above the diagonal; what is below is dropped."""
        square_matrix("the matrix assigned to a BlockTriangular parametrization", matrix)
        rows, start = [], 0
        for height in self.sizes(len(matrix)):
            rows.append(matrix[start : start + height, start:].clone())
            start += height
        return tuple(rows) if len(rows) > 1 else rows[0]

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        sizes = self.sizes(size)
        return tuple(like.new_zeros(height, sum(sizes[index:])) for index, height in enumerate(sizes))

    @torch.no_grad()
    def initialize_(self, *rows: Tensor) -> None:
        for row in rows:
            nn.init.normal_(row, 0.0, self.std)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """The largest entry below the blocks."""
        sizes = torch.tensor(self.sizes(len(matrix)), device=matrix.device)
        block = torch.repeat_interleave(torch.arange(self.blocks, device=matrix.device), sizes)
        return torch.where(block.unsqueeze(1) > block, matrix.abs(), 0).max()

    def free_parameters(self, size: int) -> int:
        sizes = self.sizes(size)
        return sum(height * sum(sizes[index:]) for index, height in enumerate(sizes))
