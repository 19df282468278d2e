"""nnRNN: a matrix that need not be normal, by its Schur form (Kerg et al., NeurIPS 2019)."""

from functools import partial
from typing import Unpack

import torch

from ..matrices import Schur
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class NNRNN(OneMatrixRNN):
    """`W = P Θ Pᵀ`, `P` orthogonal and Θ lower block triangular with scaled rotations γR(θ) on its diagonal: see `Schur`.

    Add `layer.penalty()` to the loss: it keeps γ near one. The authors put some weight decay on `T`, the fourth free tensor.

    Arguments:
        gamma_penalty: δ in `δ·Σ(γ − 1)²`.
        The others: as `ENRNN`.
    """

    input_init = "kaiming"
    bias_bound = 0.01

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        *,
        gamma_penalty: float = 1e-4,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(Schur, gamma_penalty=gamma_penalty)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, device=device, dtype=dtype, **options)
