"""What is measured of a run's network besides its errors, and kept beside them as measures.json.

W_S is looked at before the first step, where the run is stopped on its way (see `stops`), and at the end.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..layers import ENRNN
from ..tasks.speech import SpeechData, available, score
from ..training import Config, Network, RunFolder, load_model
from ..training._checkpoints import Checkpoints
from ..training._container import replace
from ..training._loop import first_network
from ._gradients import dependence, lifetimes
from ._pseudospectrum import grid, kreiss_constant, smallest_singular_values
from ._transient import departure, power_norms, spaced_powers

FILE = "measures.json"
SHARES = (0.05, 0.1, 0.25, 0.5)
"""Of a run's evaluations, after which it is stopped for a look."""
LONGEST_POWER = 200
GRID_RADIUS, GRID_POINTS, COARSE_POINTS = 1.5, 61, 31
"""The coarse grid is for matrices of more than 200 rows."""

SPECTRA = ("adding/enrnn", "characters/enrnn")
"""Runs whose W_S is looked at on the way, and whose pseudospectrum is taken at the end."""


def stops(evaluations: list[int]) -> list[int]:
    """Steps, out of those at which a run is evaluated, after which it is stopped for a look at W_S."""
    return sorted({evaluations[max(0, round(share * len(evaluations)) - 1)] for share in SHARES} - {evaluations[-1]})


def measures(folder: RunFolder) -> dict[str, Any]:
    """What was measured of a run so far."""
    try:
        found: dict[str, Any] = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def look(config: Config, folder: RunFolder, step: int) -> None:
    """At W_S in the run's last checkpoint, if that is of this step and was not looked at."""
    found = Checkpoints(folder.checkpoints, lambda message: None).newest()
    if found is None or found[0]["done"] != step or str(step) in measures(folder).get("short", {}):
        return
    network = first_network(config)
    network.load_state_dict({key: found[1][f"model/{key}"] for key in network.state_dict()})
    _keep(folder, {"short": {str(step): short_term(network, config.run.device)}})


def finish(name: str, config: Config, folder: RunFolder, data: str | None) -> None:
    """Everything that is measured of this run at its end. What is there already is left as it is."""
    there = measures(folder)
    if there.get("complete"):
        return
    found: dict[str, Any] = {"complete": True, "data": data}
    if config.model.network == "enrnn" and config.model.short_size != 0 and name.partition("/")[2].startswith("enrnn"):
        result = folder.result
        assert result is not None
        network = load_model(folder.path)
        device = config.run.device
        found["short"] = {"0": short_term(first_network(config), device), str(result["steps"]): short_term(network, device)}
        if name in SPECTRA:
            found["pseudospectrum"] = pseudospectrum(_short_matrix(network), device)
        if name == "adding/enrnn_sixth_epoch":
            found["gradients"] = gradients(config, network)
    if config.task.name == "speech":
        found["scores"] = speech_scores(config, folder)
    _keep(folder, found)


def short_term(network: Network, device: str = "cpu") -> dict[str, Any]:
    """W_S: eigenvalues, norms of its powers, departure from normality."""
    W = _short_matrix(network)
    eigenvalues = torch.linalg.eigvals(W)
    powers = spaced_powers(LONGEST_POWER, len(W))
    return {
        "eigenvalues": _rounded(torch.stack([eigenvalues.real, eigenvalues.imag], dim=-1)),
        "radius": _number(float(eigenvalues.abs().max())),
        "departure": _number(departure(W)),
        "powers": powers,
        "norms": [_number(norm) for norm in power_norms(W.to(device), powers)],
    }


def pseudospectrum(W: Tensor, device: str = "cpu") -> dict[str, Any]:
    """`σ_min(zI − W)` over the upper half plane."""
    real, imaginary, points = grid(GRID_RADIUS, GRID_POINTS if len(W) <= 200 else COARSE_POINTS)
    smallest = smallest_singular_values(W.to(device), points).cpu()
    return {
        "real": _rounded(real),
        "imaginary": _rounded(imaginary),
        "smallest": _rounded(smallest),
        "kreiss": _number(kreiss_constant(points, smallest)),
    }


def gradients(config: Config, network: Network) -> dict[str, Any]:
    """The two heat maps over the batch that the next step would see: means over its sequences."""
    data = config.task.load()
    order = data.order("train", 0)
    epoch, place = divmod(config.run.steps or 0, len(order))
    batch = data.batch("train", data.order("train", epoch)[place])
    layer = network.layer
    assert isinstance(layer, ENRNN)
    long, short = (norms.mean(-1) for norms in dependence(layer, batch.inputs))
    lives = {"long": _number(lifetimes(long)), "short": _number(lifetimes(short))}
    return {"epoch": epoch + 1, "place": place + 1, "long": _rounded(long), "short": _rounded(short), "lifetimes": lives}


@torch.no_grad()
def speech_scores(config: Config, folder: RunFolder) -> dict[str, Any]:
    """SegSNR, STOI and PESQ of the test set, outputs taken for the frames that follow, as Wisdom's script does."""
    wanted = [name for name, reason in available().items() if reason is None]
    reasons = {name: reason for name, reason in available().items() if reason is not None}
    if not wanted:
        return {"reasons": reasons}
    data = config.task.load()
    assert isinstance(data, SpeechData)
    network = load_model(folder.path)
    pairs = []
    for indices in data.order("test"):
        outputs, _ = network(data.batch("test", indices).inputs)
        pairs += data.audio("test", indices, outputs)
    scores = score(pairs, wanted)
    means = {name: _number(value) for name, value in scores.means.items() if math.isfinite(value)}
    return {"means": means, "reasons": reasons, "scored": scores.scored, "failed": scores.failed}


def _short_matrix(network: Network) -> Tensor:
    layer = network.layer
    assert isinstance(layer, ENRNN)
    with torch.no_grad():
        W = layer.recurrent_weight()
    return W[layer.long_size :, layer.long_size :].double()


def _keep(folder: RunFolder, found: Mapping[str, Any]) -> None:
    there = measures(folder)
    short = {**there.get("short", {}), **found.get("short", {})}
    content = {**there, **found, **({"short": short} if short else {})}
    replace(folder.path / FILE, (json.dumps(content, separators=(",", ":")) + "\n").encode())


def _number(value: float) -> float:
    return float(f"{value:.5g}")


def _rounded(values: Tensor) -> Any:
    """Nested lists with five digits, which is what a figure shows."""
    if values.dim() == 1:
        return [_number(value) for value in values.tolist()]
    return [_rounded(row) for row in values]
