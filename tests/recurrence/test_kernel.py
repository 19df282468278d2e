"""The kernels compile for every chip they are meant for, on a machine without a GPU too, and keep their weights in registers."""

from __future__ import annotations

import itertools
import re

import pytest

from enrnn import _nvrtc
from enrnn.matrices import _cayley_transform, _inverse, _normalization
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _bias, _cuda, _gated, _gram, _linked, _pack, _product, _rotations_cuda
from enrnn.recurrence._eights import TILES, Coupling, Eights, eights_for
from enrnn.recurrence._shapes import BATCHES, Limits, Shape, as_one, layout_for, one_block, shape_for, split_block
from enrnn.recurrence._wide import Wide, wide_for
from enrnn.tasks import _cross_entropy
from enrnn.training import _embedding, _fused, _keep, _ledger
from tests._record import Recorder

H200 = Limits(65536, 232448, (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7))
NO_CLUSTERS = {
    "sm_80": Limits(65536, 166912, (108,)),
    "sm_86": Limits(65536, 101376, (82,)),
    "sm_89": Limits(65536, 101376, (128,)),
}
CHIPS = {**NO_CLUSTERS, "sm_90": H200, "sm_100": H200._replace(clusters=(148, *H200.clusters[1:]))}
CHIPS["sm_120"] = Limits(65536, 101376, (170, 80, 50, 40, 30, 25, 20, 20))
NAMES = list(NONLINEARITIES)


@pytest.fixture(autouse=True)
def compiler() -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)


def resources(source: str, arch: str, defines: dict[str, int]) -> tuple[int, int]:
    """Registers of the widest kernel and bytes spilled by all, from the assembler's own report."""
    from cuda.bindings import nvrtc

    options = [f"--gpu-architecture={arch}", "--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])[1]
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(status) == 0, log.decode()
    registers = [int(found) for found in re.findall(r"Used (\d+) registers", log.decode())]
    spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", log.decode())]
    assert registers
    assert spilled
    return max(registers), sum(spilled)


def variants(arch: str) -> list[tuple[Shape, str, bool]]:
    """The shapes of the paper's sizes and the edges between kinds of shapes, both directions, every nonlinearity somewhere."""
    sizes = (
        [20, 96, 160, 192, 224, 310, 374, 468, 720, 1030]
        if arch == "sm_90"
        else [160, 310, 720]
        if arch == "sm_100"
        else [32, 128, 224]
    )
    found = []
    for index, n in enumerate(sizes):
        for backward in (False, True):
            name = NAMES[(index + 3 * backward) % len(NAMES)]
            shape = shape_for(n, 32, NONLINEARITIES[name].parts, CHIPS[arch])
            assert shape is not None, (arch, n)
            found.append((shape, name, backward))
    assert {name for _, name, _ in found} == set(NAMES)
    if arch == "sm_90":
        found += [(Shape(15, 256, 32, 6, 23, 0, 5, 2), "relu", backward) for backward in (False, True)]
    for index, (q, s) in enumerate([(96, 64), (64, 96), (128, 32), (24, 16)]):
        shape = split_block(q, s, CHIPS[arch])
        assert shape is not None, (arch, q, s)
        names = ("modrelu", "tanh", "leaky_relu", "identity", "relu")[index : index + 2]
        found += [(shape, name, backward) for name, backward in zip(names, (False, True), strict=True)]
    return found


@pytest.mark.parametrize("arch", CHIPS)
def test_the_recurrence_compiles(arch: str, record: Recorder) -> None:
    registers = []
    for shape, name, backward in variants(arch):
        used, spilled = resources(_cuda.source(shape), arch, _cuda.defines(shape, name, backward, False, CHIPS[arch]))
        assert spilled == 0, (shape, name, backward)
        registers.append(used)
    record(cases=len(registers), worst_registers=max(registers))


WIDE = [
    (96, 64, "modrelu", False, False, False),
    (60, 90, "leaky_relu", True, True, False),
    (128, 0, "paired_modrelu", True, True, False),
    (70, 0, "tanh", False, True, False),
    (96, 64, "relu", True, False, True),
    (128, 0, "modrelu", False, True, True),
]
"""Sizes of the two parts, nonlinearity, direction, whether there are lengths, and whether in the lower precision."""


@pytest.mark.parametrize("arch", CHIPS)
def test_the_recurrence_of_many_sequences_compiles(arch: str, record: Recorder) -> None:
    registers = []
    for long, short, name, backward, lengths, lower in WIDE:
        wide = wide_for(long + short, 10_000, NONLINEARITIES[name].parts, CHIPS[arch], long, backward, lower)
        assert wide is not None
        used, spilled = resources(_cuda.source(wide), arch, _cuda.defines(wide, name, backward, lengths, CHIPS[arch]))
        assert spilled == 0, (wide, name, backward)
        registers.append(used)
    record(cases=len(registers), worst_registers=max(registers))


@pytest.mark.parametrize("chip", CHIPS)
def test_many_sequences_have_a_layout_within_the_chips_limits(chip: str) -> None:
    """Every row of tiles is some warp's, once; a matrix that has no room there has another layout, or none for either."""
    limits, kinds = CHIPS[chip], set()
    for n, q, parts, backward in itertools.product(range(1, 300, 7), (None, 20, 96), (1, 2), (False, True)):
        for sequences in (1, 100, 3000, 100_000):
            layout = layout_for(n * parts, sequences, parts, limits, q, backward)
            kinds.add(type(layout))
            if not isinstance(layout, Wide):
                assert layout == shape_for(n * parts, sequences, parts, limits, q)
                continue
            assert sorted(layout.order(backward)) == list(range(len(layout.jobs(backward))))
            rows = layout.long_tiles + layout.short_tiles
            work = rows**2 - layout.long_tiles * layout.short_tiles
            assert sum(layout.jobs(backward)) == work
            assert layout.block(backward) <= 256
            assert layout.shared_bytes(backward) * layout.resident(backward, limits) <= limits.shared
            assert layout.blocks(sequences) * 8 * layout.spans >= sequences
            units = (q, n - q) if layout.short_tiles and q else (n, 0)
            assert all(
                16 // parts * tiles >= size for tiles, size in zip((layout.long_tiles, layout.short_tiles), units, strict=True)
            )
    assert kinds >= {Shape, Wide}


def test_a_few_sequences_are_not_for_the_tensor_cores() -> None:
    """Of the paper's sizes, only those of an evaluation."""
    for q, s, batch in [(96, 64, 50), (172, 20, 20), (374, 94, 28), (310, 720, 32)]:
        assert isinstance(layout_for(q + s, batch, 1, H200, q), Shape)
    assert isinstance(layout_for(160, 10_000, 1, H200, 96), Wide)


LINKED = [
    ((720, 310), "modrelu", False),
    ((310, 720), "modrelu", True),
    ((200, 500), "relu", False),
    ((50, 720), "leaky_relu", True),
    ((384, 384), "identity", False),
    ((720, 97), "tanh", True),
]
"""Units of the sweep that leads, and of one that follows; nonlinearity and direction."""


def test_linked_sweeps_compile(record: Recorder) -> None:
    """On the chip they are for."""
    registers = []
    for (leads, follows), name, backward in LINKED:
        layouts = _linked.linked(leads, follows, 20, name, H200)
        assert layouts is not None
        kernels = [(_linked.COUPLING, layouts.couples.defines), (_pack.SOURCE, _pack.DEFINES)]
        for layout in (layouts.leads, layouts.follows):
            kernels.append((_cuda.source(layout), _cuda.defines(layout, name, backward, False, H200)))
        for source, defines in kernels:
            used, spilled = resources(source, "sm_90", defines)
            assert spilled == 0, (defines, name, backward)
            registers.append(used)
    record(cases=len(registers), worst_registers=max(registers))


def test_eights_hold_every_unit_and_leave_places_to_others() -> None:
    for n, sequences in itertools.product(range(49, 769), (1, 8, 9, 32)):
        layout = eights_for(n, sequences, "relu", H200)
        assert layout is not None
        assert (layout.team - 1) * 16 * TILES < n <= layout.team * 16 * TILES
        assert layout.teams * layout.team <= 16
        assert layout.teams_for(sequences) * 8 >= sequences
        assert layout.blocks(sequences) % (layout.team * layout.teams) == 0
    for n in (1, 48, 769, 1100):
        assert eights_for(n, 8, "relu", H200) is None
    assert eights_for(720, 57, "relu", H200) is None  # more clusters than run at once
    assert eights_for(720, 8, "paired_modrelu", H200) is None
    assert all(eights_for(300, 8, "relu", limits) is None for limits in NO_CLUSTERS.values())


def test_sweeps_are_linked_where_that_is_faster() -> None:
    """Of the paper's sizes, at the characters alone: both directions, or none."""
    for q, s, batch, pays in [(310, 720, 32, True), (310, 720, 4, False), (374, 94, 28, False), (96, 64, 50, False)]:
        for leads, follows in [(s, q), (q, s)]:
            layouts = _linked.linked(leads, follows, batch, "modrelu", H200)
            assert (layouts is not None and _linked.pays(layouts, leads, follows, batch, H200)) == pays
    assert _linked.linked(720, 310, 32, "modrelu", H200) == (Eights(15), Coupling(7, 15, 2, 2), Eights(7, 2, True))
    assert _linked.linked(310, 720, 32, "modrelu", H200) == (Eights(7, 2), Coupling(15, 7, 1, 2), Eights(15, 1, True))
    assert _linked.linked(720, 310, 40, "modrelu", H200) is None  # three kernels would not have room


def test_no_chip_is_asked_for_more_than_it_has() -> None:
    """Clusters of fewer blocks, or none of some size."""
    for most, sizes in itertools.product((0, 1, 2, 8, 10, 14, 15), itertools.product((60, 200, 310, 720), repeat=2)):
        small, gap = H200._replace(clusters=H200.clusters[:most]), H200._replace(clusters=(*H200.clusters[:13], 0, 7, 7))
        for batch in (8, 32, 64):
            layouts = _linked.linked(*sizes, batch, "relu", small)
            assert layouts is None or max(each.cluster for each in layouts) <= most
            layouts = _linked.linked(*sizes, batch, "relu", gap)
            assert layouts is None or 14 not in [each.cluster for each in layouts]


def test_a_coupling_has_every_team_once() -> None:
    for leads, follows, sequences in itertools.product((50, 310, 720), (50, 200, 310, 385, 720), (1, 8, 9, 17, 32)):
        layouts = _linked.linked(leads, follows, sequences, "relu", H200)
        if layouts is not None:
            teams, each = -(-sequences // 8), layouts.couples.each(sequences)
            assert (layouts.couples.groups - 1) * each < teams <= layouts.couples.groups * each
            assert layouts.couples.cluster <= 16


@pytest.mark.parametrize("arch", CHIPS)
def test_the_product_compiles(arch: str, record: Recorder) -> None:
    """Every layout somewhere, all of them where they were measured, with as many stages as there is room for.

    The compiler of CUDA 13.0, which torch 2.11 brings, leaves one register of one of them in memory.
    """
    from cuda.bindings import nvrtc

    source, registers, bytes_left = _product.source(), [], 4 if nvrtc.nvrtcVersion()[1:] == (13, 0) else 0
    sizes = _product.SIZES if arch == "sm_90" else _product.SIZES[list(CHIPS).index(arch) :: 4]
    for size in sizes:
        plan = _product.with_stages(size, CHIPS[arch].shared)
        if plan is not None:
            used, spilled = resources(source, arch, _product.defines(plan))
            assert spilled <= bytes_left, plan
            registers.append(used)
    record(cases=len(registers), worst_registers=max(registers))


@pytest.mark.parametrize("arch", CHIPS)
def test_the_rotations_compile(arch: str, record: Recorder) -> None:
    source = _nvrtc.text(_rotations_cuda.SOURCE)
    for name, *flags in itertools.product(("paired_modrelu", "identity"), *[(False, True)] * 3):
        given = dict(zip(("butterfly", "ahead", "sums_in_shared"), flags, strict=True))
        used, spilled = resources(source, arch, _rotations_cuda.defines(name, **given))
        assert spilled == 0, (name, given)
        assert used <= 65536 // _rotations_cuda.THREADS
        record(cases=1, worst_registers=used)
    for name in _rotations_cuda.SIGMA:
        _, spilled = resources(source, arch, _rotations_cuda.defines(name, butterfly=False, ahead=True, sums_in_shared=True))
        assert spilled == 0, name


@pytest.mark.parametrize("arch", CHIPS)
def test_the_matrices_compile(arch: str) -> None:
    for source in (_inverse.SOURCE, _cayley_transform.SOURCE, _normalization.SOURCE):
        for double in (0, 1):
            _, spilled = resources(_nvrtc.text(source), arch, {"DOUBLE": double})
            assert spilled == 0


@pytest.mark.parametrize("arch", CHIPS)
def test_the_small_kernels_beside_it_compile(arch: str) -> None:
    sources = [(_bias.SOURCE, {"RULE": rule}) for rule in (0, 1, 2)] + [
        (each.SOURCE, {}) for each in (_keep, _fused, _ledger, _embedding, _cross_entropy)
    ]
    products = [
        (9000, 160, 160, 4),
        (9000, 192, 192, 4),
        (9000, 256, 256, 4),
        (9000, 80, 192, 2),
        (9000, 161, 175, 1),
        (9, 160, 160, 4),
    ]
    sources += [(_gram.SOURCE, _gram.defines(*product)) for product in products]
    sources += [(_gated.SOURCE, {"SIGMA": sigma}) for sigma in _gated.SIGMA.values()]
    for source, given in sources:
        _, spilled = resources(_nvrtc.text(source), arch, given)
        assert spilled == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_every_size_has_a_shape_within_the_chips_limits(chip: str, record: Recorder) -> None:
    """Up to 224 units on any chip, up to 1,100 on one with clusters of sixteen."""
    limits, cases = CHIPS[chip], 0
    most = 1100 if len(limits.clusters) == 16 else 224
    for n in range(1, most + 1):
        for sequences in (1, 32, 10_000):
            for parts in (1, 2)[: 2 - n % 2]:
                shape = shape_for(n, sequences, parts, limits)
                assert shape is not None, (n, sequences, parts)
                rows = shape.threads // shape.lanes * shape.rows
                columns = (shape.chunks + shape.shared_chunks) * shape.lanes * shape.columns_a_chunk
                assert (shape.cluster - 1) * rows < n <= min(shape.cluster * rows, columns)
                assert shape.batch in BATCHES
                assert shape.rows % parts == 0
                assert shape.shared_bytes(parts, backward=True) <= limits.shared
                assert shape.cluster <= len(limits.clusters)
                cases += 1
    record(cases=cases)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_block_without_zeros_holds_both_parts_in_less(chip: str, record: Recorder) -> None:
    """All sizes of the two parts that go into one block: every row and column has its place, and threads hold fewer weights."""
    limits, cases = CHIPS[chip], 0
    for q, s in itertools.product(range(225), range(225)):
        shape = split_block(q, s, limits) if 0 < q + s <= 224 else None
        if shape is None:
            continue
        groups, columns = shape.threads // shape.lanes, shape.lanes * shape.columns_a_chunk
        plain = one_block(q + s, 1, limits)
        assert plain is not None
        assert 0 < q <= min(groups * (shape.rows - shape.short_rows), shape.long_chunks * columns)
        assert 0 < s <= min(groups * shape.short_rows, (shape.chunks - shape.long_chunks) * columns)
        assert max(shape.weights(False), shape.weights(True)) < plain.weights(False)
        assert shape.shared_bytes(1, backward=True) <= limits.shared
        cases += 1
    assert cases > 1000
    record(cases=cases)


def test_a_matrix_too_large_has_none() -> None:
    assert shape_for(5000, 1, 1, H200) is None
    assert shape_for(400, 1, 1, NO_CLUSTERS["sm_86"]) is None
    assert one_block(400, 1, H200) is None


def test_two_parts_are_one_matrix_where_latency_rules() -> None:
    """As measured: the three smaller sizes of the paper are faster as one matrix, the largest as two."""
    assert as_one(96, 64, 50, H200)
    assert as_one(172, 20, 20, H200)
    assert as_one(374, 94, 28, H200)
    assert not as_one(310, 720, 32, H200)
