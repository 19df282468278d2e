// The matrix product C + A B, [m, n] + [m, k] [k, n], as precise as in float32, by the tensor cores.
//
// Tensor cores multiply numbers of 11 bits. A float of 24 bits is nearly the sum of two such numbers, a = a0 + a1, and of the four
// products of two of these sums three are taken; the other one is below 2^-22 of the whole, and of either sign:
//     a b = (a1 b0 + a0 b1) + a0 b0.
// Half precision has few exponents. So a row of A is multiplied by a power of two for every DEPTH columns, such that its largest number
// there is in [2^14, 2^15), and so is a column of B. What is below 2^-40 of that largest number is lost: little beside the product of a
// row's norm and a column's, but not where small numbers of the one meet large numbers of the other only. The tensor cores add in single
// precision, but cut off instead of rounding. So they add up over DEPTH columns only, the small products first; these sums go back to
// scale, which is exact, and are added as usual.
//
// A group of four warps, two by two, has a tile of the output, TALL x BROAD; a warp has 16 ROWS x 8 COLUMNS of it, the sums in
// registers. DEPTH columns of A's rows and rows of B's columns - "lines", both - come from memory to registers, one round ahead, and
// in pieces to shared memory, in two copies taken in turns, so that a round costs one barrier. The GROUPS of a thread block have the same
// tile: each takes every GROUPS-th round, with a barrier of its own, so that one fetches and splits while another multiplies; at the end
// the first adds up. Where there are still too few blocks, each takes a share of k; the sums of all shares go to memory as the threads hold
// them, and `collect` adds up the shares. All this is always in the same order.
//
// In a round, a lane multiplies with eight neighbours of a line's 32 places. The order of k within a round is free, if it is the same for
// A and B: place 8 c + WIDTH j + i is column 4 WIDTH j + WIDTH c + i, so that four lanes c read what lies next to each other. And the
// order of rows is free, if it is the same for A and the output: the two that a lane multiplies with at once are neighbours.
//
// Reckoning, a round and a quarter of a multiprocessor (ROWS 2, COLUMNS 4): 48 products of 16 x 8 x 16, 8.5 cycles each, 408. Issued:
// 48 + 64 to add, 22 loads of fragments, 16 from memory, some 55 to split every 8 of 32 floats, and addresses, in all 430. Shared memory
// has 256 wavefronts of fragments and 128 of stores for all four quarters. With 2 x 5: 510; 550; 288 + 144.
//
// Set by the compiler's command line: ROWS and COLUMNS of a warp, in tiles of 16 and 8; GROUPS; BLOCKS, how many run at once on a
// multiprocessor; A_ALONG and B_ALONG, 1 if neighbours in memory are neighbours in k, 0 if in m or n; WIDTH, the floats (1, 2 or 4) that
// can be fetched at once, as the addresses are aligned and as that many divide the extent along which they lie; SHARED_BYTES.

constexpr int DEPTH = 32, PIECES = 2;
constexpr int WARPS = 4, GROUP = 32 * WARPS, THREADS = GROUP * GROUPS;
constexpr int TALL = 2 * 16 * ROWS, BROAD = 2 * 8 * COLUMNS, LINES = TALL + BROAD, SUMS = 4 * ROWS * COLUMNS;
constexpr int HIGHEST = 14, LOWEST = 27;  // the largest number's exponent when scaled; the least of a line, 2^-100, as a float's bits have it

struct Stage {
    uint4 piece[PIECES][LINES * 4];  // a line's 32 halves are 4 words of 16 bytes; first A's, then B's
    float unit[LINES];               // what 1 stands for in a line
};
static_assert(2 * GROUPS * sizeof(Stage) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");
static_assert(sizeof(Stage) >= sizeof(float) * GROUP * SUMS / 2 && sizeof(Stage) % 16 == 0);  // the sums of a group fit in its two stages

// Where eight places of a line of B are, from the first of eight lines on. Lines that differ in one of the last three bits lie in
// different banks: the eight lanes that read or write at once have two lines, next to each other or two apart.
__device__ int spot(int line, int c) { return (line >> 1) * 8 + ((line ^ line >> 1 ^ line >> 2) & 1) * 4 + c; }

// Two floats in pieces, both numbers of a piece in one word.
__device__ void split(float low, float high, unsigned& large, unsigned& small) {
    float low_found, high_found;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(large) : "f"(high), "f"(low));
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}" : "=f"(low_found), "=f"(high_found) : "r"(large));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(small) : "f"(high - high_found), "f"(low - low_found));
}

__device__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// What a group fetches in a round of one operand's COUNT lines. A warp takes PART lines at a time, a lane eight columns of EACH neighbours.
// A lane multiplies with two rows of A at once, and has both; of B, two if they can be fetched at once.
template <int COUNT, bool ALONG, bool IS_A>
struct Operand {
    static constexpr bool TOGETHER = !ALONG && WIDTH > 1;  // two lines are fetched at once
    static constexpr int EACH = IS_A || TOGETHER ? 2 : 1, PART = 8 * EACH, PARTS = COUNT / PART, TURNS = (PARTS + WARPS - 1) / WARPS;
    static_assert(COUNT % PART == 0);
    const float* next[TURNS][TOGETHER ? 1 : EACH];
    long long apart;  // from a column to the next, where these are not neighbours
    int warp, g, c;
    float value[TURNS][EACH][8];

    // From a line and a column on; there are so many lines, and in the place of those beyond the last one is taken, for sums that nobody wants.
    __device__ Operand(const float* from, long long stride, long long line, long long column, long long lines, int warp) : apart(stride), warp(warp) {
        g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int e = 0; e < (TOGETHER ? 1 : EACH); e++) {
                const long long mine = min(line + (turn * WARPS + warp) * PART + g * EACH + e, lines - (TOGETHER ? 2 : 1)), first = column + WIDTH * c;
                next[turn][e] = from + (ALONG ? mine * stride + first : first * stride + mine);
            }
    }

    __device__ bool mine(int turn) const { return (turn + 1) * WARPS <= PARTS || turn * WARPS + warp < PARTS; }

    // The next round's numbers, of which so many columns are left, the others being zeros; and on to the round that is GROUPS later.
    template <bool WHOLE>
    __device__ void fetch(int left) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (mine(turn))
#pragma unroll
                for (int e = 0; e < (TOGETHER ? 1 : EACH); e++) {
#pragma unroll
                    for (int j = 0; j < 8; j += ALONG ? WIDTH : 1) {
                        float(&to)[8] = value[turn][e];
                        const int skip = j / WIDTH * 4 * WIDTH + j % WIDTH;  // columns
                        const float* const from = next[turn][e] + (ALONG ? skip : skip * apart);
                        const bool there = WHOLE || skip < left - WIDTH * c;
                        if constexpr (ALONG && WIDTH == 4) {
                            const float4 found = there ? __ldg(reinterpret_cast<const float4*>(from)) : float4{};
                            to[j] = found.x, to[j + 1] = found.y, to[j + 2] = found.z, to[j + 3] = found.w;
                        } else if constexpr (ALONG && WIDTH == 2) {
                            const float2 found = there ? __ldg(reinterpret_cast<const float2*>(from)) : float2{};
                            to[j] = found.x, to[j + 1] = found.y;
                        } else if constexpr (TOGETHER) {
                            const float2 found = there ? __ldg(reinterpret_cast<const float2*>(from)) : float2{};
                            to[j] = found.x, value[turn][1][j] = found.y;
                        } else {
                            to[j] = there ? __ldg(from) : 0.f;
                        }
                    }
                    next[turn][e] += DEPTH * GROUPS * (ALONG ? 1 : apart);
                }
    }

    // To shared memory, in pieces.
    __device__ void keep(Stage& stage) const {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (mine(turn)) {
                const int part = turn * WARPS + warp, line = part * PART + g * EACH;
                unsigned word[EACH][PIECES][4];
                float unit[EACH];
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    const float(&x)[8] = value[turn][e];
                    float largest = fabsf(x[0]);
#pragma unroll
                    for (int i = 1; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
                    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
                    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
                    int exponent = max(__float_as_int(largest) >> 23, LOWEST);
                    if (exponent == 255) exponent = 127 + HIGHEST;  // infinity: as it is
                    const float scale = __int_as_float((2 * 127 + HIGHEST - exponent) << 23);
                    unit[e] = __int_as_float((exponent - HIGHEST) << 23);
#pragma unroll
                    for (int i = 0; i < 4; i++) split(x[2 * i] * scale, x[2 * i + 1] * scale, word[e][0][i], word[e][1][i]);
                }
#pragma unroll
                for (int p = 0; p < PIECES; p++)
#pragma unroll
                    for (int e = 0; e < EACH; e++)
                        if (IS_A)  // half of both lines
                            stage.piece[p][part * 64 + e * 32 + g * 4 + c] = make_uint4(word[0][p][2 * e], word[EACH - 1][p][2 * e], word[0][p][2 * e + 1], word[EACH - 1][p][2 * e + 1]);
                        else
                            stage.piece[p][(TALL + line / 8 * 8) * 4 + (spot(line % 8, c) ^ 4 * e)] = make_uint4(word[e][p][0], word[e][p][1], word[e][p][2], word[e][p][3]);
                if (c == 0)
#pragma unroll
                    for (int e = 0; e < EACH; e++) stage.unit[(IS_A ? 0 : TALL) + line + e] = unit[e];
            }
    }
};

// Where a thread of a group has its sums: of tile (i, j) of its warp at row + 16 i and the next, column + 8 j and the next.
struct Place {
    int row, column;
    __device__ explicit Place(int thread) {
        row = thread / 64 * 16 * ROWS + thread % 32 / 4 * 2;
        column = thread / 32 % 2 * 8 * COLUMNS + thread % 4 * 2;
    }
};

// Where a tile of the output begins; n is the output's breadth.
struct Corner {
    long long top, left;
    __device__ Corner(int tile, long long n) {
        const int across = (int)((n + BROAD - 1) / BROAD);
        top = (long long)(tile / across) * TALL, left = (long long)(tile % across) * BROAD;
    }
};

// Add up a round.
__device__ void multiply(const Stage& stage, const Place& place, float (&sum)[ROWS][COLUMNS][4]) {
    const int lane = threadIdx.x % 32, from = spot(lane / 4, lane % 4);
    const int a_first = place.row / 16 * 64 + lane, b_first = (TALL + place.column / 8 * 8) * 4 + from;
    uint4 a[ROWS][2][PIECES];  // of half the columns: two words of the upper and the lower row
    float2 a_unit[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int p = 0; p < PIECES; p++) a[i][k][p] = stage.piece[p][a_first + 64 * i + 32 * k];
        a_unit[i] = *reinterpret_cast<const float2*>(&stage.unit[place.row + 16 * i]);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        uint4 b[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++) b[p] = stage.piece[p][b_first + 32 * j];
        const float2 b_unit = *reinterpret_cast<const float2*>(&stage.unit[TALL + place.column + 8 * j]);
        float part[ROWS][4] = {};
        const auto add = [&](int of_a, int of_b) {
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) mma(part[i], a[i][k][of_a], k ? b[of_b].z : b[of_b].x, k ? b[of_b].w : b[of_b].y);
        };
        add(1, 0);
        add(0, 1);
        add(0, 0);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int s = 0; s < 4; s++) sum[i][j][s] += (s / 2 ? a_unit[i].y : a_unit[i].x) * (s % 2 ? b_unit.y : b_unit.x) * part[i][s];
    }
}

// All threads of a group are here.
__device__ void together(int group) {
    if (GROUPS == 1) __syncthreads();
    else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// [m, n], and from a row to the next in memory.
template <class Float>
struct Matrix {
    Float* start;
    long long row, m, n;

    // Whether two neighbours of a row, the first in an even column, can be read or written at once.
    __device__ bool even() const { return ((unsigned long long)start % 8 | row % 2 | n % 2) == 0; }

    __device__ Float* at(long long i, long long j) const { return start + (i < m && j < n ? i * row + j : 0); }
};

// Two neighbours of a row; anything beyond the end. There is no branch, so that many can be asked for at once.
template <bool EVEN>
__device__ float2 look(const Matrix<const float>& from, long long i, long long j) {
    if constexpr (EVEN) return *reinterpret_cast<const float2*>(from.at(i, j));
    else return make_float2(*from.at(i, j), *from.at(i, j + 1));
}

__device__ void put(const Matrix<float>& to, long long i, long long j, float2 v) {
    if (i >= to.m || j >= to.n) return;
    if (to.even()) *reinterpret_cast<float2*>(to.at(i, j)) = v;
    else {
        *to.at(i, j) = v.x;
        if (j + 1 < to.n) *to.at(i, j + 1) = v.y;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) product(
    const float* a, long long a_stride,          // [m, k], from a row to the next, or from a column where rows are neighbours
    const float* b, long long b_stride,          // [k, n], from a column to the next, or from a row where columns are neighbours
    const float* added, long long added_row,     // [m, n] or null
    float* out, long long out_row,               // [m, n]
    float* shares,                               // [gridDim.y, gridDim.x, SUMS / 2, GROUP, 2], or null where the only share is all
    long long m, long long n, long long k, long long share)
{
    extern __shared__ __align__(16) unsigned char raw[];
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    Stage* const stages = reinterpret_cast<Stage*>(raw) + 2 * group;
    const Corner corner(blockIdx.x, n);
    const long long first = blockIdx.y * share;
    int left = (int)(min(share, k - first) - group * DEPTH);  // columns, from this group's next round on

    // Where warps have unequal parts of a round to fetch, it is another one in each group that has more.
    Operand<TALL, A_ALONG, true> of_a(a, a_stride, corner.top, first + group * DEPTH, m, (warp + group) % WARPS);
    Operand<BROAD, B_ALONG, false> of_b(b, b_stride, corner.left, first + group * DEPTH, n, (warp + group) % WARPS);
    const auto fetch = [&]() {
        if (left >= DEPTH) {
            of_a.template fetch<true>(left);
            of_b.template fetch<true>(left);
        } else if (left > 0) {
            of_a.template fetch<false>(left);
            of_b.template fetch<false>(left);
        }
        left -= DEPTH * GROUPS;
    };
    const auto keep = [&](int stage) {
        of_a.keep(stages[stage]);
        of_b.keep(stages[stage]);
    };

    const Place place(threadIdx.x % GROUP);
    float sum[ROWS][COLUMNS][4] = {};
    if (left > 0) {
        fetch();
        keep(0);
        fetch();
        together(group);
        int stage = 0;
        for (;;) {
            const bool more = left > -DEPTH * GROUPS;  // the last time there was something to fetch
            if (more) keep(stage ^ 1);
            fetch();
            multiply(stages[stage], place, sum);
            together(group);
            if (!more) break;
            stage ^= 1;
        }
    }

    int tile = blockIdx.x, thread = threadIdx.x % GROUP;
    asm volatile("" : "+r"(tile), "+r"(thread));  // where the sums go is counted out now, and is not in registers all the while
    if constexpr (GROUPS > 1) {
        float* const sums = reinterpret_cast<float*>(raw) + thread;
        constexpr int apart = 2 * sizeof(Stage) / sizeof(float);  // from a group's to the next's
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
    const Corner from(tile, n);
    const Place at(thread);
    if (shares) {
        float2* const to = reinterpret_cast<float2*>(shares) + ((long long)blockIdx.y * gridDim.x + tile) * (SUMS / 2) * GROUP + thread;
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) {
            const float(&v)[4] = sum[i / 2 / COLUMNS][i / 2 % COLUMNS];
            to[i * GROUP] = make_float2(v[i % 2 * 2], v[i % 2 * 2 + 1]);
        }
        return;
    }
    const auto each = [&](auto work) {
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) {
            float(&v)[4] = sum[i / 2 / COLUMNS][i / 2 % COLUMNS];
            work(from.top + at.row + i / 2 / COLUMNS * 16 + i % 2, from.left + at.column + i / 2 % COLUMNS * 8, v[i % 2 * 2], v[i % 2 * 2 + 1]);
        }
    };
    if (added) {  // all is read before anything is written: `added` may be `out`, and the compiler would wait for every number
        const Matrix<const float> more{added, added_row, m, n};
        const auto add = [&](float2 found, float& x, float& y) { x += found.x, y += found.y; };
        if (more.even()) each([&](long long row, long long column, float& x, float& y) { add(look<true>(more, row, column), x, y); });
        else each([&](long long row, long long column, float& x, float& y) { add(look<false>(more, row, column), x, y); });
    }
    const Matrix<float> to{out, out_row, m, n};
    each([&](long long row, long long column, float x, float y) { put(to, row, column, make_float2(x, y)); });
}

// A block for each of the SUMS / 2 pairs of the threads of a tile.
extern "C" __global__ void __launch_bounds__(GROUP) collect(
    const float2* __restrict__ shares, long long count, const float* added, long long added_row, float* out, long long out_row, long long m, long long n)
{
    const int i = blockIdx.x, tile = blockIdx.y, down = i / 2 / COLUMNS, right = i / 2 % COLUMNS;
    const long long apart = (long long)gridDim.y * (SUMS / 2) * GROUP;
    const float2* const part = shares + ((long long)tile * (SUMS / 2) + i) * GROUP + threadIdx.x;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
    for (long long share = 0; share < count; share++) {
        const float2 more = part[share * apart];
        sum.x += more.x, sum.y += more.y;
    }
    const Corner from(tile, n);
    const Place at(threadIdx.x);
    const long long row = from.top + at.row + 16 * down + i % 2, column = from.left + at.column + 8 * right;
    if (added) {
        const float2 more = look<false>({added, added_row, m, n}, row, column);
        sum.x += more.x, sum.y += more.y;
    }
    put({out, out_row, m, n}, row, column, sum);
}
