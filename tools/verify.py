"""The second tier of tests: runs each check with raised counts, and keeps a record of what was measured.

    python tools/verify.py                 run every check
    python tools/verify.py --only NAME     run one
    python tools/verify.py --list          say which there are
    python tools/verify.py --pages         write the pages anew from the records, and run nothing

Each check leaves `verification/NAME.json`. The page `docs/verification.md`, and the numbers in README.md between
`<!-- verification: NAME/TEST/KEY -->` and `<!-- /verification -->`, are written from these records alone.
TEST is a test's id or the end of it after `::`; the word `total` stands for the whole check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "verification"
PAGE = ROOT / "docs" / "verification.md"
README = ROOT / "README.md"

Record: TypeAlias = dict[str, Any]
Machine: TypeAlias = dict[str, Any]


def no_cuda(machine: Machine) -> str | None:
    return None if machine["gpu"] else "no CUDA device"


@dataclass(frozen=True)
class Check:
    """One row of the page: what it shows, the pytest arguments that select its tests, and why it may not run here."""

    name: str
    shows: str
    tests: tuple[str, ...]
    reason_to_skip: Callable[[Machine], str | None] = lambda machine: None


SANITIZER = "tests/gpu/test_sanitizer.py"
SWEEPS = tuple(f"tests/gpu/test_{name}.py" for name in ("recurrence", "linked", "gated", "rotations", "derivatives", "cuda"))

CHECKS = (
    Check("layer-laws", "every layer and matrix family keeps the laws it promises", ("tests/laws", "-m", "not gpu")),
    Check(
        "spectral-radius",
        "every method against LAPACK and a hundred digits; the certificate",
        ("tests/spectrum", "-m", "not gpu"),
    ),
    Check("gradient", "gradients equal those of the float64 reference", ("tests/gradient", "-m", "not gpu")),
    Check("recurrence", "every engine against the float64 loop; every kernel compiles", ("tests/recurrence", "-m", "not gpu")),
    Check("tasks", "the paper's data, losses and metrics, fact by fact", ("tests/tasks", "-m", "not gpu")),
    Check(
        "runs",
        "killed, corrupted and fuzzed runs: none lost, every bit the same",
        ("tests/faults", "tests/training", "tests/cli", "-m", "not gpu"),
    ),
    Check(
        "sweep",
        "sweeps with workers, nodes and drivers killed, here and on a Ray cluster: every point one result",
        ("tests/sweep", "-m", "not gpu"),
    ),
    Check("zoo", "every network: counts, constraints, gradients, resume, and what it learns", ("tests/zoo", "-m", "not gpu")),
    Check("conformance", "torch.nn's interface and published numbers", ("tests/conformance", "-m", "not gpu")),
    Check("deployment", "compile, export, ONNX, copies and state dicts", ("tests/deployment", "-m", "not gpu")),
    Check("emulated", "the CUDA kernels run without a GPU, in unfair orders of threads, without races", ("tests/emulated",)),
    Check("gpu", "the recurrences' CUDA kernels equal the reference, outputs and gradients", (*SWEEPS, "-m", "gpu"), no_cuda),
    Check(
        "gpu-calls",
        "the CUDA kernels of the matrices around them; whole calls, replayed and in graphs, have the same bits",
        ("tests/gpu", "-m", "gpu", *(f"--ignore={file}" for file in (SANITIZER, *SWEEPS))),
        no_cuda,
    ),
    Check(
        "gpu-runs",
        "training, its data and its optimisers on a GPU: replayed and resumed to the same bits",
        ("tests", "-m", "gpu", "--ignore=tests/gpu"),
        no_cuda,
    ),
    # By itself: what shares the GPU with it makes it many times slower.
    Check("sanitizer", "every CUDA kernel under compute-sanitizer: no access out of bounds, no race", (SANITIZER,), no_cuda),
)


def main(arguments: Sequence[str] | None = None) -> int:
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(description="Run the second tier of tests and record what it measured.")
    parser.add_argument("--only", metavar="NAME", choices=names, help="run one check: " + ", ".join(names))
    parser.add_argument("--list", action="store_true", help="say which checks there are")
    parser.add_argument("--pages", action="store_true", help="write the pages from the records, and run nothing")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="share each check between N processes")
    options = parser.parse_args(arguments)

    if options.list:
        for check in CHECKS:
            print(f"{check.name:12} {check.shows}")
        return 0

    failed = []
    if not options.pages:
        # Both are read before anything runs, since the runs themselves change files.
        machine, commit = this_machine(), this_commit()
        for check in CHECKS:
            if options.only in (None, check.name):
                record = run(check, machine, commit, options.workers)
                print(f"== {check.name}: {record['outcome']}{because(record)}", flush=True)
                if keep(record) and record["outcome"] == "failed":
                    failed.append(check.name)
    write_pages()
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def run(check: Check, machine: Machine, commit: dict[str, Any], workers: int = 0) -> Record:
    """Run one check and say how it went, without writing anything."""
    # Long tests are neighbours: a process that has none left takes some of another's.
    shared = ["-n", str(workers), "--dist", "worksteal"] if workers else []
    arguments = ["-m", "pytest", *check.tests, "--full", *shared]
    record: Record = {
        "name": check.name,
        "command": shlex.join(["python", *arguments]),
        "commit": commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine,
    }
    if reason := check.reason_to_skip(machine):
        return record | {"outcome": "skipped", "reason": reason}

    print(f"\n== {check.name}: {record['command']}", flush=True)
    # The sources of this checkout, whatever is installed: the record names this commit.
    environment = {name: value for name, value in os.environ.items() if name != "ENRNN_EXPECT_WHEEL"}
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src")] + ([inherited] if inherited else []))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, *arguments, "--record-file", str(file)]
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        # Tests may name files in their reasons to skip; a record speaks of paths inside the project only.
        report = json.loads(file.read_text(encoding="utf-8").replace(f"{ROOT}/", "")) if file.exists() else None
    return record | judge(status, report)


def judge(status: int, report: dict[str, Any] | None) -> dict[str, Any]:
    """The part of a record that says how it went. Nothing passes that did not run."""
    if report is None:
        return {"outcome": "failed", "reason": f"pytest ended with status {status} and left no report"}
    if status == 5:
        return {"outcome": "failed", "reason": "no test was found"} | report
    if status != 0:
        return {"outcome": "failed", "reason": f"pytest ended with status {status}"} | report
    if report["counts"]["passed"] == 0:
        return {"outcome": "skipped", "reason": "; ".join(report["counts"]["skipped"])} | report
    return {"outcome": "passed"} | report


def keep(record: Record) -> bool:
    """Write the record, unless it only says that this machine cannot do what another machine has done."""
    file = RECORDS / f"{record['name']}.json"
    if record["outcome"] == "skipped" and file.exists():
        earlier = json.loads(file.read_text(encoding="utf-8"))
        if earlier["outcome"] != "skipped":
            print(f"   keeping the record of {earlier['date']}: {earlier['outcome']}", flush=True)
            return False
    RECORDS.mkdir(exist_ok=True)
    file.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def this_commit() -> dict[str, Any]:
    """HEAD, and whether the files differ from it. The records and their page do not count: writing them is our job."""
    try:
        head = git("rev-parse", "HEAD").strip()
        changes = git("status", "--porcelain", "--", ".", ":!verification", ":!docs/verification.md")
    except (OSError, subprocess.CalledProcessError):
        return {"hash": None, "dirty": None}
    return {"hash": head, "dirty": bool(changes.strip())}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def this_machine() -> Machine:
    # In a process of its own: torch is slow to load, and --list and --pages need none of it.
    question = (
        "import json, torch; cuda = torch.cuda.is_available(); "
        "print(json.dumps([torch.__version__, torch.cuda.get_device_name(0) if cuda else None]))"
    )
    answer = subprocess.run([sys.executable, "-c", question], check=True, capture_output=True, text=True).stdout
    torch_version, gpu = json.loads(answer.splitlines()[-1])
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch_version,
        "gpu": gpu,
    }


def cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def read_records() -> dict[str, Record]:
    """The records there are, in the order of the checks."""
    files = {check.name: RECORDS / f"{check.name}.json" for check in CHECKS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


def write_pages() -> None:
    records = read_records()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(records), encoding="utf-8")
    if README.exists():
        text = README.read_text(encoding="utf-8")
        renewed = with_current_quotes(text, records)
        if renewed != text:
            README.write_text(renewed, encoding="utf-8")


def page(records: dict[str, Record]) -> str:
    """docs/verification.md, from the records alone."""
    lines = [
        "<!-- Written by tools/verify.py from the records in verification/. Run `make verify` rather than edit it. -->",
        "",
        "# What has been verified",
        "",
        "`make test` checks every law on a sample. `make verify` runs the same tests with raised counts and keeps what",
        "they measured; this page shows the latest record of each check. A record speaks for the commit it names.",
        "",
        "| Check | What it is about | Outcome | Tests | Numbers | When and where |",
        "|---|---|---|---|---|---|",
    ]
    shows = {check.name: check.shows for check in CHECKS}
    for name, record in records.items():
        cells = (
            f"[{name}](../verification/{name}.json)",
            shows[name],
            record["outcome"] + because(record),
            counts_in_words(record),
            in_words(record.get("totals", {})),
            circumstances(record),
        )
        lines.append(row(cells))
    for name, record in records.items():
        lines += ["", f"## {name}", "", f"`{record['command']}`"]
        measurements = record.get("measurements", {})
        if measurements:
            lines += ["", "| Test | Numbers |", "|---|---|"]
            lines += [row((f"`{test}`", in_words(measured))) for test, measured in measurements.items()]
        skipped = record.get("counts", {}).get("skipped", {})
        if skipped:
            lines += ["", "Skipped: " + "; ".join(f"{reason} ({number(n)})" for reason, n in skipped.items()) + "."]
    return "\n".join(lines) + "\n"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def because(record: Record) -> str:
    return f": {record['reason']}" if record.get("reason") else ""


def counts_in_words(record: Record) -> str:
    counts = record.get("counts")
    if counts is None:
        return "none run"
    parts = {"passed": counts["passed"], "failed": counts["failed"], "skipped": sum(counts["skipped"].values())}
    return ", ".join(f"{number(n)} {word}" for word, n in parts.items() if n or word == "passed")


def circumstances(record: Record) -> str:
    commit, machine = record["commit"], record["machine"]
    changed = " with uncommitted changes" if commit["dirty"] else ""
    source = f"commit {commit['hash'][:10]}{changed}" if commit["hash"] else "a copy without its history"
    return (
        f"{record['date'][:10]}, {source}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['gpu'] or 'no GPU'}; Python {machine['python']}, torch {machine['torch']}"
    )


def in_words(measured: dict[str, Any]) -> str:
    """{"cases": 5000, "worst_error": 1e-9} as `5,000 cases, worst error 1e-9`."""
    parts = []
    for name, value in measured.items():
        words = name.replace("_", " ")
        is_count = name == "cases" or name.startswith("cases_")
        parts.append(f"{number(value)} {words}" if is_count else f"{words} {number(value)}")
    return ", ".join(parts)


def number(value: Any) -> str:
    """A recorded value as pages and README.md print it: three significant digits, thousands set apart by commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d+)$", lambda found: "e" + found[1].strip("+") + found[2], f"{value:.3g}")
    return str(value)


QUOTE = re.compile(r"(?P<open><!-- verification: (?P<path>(?:(?!-->).)+?) -->)(?P<value>.*?)(?P<close><!-- /verification -->)")


def with_current_quotes(text: str, records: dict[str, Record]) -> str:
    """`text` with each quoted number as the records have it. A quote of what is not recorded stays as it is."""

    def renew(quote: re.Match[str]) -> str:
        try:
            value = number(quoted_value(quote["path"], records))
        except LookupError:
            return quote[0]
        return quote["open"] + value + quote["close"]

    return QUOTE.sub(renew, text)


def quoted_value(path: str, records: dict[str, Record]) -> Any:
    """What NAME/TEST/KEY refers to. A LookupError says which part names nothing, or more than one thing."""
    name, _, rest = path.partition("/")
    test, _, key = rest.rpartition("/")
    if name not in records:
        raise LookupError(f"{path}: there is no record of {name!r}")
    record = records[name]
    if test == "total":
        measured = record.get("totals", {})
    else:
        tests = record.get("measurements", {})
        found = [identity for identity in tests if identity == test or identity.endswith("::" + test)]
        if len(found) != 1:
            raise LookupError(f"{path}: {len(found)} recorded tests are called {test!r}, one is wanted")
        measured = tests[found[0]]
    if key not in measured:
        raise LookupError(f"{path}: {key!r} was not recorded, only {', '.join(measured) or 'nothing'}")
    return measured[key]


if __name__ == "__main__":
    sys.exit(main())
