"""Results as they are committed, and the documents that are made from them.

    python tools/results.py import RUNS…    copy finished runs of the paper into results/, without weights
    python tools/results.py write           RESULTS.md, docs/images/ and README.md's table and figure, from results/ alone

A run under results/ is a directory as training leaves it, so that `enrnn paper --collect --runs results` shows them all. What
only its machine could use is left out: checkpoints, weights, where the data were. Without that place its settings have another
id, which is the one that the run has wherever the variable ENRNN_DATA names the place.
"""

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enrnn import report
from enrnn.paper import ITEMS, Found, collect, read
from enrnn.paper._cost import FOLDER as MEASURED
from enrnn.paper._data import PTB_NAME, TIMIT_NAME
from enrnn.paper._measure import FILE as MEASURES
from enrnn.paper._runs import BESIDE, BEYOND, named
from enrnn.paper._tables import settings
from enrnn.training import Config, RunError, RunFolder

ROOT = Path(__file__).resolve().parent.parent
RUNS, PAGE, README, IMAGES = "results", "RESULTS.md", "README.md", "docs/images"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

DIGITS = 7
"""Of the numbers in metrics.jsonl, which come from float32. Those of result.json are kept as they are."""

MAIN = {
    "table1-adding": ("adding, T = 750: test MSE", "final"),
    "table1-copying": ("copying, T = 2000: test cross-entropy", "final"),
    "table2": ("speech, next frame: test MSE (dB²)", "test"),
    "table2-copy": ("speech, delayed copy: test MSE (dB²)", "test"),
    "table3": ("characters: test bits per character", "test"),
}
"""Tables of which README.md shows a column, and what it calls that."""
FIRST_FIGURES = ("figure-adding", "figure-copying", "figure-gradient-rule-characters")
"""README.md shows the first that there is."""
BOOKKEEPING = ("run.evaluate_every", "run.checkpoint_every")
"""Settings that change nothing of what is learned."""

WRITTEN = "<!-- Written by tools/results.py from results/. Run `make results` rather than edit it. -->"
AGAIN = f"""\
## How to do it again

Every run above is a directory under `{RUNS}/`: its configuration, every evaluation, what it came to, what was measured of it.

```
enrnn paper --collect --runs {RUNS}                 # these results as a page: every curve, setting and run
enrnn paper --dry-run --seeds 3                      # what the whole of it takes
enrnn paper --seeds 3 --device cuda --data FOLDER    # do it, or a part: enrnn paper table3 figure-adding …
python tools/results.py import runs && make results  # and this document from those runs
```"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Committed results, and the documents made from them.")
    commands = parser.add_subparsers(required=True)
    bring = commands.add_parser("import", help="copy finished runs of the paper into results/, without weights")
    bring.add_argument("places", metavar="RUNS", nargs="+", type=Path, help="directories of runs, or folders that hold such")
    bring.add_argument("--replace", action="store_true", help="also where results/ has the run with another content")
    bring.add_argument("--device-name", metavar="NAME", help="what the runs were done on, for those that do not say it")
    bring.set_defaults(command=lambda options: import_runs(options.places, ROOT / RUNS, options.replace, options.device_name))
    write = commands.add_parser("write", help="write RESULTS.md, its figures and README.md's part from results/")
    write.set_defaults(command=lambda options: write_documents(ROOT))
    options = parser.parse_args(arguments)
    try:
        refused = options.command(options)
    except RefusedError as error:
        refused = [str(error)]
    for reason in refused:
        print(f"results: {reason}", file=sys.stderr)
    return 2 if refused else 0


class RefusedError(ValueError):
    """Something is not as it must be; the message is for whoever gave the command."""


class Brought(NamedTuple):
    """A run as it is kept: the name of its directory, and its files."""

    folder: str
    files: dict[str, str]


def import_runs(places: Iterable[Path], into: Path, replace: bool = False, device_name: str | None = None) -> list[str]:
    """Copy what can be; returns a line for each run that cannot."""
    refused = []
    for path in _directories(places):
        try:
            brought = _measured(path) if path.name == MEASURED else _run(path, device_name)
            print(f"{_keep(brought, into, replace)}: {into.name}/{brought.folder}, from {path}")
        except RefusedError as error:
            refused.append(str(error))
        except json.JSONDecodeError as error:
            refused.append(f"{path} is damaged, a file of it is no JSON: {error}")
    return refused


def _directories(places: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        inside = sorted(file.parent for file in place.glob("*/config.json"))
        if (place / "config.json").is_file():
            found.append(place)
        elif inside or (place / MEASURED).is_dir():
            found += inside + ([place / MEASURED] if (place / MEASURED).is_dir() else [])
        else:
            raise RefusedError(f"{place} is no directory of a run, and has none in it")
    return found


def _run(path: Path, device_name: str | None) -> Brought:
    folder = RunFolder(path)
    try:
        config, result = folder.config(), folder.result
    except RunError as error:
        raise RefusedError(str(error)) from None
    name = named(config.as_dict())
    if name is None or name.quick:
        raise RefusedError(f"{path} is {'of the small version' if name else 'none of the paper'}: its settings are no recipe's")
    records = folder.records()
    failure = path / "error.json"
    if result is None and not failure.exists():
        raise RefusedError(f"{path} is not finished: {name.run}, seed {config.run.seed}, {len(records)} evaluations")
    neutral = config.override({f"task.{own}": None for own in BESIDE["task"] if hasattr(config.task, own)})
    files = {"config.json": _indented({"id": neutral.id, **neutral.as_dict()})}
    files["metrics.jsonl"] = "".join(json.dumps(_rounded(record), separators=(",", ":")) + "\n" for record in records)
    if result is not None:
        if result["id"] != config.id or not records or records[-1]["step"] != result["steps"]:
            raise RefusedError(f"{path} does not fit together: result.json is not what config.json and metrics.jsonl end with")
        named_device = {"device_name": device_name} if device_name and "device_name" not in result else {}
        files["result.json"] = _indented({**result, "id": neutral.id, **named_device})
    if failure.exists():
        files["error.json"] = _indented(_error(failure, neutral))
    if (path / MEASURES).exists():
        files[MEASURES] = _lines(json.loads((path / MEASURES).read_text(encoding="utf-8"))) + "\n"
    return Brought(neutral.folder_name, files)


def _measured(path: Path) -> Brought:
    """Timings of the machine itself."""
    return Brought(MEASURED, {file.name: file.read_text(encoding="utf-8") for file in sorted(path.glob("cost-*.json"))})


def _keep(brought: Brought, into: Path, replace: bool) -> str:
    target = into / brought.folder
    there = {file.name: file.read_text(encoding="utf-8") for file in target.iterdir()} if target.is_dir() else None
    if there == brought.files:
        return "unchanged"
    if there is not None:
        if not replace:
            raise RefusedError(f"{into.name}/{brought.folder} is there with another content; give --replace to take the new one")
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name, text in brought.files.items():
        (target / name).write_text(text, encoding="utf-8")
    return "imported" if there is None else "replaced"


def _error(file: Path, config: Config) -> dict[str, str]:
    """What went wrong, without the names of a machine's folders."""
    found = json.loads(file.read_text(encoding="utf-8"))
    message = re.sub(r"(?<![\w.~])~?/(?:[^/\s'\"]+/)+", "", str(found["message"]))
    return {"id": config.id, "error": str(found["error"]), "message": message}


def _rounded(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in record.items()}


def _indented(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _lines(value: object, indent: str = "") -> str:
    """JSON with a line for each entry of an object and each row of a matrix, so that a difference can be read."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{deeper}{json.dumps(key)}: {_lines(entry, deeper)}" for key, entry in value.items())
        return f"{{\n{inner}\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], list) and len(value[0]) > 2:
        return "[\n" + ",\n".join(f"{deeper}{_lines(row, deeper)}" for row in value) + f"\n{indent}]"
    return json.dumps(value, separators=(",", ":"))


def write_documents(root: Path) -> list[str]:
    """Bring every document to what `documents` says, and remove figures that nothing is made of any more."""
    made = documents(root)
    for name, text in made.items():
        file = root / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"written: {name}")
    for name in figures_there(root) - made.keys():
        (root / name).unlink()
        print(f"removed: {name}")
    return []


def figures_there(root: Path) -> set[str]:
    return {f"{IMAGES}/{file.name}" for file in (root / IMAGES).glob("figure-*.svg")}


def documents(root: Path) -> dict[str, str]:
    """What is written, by its place in the repository: from the runs under results/, and README.md outside of its marked part."""
    found = read(root / RUNS, quick=False)
    if not any(run.state == "finished" for run in found.all):
        raise RefusedError(f"{RUNS}/ has no finished run yet: python tools/results.py import RUNS…")
    results = collect(root / RUNS)
    del results["made"]  # the same runs make the same documents, whenever and wherever
    results["environment"] = _environment(found)
    results["tables"] = [table for table in results["tables"] if _has_something(table)]
    figures = {figure["name"]: figure for figure in results["figures"]}
    pictures = {name: f"{IMAGES}/{name}.svg" for name in figures}
    parts = [WRITTEN, report.results_markdown(results, pictures).rstrip(), _sources(found), _missing(found), _runs(found), AGAIN]
    return {
        PAGE: "\n\n".join(part for part in parts if part) + "\n",
        README: _with_block((root / README).read_text(encoding="utf-8"), _block(found, results, figures)),
        **{pictures[name]: report.figure_svg(figure) for name, figure in figures.items()},
    }


def _has_something(table: Mapping[str, Any]) -> bool:
    return any(row["runs"] or row["failed"] or row["recipe"] is None for row in table["rows"])


def _environment(found: Found) -> dict[str, str]:
    """Of the runs alone: not of the machine that writes the documents."""
    results = [run.result for run in found.all if run.result is not None]
    versions = Counter(", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results)
    return {"runs made with": _counted(versions), "on": _counted(Counter(_device(result) for result in results))}


def _counted(names: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count} runs)" for name, count in sorted(names.items()))


def _device(result: Mapping[str, Any]) -> str:
    return str(result.get("device_name", "a device that nobody has named"))


def _sources(found: Found) -> str:
    """Which settings are the paper's, and which are not."""
    rows = []
    for name in _names():
        if found.of(name):
            own = {path: one for path, one in settings(name, quick=False).items() if path not in BOOKKEEPING}
            count = sum(source == "paper" for _, source in own.values())
            sheet, chosen = (
                ", ".join(f"{path} = {value}" for path, (value, source) in own.items() if source == wanted) or "–"
                for wanted in ("sheet", "chosen")
            )
            rows.append([f"`{name}`", count, sheet, chosen])
    told = (
        "How many settings of a run the ENRNN paper states; those from the authors' code, or from the paper or code of the "
        "network that is compared ([docs/zoo.md](docs/zoo.md)); and those that are ours, because neither says. "
        "`enrnn recipes NAME` has all."
    )
    return f"## Where the settings come from\n\n{told}\n\n" + report.grid_markdown(
        ["run", "the paper's", "from its sheet", "ours"], rows, numeric=(1,)
    )


def _missing(found: Found) -> str:
    """Runs of the paper that nobody has done, each under the first table or figure that needs it."""
    lines, told = [], set[str]()
    for name, item in ITEMS.items():
        missing = [run for run in item.runs if run not in told and not found.of(run) and not found.failed(run)]
        told |= set(missing)
        if missing:
            lines.append(f"- {item.title} ({item.where}; `{name}`): {', '.join(f'`{run}`' for run in missing)}")
        if item.measures and found.cost is None:
            lines.append(f"- {item.title} ({item.where}; `{name}`)")
    return "## Not run yet\n\n" + "\n".join(lines) if lines else ""


def _names() -> list[str]:
    return list(dict.fromkeys(run for item in ITEMS.values() for run in item.runs))


def _runs(found: Found) -> str:
    rows = []
    for run in found.all:
        result = run.result or {}
        state = run.state + (f": {run.error}" if run.error else "")
        device = _device(result) if result else run.values["run"]["device"]
        rows.append([f"`{run.name}`", run.seed, state, device, report.duration(result.get("seconds")), f"`{run.folder}`"])
    return "## The runs\n\n" + report.grid_markdown(
        ["run", "seed", "state", "on", "time", f"under {RUNS}/"], rows, numeric=(1, 4)
    )


def _block(found: Found, results: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """README.md's part: one line for each row of the tables that has runs, and one figure."""
    devices = sorted({_device(run.result) for run in found.all if run.result is not None})
    head = ["", "network", "published", "ours", f"time on {devices[0]}" if len(devices) == 1 else "time"]
    rows = [row for table in results["tables"] if table["name"] in MAIN for row in _main_rows(found, table)]
    told = (
        "The paper's tables from our runs: a mean ± the standard deviation over (so many) seeds. Of the adding and the copying "
        "problem the paper has curves and no numbers. Time is that of a run, others beside it on the same device included. "
        f"{report.claims_in_words(results)}.{_beyond(found)} "
        f"All of it, with what was not run and how to do it again: [{PAGE}]({PAGE})."
    )
    shown = next((figures[name] for name in FIRST_FIGURES if name in figures), None)
    picture = report.picture_markdown(shown, f"{IMAGES}/{shown['name']}.svg") if shown else ""
    parts = ["## Results", told, report.grid_markdown(head, rows, numeric=(2, 3, 4)) if rows else "", picture]
    return "\n\n".join(part for part in parts if part)


def _beyond(found: Found) -> str:
    """The best of what is beyond the paper, as a sentence. Best by validation data."""
    means = {name: value for name in BEYOND if (value := found.mean(name, "valid")) is not None}
    best = min(means, key=lambda name: means[name], default=None)
    if best is None:
        return ""
    return f" Beyond the paper, ENRNN reaches {found.mean(best):.3f} bits per character ({BEYOND[best][0]})."


def _main_rows(found: Found, table: Mapping[str, Any]) -> list[list[object]]:
    what, key = MAIN[table["name"]]
    (column,) = report.columns({**table, "columns": [one for one in table["columns"] if one["key"] == key]})
    rows: list[list[object]] = []
    for row, cell in zip(table["rows"], column.cells, strict=True):
        if not row["runs"]:
            continue
        size = row["cells"].get("n")
        data = {run.data for run in found.all if run.values["id"] in row["runs"]} - {None, PTB_NAME, TIMIT_NAME}
        others = f", on {', '.join(sorted(map(str, data)))}" if data else ""
        label = f"{row['label']} {size['published']}" if size else row["label"]
        published = "–" if data else cell.published
        rows.append(
            ["" if rows else what, label + others, published, report.ours_markdown(cell), report.duration(row["seconds"])]
        )
    return rows


def _with_block(readme: str, block: str) -> str:
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise RefusedError(f"{README} has not one place between {BEGIN} and {END} for the results")
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
