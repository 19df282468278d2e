"""What the training loop relies on, for every task: settings that can be written down, and batches without a look at a value."""

from __future__ import annotations

import dataclasses
import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from enrnn.tasks import TASKS, Adding, Characters, Copying, Data, Features, Pixels, Speech, Symbols
from enrnn.tasks.pixels import FILES
from tests.conformance._errors import assert_explained, case, raised_by
from tests.tasks._files import speech_folder
from tests.tasks.test_pixels import idx

Loader = Callable[[str], Data]


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loader]:
    """Every task, small where it can be."""
    home = tmp_path_factory.mktemp("data")
    for part, size in (("train", 60_000), ("test", 10_000)):
        for kind, shape in (("images", (size, 28, 28)), ("labels", (size,))):
            (home / FILES[part, kind]).write_bytes(gzip.compress(idx(bytes(torch.Size(shape).numel()), *shape), 1))
    speech = str(speech_folder(home / "speech"))
    return {
        "adding": Adding(length=30, train_size=203, test_size=55, eval_batch_size=20).load,
        "copying": Copying(length=30, train_size=203, test_size=55, eval_batch_size=20).load,
        "characters": Characters(corpus="python").load,
        "pixels": Pixels(data=str(home), eval_batch_size=4000).load,
        "speech": Speech(data=speech, batch_size=2, eval_batch_size=2).load,
        "speech, copy": Speech(data=speech, batch_size=2, eval_batch_size=2, variant="copy", normalization="valid").load,
    }


NAMES = ["adding", "copying", "characters", "pixels", "speech", "speech, copy"]


def outputs_for(data: Data, inputs: torch.Tensor) -> torch.Tensor:
    steps = [] if data.reads == "last" else [inputs.shape[0]]
    return torch.randn(*steps, inputs.shape[1], data.output_size, generator=torch.Generator().manual_seed(0)).to(data.device)


def batches(data: Data) -> Iterator[tuple[str, torch.Tensor]]:
    for split in data.splits:
        order = data.order(split)
        yield split, order[0]
        yield split, order[-1]


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_kinds_are_as_announced(loaders: dict[str, Loader], name: str) -> None:
    data = loaders[name]("cpu")
    assert data.name == name.partition(",")[0]
    assert data.splits[0] == "train"
    assert data.splits[-1] == "test"
    for split, indices in batches(data):
        assert (indices.dtype, indices.dim()) == (torch.int64, 1)
        assert split != "train" or (indices >= 0).all()
        batch = data.batch(split, indices)
        if isinstance(data.input, Features):
            assert batch.inputs.dtype == torch.float32
            assert batch.inputs.shape[1:] == (len(indices), data.input.size)
        else:
            assert isinstance(data.input, Symbols)
            assert batch.inputs.dtype == torch.int64
            assert batch.inputs.shape[1:] == (len(indices),)
            assert batch.inputs.min() >= 0
            assert batch.inputs.max() < data.input.count
        if batch.weights is not None:
            assert set(batch.weights.unique().tolist()) <= {0.0, 1.0}
        outputs = outputs_for(data, batch.inputs)
        assert data.loss(outputs, batch).shape == ()
        sums = data.tally(outputs, batch)
        assert all(value.dtype == torch.float64 and value.shape == () for value in sums.values())
        found = data.metrics(sums)
        assert data.metric in found
        assert all(type(value) is float for value in found.values())
    assert data.direction in ("min", "max")


@pytest.mark.parametrize("name", NAMES)
def test_a_split_adds_up_to_the_same_whatever_its_padding_holds(loaders: dict[str, Loader], name: str) -> None:
    """What the network puts out for padding must not matter."""
    data = loaders[name]("cpu")
    indices = data.order("test")[-1]
    batch = data.batch("test", indices)
    assert batch.weights is not None
    if batch.weights.all():
        pytest.skip("the last batch of this split is full")
    outputs = outputs_for(data, batch.inputs)
    weights = batch.weights if batch.weights.dim() == outputs.dim() - 1 else batch.weights.expand(outputs.shape[:-1])
    other = torch.where(weights[..., None] > 0, outputs, outputs * -5 + 3)
    assert not torch.equal(outputs, other)
    assert data.tally(outputs, batch) == data.tally(other, batch)
    assert data.loss(outputs, batch) == data.loss(other, batch)


class NoLook(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: reading a value, a size that depends on one, a tensor from the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "lift_fresh", "is_nonzero", "repeat_interleave")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, name
        if name in ("index", "index_put"):
            assert not any(index is not None and index.dtype == torch.bool for index in args[1]), "a mask as an index"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_batch_loss_and_tally_look_at_no_value(loaders: dict[str, Loader], name: str) -> None:
    data = loaders[name]("cpu")
    for split, indices in batches(data):
        shape = data.batch(split, indices).inputs
        outputs = outputs_for(data, shape).requires_grad_()
        with NoLook():
            batch = data.batch(split, indices)
            data.loss(outputs, batch).backward()
            data.tally(outputs.detach(), batch)


def test_the_guard_sees_a_look() -> None:
    for look in (lambda x: x.item(), lambda x: x[x > 0], lambda x: torch.tensor([1.0])):
        with pytest.raises(AssertionError), NoLook():
            look(torch.ones(()))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_another_shape_and_unknown_splits_are_refused(loaders: dict[str, Loader], name: str) -> None:
    data = loaders[name]("cpu")
    batch = data.batch("train", data.order("train")[0])
    outputs = outputs_for(data, batch.inputs)
    for wrong in (outputs[..., :-1], outputs[..., None], outputs[:-1]):
        assert_explained(
            raised_by(lambda wrong=wrong: data.loss(wrong, batch)), ("outputs", str(list(outputs.shape)), str(list(wrong.shape)))
        )
    for call in (lambda: data.order("dev"), lambda: data.batch("dev", torch.zeros(1, dtype=torch.int64))):
        assert_explained(raised_by(call), ("split", "'dev'", data.name, "'train'", "'test'"))
    if not data.carries_state:
        for epoch in (-1, 0.5, "first"):
            assert_explained(raised_by(lambda epoch=epoch: data.order("train", epoch)), ("epoch", repr(epoch)))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_settings_give_the_same_data(loaders: dict[str, Loader], name: str) -> None:
    one, other = loaders[name]("cpu"), loaders[name]("cpu")
    assert one.fingerprint == other.fingerprint
    for (split, indices), (_, again) in zip(batches(one), batches(other), strict=True):
        assert torch.equal(indices, again)
        for a, b in zip(one.batch(split, indices), other.batch(split, indices), strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_the_table_of_names() -> None:
    assert list(TASKS.items()) == [
        ("adding", Adding),
        ("copying", Copying),
        ("speech", Speech),
        ("characters", Characters),
        ("pixels", Pixels),
    ]


@pytest.mark.parametrize("task", TASKS.values())
def test_settings_are_plain_values_that_cannot_be_changed(task: type[Any]) -> None:
    settings = task()
    assert task(**dataclasses.asdict(settings)) == settings
    assert hash(settings) == hash(task())
    for field in dataclasses.fields(settings):
        assert type(getattr(settings, field.name)) in (int, bool, str, type(None))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, 1)


SEEDED = [task for task in TASKS.values() if task is not Characters]  # in which nothing is random
BAD: list[tuple[type[Any], str, Any]] = [
    *((task, "batch_size", value) for task in TASKS.values() for value in (0, -1, 1.5, True, "50", None)),
    *((task, "seed", value) for task in SEEDED for value in (-1, 0.0, None, "a")),
    *((task, "eval_batch_size", value) for task in TASKS.values() for value in (0, 2.0, None)),
    *(
        (task, field, value)
        for task in (Adding, Copying)
        for field in ("length", "train_size", "test_size")
        for value in (0, -3, 7.5, "x")
    ),
    *((task, "train_size", 7) for task in (Adding, Copying)),
    *((Adding, "length", value) for value in (1, 2, 2**31)),
    *((Copying, "layout", value) for value in ("text", 3, None)),
    *((Characters, "length", value) for value in (0, 1.0)),
    *((Characters, "corpus", value) for value in ("wiki", 1, "text")),
    *((Characters, "text", value) for value in ("", 3, Path("a"), "a\0b")),
    *((Speech, "variant", value) for value in ("shift", None)),
    *((Speech, "normalization", value) for value in ("mean", 0)),
    *((Speech, field, value) for field in ("data", "cache") for value in ("", 1, b"x")),
    (Speech, "complete", "yes"),
    (Pixels, "permuted", 1),
    (Pixels, "batch_size", 55_001),
    *((Pixels, "permutation_seed", value) for value in (-1, 2**32, 0.5)),
]


@pytest.mark.parametrize(("task", "field", "value"), [case(f"{t.name}({f}={v!r})", t, f, v) for t, f, v in BAD])
def test_a_bad_setting_is_named_with_its_value(task: type[Any], field: str, value: Any) -> None:
    assert_explained(
        raised_by(lambda: task(**{field: value})), (field, value if type(value) is str and "\0" not in value else repr(value))
    )


def test_the_tasks_need_torch_alone() -> None:
    """With NumPy, SciPy and all the rest hidden, tasks without files load and make batches, and so does one with a text."""
    program = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in {'numpy', 'scipy', 'soundfile', 'pystoi', 'pesq', 'torchaudio', 'librosa'}:\n"
        "            raise ModuleNotFoundError(f'hidden: {name}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import enrnn.tasks as tasks\n"
        "for settings in (tasks.Adding(), tasks.Copying(), tasks.Characters(corpus='python')):\n"
        "    data = settings.load()\n"
        "    data.batch('test', data.order('test')[0])\n"
        "assert 'numpy' not in sys.modules\n"
        "from enrnn.tasks.pixels import numpy_permutation\n"
        "assert sorted(numpy_permutation(92916, 784)) == list(range(784))\n"
        "print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
