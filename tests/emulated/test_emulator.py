"""The emulator itself: it computes what a GPU would, and finds what is wrong with small kernels that are wrong on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from enrnn import _nvrtc
from enrnn._launch import Kernel
from tests.emulator._chip import Emulated
from tests.emulator._machine import EmulationError

SEEDS = range(5)


def kernel(body: str, *, shared: int = 0, before: str = "") -> Kernel:
    """Of two tensors, `from` and `to`, and a number."""
    given = "const int* from, int* to, long long n"
    source = f'{before}\nextern "C" __global__ void tried({given}) {{ const int t = threadIdx.x; {body} }}'
    return _nvrtc.load(source, {"tried": shared}, torch.device("cpu"))[0]


def numbers(*size: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, size, dtype=torch.int32, generator=torch.Generator().manual_seed(0))


INTEGERS = {
    "a / b": lambda a, b: int(a / b) if b else None,
    "a % b": lambda a, b: a - b * int(a / b) if b else None,
    "(int)((unsigned)a / 7u)": lambda a, b: (a % 2**32) // 7,
    "__mulhi(a, b)": lambda a, b: a * b >> 32,
    "(int)__umulhi(a, b)": lambda a, b: (a % 2**32) * (b % 2**32) >> 32,
    "(int)(__mul64hi((long long)a << 31, (long long)b << 29) >> 8)": lambda a, b: a * b << 60 >> 64 >> 8,
    "a << (b & 31)": lambda a, b: a << (b & 31),
    "a >> (b & 31)": lambda a, b: a >> (b & 31),
    "(int)((unsigned)a >> (b & 31))": lambda a, b: (a % 2**32) >> (b & 31),
    "max(a, b) ^ min((unsigned)a, (unsigned)b)": lambda a, b: max(a, b) ^ min(a % 2**32, b % 2**32),
    "__popc(a)": lambda a, b: (a % 2**32).bit_count(),
    "a * b + 3": lambda a, b: a * b + 3,
    "(signed char)a": lambda a, b: (a + 128) % 256 - 128,
    "(unsigned short)a * 5": lambda a, b: a % 2**16 * 5,
    "(int)((long long)a * b % 1000003)": lambda a, b: abs(a * b) % 1000003 * (1 if a * b > 0 else -1),
    "__shfl_xor_sync(~0u, a, 5)": None,
    "(int)__ballot_sync(~0u, a > b)": None,
}


@pytest.mark.parametrize("expression", INTEGERS)
def test_integers(expression: str, emulated: Emulated) -> None:
    given, found = numbers(64, 2), torch.empty(64, dtype=torch.int32)
    given[:8, 1] = torch.tensor([1, -1, 2, 3, -7, 31, 1000, -(2**31)])
    kernel(f"const int a = from[2 * t], b = from[2 * t + 1]; to[t] = {expression};")(1, 64, given, found, 0)
    pairs = given.tolist()
    right = INTEGERS[expression]
    if right is not None:
        wanted = [right(a, b) for a, b in pairs]
    elif "shfl" in expression:
        wanted = [pairs[lane ^ 5][0] for lane in range(64)]
    else:
        wanted = [
            sum((a > b) << i for i, (a, b) in enumerate(pairs[warp * 32 : warp * 32 + 32])) for warp in (0, 1) for _ in range(32)
        ]
    assert found.tolist() == [(each + 2**31) % 2**32 - 2**31 for each in wanted]


FLOATS = {
    "fmaf(a, b, c)": lambda a, b, c: a.double() * b.double() + c.double(),
    "a / b": lambda a, b, c: a.double() / b.double(),
    "sqrtf(fabsf(a))": lambda a, b, c: a.double().abs().sqrt(),
    "expf(a)": lambda a, b, c: a.double().exp(),
    "tanhf(a)": lambda a, b, c: a.double().tanh(),
    "rintf(8 * a)": lambda a, b, c: (8 * a.double()).round(),
    "floorf(8 * a)": lambda a, b, c: (8 * a.double()).floor(),
    "(float)(int)(100 * a)": lambda a, b, c: (100 * a).trunc().double(),
    "(float)((double)a * b)": lambda a, b, c: a.double() * b.double(),
    "copysignf(a, b)": lambda a, b, c: a.double().copysign(b.double()),
    'fmaxf(a, nanf(""))': lambda a, b, c: a.double(),
    "a < b ? a : c": lambda a, b, c: torch.where(a < b, a, c).double(),
}


@pytest.mark.parametrize("expression", FLOATS)
def test_floats(expression: str, emulated: Emulated) -> None:
    given, found = torch.randn(96, 3, generator=torch.Generator().manual_seed(0)), torch.empty(96)
    body = "const float* of = (const float*)from + 3 * t; const float a = of[0], b = of[1], c = of[2];"
    kernel(f"{body} ((float*)to)[t] = {expression};")(1, 96, given, found, 0)
    torch.testing.assert_close(found.double(), FLOATS[expression](*given.unbind(1)), rtol=3e-7, atol=1e-12)


TURNED = "__shared__ int s[256]; s[t] = from[t]; {} to[t] = s[(t + 37) % 256];"


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_a_barrier_that_is_missing_is_found(barrier: str, emulated: Emulated) -> None:
    given, turned = numbers(256), kernel(TURNED.format(barrier))
    right = []
    for seed in SEEDS:
        emulated.unfair(seed)
        found = torch.empty(256, dtype=torch.int32)
        turned(1, 256, given, found, 0)
        right.append(torch.equal(found, given.roll(-37)))
    assert all(right) == bool(barrier)


@pytest.mark.parametrize("sync", ["__syncwarp();", ""])
def test_lanes_that_do_not_wait_for_one_another_are_found(sync: str, emulated: Emulated) -> None:
    given, found = numbers(32), torch.empty(32, dtype=torch.int32)
    turned = kernel(f"__shared__ volatile int s[32]; s[t] = from[t]; {sync} to[t] = s[(t + 5) % 32];")
    right = []
    for seed in range(40):
        emulated.unfair(seed)
        turned(1, 32, given, found, 0)
        right.append(torch.equal(found, given.roll(-5)))
    assert all(right) == bool(sync)


COPIED = """extern __shared__ int s[];
const unsigned at = (unsigned)__cvta_generic_to_shared(s + t);
asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from + t) : "memory");
asm volatile("cp.async.commit_group;" ::: "memory"); {} to[t] = s[t];"""


@pytest.mark.parametrize("wait", ['asm volatile("cp.async.wait_group 0;" ::: "memory");', ""])
def test_a_copy_that_is_not_waited_for_is_found(wait: str, emulated: Emulated) -> None:
    given, found = numbers(64), torch.empty(64, dtype=torch.int32)
    kernel(COPIED.format(wait), shared=256)(1, 64, given, found, 0)
    assert torch.equal(found, given) == bool(wait)
    assert wait or (found == -1).all()  # what shared memory is full of


def test_what_is_read_from_beyond_a_tensor_is_said(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(100, dtype=torch.int32)
    with pytest.raises(
        EmulationError, match=r"tried, line \d+ .*\(ld\.global.*\): thread 0 of block \(2, 0, 0\) reads 4 bytes at 0x"
    ):
        kernel("to[t] = from[32 * blockIdx.x + t];")(3, 32, given, found, 0)


def test_what_is_written_beyond_a_tensor_is_said(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(60, dtype=torch.int32)
    said = (
        r"\(st\.global.*thread 60 of block \(0, 0, 0\) writes .* 240 bytes from the beginning of a tensor's memory, which has 240"
    )
    with pytest.raises(EmulationError, match=said):
        kernel("to[t] = from[t];")(1, 64, given, found, 0)
    assert not found.any()


@pytest.mark.parametrize("address", [0, -1, 4096, -(2**40), 2**47])
def test_no_address_is_too_wild(address: int, emulated: Emulated) -> None:
    with pytest.raises(EmulationError, match="reads 4 bytes at"):
        kernel("to[t] = from[t];")(1, 32, address - address % 4, torch.zeros(32, dtype=torch.int32), 0)


def test_memory_that_was_given_back_is_not_there(emulated: Emulated) -> None:
    given, found = numbers(2**20), torch.zeros(32, dtype=torch.int32)
    address = given.data_ptr()
    del given
    with pytest.raises(EmulationError, match="reads 4 bytes"):
        kernel("to[t] = from[t];")(1, 32, address, found, 0)


def test_what_is_not_aligned_is_said(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulationError, match="which is not a multiple of that"):
        kernel("((int4*)to)[t] = ((const int4*)(from + 1))[t];")(1, 4, given, found, 0)


def test_shared_memory_has_an_end(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulationError, match=r"thread 32 of block .* writes 4 bytes at 0x80 of shared memory, which has 128"):
        kernel("extern __shared__ int s[]; s[t] = from[t]; to[t] = s[t];", shared=128)(1, 64, given, found, 0)


def test_a_launch_that_is_too_large_is_refused(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(64, dtype=torch.int32)
    bounded = kernel("to[t] = from[t];", before="#define tried __launch_bounds__(32) tried")
    with pytest.raises(RuntimeError, match="CUDA answered"):
        bounded(1, 64, given, found, 0)


def test_threads_that_wait_for_ever_are_named(emulated: Emulated) -> None:
    given, found = numbers(64), torch.zeros(64, dtype=torch.int32)
    body = 'if (t < 32) asm volatile("bar.sync 1, 64;" ::: "memory"); to[t] = from[t];'
    with pytest.raises(
        EmulationError, match=r"tried cannot go on:\n    line \d+: 32 threads at bar\.sync 1, 64, thread 0 of block"
    ):
        kernel(body)(1, 64, given, found, 0)


@pytest.mark.parametrize("seed", [None, 0])
def test_threads_that_look_for_ever_are_named(seed: int | None, emulated: Emulated) -> None:
    given, found = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    if seed is not None:
        emulated.unfair(seed)
    with pytest.raises(EmulationError, match=r"tried cannot go on:(.|\n)*64 threads"):
        kernel("while (*(volatile const int*)from == 0); to[t] = 1;")(1, 64, given, found, 0)


def test_one_block_waits_for_another(emulated: Emulated) -> None:
    """By looking; whichever goes first."""
    body = "volatile int* const flag = to; if (blockIdx.x) while (*flag == 0); else if (t == 0) *flag = 7;"
    waits = kernel(f"{body} to[32 * blockIdx.x + t + 1] = 5;")
    for seed in SEEDS:
        emulated.unfair(seed)
        found = torch.zeros(65, dtype=torch.int32)
        waits(2, 32, None, found, 0)
        assert found.tolist() == [7, *[5] * 64]
