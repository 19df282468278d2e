"""How much the states at time τ depend on the input at time t: the paper's heat maps (§6.1, Figures 4 and 5)."""

import torch
from torch import Tensor

from ..layers import ENRNN
from ..nonlinearities import NONLINEARITIES


@torch.no_grad()
def dependence(layer: ENRNN, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`‖∂h_τ^(L)/∂x_t‖₂` and `‖∂h_τ^(S)/∂x_t‖₂`, each `[T, T, B]`: row τ, column t, and zero where t > τ.

    With `D_τ` the diagonal of σ' at time τ, `∂h_τ/∂x_t = D_τ W ∂h_{τ−1}/∂x_t` for t < τ and `D_τ U` for t = τ. The Jacobians of
    all t and all sequences go through one product a step, so T products do the work of T² sweeps. In float64.
    """
    steps, batch, features = inputs.shape
    n, q = layer.hidden_size, layer.long_size
    W = layer.recurrent_weight().double()
    parameters = dict(layer.named_parameters())
    U = (
        parameters["weight_ih_l0"].double()
        if layer.input_weight == "full"
        else torch.eye(n, dtype=torch.float64, device=inputs.device)
    )
    bias = parameters["bias_l0"].double() if layer.bias else None
    sigma = NONLINEARITIES[layer.nonlinearity] if isinstance(layer.nonlinearity, str) else None
    if sigma is None or sigma.parts != 1:
        raise ValueError(f"the dependence on inputs needs a nonlinearity with a known derivative, got: {layer.nonlinearity!r}")
    h = inputs.new_zeros(batch, n, dtype=torch.float64)
    ones = torch.ones_like(h)
    jacobians = inputs.new_zeros(n, steps, batch, features, dtype=torch.float64)  # ∂h_τ/∂x_t at [:, t, b, :]
    norms = inputs.new_zeros(2, steps, steps, batch, dtype=torch.float64)
    for tau in range(steps):
        h = sigma.function(inputs[tau].double() @ U.mT + h @ W.mT, bias)
        slope = sigma.pull_back(h, bias, ones).mT  # [n, B]
        before = jacobians[:, :tau]
        before.copy_((W @ before.reshape(n, -1)).view_as(before) * slope[:, None, :, None])
        jacobians[:, tau] = slope[:, :, None] * U[:, None, :]
        for part, rows in enumerate((slice(0, q), slice(q, n))):
            norms[part, tau, : tau + 1] = _largest_singular_value(jacobians[rows, : tau + 1])
    return norms[0], norms[1]


def _largest_singular_value(jacobians: Tensor) -> Tensor:
    """Of `[rows, t, b, features]` over rows and features: the root of the largest eigenvalue of JᵀJ."""
    gram = torch.einsum("rtbi,rtbj->tbij", jacobians, jacobians)
    largest: Tensor = torch.linalg.eigvalsh(gram)[..., -1]
    return largest.clamp_min(0).sqrt()


def lifetimes(norms: Tensor, share: float = 0.1) -> float:
    """After how many steps a column has, on average, fallen below `share` of its largest entry for good; those that never do
    count with all the steps they were watched for. `norms`: `[T, T]`, row τ, column t."""
    steps = norms.shape[0]
    lengths = []
    for t in range(steps):
        column = norms[t:, t]
        above = (column > share * column.max()).nonzero()
        lengths.append(int(above[-1]) + 1 if len(above) else 0)
    return sum(lengths) / len(lengths)
