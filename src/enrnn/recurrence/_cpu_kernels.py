"""The two sweeps over a slice of the batch, compiled by Numba. Imported only where the `cpu` engine runs.

Forward and backward are the same work. A step is `out = f(init + left · right, side)`, with

| sweep    | out    | init             | left       | right | side  | f              |
|----------|--------|------------------|------------|-------|-------|----------------|
| forward  | `h_t`  | `x̂_t`            | `h_{t−1}`  | `Wᵀ`  | `b`   | `σ`            |
| backward | `dz_t` | `∂L/∂h_t` direct | `dz_{t+1}` | `W`   | `h_t` | multiply by σ' |

and is made of *tiles*: a few rows by a few vectors of columns, whose sums stay in registers from init to f. LLVM does not
find this form by itself (it makes vectors of innermost loops), so the tile is written in its language, with vector types.

Every entry of `left · right` is one sum in one order, k = 0 … n−1, by fused multiply-add where the machine has it. So a
sequence's result depends neither on the other sequences of the batch nor on the number of threads, to the last bit.

One file, because Numba compiles anew when the file of a function has changed, and asks no other.

Addresses are integers and travel as tuples, with strides in bytes: `(address, row stride)` or `(address, step stride, row
stride)`. Within a row elements are neighbours. Memory is the caller's, who keeps it alive.
"""

import ctypes
import math
import os
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.binding
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple

from ..nonlinearities import LEAK

Rows: TypeAlias = tuple[int, int]
Steps: TypeAlias = tuple[int, int, int]


def _features() -> str:
    """The instruction sets that Numba compiles for."""
    if numba.config.CPU_FEATURES is not None:
        return str(numba.config.CPU_FEATURES)
    if numba.config.CPU_NAME is not None:
        return ""
    return ",".join(f"+{name}" for name, there in llvmlite.binding.get_host_cpu_features().items() if there)


_AVX512, _AVX, _NEON = (f"+{name}" in _features() for name in ("avx512f", "avx", "neon"))
VECTOR_BYTES = 64 if _AVX512 else 32 if _AVX else 16
# A tile of v vectors has up to TILE_ROWS[v] rows: its sums, v vectors of `right` and an entry of `left` fit 32 or 16 registers.
TILE_ROWS = (0, 8, 8, 8, 6) if _AVX512 or _NEON else (0, 6, 5, 4)
MOST_VECTORS = len(TILE_ROWS) - 1
MOST_TALL = 3
"""Vectors of a tile whose columns are not packed: each is masked, or might be."""

# What a tile does with its sum and the side.
STORE, ADD, RELU, LEAKY_RELU, MODRELU, TIMES_POSITIVE, TIMES_LEAKY_SLOPE, TIMES_NONZERO, TIMES_TANH_SLOPE = range(9)
# What is left to do on whole rows when all tiles of a step are done.
NOTHING, TANH, PAIRED_MODRELU = range(3)

FORWARD = {
    "identity": (ADD, NOTHING),
    "relu": (RELU, NOTHING),
    "leaky_relu": (LEAKY_RELU, NOTHING),
    "modrelu": (MODRELU, NOTHING),
    "tanh": (ADD, TANH),
    "paired_modrelu": (STORE, PAIRED_MODRELU),
}
BACKWARD = {
    "identity": (STORE, NOTHING),
    "relu": (TIMES_POSITIVE, NOTHING),
    "leaky_relu": (TIMES_LEAKY_SLOPE, NOTHING),
    "modrelu": (TIMES_NONZERO, NOTHING),
    "tanh": (TIMES_TANH_SLOPE, NOTHING),
    "paired_modrelu": (STORE, PAIRED_MODRELU),
}

TERMS = 32  # that are added up in the precision of the states before they go to a float64
TINY = 1.1754943508222875e-38  # float32's least normal number


def _epilogues(b: Any, vector: Any, elementwise: Callable[..., Any]) -> dict[int, Callable[[Any, Any], Any]]:
    """What to emit for each kind, given sum and side. NaN goes through all of them."""
    zero, one, leak = ir.Constant(vector, None), *(ir.Constant(vector, [value] * vector.count) for value in (1.0, LEAK))

    def relu(z: Any, x: Any) -> Any:
        z = b.fadd(z, x)
        return b.select(b.fcmp_ordered("<=", z, zero), zero, z)

    def leaky_relu(z: Any, x: Any) -> Any:
        z = b.fadd(z, x)
        return b.select(b.fcmp_ordered(">", z, zero), z, b.fmul(z, leak))

    def modrelu(z: Any, x: Any) -> Any:
        modulus = b.fadd(elementwise("fabs", z), x)
        at_zero = b.fmul(modulus, zero)  # 0, unless the bias is NaN or infinite
        moved = b.select(b.fcmp_ordered("==", z, zero), at_zero, elementwise("copysign", modulus, z))
        return b.select(b.fcmp_ordered("<=", modulus, zero), zero, moved)

    return {
        STORE: lambda z, _: z,
        ADD: b.fadd,
        RELU: relu,
        LEAKY_RELU: leaky_relu,
        MODRELU: modrelu,
        TIMES_POSITIVE: lambda g, h: b.fmul(g, b.select(b.fcmp_ordered(">", h, zero), one, zero)),
        TIMES_LEAKY_SLOPE: lambda g, h: b.fmul(g, b.select(b.fcmp_ordered(">", h, zero), one, leak)),
        TIMES_NONZERO: lambda g, h: b.fmul(g, b.select(b.fcmp_unordered("!=", h, zero), one, zero)),
        TIMES_TANH_SLOPE: lambda g, h: b.fmul(g, b.fsub(one, b.fmul(h, h))),
    }


def _emit_tile(function: Any, element: Any, size: int, rows: int, vectors: int, kinds: tuple[int, ...], tall: bool) -> None:
    """The body of the tile of `rows` rows by `vectors` vectors, of which the last has `filled` lanes and is masked.

    From one k to the next, `left` goes on by an element, and `right`, which is packed, by a row of this panel; what `init` and
    `side` have further on, by the last two arguments, will be wanted next. If it is `tall`, these two say how `left` and `right`
    go on, `right` is not packed, and rows have no order but their own: in `left` they are neighbours.
    """
    order, out, out_row, init, init_row, left, left_row, depth, right, side, side_row, kind, filled, *further = function.args
    lanes = VECTOR_BYTES // size
    i1, i32, i64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
    vector, mask_type = ir.VectorType(element, lanes), ir.VectorType(i1, lanes)
    pointer = vector.as_pointer()
    suffix = f"v{lanes}f{8 * size}"
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def declare(name: str, result: Any, *arguments: Any) -> Any:
        return cgutils.get_or_insert_function(function.module, ir.FunctionType(result, arguments), f"llvm.{name}")

    def elementwise(name: str, *values: Any) -> Any:
        return b.call(declare(f"{name}.{suffix}", vector, *([vector] * len(values))), values)

    def splat(scalar: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
        return b.shuffle_vector(
            b.insert_element(undefined, scalar, i32(0)), undefined, ir.Constant(ir.VectorType(i32, lanes), None)
        )

    masked_load = declare(f"masked.load.{suffix}.p0", vector, pointer, i32, mask_type, vector)
    masked_store = declare(f"masked.store.{suffix}.p0", ir.VoidType(), vector, pointer, i32, mask_type)
    mask = b.icmp_signed("<", ir.Constant(ir.VectorType(i64, lanes), list(range(lanes))), splat(filled))

    def place(address: Any, v: int) -> Any:
        return b.inttoptr(b.add(address, i64(v * VECTOR_BYTES)), pointer)

    def load(address: Any, v: int) -> Any:
        if v < vectors - 1:
            return b.load(place(address, v), align=size)
        return b.call(masked_load, [place(address, v), i32(size), mask, ir.Constant(vector, None)])

    def store(value: Any, address: Any, v: int) -> None:
        if v < vectors - 1:
            b.store(value, place(address, v), align=size)
        else:
            b.call(masked_store, [value, place(address, v), i32(size), mask])

    index = [i64(r) if tall else b.load(b.inttoptr(b.add(order, i64(8 * r)), i64.as_pointer())) for r in range(rows)]
    outs, inits, lefts, sides = (
        [b.add(address, b.mul(i, stride)) for i in index]
        for address, stride in ((out, out_row), (init, init_row), (left, i64(size) if tall else left_row), (side, side_row))
    )
    start = [load(row, v) for row in inits for v in range(vectors)]
    if not tall:  # the machine does not foresee it: rows of a slice need not be neighbours in memory
        prefetch = declare("prefetch.p0", ir.VoidType(), pointer, i32, i32, i32)
        for places, distance in zip((inits, sides), further, strict=True):
            for row in places:
                for v in range(vectors):
                    b.call(prefetch, [place(b.add(row, distance), v), i32(0), i32(3), i32(1)])

    before, loop, done = b.block, function.append_basic_block("loop"), function.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", depth, i64(0)), loop, done)

    b.position_at_end(loop)
    k = b.phi(i64)
    sums = [b.phi(vector) for _ in start]
    left_k, right_k = further if tall else (i64(size), i64(vectors * VECTOR_BYTES))
    w = b.add(right, b.mul(k, right_k))
    columns = [load(w, v) if tall else b.load(place(w, v), align=size) for v in range(vectors)]
    grown = []
    for r in range(rows):
        entry = splat(b.load(b.inttoptr(b.add(lefts[r], b.mul(k, left_k)), element.as_pointer())))
        grown += [elementwise("fmuladd", entry, columns[v], sums[r * vectors + v]) for v in range(vectors)]
    following = b.add(k, i64(1))
    b.cbranch(b.icmp_signed("<", following, depth), loop, done)

    b.position_at_end(done)
    totals = [b.phi(vector) for _ in start]
    for phi, first, later in zip([k, *sums, *totals], [i64(0), *start, *start], [following, *grown, *grown], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)

    impossible, end = function.append_basic_block("impossible"), function.append_basic_block("end")
    switch = b.switch(kind, impossible)
    for code in kinds:
        case = function.append_basic_block(f"kind{code}")
        switch.add_case(i64(code), case)
        b.position_at_end(case)
        finish = _epilogues(b, vector, elementwise)[code]
        for r in range(rows):
            for v in range(vectors):
                store(finish(totals[r * vectors + v], None if code == STORE else load(sides[r], v)), outs[r], v)
        b.branch(end)
    b.position_at_end(impossible)
    b.unreachable()
    b.position_at_end(end)
    b.ret_void()


def _call_tile(
    name: str, kinds: tuple[int, ...], tall: bool, context: Any, builder: Any, dtype: Any, arguments: list[Any]
) -> Any:
    """Emit all tiles, unless they are there, and a call of the one whose rows and vectors are the first two arguments."""
    rows, vectors, *others = arguments
    i64 = ir.IntType(64)
    type_ = ir.FunctionType(ir.VoidType(), [i64] * len(others))
    impossible, end = builder.append_basic_block("impossible"), builder.append_basic_block("end")
    switch = builder.switch(builder.add(builder.mul(rows, i64(MOST_VECTORS + 1)), vectors), impossible)
    for v in range(1, MOST_VECTORS + 1):
        for r in range(1, TILE_ROWS[v] + 1):
            function = cgutils.get_or_insert_function(builder.module, type_, f"enrnn_{name}_{dtype}_{r}x{v}")
            if function.is_declaration:
                function.linkage = "internal"
                function.attributes.add("noinline")
                _emit_tile(function, context.get_value_type(dtype), dtype.bitwidth // 8, r, v, kinds, tall)
            case = builder.append_basic_block(f"{r}x{v}")
            switch.add_case(i64(r * (MOST_VECTORS + 1) + v), case)
            with builder.goto_block(case):
                builder.call(function, others)
                builder.branch(end)
    with builder.goto_block(impossible):
        builder.unreachable()
    builder.position_at_end(end)
    return context.get_dummy_value()


def _tile(name: str, kinds: tuple[int, ...], tall: bool = False) -> Any:
    """The tiles as a Numba function; `like` says of what type the elements are, all other arguments are integers."""

    @intrinsic
    def tile(
        _: Any, like: Any, rows: Any, vectors: Any, order: Any, out: Any, out_row: Any, init: Any, init_row: Any, left: Any,
        left_row: Any, depth: Any, right: Any, side: Any, side_row: Any, kind: Any, filled: Any, one: Any, other: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
            return _call_tile(name, kinds, tall, context, builder, like.dtype, arguments[1:])

        return types.void(like, *([types.int64] * 17)), codegen

    return tile


@intrinsic
def _pointer(_: Any, like: Any, address: Any) -> Any:
    """The address as a pointer to elements of the type of `like`'s."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(like, types.int64), codegen


def _recast(element: Any) -> Any:
    @intrinsic
    def recast(_: Any, pointer: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(pointer), codegen

    return recast


_integers, _doubles = _recast(types.int64), _recast(types.float64)
"""A pointer as one to other elements."""


@intrinsic
def _next(_: Any, counter: Any) -> Any:
    """What stands there, which is one more from now on: never the same for two threads."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
        return builder.atomic_rmw("add", arguments[0], ir.IntType(64)(1), "monotonic")

    return types.int64(counter), codegen


_ARCHITECTURE = llvmlite.binding.get_process_triple().partition("-")[0]
_AT_BYTE = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])


@intrinsic
def _float_mode(_: Any) -> Any:
    """How this thread rounds, and whether it takes what is too small to be a normal number for zero."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        if _ARCHITECTURE == "x86_64":
            room = cgutils.alloca_once(builder, i32)
            store = cgutils.get_or_insert_function(builder.module, _AT_BYTE, "llvm.x86.sse.stmxcsr")
            builder.call(store, [builder.bitcast(room, _AT_BYTE.args[0])])
            return builder.zext(builder.load(room), i64)
        if _ARCHITECTURE in ("aarch64", "arm64"):
            read = ir.FunctionType(i64, [])
            return builder.call(cgutils.get_or_insert_function(builder.module, read, "llvm.aarch64.get.fpcr"), [])
        return i64(0)

    return types.int64(), codegen


@intrinsic
def _set_float_mode(_: Any, mode: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: list[Any]) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        if _ARCHITECTURE == "x86_64":
            room = cgutils.alloca_once_value(builder, builder.trunc(arguments[0], i32))
            load = cgutils.get_or_insert_function(builder.module, _AT_BYTE, "llvm.x86.sse.ldmxcsr")
            builder.call(load, [builder.bitcast(room, _AT_BYTE.args[0])])
        elif _ARCHITECTURE in ("aarch64", "arm64"):
            write = ir.FunctionType(ir.VoidType(), [i64])
            builder.call(cgutils.get_or_insert_function(builder.module, write, "llvm.aarch64.set.fpcr"), arguments)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


# Not a call of its own in the machine code, where all tiles would be compiled once more for the caller.
_inlined = numba.njit(inline="always", error_model="numpy")


def _stripe(tile: Any) -> Any:
    """A step for the rows `order[begin:end]`, panel of columns by panel of columns, so that all rows find a panel in cache.

    A row of `groups` is `(first column, columns, first k, ks)`: for these columns, these rows of `right` are not zero.
    """

    @_inlined
    def stripe(
        packed: Any, groups: Any, order: Any, begin: int, end: int, out: Rows, init: Rows, left: Rows, product: bool, side: Rows,
        kind: int, init_ahead: int, side_ahead: int,
    ) -> None:  # fmt: skip
        size = packed.itemsize
        lanes = VECTOR_BYTES // size
        right = packed.ctypes.data
        for group in range(len(groups)):
            start, columns, first_k, depth = groups[group]
            total = (columns + lanes - 1) // lanes
            panels = (total + MOST_VECTORS - 1) // MOST_VECTORS
            for panel in range(panels):
                first, last = panel * total // panels, (panel + 1) * total // panels
                column = start * size + first * VECTOR_BYTES
                most = TILE_ROWS[last - first]
                blocks = (end - begin + most - 1) // most
                row = begin
                for block in range(blocks):
                    rows = (end - row) // (blocks - block)
                    tile(
                        packed, rows, last - first, order.ctypes.data + 8 * row, out[0] + column, out[1], init[0] + column,
                        init[1], left[0] + first_k * size, left[1], depth if product else 0, right, side[0] + column, side[1],
                        kind, min(lanes, columns - (last - 1) * lanes), init_ahead, side_ahead,
                    )  # fmt: skip
                    row += rows
                right += depth * (last - first) * VECTOR_BYTES

    return stripe


_forward_stripe = _stripe(_tile("forward", (STORE, ADD, RELU, LEAKY_RELU, MODRELU)))
_backward_stripe = _stripe(_tile("backward", (STORE, ADD, TIMES_POSITIVE, TIMES_LEAKY_SLOPE, TIMES_NONZERO, TIMES_TANH_SLOPE)))
_tall_tile = _tile("tall", (ADD,), tall=True)


@_inlined
def _tanh(row: Any) -> None:
    """Lambert's continued fraction `y/(1 + y²/(3 + y²/(5 + …)))` at `y = x/16`, cut where float64 does not see it for `|x| ≤ 20`;
    then `tanh 2y = 2pq/(p² + q²)` for `tanh y = p/q`, four times. This becomes vectors, a call of libm does not."""
    for j in range(row.size):
        y: Any = np.float64(row[j]) / 16
        y = 1.25 if y > 1.25 else -1.25 if y < -1.25 else y
        p, q, p_before, q_before = y, 1.0, 0.0, 1.0
        for k in range(3, 12, 2):
            p, p_before = k * p + y * y * p_before, p
            q, q_before = k * q + y * y * q_before, q
        for _ in range(4):
            p, q = 2 * p * q, p * p + q * q
        value = p / q
        row[j] = 1.0 if value > 1 else -1.0 if value < -1 else value  # which keeps NaN, as min and max need not


@_inlined
def _paired_modrelu(row: Any, bias: Any) -> None:
    """`z ← z/|z|·max(|z| + b, 0)`, zero at zero, with `z_j = row_j + i·row_{j+n/2}`."""
    half = bias.size
    for j in range(half):
        x, y = np.float64(row[j]), np.float64(row[half + j])
        modulus = math.sqrt(x * x + y * y)
        moved = modulus + bias[j]
        scale = 0.0 if modulus == 0 or moved <= 0 else moved / modulus
        row[j], row[half + j] = x * scale, y * scale


@_inlined
def _paired_modrelu_back(row: Any, state: Any, bias: Any) -> None:
    """`g ← s·g + (1 − s)·u (u·g)` with `u = h/|h|`, `s = |h|/|z|` and `|z| = |h| − b`: all of g along h, a part of it across."""
    half = bias.size
    for j in range(half):
        x, y = np.float64(row[j]), np.float64(row[half + j])
        a, b = np.float64(state[j]), np.float64(state[half + j])
        modulus = math.sqrt(a * a + b * b)
        before = max(modulus - bias[j], np.finfo(state.dtype).eps * modulus)  # not known to be less
        across = modulus / (TINY if before < TINY else before)
        along = (1 - across) * (a / modulus * x + b / modulus * y) / modulus
        row[j] = 0.0 if modulus == 0 else across * x + along * a
        row[half + j] = 0.0 if modulus == 0 else across * y + along * b


def note_mode(told: Any) -> None:
    """Say as the second of the numbers how the thread that calls this computes: so do all that are told them."""
    numba.carray(_integers(told), 2)[1] = _float_mode()


@_inlined
def _compute_as(mode: int) -> int:
    """This thread computes as that one does, of which `note_mode` has said how, or as it did. Returned is how it did."""
    before = _float_mode()
    _set_float_mode(mode if mode >= 0 else before)
    return before  # type: ignore[no-any-return]


def lay_out(told: Any) -> None:
    """A matrix as tiles read it, panel by panel, each with its rows one after the other, until none is left.

    `groups` are as in `_stripe`; the last vector of each is filled up with zeros. An entry of the matrix is `k_step` from the one
    below, and `column_step` from the one beside it.
    """
    numbers = _integers(told)
    _, mode, groups_at, count, right, k_step, column_step, packed = to_fixed_tuple(numba.carray(numbers, 8), 8)
    before = _compute_as(mode)
    groups = numba.carray(_pointer(numbers, groups_at), (count, 4))
    size = numba.carray(_pointer(told, packed), 1).itemsize
    lanes = VECTOR_BYTES // size
    mine, here = _next(numbers), 0
    for group in range(count):
        start, columns, first_k, depth = groups[group]
        total = (columns + lanes - 1) // lanes
        panels = (total + MOST_VECTORS - 1) // MOST_VECTORS
        for panel in range(panels):
            first, last = panel * total // panels, (panel + 1) * total // panels
            width, filled = (last - first) * lanes, min((last - first) * lanes, columns - first * lanes)
            if here == mine:
                to = numba.carray(_pointer(told, packed), (depth, width))
                corner = right + first_k * k_step + (start + first * lanes) * column_step
                for k in range(depth):
                    for j in range(filled):
                        to[k, j] = numba.carray(_pointer(told, corner + k * k_step + j * column_step), 1)[0]
                    for j in range(filled, width):
                        to[k, j] = 0
                mine = _next(numbers)
            packed += depth * width * size
            here += 1
    _set_float_mode(before)


@_inlined
def _sweep_over(told: Any, numbers: Any) -> Any:
    """What both sweeps are told first, and how this thread computed before."""
    (
        _, mode, slices, bounds, order, ends, batch, packed, groups, count, n, steps, bias, biases, kind, rest,
    ) = to_fixed_tuple(numba.carray(numbers, 16), 16)  # fmt: skip
    return (
        _compute_as(mode),
        slices,
        numba.carray(_pointer(numbers, bounds), slices + 1),
        numba.carray(_pointer(numbers, order), batch),
        numba.carray(_pointer(numbers, ends), batch),
        numba.carray(_pointer(told, packed), 1),
        numba.carray(_pointer(numbers, groups), (count, 4)),
        n,
        steps,
        numba.carray(_pointer(told, bias), biases),
        kind,
        rest,
    )


@_inlined
def _forward_slice(
    packed: Any, groups: Any, order: Any, ends: Any, begin: int, end: int, n: int, steps: int, kept: int, inputs: Steps,
    initial: Rows, bias: Any, states: Steps, kind: int, rest: int,
) -> None:  # fmt: skip
    left = initial
    running = end
    for t in range(steps):
        while running > begin and ends[running - 1] <= t:
            running -= 1
        out = (states[0] + t % kept * states[1], states[2])
        for part in range(2):
            if part == 0:
                first, last, init, product, what = begin, running, (inputs[0] + t * inputs[1], inputs[2]), True, kind
            else:
                first, last, init, product, what = running, end, left, False, STORE
            side = (bias.ctypes.data, 0)
            _forward_stripe(packed, groups, order, first, last, out, init, left, product, side, what, inputs[1], 0)
        if rest != NOTHING:
            for i in range(begin, running):
                row = numba.carray(_pointer(packed, out[0] + order[i] * out[1]), n)
                if rest == TANH:
                    _tanh(row)
                else:
                    _paired_modrelu(row, bias)
        left = out


def forward_sweep(told: Any) -> None:
    """`h_t = σ(x̂_t + W h_{t−1}, b)` for slices of sequences, `order[begin:end]`, until there are none left; `h_t = h_{t−1}` from
    step `ends[i]` on.

    `packed` is `Wᵀ` as `_cpu.pack` leaves it for `groups`; `ends` falls within a slice; `states` has room for the last `kept`
    steps.
    """
    numbers = _integers(told)
    before, slices, bounds, order, ends, packed, groups, n, steps, bias, kind, rest = _sweep_over(told, numbers)
    x, x_step, x_row, initial, initial_row, states, states_step, states_row, kept = to_fixed_tuple(numba.carray(numbers, 25), 25)[
        16:
    ]
    while True:
        piece = _next(numbers)
        if piece >= slices:
            break
        _forward_slice(
            packed, groups, order, ends, bounds[piece], bounds[piece + 1], n, steps, kept, (x, x_step, x_row),
            (initial, initial_row), bias, (states, states_step, states_row), kind, rest,
        )  # fmt: skip
    _set_float_mode(before)


@_inlined
def _backward_slice(
    packed: Any, groups: Any, order: Any, ends: Any, begin: int, end: int, n: int, steps: int, grad_states: Steps,
    states: Steps, bias: Any, zeros: Rows, grad_z: Steps, grad_initial: Rows, kind: int, rest: int,
) -> None:  # fmt: skip
    running = begin
    for t in range(steps - 1, -1, -1):
        before = running
        while running < end and ends[running] > t:
            running += 1
        here = (grad_states[0] + t * grad_states[1], grad_states[2])
        state = (states[0] + t * states[1], states[2])
        dz = (grad_z[0] + t * grad_z[1], grad_z[2])
        left = (dz[0] + grad_z[1], dz[1])
        for part in range(4 if before < end else 1):
            if part == 0:  # step t + 1 was theirs too
                first, last, out, init, product, side, what = begin, before, dz, here, True, state, kind
            elif part == 1:  # it was not
                first, last, out, init, product, side, what = before, end, grad_initial, here, False, grad_initial, ADD
            elif part == 2:  # their last step
                first, last, out, init, product, side, what = before, running, dz, grad_initial, False, state, kind
            else:
                first, last, out, init, product, side, what = running, end, dz, zeros, False, zeros, STORE
            ahead = -grad_states[1], -states[1]
            _backward_stripe(packed, groups, order, first, last, out, init, left, product, side, what, ahead[0], ahead[1])
        if rest == PAIRED_MODRELU:
            for i in range(begin, running):
                row = numba.carray(_pointer(packed, dz[0] + order[i] * dz[1]), n)
                h = numba.carray(_pointer(packed, state[0] + order[i] * state[1]), n)
                _paired_modrelu_back(row, h, bias)
    left = (grad_z[0], grad_z[2])
    _backward_stripe(packed, groups, order, begin, running, grad_initial, zeros, left, True, zeros, STORE, 0, 0)


def backward_sweep(told: Any) -> None:
    """`dz_t = σ'·(∂L/∂h_t + Wᵀ dz_{t+1})` for slices of sequences, until there are none left; from step `ends[i]` on `dz_t = 0`,
    and what reaches `h_t` is added up.

    `packed` is `W` as `_cpu.pack` leaves it for `groups`; `grad_initial` comes in as zero, and holds that sum in the meantime.
    """
    numbers = _integers(told)
    before, slices, bounds, order, ends, packed, groups, n, steps, bias, kind, rest = _sweep_over(told, numbers)
    (
        g, g_step, g_row, states, states_step, states_row, zeros, dz, dz_step, dz_row, initial, initial_row,
    ) = to_fixed_tuple(numba.carray(numbers, 28), 28)[16:]  # fmt: skip
    while True:
        piece = _next(numbers)
        if piece >= slices:
            break
        _backward_slice(
            packed, groups, order, ends, bounds[piece], bounds[piece + 1], n, steps, (g, g_step, g_row),
            (states, states_step, states_row), bias, (zeros, 0), (dz, dz_step, dz_row), (initial, initial_row), kind, rest,
        )  # fmt: skip
    _set_float_mode(before)


def signed_sum(told: Any) -> None:
    """`Σ sign(h)·dz` over all rows and the steps of a piece, into a row [n] of `totals` each, until no piece is left.

    A few terms at a time are added up in the precision of the states, in a row of `parts`.
    """
    numbers = _integers(told)
    (
        _, mode, pieces, n, steps, batch, states, states_step, states_row, dz, dz_step, dz_row, parts, totals,
    ) = to_fixed_tuple(numba.carray(numbers, 14), 14)  # fmt: skip
    before = _compute_as(mode)
    while True:
        piece = _next(numbers)
        if piece >= pieces:
            break
        part = numba.carray(_pointer(told, parts), (pieces, n))[piece]
        total = numba.carray(_pointer(_doubles(told), totals), (pieces, n))[piece]
        first, last = piece * steps // pieces, (piece + 1) * steps // pieces
        terms = 0
        for t in range(first, last):
            for i in range(batch):
                h = numba.carray(_pointer(told, states + t * states_step + i * states_row), n)
                g = numba.carray(_pointer(told, dz + t * dz_step + i * dz_row), n)
                for j in range(n):
                    part[j] += -g[j] if h[j] < 0 else g[j]
                terms += 1
                if terms == TERMS:
                    for j in range(n):
                        total[j] += part[j]
                        part[j] = 0
                    terms = 0
        for j in range(n):
            total[j] += part[j]
    _set_float_mode(before)


def weigh(told: Any) -> None:
    """`Σ_k a_k b_kᵀ` for the rows of a and b, [q] and [n], into `sums` [pieces, q, n], which are zero: an item is a share of the
    rows and of the panels of columns, until there are none left. `start` is what b has in its first rows, `early` of them.

    A stretch of rows stays in cache for all its tiles, and each of these adds it up from zero.
    """
    numbers = _integers(told)
    (
        _, mode, pieces, K, q, n, a, a_row, b, b_row, start, start_row, early, sums, parts, stretch, nothing,
    ) = to_fixed_tuple(numba.carray(numbers, 17), 17)  # fmt: skip
    before = _compute_as(mode)
    like = numba.carray(_pointer(told, a), 1)
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    total = (n + lanes - 1) // lanes
    panels = (total + MOST_TALL - 1) // MOST_TALL
    while True:
        item = _next(numbers)
        if item >= pieces * parts:
            break
        piece, part = item // parts, item % parts
        k, end = piece * K // pieces, (piece + 1) * K // pieces
        while k < end:
            if k < early:
                depth, right, right_k = min(stretch, end - k, early - k), start + k * start_row, start_row
            else:
                depth, right, right_k = min(stretch, end - k), b + (k - early) * b_row, b_row
            for panel in range(part * panels // parts, (part + 1) * panels // parts):
                first, last = panel * total // panels, (panel + 1) * total // panels
                column, filled = first * VECTOR_BYTES, min(lanes, n - (last - 1) * lanes)
                blocks = (q + TILE_ROWS[last - first] - 1) // TILE_ROWS[last - first]
                row = 0
                for block in range(blocks):
                    rows = (q - row) // (blocks - block)
                    out = sums + (piece * q + row) * n * size + column
                    _tall_tile(
                        like, rows, last - first, 0, out, n * size, nothing, 0, a + k * a_row + row * size, 0, depth,
                        right + column, out, n * size, ADD, filled, a_row, right_k,
                    )  # fmt: skip
                    row += rows
            k += depth
    _set_float_mode(before)


_compiling = threading.RLock()
if hasattr(
    os, "register_at_fork"
):  # a child has no other threads: what one of them holds would be held for ever, Numba's own too
    os.register_at_fork(before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release)
_compiled: dict[tuple[Callable[[Any], None], torch.dtype], tuple[Any, Callable[[Any], None]]] = {}


def machine_code(function: Callable[[Any], None], dtype: torch.dtype) -> Callable[[Any], None]:
    """One of the functions here for elements of this dtype: one of C's of an address, where the numbers stand that it is told.

    Compiled at first use, free of the interpreter's lock, and kept on disk where there is a place for it.
    """
    with _compiling:
        if (function, dtype) not in _compiled:
            signature = types.void(types.CPointer(types.float64 if dtype == torch.float64 else types.float32))
            try:
                code = numba.cfunc(signature, error_model="numpy", cache=True)(function)
            except RuntimeError:  # neither the package's folder nor the user's cache can be written
                code = numba.cfunc(signature, error_model="numpy")(function)
            _compiled[function, dtype] = code, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)
        return _compiled[function, dtype][1]
