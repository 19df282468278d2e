"""The adding problem: remember two marked numbers among many and return their sum. Runs in about a minute on a laptop's CPU.

A network that always answers 1 has a mean squared error of 1/6 = 0.167; one that remembers gets to zero.
"""

import argparse
import time

import torch
from torch import Tensor, nn

import enrnn


def adding_problem(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs [length, count, 2], uniform numbers beside markers, one marker in each half; targets [count, 1]."""
    values = torch.rand(length, count, generator=generator)
    first = torch.randint(0, length // 2, (count,), generator=generator)
    second = torch.randint(length // 2, length, (count,), generator=generator)
    markers = torch.zeros(length, count)
    columns = torch.arange(count)
    markers[first, columns] = 1.0
    markers[second, columns] = 1.0
    return torch.stack([values, markers], dim=-1), (values * markers).sum(0).unsqueeze(-1)


class Adder(nn.Module):
    """An ENRNN and a linear head on its last state."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.rnn = enrnn.ENRNN(2, hidden_size)
        self.head = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x)
        answer: Tensor = self.head(output[-1])
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=100, help="steps in a sequence")
    parser.add_argument("--hidden", type=int, default=80, help="units, 60 %% of them long-term")
    parser.add_argument("--steps", type=int, default=2000, help="training steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)  # matrices of this size are done before a second thread wakes up
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    model = Adder(options.hidden)
    groups = model.rnn.parameter_groups(lr=1e-3, long_lr=1e-4)
    optimizer = torch.optim.RMSprop([*groups, {"params": model.head.parameters(), "lr": 1e-3}], alpha=0.9)
    test_x, test_y = adding_problem(1000, options.length, generator)

    print(f"ENRNN with {model.rnn.long_size} long-term and {model.rnn.short_size} short-term units, T = {options.length}")
    print("always answering 1 has a mean squared error of 0.1667\n")
    print(" step   test error   ρ(T)   normalising   seconds")
    begin = time.perf_counter()
    for step in range(options.steps + 1):
        if step % (options.steps // 10) == 0:
            with torch.no_grad():
                error = nn.functional.mse_loss(model(test_x), test_y).item()
            radius, switched = model.rnn.spectral_radius.item(), bool(model.rnn.normalizing)
            seconds = time.perf_counter() - begin
            print(f"{step:5d}   {error:10.4f}   {radius:.3f}   {'yes' if switched else 'no':>11}   {seconds:7.1f}", flush=True)
        x, y = adding_problem(50, options.length, generator)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
