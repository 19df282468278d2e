"""Races are found where nothing has gone wrong: small kernels, each with one thing left out that orders what its threads do."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.emulated.test_emulator import kernel, numbers
from tests.emulator._chip import Emulated
from tests.emulator._machine import EmulationError
from tests.emulator._order import Order
from tests.emulator._races import RaceError

HELPERS = (Path(__file__).parent / "ordering.cu").read_text()


class Case(NamedTuple):
    body: str
    """What is left out stands between « and »."""
    blocks: int = 1
    threads: int = 64
    before: str = ""


FLAG = """volatile int* const flag = to + 200;
if (blockIdx.x == 0) {{
    to[t] = from[t];
    __syncthreads();
    if (t == 0) {{ {} *flag = 7; }}
}} else {{
    if (t == 0) {{ while (*flag != 7); {} }}
    __syncthreads();
    to[64 + t] = to[63 - t];
}}"""
SAID = """if (blockIdx.x == 0) {{
    to[t] = from[t];
    __syncthreads();
    if (t == 0) asm volatile("st.{}.global.s32 [%0], 7;" :: "l"(to + 200) : "memory");
}} else {{
    int seen = 0;
    while (t == 0 && seen != 7) asm volatile("ld.{}.global.s32 %0, [%1];" : "=r"(seen) : "l"(to + 200) : "memory");
    __syncthreads();
    to[64 + t] = to[63 - t];
}}"""
SHARED = "__shared__ __align__(16) int s[64]; "
BELL = "__shared__ long long bell; if (t == 0) { open(at(&bell)); } "
CLUSTER = "#define tried __cluster_dims__(2, 1, 1) tried\n"
LETTERS = "send(yonder(at(s + t), blockIdx.x ^ 1), from[t], yonder(at(&bell), blockIdx.x ^ 1)); "
EXPECTED = "if (t == 0) expect(at(&bell), 256); "

CASES = {
    "a block's barrier": Case(SHARED + "s[t] = from[t]; «__syncthreads();» to[t] = s[63 - t];"),
    "the barrier before what was read is overwritten": Case(
        SHARED + "for (int i = 0; i < 3; i++) { s[t] = from[t] + i; __syncthreads(); to[t] += s[63 - t]; «__syncthreads();» }"
    ),
    "a warp's barrier": Case(SHARED + "s[t] = from[t]; «__syncwarp();» to[t] = s[t ^ 1];"),
    "a barrier of the block, not of a warp": Case(SHARED + "s[t] = from[t]; __syncwarp(); «__syncthreads();» to[t] = s[t ^ 32];"),
    "the fence of the one who says so": Case(FLAG.format("«__threadfence();»", "__threadfence();"), 2),
    "the fence of the one who hears it": Case(FLAG.format("__threadfence();", "«__threadfence();»"), 2),
    "a fence that is wide enough": Case(FLAG.format("«__threadfence();» __threadfence_block();", "__threadfence();"), 2),
    "the last one to count": Case(
        """__shared__ bool last;
        to[64 * blockIdx.x + t] = from[t];
        __syncthreads();
        if (t == 0) { «__threadfence();» last = atomicInc((unsigned*)to + 200, 2) == 2; __threadfence(); }
        __syncthreads();
        if (last) to[64 * blockIdx.x + t] += to[t] + to[64 + t] + to[128 + t];""",
        3,
    ),
    "a copy's wait": Case(SHARED + "ask(at(s + t), from + t); «asked();» to[t] = s[t];"),
    "a barrier after a copy's wait": Case(SHARED + "ask(at(s + t), from + t); asked(); «__syncthreads();» to[t] = s[63 - t];"),
    "an mbarrier's beginning": Case(
        f"""{SHARED} {BELL} «__syncthreads();» s[t] = from[t]; __syncwarp();
        if (t == 33) arrive(at(&bell));
        if (t < 32) {{ wait(at(&bell), 0); to[t] = s[t + 32]; }}"""
    ),
    "an arrival for others": Case(
        f"""{SHARED} {BELL} __syncthreads(); s[t] = from[t]; «__syncwarp();»
        if (t == 33) arrive(at(&bell));
        if (t < 32) {{ wait(at(&bell), 0); to[t] = s[t + 32]; }}"""
    ),
    "a proxy's fence": Case(
        f"""{SHARED} {BELL} to[t] = from[t]; «proxy_fence();» __syncthreads();
        {EXPECTED} if (t == 0) copy_in(at(s), to, 256, at(&bell));
        wait(at(&bell), 0); to[64 + t] = s[t];"""
    ),
    "the barrier before a copy overwrites what was read": Case(
        f"""{SHARED} {BELL} __syncthreads();
        for (int i = 0; i < 2; i++) {{
            {EXPECTED} if (t == 0) copy_in(at(s), from, 256, at(&bell));
            wait(at(&bell), i); to[t] += s[63 - t]; «__syncthreads();»
        }}"""
    ),
    "a letter's wait": Case(
        f"{SHARED} {BELL} {EXPECTED} cluster_barrier(); {LETTERS} «wait(at(&bell), 0);» to[64 * blockIdx.x + t] = s[t];"
        "cluster_barrier();",
        2,
        before=CLUSTER,
    ),
    "the other block has begun": Case(
        f"{SHARED} {BELL} {EXPECTED} «cluster_barrier();» {LETTERS} wait(at(&bell), 0); to[64 * blockIdx.x + t] = s[t];",
        2,
        before=CLUSTER,
    ),
    "the other block has not ended": Case(
        f"{SHARED} s[t] = from[t]; cluster_barrier();"
        "to[64 * blockIdx.x + t] = fetch(yonder(at(s + t), blockIdx.x ^ 1)); «cluster_barrier();»",
        2,
        before=CLUSTER,
    ),
    "lanes that wrote before they exchanged": Case(
        SHARED + "s[t] = from[t]; «__syncwarp();» const int other = __shfl_xor_sync(~0u, t, 1); nothing(); to[t] = s[other];"
    ),
}


def run(case: Case, *, without: bool) -> torch.Tensor:
    before, _, rest = case.body.partition("«")
    left_out, _, after = rest.partition("»")
    body = f"{before}{'nothing();' if without else left_out}{after}"
    found = torch.zeros(256, dtype=torch.int32)
    kernel(body, before=case.before + HELPERS)(case.blocks, case.threads, numbers(64), found, 0)
    return found


@pytest.mark.parametrize("often", [False, True], ids=["once", "often"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_left_out_is_found(name: str, often: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked for, and what has been looked at forgotten."""
    if often:
        monkeypatch.setattr(Order, "ROOM", 0)
    emulated.watch()
    run(CASES[name], without=False)
    with pytest.raises(EmulationError, match=r"with nothing between them|which has ended"):
        run(CASES[name], without=True)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("release.gpu", "acquire.gpu"),
        ("relaxed.gpu", "acquire.gpu"),
        ("release.gpu", "relaxed.gpu"),
        ("release.cta", "acquire.gpu"),
    ],
)
def test_releases_and_acquires(said: str, heard: str, emulated: Emulated) -> None:
    emulated.watch()
    with contextlib.nullcontext() if (said, heard) == ("release.gpu", "acquire.gpu") else pytest.raises(RaceError):
        run(Case(SAID.format(said, heard), 2), without=False)


def test_reads_are_over_when_lanes_have_exchanged_something(emulated: Emulated) -> None:
    emulated.watch()
    body = "__shared__ int s[64]; s[t] = from[t]; __syncwarp(); int sum = s[t ^ 1]; {} s[t] = sum; to[t] = s[t];"
    run(Case(body.format("sum += __shfl_xor_sync(~0u, sum, 1);")), without=False)
    with pytest.raises(RaceError):
        run(Case(body.format("nothing();")), without=False)


def test_lanes_may_write_the_same_number_and_no_other(emulated: Emulated) -> None:
    emulated.watch()
    run(Case("__shared__ int s[2]; s[t / 32] = from[t / 32]; __syncthreads(); to[t] = s[t / 32 ^ 1];"), without=False)
    with pytest.raises(EmulationError, match="writes to where another one writes something else in the same instruction"):
        run(Case("__shared__ int s[2]; s[t / 32] = from[t]; __syncthreads(); to[t] = s[t / 32 ^ 1];"), without=False)


@pytest.mark.parametrize("wait", ['asm volatile("griddepcontrol.wait;" ::: "memory");', "nothing();"])
def test_a_kernel_that_begins_early_waits(wait: str, emulated: Emulated) -> None:
    """It is found although the kernels run one after the other here."""
    emulated.watch()
    first = kernel('asm volatile("griddepcontrol.launch_dependents;"); to[t] = from[t];')
    second = kernel(f"{wait} to[t] = from[63 - t];", before=HELPERS)
    given, between, found = numbers(64), torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    first(1, 64, given, between, 0)
    with pytest.raises(RaceError) if "nothing" in wait else contextlib.nullcontext():
        second(1, 64, between, found, 0, early=True)


def test_what_is_said_of_a_race(emulated: Emulated) -> None:
    emulated.watch()
    with pytest.raises(RaceError) as caught:
        run(CASES["a block's barrier"], without=True)
    first, second, times = str(caught.value).splitlines()
    assert re.match(
        r"tried, line \d+ of its PTX \(st\.shared\.u32 .*\): thread \d+ of block .* writes shared memory at 0x", first
    )
    assert re.match(r"  and tried, line \d+ .*\(ld\.shared\.u32 .*\): thread \d+ of block .* reads shared memory at 0x", second)
    assert times == "  with nothing between them, 64 times"
