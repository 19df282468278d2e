// The matrix product C + A B, [m, n] + [m, k] [k, n], as precise as in float32, by the tensor cores.
//
// Tensor cores multiply numbers of 11 bits. A float of 24 bits is nearly the sum of two such numbers, a = a0 + a1, and of the four
// products of two of these sums three are taken; the other one is below 2^-22 of the whole, and of either sign:
//     a b = (a0 b1 + a1 b0) + a0 b0.
// Half precision has few exponents. So a row of A is multiplied by a power of two for every DEPTH columns, such that its largest number
// there is in [2^14, 2^15), and so is a column of B. What is below 2^-40 of that largest number is lost: little beside the product of a
// row's norm and a column's, but not where small numbers of the one meet large numbers of the other only. The tensor cores add in single
// precision, but cut off instead of rounding. So they add up over DEPTH columns only, the small products first; these sums go back to
// scale, which is exact, and are added as usual.
//
// `split` takes both matrices to pieces, once, and writes them as the tensor cores want them. Rows of A and columns of B are "lines",
// both. 16 lines of A, or 8 of B, are a part; of a part and DEPTH columns there are the words of both pieces, 16 bytes for a lane at a
// time, and the lines' units, what 1 stands for. All parts of DEPTH columns lie next to each other, then come those of the next. What is
// beyond a matrix's end is zeros, up to a whole number of tiles, so that `product` never looks where a matrix ends before it writes.
//
// `product`: a group of DOWN x ACROSS warps has a tile of the output, TALL x BROAD; a warp has 16 ROWS x 8 COLUMNS of it, the sums in
// registers. A round is DEPTH columns: of A and of B, one stretch of memory each, which comes by cp.async to one of STAGES places in shared
// memory. The GROUPS of a thread block have the same tile: each takes every GROUPS-th round, with places and a barrier of its own; at the
// end the first adds up. Where there are still too few blocks, each takes a share of the rounds; the sums of all shares go to memory as
// the threads hold them, and `collect` adds up the shares. All this is always in the same order.
//
// The order of k within a round is free, if it is the same for A and B: the eight places of lane c are columns 2 i + c % 2 + 16 (c / 2),
// so that 32 lanes find theirs in 32 banks. And the order of rows is free, if it is the same for A and the output: the two that a lane
// multiplies with at once are neighbours.
//
// Reckoning, a round of a tile of 128 x 128 (8 warps of 4 x 4): 768 products of 16 x 8 x 16, some 6 cycles of one of four tensor cores
// each, 1152 cycles. Issued, by each of four schedulers: 2 x (96 + 128 to add + 32 loads of fragments and units + 9 x cp.async), 540.
// Shared memory: 8 x (24 loads of 4 wavefronts, 8 of 2) + 264 to write, 1160. From the second level cache: 33 KiB, 29 bytes a cycle.
// With 64 x 64 in 2 warps it would be 288; 135; 2 x 112 + 132; 16.5 KiB, 58 bytes a cycle. So it was thought that tiles should be large. By what
// was measured, a product of 16 x 8 x 16 takes 9 cycles, and the end of a block as long as several rounds: warps with few sums are faster (_product.py).
//
// Set by the compiler's command line: ROWS and COLUMNS of a warp, in tiles of 16 and 8; the warps of a group DOWN and ACROSS; GROUPS; STAGES;
// SHARED_BYTES.

constexpr int DEPTH = 32, PIECES = 2;
constexpr int GROUP = 32 * DOWN * ACROSS, THREADS = GROUP * GROUPS;
constexpr int TALL = 16 * ROWS * DOWN, BROAD = 8 * COLUMNS * ACROSS, SUMS = 4 * ROWS * COLUMNS;
constexpr int A_UNITS = PIECES * 2 * 32, A_PART = A_UNITS + 16 / 4;  // where the units are and how long a part is, in words of 16 bytes
constexpr int B_UNITS = PIECES * 32, B_PART = B_UNITS + 8 / 4;
constexpr int A_STAGE = ROWS * DOWN * A_PART, STAGE = A_STAGE + COLUMNS * ACROSS * B_PART;
constexpr int SPLITTERS = 4;              // warps in a block of `split`

static_assert(STAGES >= 2 && STAGES * GROUPS * STAGE * sizeof(uint4) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");
static_assert(GROUPS == 1 || STAGES * STAGE * 16 >= 4 * SUMS * GROUP);  // the sums of a group fit in its places

// A matrix [lines, k], the columns of one matrix before those of another, or the lines of one before those of another.
struct Operand {
    const float* from[2];
    long long line[2], column[2];  // from a line to the next, and from a column, in either matrix
    long long first, lines;        // lines of the first matrix, if the second has the others; lines in all
    uint4* to;
    long long parts;               // of which all but the last few have lines
    long long along;               // whether neighbours in memory are neighbours in k
};

struct Work {
    Operand operand[2];          // A and B
    long long before, columns;   // of both, in the first matrix if the second has the others, which are so many
    long long units;             // 32 lines x DEPTH columns of A
};

// A warp takes 32 lines x DEPTH columns. Neighbouring lanes read what lies next to each other in memory; through shared memory it comes to
// the lanes that will multiply with it.
extern "C" __global__ void __launch_bounds__(32 * SPLITTERS) split(const __grid_constant__ Work work) {
    let_the_next_begin();
    __shared__ float tiles[SPLITTERS][32][DEPTH + 1];
    float(&tile)[32][DEPTH + 1] = tiles[threadIdx.x / 32];
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const long long mine = (long long)blockIdx.x * SPLITTERS + threadIdx.x / 32;
    const bool is_a = mine < work.units;
    const Operand& of = work.operand[is_a ? 0 : 1];
    const int unit = (int)(is_a ? mine : mine - work.units), parts = (int)of.parts;
    const int before = (int)((work.before + DEPTH - 1) / DEPTH), rounds = before + (int)((work.columns + DEPTH - 1) / DEPTH);
    const int across = is_a ? (parts + 1) / 2 : (parts + 3) / 4;  // units next to each other in one round
    if (unit >= across * rounds) return;
    const int round = of.along ? unit % rounds : unit / across, place = of.along ? unit / rounds : unit % across;

    const long long line = 32ll * place, column = (long long)DEPTH * (round < before ? round : round - before);
    const long long first = round < before ? of.lines : of.first;
    const int left = (int)min((long long)DEPTH, (round < before ? work.before : work.columns) - column);
    float value[32];
    if (of.along) {
        const float* const early = of.from[0] + line * of.line[0] + (column + lane) * of.column[0];
        const float* const late = of.from[1] + (line - first) * of.line[1] + (column + lane) * of.column[1];
#pragma unroll
        for (int i = 0; i < 32; i++)
            value[i] = lane < left && line + i < of.lines ? __ldg(line + i < first ? early + i * of.line[0] : late + i * of.line[1]) : 0.f;
#pragma unroll
        for (int i = 0; i < 32; i++) tile[i][lane] = value[i];
    } else {
        const bool is_late = line + lane >= first;
        const long long apart = of.column[is_late ? 1 : 0];
        const float* const from = of.from[is_late ? 1 : 0] + (line + lane - (is_late ? first : 0)) * of.line[is_late ? 1 : 0] + column * apart;
        const int here = line + lane < of.lines ? left : 0;
#pragma unroll
        for (int i = 0; i < 32; i++) value[i] = i < here ? __ldg(from + i * apart) : 0.f;
#pragma unroll
        for (int i = 0; i < 32; i++) tile[lane][i] = value[i];
    }
    __syncwarp();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned word[2][PIECES][4];
        float one[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x[8], largest = 0.f;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = tile[16 * half + 2 * g + e][2 * i + c % 2 + c / 2 * 16];
                largest = i ? fmaxf(largest, fabsf(x[i])) : fabsf(x[i]);
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            int exponent = max(__float_as_int(largest) >> 23, LOWEST);
            if (exponent == 255) exponent = 127 + HIGHEST;  // infinity: as it is
            const float scale = __int_as_float((2 * 127 + HIGHEST - exponent) << 23);
            one[e] = __int_as_float((exponent - HIGHEST) << 23);
#pragma unroll
            for (int i = 0; i < 4; i++) cut(x[2 * i] * scale, x[2 * i + 1] * scale, word[e][0][i], word[e][1][i]);
        }
        const int part = is_a ? 2 * place + half : 4 * place + 2 * half + g / 4;
        if (part >= parts) continue;
        uint4* const to = of.to + ((long long)round * parts + part) * (is_a ? A_PART : B_PART);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (is_a)  // half of both lines
                    to[(p * 2 + e) * 32 + lane] = make_uint4(word[0][p][2 * e], word[1][p][2 * e], word[0][p][2 * e + 1], word[1][p][2 * e + 1]);
                else
                    to[p * 32 + (2 * g + e) % 8 * 4 + c] = make_uint4(word[e][p][0], word[e][p][1], word[e][p][2], word[e][p][3]);
        if (c == 0) reinterpret_cast<float2*>(to + (is_a ? A_UNITS : B_UNITS))[is_a ? g : g % 4] = make_float2(one[0], one[1]);
    }
}

__device__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ void fetch(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

__device__ void fetched() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last STAGES - 2 rounds asked for are there, for every thread of a group, and none reads an earlier one any more.
__device__ void arrived(int group) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    if (GROUPS == 1) __syncthreads();
    else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// Where a thread of a group has its sums: of tile (i, j) of its warp at row + 16 i and the next, column + 8 j and the next.
struct Place {
    int row, column;
    __device__ explicit Place(int thread) {
        row = thread / 32 / ACROSS * 16 * ROWS + thread % 32 / 4 * 2;
        column = thread / 32 % ACROSS * 8 * COLUMNS + thread % 4 * 2;
    }
};

// The output: some rows of one matrix, to which nothing is added, then those of another.
struct Output {
    float* out;
    long long out_row;
    const float* added;  // or null
    long long added_row;
    float* early;
    long long early_row, first;  // rows of `early`
    long long m, n;              // rows in all, and columns
};

// Whether two neighbours of a row, the first in an even column, can be read or written at once, and are both there if one is.
__device__ bool even(const float* start, long long row, long long n) { return ((unsigned long long)start % 8 | row % 2 | n % 2) == 0; }

// Two neighbours of what is added, if this is `even`; of no use where nothing is. There is no branch, so that many can be asked for at once.
__device__ float2 look(const Output& o, long long row, long long column) {
    return *reinterpret_cast<const float2*>(o.added + (row >= o.first && row < o.m && column < o.n ? (row - o.first) * o.added_row + column : 0));
}

// Two neighbours, as far as they are there, with what is added to them or, if it has been, without.
__device__ void put(const Output& o, long long row, long long column, float2 v, bool is_added) {
    if (row >= o.m || column >= o.n) return;
    const bool is_early = row < o.first, both = column + 1 < o.n;
    float* const to = is_early ? o.early + row * o.early_row + column : o.out + (row - o.first) * o.out_row + column;
    if (o.added && !is_early && !is_added) {
        const float* const from = o.added + (row - o.first) * o.added_row + column;
        v.x += from[0];
        if (both) v.y += from[1];
    }
    if (both && (unsigned long long)to % 8 == 0) *reinterpret_cast<float2*>(to) = v;
    else {
        to[0] = v.x;
        if (both) to[1] = v.y;
    }
}

// Where a tile of the output begins; n is the output's breadth.
struct Corner {
    long long top, left;
    __device__ Corner(int tile, long long n) {
        const int across = (int)((n + BROAD - 1) / BROAD);
        top = (long long)(tile / across) * TALL, left = (long long)(tile % across) * BROAD;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(
    const uint4* a, long long a_parts,  // [rounds, a_parts, A_PART], as `split` writes them
    const uint4* b, long long b_parts,  // [rounds, b_parts, B_PART]
    long long rounds, long long share,  // in all, and of a block
    float2* shares,                     // [gridDim.y, gridDim.x, SUMS / 2, GROUP], or null where the only share is all
    const __grid_constant__ Output output)
{
    extern __shared__ __align__(16) unsigned char raw[];
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % 32;
    const Place place(threadIdx.x % GROUP);
    uint4* const ring = reinterpret_cast<uint4*>(raw) + group * STAGES * STAGE;
    const Corner corner(blockIdx.x, output.n);

    const long long first = blockIdx.y * share + group;
    const int count = (int)((min(share, rounds - blockIdx.y * share) - group + GROUPS - 1) / GROUPS);  // rounds of this group, perhaps none
    const uint4* a_next = a + (first * a_parts + corner.top / 16) * A_PART + threadIdx.x % GROUP;
    const uint4* b_next = b + (first * b_parts + corner.left / 8) * B_PART + threadIdx.x % GROUP - A_STAGE;
    int asked = 0;
    const auto ask = [&](int stage) {
        if (asked < count) {
            uint4* const to = ring + stage * STAGE + threadIdx.x % GROUP;
#pragma unroll
            for (int i = 0; i < STAGE; i += GROUP) {
                const int at = i + threadIdx.x % GROUP;
                if (i + GROUP <= STAGE || at < STAGE) fetch(to + i, (i + GROUP <= A_STAGE || at < A_STAGE ? a_next : b_next) + i);
            }
            a_next += a_parts * (GROUPS * A_PART), b_next += b_parts * (GROUPS * B_PART);
        }
        asked++;
        fetched();  // of nothing too: they are counted
    };

    float sum[ROWS][COLUMNS][4] = {};
    uint4 a_word[2][2][PIECES], b_word[COLUMNS][PIECES];  // of A half the columns: two words of the upper and the lower row
    float2 a_unit[2], b_unit[COLUMNS];
    const uint4* a_from = ring + place.row / 16 * A_PART;
    const uint4* b_from = ring + A_STAGE + place.column / 8 * B_PART;
    const auto pick_a = [&](int to, int i) {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int k = 0; k < 2; k++) a_word[to][k][p] = a_from[i * A_PART + (p * 2 + k) * 32 + lane];
        a_unit[to] = reinterpret_cast<const float2*>(a_from + i * A_PART + A_UNITS)[lane / 4];
    };
    const auto pick_b = [&](int p) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) b_word[j][p] = b_from[j * B_PART + p * 32 + lane];
    };
    const auto pick_b_unit = [&] {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) b_unit[j] = reinterpret_cast<const float2*>(b_from + j * B_PART + B_UNITS)[lane % 4];
    };

    let_the_next_begin();
    wait_for_the_one_before();  // `split`
    if (count > 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) ask(stage);
        arrived(group);
        ask(STAGES - 1);
        pick_a(0, 0);
        pick_b(1);
        pick_b(0);
        pick_b_unit();
    }
    int stage = 0;
#pragma unroll 1
    for (int round = 0; round < count; round++) {  // whose words are fetched from shared memory as soon as there is room for them
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int now = i % 2;
            if (i + 1 < ROWS) pick_a(now ^ 1, i + 1);
            float part[COLUMNS][4] = {};
            const auto add = [&](int of_a, int of_b) {
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        const uint4& word = b_word[j][of_b];
                        mma(part[j], a_word[now][k][of_a], k ? word.z : word.x, k ? word.w : word.y);
                    }
            };
            add(0, 1);
            if (i + 1 == ROWS) {  // the next round, or nothing of use after the last
                const int free = stage;
                stage = stage + 1 < STAGES ? stage + 1 : 0;
                arrived(group);
                a_from = ring + stage * STAGE + place.row / 16 * A_PART;
                b_from = ring + stage * STAGE + A_STAGE + place.column / 8 * B_PART;
                pick_b(1);
                pick_a(now ^ 1, 0);
                ask(free);
            }
            add(1, 0);
            add(0, 0);
            if (i + 1 == ROWS) pick_b(0);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int s = 0; s < 4; s++) sum[i][j][s] += (s / 2 ? a_unit[now].y : a_unit[now].x) * (s % 2 ? b_unit[j].y : b_unit[j].x) * part[j][s];
            if (i + 1 == ROWS) {
                pick_b_unit();
                if (ROWS % 2) {
                    a_unit[0] = a_unit[1];
#pragma unroll
                    for (int k = 0; k < 2; k++)
#pragma unroll
                        for (int p = 0; p < PIECES; p++) a_word[0][k][p] = a_word[1][k][p];
                }
            }
        }
    }

    int tile = blockIdx.x, thread = threadIdx.x % GROUP;
    asm volatile("" : "+r"(tile), "+r"(thread));  // where the sums go is counted out now, and is not in registers all the while
    if constexpr (GROUPS > 1) {
        float* const sums = reinterpret_cast<float*>(raw) + thread;
        constexpr int apart = STAGES * STAGE * 4;  // from a group's to the next's
        __syncthreads();
        if (group > 0)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[group * apart + i * GROUP] = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
        __syncthreads();
        if (group > 0) return;
#pragma unroll
        for (int other = 1; other < GROUPS; other++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4] += sums[other * apart + i * GROUP];
    }
    if (shares) {
        float2* const to = shares + ((long long)blockIdx.y * gridDim.x + tile) * (SUMS / 2) * GROUP + thread;
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) {
            const float(&v)[4] = sum[i / 2 / COLUMNS][i / 2 % COLUMNS];
            to[i * GROUP] = make_float2(v[i % 2 * 2], v[i % 2 * 2 + 1]);
        }
        return;
    }
    const Corner from(tile, output.n);
    const Place at(thread);
    const auto each = [&](auto work) {
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) {
            float(&v)[4] = sum[i / 2 / COLUMNS][i / 2 % COLUMNS];
            work(from.top + at.row + i / 2 / COLUMNS * 16 + i % 2, from.left + at.column + i / 2 % COLUMNS * 8, v[i % 2 * 2], v[i % 2 * 2 + 1]);
        }
    };
    const bool ahead = output.added && even(output.added, output.added_row, output.n);
    if (ahead)  // all is read before anything is written: `added` may be `out`, and the compiler would wait for every number
        each([&](long long row, long long column, float& x, float& y) {
            const float2 more = look(output, row, column);
            if (row >= output.first) x += more.x, y += more.y;
        });
    each([&](long long row, long long column, float x, float y) { put(output, row, column, make_float2(x, y), ahead); });
}

// A block for each of the SUMS / 2 pairs of the threads of a tile.
extern "C" __global__ void __launch_bounds__(GROUP) collect(const float2* shares, long long count, const __grid_constant__ Output output) {
    const int i = blockIdx.x, tile = blockIdx.y, down = i / 2 / COLUMNS, right = i / 2 % COLUMNS;
    const long long apart = (long long)gridDim.y * (SUMS / 2) * GROUP;
    const float2* const part = shares + ((long long)tile * (SUMS / 2) + i) * GROUP + threadIdx.x;
    wait_for_the_one_before();
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
    for (long long share = 0; share < count; share++) {
        const float2 more = part[share * apart];
        sum.x += more.x, sum.y += more.y;
    }
    const Corner from(tile, output.n);
    const Place at(threadIdx.x);
    put(output, from.top + at.row + 16 * down + i % 2, from.left + at.column + 8 * right, sum, false);
}
