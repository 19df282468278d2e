"""The metrics of a split."""

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from ..tasks import Data
from ._model import Network, State


@torch.no_grad()
def evaluate(model: Network, data: Data, split: str) -> dict[str, float]:
    """Sums over all batches of the split, divided once. The matrices are formed once, and the model is left as it was."""
    sums: dict[str, Tensor] = {}
    state: State | None = None
    was_training = model.training
    model.eval()
    try:
        with parametrize.cached():
            for indices in data.order(split):
                batch = data.batch(split, indices)
                outputs, final = model(batch.inputs, state)
                state = final if data.carries_state else None
                for name, value in data.tally(outputs, batch).items():
                    sums[name] = sums[name] + value if name in sums else value
    finally:
        model.train(was_training)
    return data.metrics(sums)
