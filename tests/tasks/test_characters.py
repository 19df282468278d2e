"""Character prediction: rows are contiguous, nothing is predicted twice or left out in evaluation, and bits are bits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn.tasks import Adding, Characters, Symbols, characters
from enrnn.tasks._text import Corpus, standard_library
from enrnn.tasks.characters import CharactersData
from tests._record import Recorder
from tests.conformance._errors import raised_by
from tests.tasks._files import real

CPU = torch.device("cpu")


def data_of(train: str, valid: str, test: str, **settings: int) -> CharactersData:
    return CharactersData(Characters(**settings), Corpus("a test", {"train": train, "valid": valid, "test": test}), CPU)  # type: ignore[arg-type]


def counting(n: int) -> str:
    """A text whose every character tells where it stands."""
    return "".join(map(chr, range(0x4E00, 0x4E00 + n)))


def positions(data: CharactersData, symbols: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[ord(data.symbols[symbol]) - 0x4E00 for symbol in row] for row in symbols.tolist()])


@given(n=st.integers(12, 400), rows=st.integers(1, 6), piece=st.integers(1, 9))
def test_training_rows_are_contiguous_and_the_target_is_the_next_character(n: int, rows: int, piece: int) -> None:
    if n // rows < piece + 1:
        with pytest.raises(ValueError, match=rf"too short: .* {n} characters, .* batch_size = {rows} .* length = {piece} need"):
            data_of(counting(n), counting(2), counting(2), batch_size=rows, length=piece)
        return
    data = data_of(counting(n), counting(2), counting(2), batch_size=rows, length=piece)
    order = data.order("train", 0)
    assert torch.equal(order, data.order("train", 3))
    assert order.shape == (((n // rows) - 1) // piece, rows)
    inputs, targets = [], []
    for indices in order:
        batch = data.batch("train", indices)
        assert batch.inputs.shape == batch.targets.shape == (piece, rows)
        assert batch.weights is None
        inputs.append(positions(data, batch.inputs))
        targets.append(positions(data, batch.targets))
    starts = (n // rows) * torch.arange(rows)
    steps = len(order) * piece
    assert torch.equal(torch.cat(inputs), starts + torch.arange(steps)[:, None])
    assert torch.equal(torch.cat(targets), starts + torch.arange(1, steps + 1)[:, None])


@given(n=st.integers(2, 400), rows=st.integers(1, 40), piece=st.integers(1, 9), at_once=st.integers(1, 200))
def test_evaluation_predicts_every_character_but_the_first_once(n: int, rows: int, piece: int, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(characters, "AT_ONCE", at_once)
        data = data_of(counting(400), counting(n), counting(2), eval_batch_size=rows, batch_size=1, length=piece)
    seen: list[int] = []
    last: torch.Tensor | None = None
    for indices in data.order("valid"):
        batch = data.batch("valid", indices)
        assert batch.weights is not None
        counts = batch.weights.bool()
        assert (counts[:-1] >= counts[1:]).all(), "a row ends once"
        targets = positions(data, batch.targets)
        assert torch.equal(positions(data, batch.inputs)[counts], targets[counts] - 1)
        if last is not None:
            assert torch.equal(targets[0][counts[0]], last[counts[0]] + 1), "a row goes on where it was"
        last = targets[-1]
        seen += targets[counts].tolist()
    assert sorted(seen) == list(range(1, n))


def test_the_state_is_carried_and_the_settings_are_the_papers() -> None:
    settings = Characters()
    assert (settings.batch_size, settings.length) == (32, 50)
    data = data_of(counting(2000), counting(60), counting(60))
    assert (data.carries_state, data.reads, data.metric, data.direction) == (True, "all", "bits_per_character", "min")
    assert (data.input, data.output_size) == (Symbols(2000), 2000)


def test_knowing_nothing_costs_the_logarithm_of_the_alphabet() -> None:
    data = data_of("abcdefgh" * 10, "hgfedcba" * 3, "aa", batch_size=2, length=5, eval_batch_size=3)
    sums: dict[str, torch.Tensor] = {}
    for indices in data.order("valid"):
        batch = data.batch("valid", indices)
        for name, value in data.tally(torch.zeros(*batch.targets.shape, 8), batch).items():
            assert value.dtype == torch.float64
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value
    assert sums["characters"] == 23
    assert data.metrics(sums)["bits_per_character"] == pytest.approx(3.0, rel=1e-14)


def test_loss_and_metric_by_hand() -> None:
    data = data_of("abc" * 40, "abcabca", "ab", batch_size=4, length=5, eval_batch_size=2)
    outputs = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    batch = data.batch("train", data.order("train")[1])

    def nats(step: int, column: int, target: int) -> float:
        row = outputs[step, column].double().tolist()
        return math.log(sum(map(math.exp, row))) - row[target]

    by_hand = [nats(step, column, int(batch.targets[step, column])) for step in range(5) for column in range(4)]
    assert data.loss(outputs, batch).item() == pytest.approx(math.fsum(by_hand) / 20, rel=1e-5)
    assert data.metrics(data.tally(outputs, batch))["bits_per_character"] == pytest.approx(
        math.fsum(by_hand) / 20 / math.log(2), rel=1e-12
    )
    evaluated = data.batch("valid", data.order("valid")[0])  # rows of three: two steps of five are padding
    by_hand = [nats(step, column, int(evaluated.targets[step, column])) for step in range(3) for column in range(2)]
    found = data.tally(outputs[:, :2], evaluated)
    assert (float(found["nats"]), float(found["characters"])) == (pytest.approx(math.fsum(by_hand), rel=1e-12), 6)
    assert data.loss(outputs[:, :2], evaluated).item() == pytest.approx(math.fsum(by_hand) / 6, rel=1e-5)


def test_a_file_is_cut_at_90_and_95_percent_and_nothing_is_translated(tmp_path: Path) -> None:
    text = "\ufeffzwölf Boxkämpfer\r\n\tjagen\0 🥊 " * 100
    file = tmp_path / "text"
    file.write_bytes(text.encode())
    data = Characters(text=str(file), batch_size=2, length=5).load()
    assert data.symbols == "".join(sorted(set(text)))
    train, valid = len(text) * 90 // 100, len(text) * 95 // 100
    assert data.characters == {"train": train, "valid": valid - train, "test": len(text) - valid}
    batch = data.batch("train", data.order("train")[0])
    assert "".join(data.symbols[symbol] for symbol in batch.inputs[:, 0].tolist()) == text[:5]
    assert data.source == str(file)
    other = tmp_path / "other"
    other.write_bytes(text.replace("jagen", "hagen").encode())
    assert Characters(text=str(other), batch_size=2, length=5).load().fingerprint != data.fingerprint


def test_without_a_file_there_is_pythons_own_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    data = Characters().load()
    assert "standard library" in data.source
    assert data.symbols == "\n" + "".join(map(chr, range(32, 127)))
    assert data.characters["train"] > 1_000_000
    assert data.fingerprint == Characters(corpus="python").load().fingerprint
    assert "def " in standard_library().splits["test"]


def bad_ptb(folder: Path, **contents: str) -> Path:
    for split in ("train", "valid", "test"):
        if contents.get(split) is not None:
            (folder / f"ptb.{split}.txt").write_text(contents[split])
    return folder


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"data=FOLDER\) or set ENRNN_DATA"):
        Characters(corpus="ptb").load()
    with pytest.raises(FileNotFoundError, match=r"data names a folder that does not exist: .*nowhere"):
        Characters(data=str(tmp_path / "nowhere")).load()
    with pytest.raises(FileNotFoundError, match=r"no ptb\.train\.txt in .* Mikolov"):
        Characters(data=str(tmp_path)).load()
    bad_ptb(tmp_path, train="a")
    with pytest.raises(FileNotFoundError, match=r"no such text file: .*ptb\.valid\.txt"):
        Characters(data=str(tmp_path)).load()
    bad_ptb(tmp_path, valid="a", test="bb")
    with pytest.raises(ValueError, match=r"have 1/1/2 characters; Mikolov's have 5,101,618/399,782/449,945"):
        Characters(data=str(tmp_path)).load()
    with pytest.raises(FileNotFoundError, match=r"no such text file: .*absent"):
        Characters(text=str(tmp_path / "absent")).load()
    with pytest.raises(IsADirectoryError, match=r"cannot read the text file .*: Is a directory"):
        Characters(text=str(tmp_path)).load()
    monkeypatch.setenv("ENRNN_DATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"the environment variable ENRNN_DATA names a folder that does not exist"):
        Characters().load()


def test_a_byte_that_is_not_utf8_is_named_with_its_offset(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"abc" * 100 + b"\xff" + b"abc")
    with pytest.raises(ValueError, match=r"text is not UTF-8: byte 0xff at offset 300"):
        Characters(text=str(file)).load()


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_symbol_that_training_lacks_is_a_symbol_all_the_same(split: str) -> None:
    texts = {"train": "bc" * 50, "valid": "bc", "test": "bc", split: "bacxb"}
    data = data_of(**texts, batch_size=2, length=5)
    assert (data.symbols, data.input, data.output_size) == ("abcx", Symbols(4), 4)
    batch = data.batch(split, torch.tensor([0]))
    assert "".join(data.symbols[symbol] for symbol in batch.targets[:4, 0].tolist()) == "acxb"
    assert data.batch("train", data.order("train")[0]).inputs.min() == 1


def test_a_treebank_with_a_symbol_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enrnn.tasks._text.PTB_CHARACTERS", {"train": 100, "valid": 2, "test": 2})
    monkeypatch.setattr("enrnn.tasks._text.PTB_SYMBOLS", 2)
    bad_ptb(tmp_path, train="ab" * 50, valid="ax", test="ab")
    with pytest.raises(ValueError, match=r"have 3 distinct characters; Mikolov's have 2"):
        Characters(data=str(tmp_path)).load()


def test_a_stand_in_says_so_and_what_was_chosen_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    said = Characters().stand_in()
    assert said is not None
    for word in ("stand-in", "standard library", "Penn Treebank", "--data FOLDER", "ENRNN_DATA", "--text FILE"):
        assert word in said
    for chosen in (Characters(corpus="python"), Characters(text="t"), Characters(data=str(tmp_path)), Adding()):
        assert chosen.stand_in() is None
    monkeypatch.setenv("ENRNN_DATA", str(tmp_path))
    assert Characters().stand_in() is None


def test_relative_paths_can_be_taken_from_another_folder(tmp_path: Path) -> None:
    assert Characters(text="t.txt").beginning_at(tmp_path) == Characters(text=str(tmp_path / "t.txt"))
    assert Characters(text=str(tmp_path / "t")).beginning_at(Path("/elsewhere")) == Characters(text=str(tmp_path / "t"))
    assert Adding().beginning_at(tmp_path) == Adding()


@pytest.mark.parametrize("text", ["", "a", "aaa"])
def test_an_evaluation_part_without_a_prediction_is_refused(text: str) -> None:
    if len(text) < 2:
        with pytest.raises(ValueError, match=rf"its test part has {len(text)} characters, at least 2"):
            data_of("ab" * 50, "ab", text, batch_size=2, length=5)
    else:
        assert len(data_of("ab" * 50, "ab", text, batch_size=2, length=5).order("test")) == 1


@given(
    content=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode), st.text("ab", min_size=50).map(str.encode))
)
def test_any_bytes_load_or_are_refused_in_words(
    record: Recorder, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "text"
    file.write_bytes(content)
    settings = Characters(text=str(file), batch_size=2, length=3)
    error = raised_by(settings.load)
    if error is None:
        record(cases_loaded=1)
        assert sum(settings.load().characters.values()) == len(content.decode())
    else:
        record(cases_refused=1)
        assert type(error) is ValueError
        assert str(file) in str(error) or "too short" in str(error)


def test_the_penn_treebank() -> None:
    data = Characters(corpus="ptb", data=str(real("ptb").parent)).load()
    assert data.characters == {"train": 5_101_618, "valid": 399_782, "test": 449_945}
    assert data.input == Symbols(50)
    assert {"\n", " ", "<", ">", "N"} <= set(data.symbols)
    assert data.order("train").shape == (3188, 32)
    batch = data.batch("train", data.order("train")[0])
    assert (
        "".join(data.symbols[symbol] for symbol in batch.inputs[:, 0].tolist())
        == " aer banknote berlitz calloway centrust cluett fro"
    )
    predicted = sum(float(data.batch("test", indices).weights.sum()) for indices in data.order("test"))  # type: ignore[union-attr]
    assert predicted == 449_944
    assert Characters(data=str(real("ptb"))).load().fingerprint == data.fingerprint


def test_tiny_shakespeare() -> None:
    data = Characters(text=str(real("tinyshakespeare/input.txt"))).load()
    assert sum(data.characters.values()) == 1_115_394
    assert data.input == Symbols(65)
