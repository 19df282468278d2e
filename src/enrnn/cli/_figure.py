"""The demo's figure: how the networks learn, and where the eigenvalues of an ENRNN are before and after."""

import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..layers import ENRNN
from ..matrices import EigenvalueNormalized
from ..training import Config, Network, RunFolder, load_model
from ..training._loop import first_network

INK, FAINT = "#2b2b2b", "#8a8a8a"
APART = 0.054
"""Between the names of two curves, as a share of the axis."""
HIGHEST = 0.2
"""Where the axis ends, unless a curve goes higher."""
NAMES: dict[str, Any] = {"fontsize": 8.5, "frameon": False, "columnspacing": 1.2}
COLOURS = ("#1f6fb2", "#d9822b", "#7b5aa6")


def draw(configs: dict[str, Config], runs: Path, length: int) -> Path:
    """Draw it as `demo.png` in `runs`."""
    figure: Any = Figure(figsize=(12, 4.3), dpi=150, layout="constrained", facecolor="white")
    left, right = figure.subfigures(1, 2, width_ratios=[1.25, 1], wspace=0.04)
    curves = left.subplots()
    _curves(curves, configs, runs, length)
    left.legend(*curves.get_legend_handles_labels(), loc="outside lower center", **NAMES)
    config = next(config for config in configs.values() if config.model.network == "enrnn" and config.model.short_size != 0)
    before, after = right.subplots(1, 2)
    _disc(before, first_network(config), "before training")
    _disc(after, load_model(runs / config.folder_name), f"after {config.run.steps:,} steps")
    right.suptitle("ENRNN's eigenvalues in the unit disc", fontsize=10.5, color=INK)
    right.legend(*before.get_legend_handles_labels(), loc="outside lower center", ncols=2, handletextpad=0.3, **NAMES)
    file = runs / "demo.png"
    figure.savefig(file)
    return file


def _curves(axes: Any, configs: dict[str, Config], runs: Path, length: int) -> None:
    ends, highest = [], HIGHEST
    for (name, config), colour in zip(configs.items(), COLOURS, strict=True):
        records = RunFolder(runs / config.folder_name).records()
        steps, errors = [record["step"] for record in records], [record["mse"] for record in records]
        axes.plot(steps, errors, color=colour, linewidth=1.8, solid_capstyle="round")
        ends.append((errors[-1], steps[-1], name, colour))
        highest = max(highest, *errors)
    axes.axhline(1 / 6, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0, label="1/6: who always answers 1")
    axes.set_xlim(0, max(step for _, step, _, _ in ends))
    axes.set_ylim(0, 1.04 * highest)
    axes.locator_params(axis="y", nbins=6)
    _label_ends(axes, ends)
    axes.set_xlabel("training steps", color=INK)
    axes.set_title(f"Adding problem, T = {length}: mean squared error on the test set", fontsize=10.5, color=INK)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)


def _label_ends(axes: Any, ends: list[tuple[float, int, str, str]]) -> None:
    """Each curve's name behind its end, moved apart where they would overlap."""
    lowest, apart = 0.0, APART * axes.get_ylim()[1]
    for error, step, name, colour in sorted(ends):
        place = max(error, lowest)
        lowest = place + apart
        axes.annotate(
            name, (step, place), xytext=(6, 0), textcoords="offset points", color=colour, fontsize=9.5, va="center", weight="bold"
        )


def _disc(axes: Any, network: Network, when: str) -> None:
    layer = network.layer
    assert isinstance(layer, ENRNN)
    with torch.no_grad():
        whole, q = layer.recurrent_weight(), layer.long_size
        long, short = _eigenvalues(whole[:q, :q]), _eigenvalues(whole[q:, q:])
    angles = torch.linspace(0, 2 * torch.pi, 361)
    axes.fill(angles.cos(), angles.sin(), color="#f3f5f7", zorder=0)
    axes.plot(angles.cos(), angles.sin(), color=FAINT, linewidth=0.8, zorder=1)
    axes.scatter(
        *long, s=16, facecolors="white", edgecolors=FAINT, linewidths=0.9, zorder=2, label="$W_L$ (long-term, orthogonal)"
    )
    axes.scatter(
        *short, s=20, color=COLOURS[0], alpha=0.85, linewidths=0, zorder=3, label="$W_S$ (short-term, no eigenvalue outside)"
    )
    radius = max(map(math.hypot, *short))
    divided = any(bool(matrix.normalizing) for matrix in layer.modules() if isinstance(matrix, EigenvalueNormalized))
    told = "divided by its own" if divided else "not divided yet"
    axes.set_title(f"{when}\n$\\rho(W_S)$ = {radius:.2f}, {told}", fontsize=9.5, color=FAINT)
    axes.set_aspect("equal")
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1], ["−i", "0", "i"])
    axes.tick_params(colors=FAINT, labelsize=8.5, length=0)
    axes.spines[:].set_visible(False)


def _eigenvalues(matrix: Tensor) -> tuple[list[float], list[float]]:
    values = torch.linalg.eigvals(matrix.to(torch.float64))
    return values.real.tolist(), values.imag.tolist()
