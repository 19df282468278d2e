"""The examples in the documents run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def examples(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_example_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("README.md")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["output"].shape == (750, 50, 160)  # type: ignore[attr-defined]
    assert "tensor(1." in capsys.readouterr().out
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


# torch's: the exporter that writes nn.RNN as ONNX's RNN operator is on its way out, and says so in several ways.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:Exporting a model to ONNX with a batch_size other than 1:UserWarning")
def test_the_examples_on_deployment_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in examples("docs/deployment.md"):
        if "torch.cuda" in code:
            continue
        exec(compile(code, "deployment.md", "exec"), names)
        if "onnx.export" in code:
            assert (tmp_path / "layer.onnx").stat().st_size > 0
            (tmp_path / "layer.onnx").unlink()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # of torch's own warm-up
def test_the_example_on_deployment_for_a_gpu_runs() -> None:
    (code,) = (each for each in examples("docs/deployment.md") if "torch.cuda" in each)
    names: dict[str, Any] = {}
    exec(compile(code, "deployment.md", "exec"), names)
    assert all(parameter.grad.isfinite().all() for parameter in names["layer"].parameters())


def test_the_examples_of_derivatives_run() -> None:
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for code in examples("docs/derivatives.md"):
        exec(compile(code, "derivatives.md", "exec"), names)
    assert names["each"]["weight_ih_l0"].shape == (8, 16, 2)
    assert all(torch.isfinite(value).all() for value in names["product"].values())
    assert all(parameter.grad is not None for parameter in names["layer"].parameters())
    assert names["rates"].shape == (16,)
    torch.testing.assert_close((names["rates"].abs() < 1e-5).sum(), torch.tensor(10))  # the long-term units keep
    assert names["rates"].max() < 1e-5


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.md")]


@pytest.mark.parametrize("document", sorted(path.relative_to(ROOT).as_posix() for path in DOCUMENTS))
def test_links_between_documents_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}, which is not there"
