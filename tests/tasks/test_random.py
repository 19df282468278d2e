"""The random numbers are SplitMix64's, to the bit, and no simple test tells them from chance."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from enrnn.tasks._random import Stream, below, key, permutation, uniform
from tests._record import Recorder

CPU = torch.device("cpu")


def splitmix64(key: int, n: int) -> int:
    """The definition, in Python's integers."""
    z = (key + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_reference_is_the_published_generator() -> None:
    """The numbers that every implementation of SplitMix64 is checked against, for the seed 1234567."""
    assert [splitmix64(1234567, n) for n in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(key=st.integers(0, 2**64 - 1), draws=st.integers(1, 9), indices=st.lists(st.integers(0, 2**48), min_size=1, max_size=5))
def test_a_stream_is_splitmix64(record: Recorder, key: int, draws: int, indices: list[int]) -> None:
    bits = Stream(key, draws, CPU).bits(torch.tensor(indices))
    wanted = [[splitmix64(key, index * draws + draw) >> 33 for index in indices] for draw in range(draws)]
    record(cases=bits.numel())
    assert bits.tolist() == wanted


@given(key=st.integers(0, 2**64 - 1), size=st.integers(1, 300))
def test_a_permutation_is_the_order_of_the_words(key: int, size: int) -> None:
    def signed(n: int) -> int:
        return (splitmix64(key, n) + 2**63) % 2**64 - 2**63

    assert permutation(key, size, CPU).tolist() == sorted(range(size), key=signed)


def test_keys_differ_with_every_part_of_the_place() -> None:
    places = [
        (),
        (1,),
        ("1",),
        (1, 1),
        (11,),
        ("1/1",),
        ("a", 1, "train"),
        ("a", 1, "test"),
        ("a", 2, "train"),
        ("b", 1, "train"),
    ]
    assert len({key(*place) for place in places}) == len(places)


def test_uniform_numbers_are_the_leading_bits_and_never_one() -> None:
    assert uniform(torch.tensor([0, 127, 128, 2**30, 2**31 - 1])).tolist() == [0.0, 0.0, 2.0**-24, 0.5, 1 - 2.0**-24]


def test_bounded_numbers_reach_both_ends_and_no_further() -> None:
    bits = torch.tensor([0, 2**31 - 1])
    for bound in (1, 2, 374, 376, 2**31 - 1):
        assert below(bits, torch.tensor(bound)).tolist() == [0, bound - 1]


def deviation(cells: Tensor, count: int) -> float:
    """How far the counts of `cells` in 0 … count − 1 are from equal, in standard deviations: χ² by Wilson and Hilferty."""
    observed = torch.bincount(cells.flatten(), minlength=count).double()
    expected = observed.sum() / count
    chi_square = float(((observed - expected).square() / expected).sum())
    freedom = count - 1
    return ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def pairs(first: Tensor, second: Tensor) -> Tensor:
    """Cells of a 32×32 grid, by the leading five bits of both."""
    return (first >> 26) * 32 + (second >> 26)


def words(seed: int, split: str) -> Tensor:
    """As the adding problem draws them, for a tenth of its length: [75, 8000]."""
    return Stream(key("adding", seed, split), 75, CPU).bits(torch.arange(8000))


BITS = words(0, "train")
LOOKS = {
    "alone": BITS >> 21,
    "the next draw": pairs(BITS[:-1], BITS[1:]),
    "the next sequence": pairs(BITS[:, :-1], BITS[:, 1:]),
    "a sequence 64 further": pairs(BITS[:, :-64], BITS[:, 64:]),
    "first and last draw": pairs(BITS[0], BITS[-1]),
    "the other split": pairs(BITS, words(0, "test")),
    "the next seed": pairs(BITS, words(1, "train")),
    "the low bits": BITS & 1023,
    "low bits of the next": (BITS[:-1] & 31) * 32 + (BITS[1:] & 31),
    "three draws": (BITS[:-2] >> 28) * 64 + (BITS[1:-1] >> 28) * 8 + (BITS[2:] >> 28),
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_dependence_that_a_chi_square_test_can_see(look: str, record: Recorder) -> None:
    cells = LOOKS[look]
    far = deviation(cells, int(2 ** math.ceil(math.log2(int(cells.max()) + 1))))
    record(cases=cells.numel(), worst_deviation=abs(far))
    assert abs(far) < 4.0


def test_the_chi_square_test_sees_what_is_not_random() -> None:
    """Counters without the mixing are too even alone, and in step with the next; one round of two is still seen."""
    n = torch.arange(75 * 8000)
    raw = n * -7046029254386353131  # γ, as an int64
    unmixed = (raw >> 33) & (2**31 - 1)
    assert deviation(unmixed >> 21, 1024) < -4.0
    assert deviation(pairs(unmixed[:-1], unmixed[1:]), 1024) > 4.0
    shared = torch.cat([BITS[:, :1], BITS[:, :-1]], 1)
    mostly_fresh = torch.where(torch.arange(8000) % 50 == 0, shared, BITS)
    assert deviation(pairs(mostly_fresh[:, :-1], mostly_fresh[:, 1:]), 1024) > 4.0


def test_every_bit_is_one_half_of_the_time_and_flips_half_of_the_time() -> None:
    n = BITS.numel()
    for bit in range(31):
        of_bit = (BITS >> bit) & 1
        for share in (of_bit, of_bit[:, 1:] ^ of_bit[:, :-1], of_bit[1:] ^ of_bit[:-1]):
            assert abs(float(share.double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(0.98 * n)


def test_a_permutation_is_uniform() -> None:
    orders = torch.stack([permutation(key("order", epoch), 6, CPU) for epoch in range(7200)])
    ranks = torch.zeros(7200, dtype=torch.int64)
    for place in range(6):  # the Lehmer code: 720 orders, ten of each expected
        ranks = ranks * (6 - place) + (orders[:, place + 1 :] < orders[:, place, None]).sum(1)
    assert abs(deviation(ranks, 720)) < 4.0
