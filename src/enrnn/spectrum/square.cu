// C = alpha·A·A for a matrix of 97 to 2048 rows, in float64 on the tensor cores: the squarings of _compressed.py.
//
// A chain of squarings has to keep its powers in range, without launches for norms between the products. So each launch leaves the sums of
// squares of its thread blocks' parts of C, and the next one divides by their total when it writes.
// All sums are taken in a fixed order and every block computes the same total: the same matrix gives the same bits.
//
// One thread block computes TILE_M × TILE_N entries; slabs of TILE_K columns of A and rows of A come by asynchronous copies, STAGES of them
// in a ring. What counts at m = 720 is that all blocks run at once, one to a multiprocessor, and that the busiest has little more than its
// share: 64 × 64 tiles would do, were it not for the 16 rows and columns that 11 such tiles leave. These are given to blocks of other
// shapes: where no more than EDGE columns are left beyond the last full tile, they are cut into tiles of EDGE columns, a warp with EDGE_HIGH
// times 16 rows of them, and rows likewise, EDGE_WIDE times 8 columns to a warp. (121 + 6 + 5 = 132 blocks, and an H200 has 132
// multiprocessors.)
//
// WARPS_M × WARPS_N warps share out a tile; with WARPS_K = 2 there are twice as many, and each half takes every other eight of the inner
// index. That costs a sum at the end, and lets one warp multiply while another one of the same quarter of the multiprocessor fetches.

#define PARTS (WARPS_M * WARPS_N)  // of a tile
#define WARPS (PARTS * WARPS_K)
#define THREADS (32 * WARPS)
#define STEPS (TILE_K / 8 / WARPS_K)  // of a warp, in a slab
#define CHUNK (ALIGNED ? 2 : 1)       // numbers that are copied at once: rows of an odd length are not aligned to more than one
#define A_STRIDE (TILE_K + 4)         // four lanes read neighbours, the next four from the next row: 4 or 12 modulo 16 puts all on banks of their own

static_assert(TILE_M % (16 * WARPS_M) == 0 && TILE_N % (8 * WARPS_N) == 0, "every warp has the same number of tiles of 16 × 8");
static_assert(TILE_K % (16 * WARPS_K) == 0, "fragments are loaded in turns, and a slab's first step follows another one's last");
static_assert(EDGE > 0 && EDGE % 16 == 0 && (WARPS_K == 1 || WARPS_K == 2), "an edge consists of whole tiles of 16 × 8; two halves can be added, not more");

// c += a·b, 16×8 by 8×8. Before Hopper there are only products of 8×4 by 4×8, of which this is four.
__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1]) : "d"(a[i]), "d"(b[i / 2]));
#endif
}

// CHUNK numbers into shared memory, or zeros.
__device__ __forceinline__ void copy(double* to, const double* from, bool there) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
#if ALIGNED
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(there ? 8 : 0) : "memory");
#endif
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last LEFT groups of this thread's copies have come.
template <int LEFT> __device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// The sum of what the warps have left, the same in every thread.
__device__ __forceinline__ double total(const double* room) {
    double sum = room[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += room[i];
    return sum;
}

// What one warp multiplies at a time: HIGH × 16 rows by 8, and 8 by WIDE × 8 columns.
template <int HIGH, int WIDE> struct Fragments {
    double a[HIGH][4], b[WIDE][2];

    // From a slab's rows and columns, both at this lane's own place.
    __device__ __forceinline__ void load(const double* left, const double* right, int b_stride) {
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const double* at = left + 16 * i * A_STRIDE;
            a[i][0] = at[0], a[i][1] = at[8 * A_STRIDE], a[i][2] = at[4], a[i][3] = at[8 * A_STRIDE + 4];
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++) b[j][0] = right[8 * j], b[j][1] = right[8 * j + 4 * b_stride];
    }
};

// A share of a slab that one thread copies: COUNT chunks of a slab that is COLUMNS wide, and where in the matrix they begin.
template <int ROWS, int COLUMNS> struct Share {
    static constexpr int ACROSS = COLUMNS / CHUNK, ALL = ROWS * ACROSS, COUNT = (ALL + THREADS - 1) / THREADS;
    int start[COUNT];

    __device__ __forceinline__ static int row(int i) {
        if constexpr (THREADS % ACROSS == 0) return (int)threadIdx.x / ACROSS + i * (THREADS / ACROSS);
        else return ((int)threadIdx.x + i * THREADS) / ACROSS;
    }
    __device__ __forceinline__ static int column(int i) {
        if constexpr (THREADS % ACROSS == 0) return (int)threadIdx.x % ACROSS * CHUNK;
        else return ((int)threadIdx.x + i * THREADS) % ACROSS * CHUNK;
    }
    __device__ __forceinline__ static bool mine(int i) { return ALL % THREADS == 0 || (int)threadIdx.x + i * THREADS < ALL; }
};

// A block's tile of C: rows from `top` up to `bottom` and columns from `from` up to `to` at most. A warp has HIGH × WIDE tiles of 16 × 8, and
// ACROSS warps stand side by side.
template <int HIGH, int WIDE, int ACROSS>
__device__ __forceinline__ void tile(
    const double* A, double* C, int m, const double* sum_in, double* sum_out, int top, int bottom, int from, int to
) {
    constexpr int ROWS = PARTS / ACROSS * HIGH * 16, COLUMNS = ACROSS * WIDE * 8, B_STRIDE = COLUMNS + 4;
    constexpr int STAGE = ROWS * A_STRIDE + TILE_K * B_STRIDE;
    extern __shared__ __align__(16) double shared[];
    __shared__ double room[2][WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS, half = warp / PARTS;
    const int slabs = (m + TILE_K - 1) / TILE_K;

    const int sums = sum_in ? (int)gridDim.x : 0, first = threadIdx.x, second = first + THREADS;
    double share = first < sums ? sum_in[first] : 0.0;  // of the sum of squares of A; it is on its way while the copies are asked for
    const double other = second < sums ? sum_in[second] : 0.0;

    // Rows and columns beyond the tile's are copies of its last ones, which costs no traffic: they only go into entries of C that nobody
    // writes. Beyond the last column of A and its last row, where they would be added to what is wanted, there are zeros.
    typedef Share<ROWS, TILE_K> Left;
    typedef Share<TILE_K, COLUMNS> Right;
    Left left;
    Right right;
#pragma unroll
    for (int i = 0; i < Left::COUNT; i++) left.start[i] = min(top + Left::row(i), bottom - 1) * m + Left::column(i);
#pragma unroll
    for (int i = 0; i < Right::COUNT; i++) right.start[i] = Right::row(i) * m + min(from + Right::column(i), to - CHUNK);

    // Copies number `first` up to `last` of those that bring the slab at k.
    auto fetch = [&](double* stage, int k, int first, int last) {
#pragma unroll
        for (int i = 0; i < Left::COUNT; i++)
            if (i >= first && i < last && Left::mine(i)) {
                const bool there = k + Left::column(i) < m;
                copy(stage + Left::row(i) * A_STRIDE + Left::column(i), A + (there ? left.start[i] + k : 0), there);
            }
#pragma unroll
        for (int i = 0; i < Right::COUNT; i++)
            if (Left::COUNT + i >= first && Left::COUNT + i < last && Right::mine(i)) {
                const bool there = k + Right::row(i) < m;
                copy(stage + ROWS * A_STRIDE + Right::row(i) * B_STRIDE + Right::column(i), A + (there ? right.start[i] + k * m : 0), there);
            }
    };

    constexpr int COPIES = Left::COUNT + Right::COUNT, SLOTS = (STEPS - 1) * HIGH;
#pragma unroll
    for (int slab = 0; slab < STAGES - 1; slab++) {
        if (slab < slabs) fetch(shared + slab * STAGE, slab * TILE_K, 0, COPIES);
        commit();
    }
    share += other;
    for (int i = second + THREADS; i < sums; i += THREADS) share += sum_in[i];
    share = warp_sum(share);
    if (lane == 0) room[0][warp] = share;
    arrived<STAGES - 2>();
    __syncthreads();

    const double* a_place = shared + (part / ACROSS * HIGH * 16 + lane / 4) * A_STRIDE + lane % 4 + 8 * half;
    const double* b_place = shared + ROWS * A_STRIDE + (lane % 4 + 8 * half) * B_STRIDE + part % ACROSS * WIDE * 8 + lane / 4;
    double c[HIGH][WIDE][4];
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0.0;
    Fragments<HIGH, WIDE> fragments[2];
    fragments[0].load(a_place, b_place, B_STRIDE);

    // Each step loads what the next one multiplies. Before a slab's last step the next slab must have come, and all warps have read what
    // they need of this one, so that in the next round its place may be filled again. The copies stand between the products.
    int reading = 0, writing = STAGES - 1;
#pragma unroll 1
    for (int slab = 0; slab < slabs; slab++) {
        const int k = (slab + STAGES - 1) * TILE_K;
        const bool more = k < m;
        double* filled = shared + writing * STAGE;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const bool last = step == STEPS - 1;
            if (last) {
                commit();
                arrived<STAGES - 2>();
                __syncthreads();
                writing = reading;
                reading = reading == STAGES - 1 ? 0 : reading + 1;
            }
            const int ahead = last ? 0 : (step + 1) * 8 * WARPS_K;
            const Fragments<HIGH, WIDE>& now = fragments[step % 2];
            fragments[(step + 1) % 2].load(a_place + reading * STAGE + ahead, b_place + reading * STAGE + ahead * B_STRIDE, B_STRIDE);
#pragma unroll
            for (int i = 0; i < HIGH; i++) {
                if (!last && more) fetch(filled, k, COPIES * (step * HIGH + i) / SLOTS, COPIES * (step * HIGH + i + 1) / SLOTS);
#pragma unroll
                for (int j = 0; j < WIDE; j++) mma(c[i][j], now.a[i], now.b[j]);
            }
        }
    }

    // Each half of the warps gives every other one of its tiles to the other half, and adds what it is given. Since the last barrier nobody
    // has read anything from the slabs that is still to be used, and no copy is on its way.
    if constexpr (WARPS_K == 2) {
        static_assert(PARTS * 32 * HIGH * WIDE * 4 <= STAGES * STAGE, "what is exchanged finds room where the slabs have been");
        double2* place = (double2*)shared + part * HIGH * WIDE * 64 + lane;
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                if ((i * WIDE + j) % 2 != half) {
                    place[(i * WIDE + j) * 64] = make_double2(c[i][j][0], c[i][j][1]);
                    place[(i * WIDE + j) * 64 + 32] = make_double2(c[i][j][2], c[i][j][3]);
                }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                if ((i * WIDE + j) % 2 == half) {
                    const double2 one = place[(i * WIDE + j) * 64], two = place[(i * WIDE + j) * 64 + 32];
                    c[i][j][0] += one.x, c[i][j][1] += one.y, c[i][j][2] += two.x, c[i][j][3] += two.y;
                }
    }

    const double alpha = sum_in ? 1.0 / total(room[0]) : 1.0;
    const int row0 = top + part / ACROSS * HIGH * 16 + lane / 4, column0 = from + part % ACROSS * WIDE * 8 + 2 * (lane % 4);
    double squares = 0.0;
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = row0 + 16 * i + 8 * h, column = column0 + 8 * j;
                if ((WARPS_K == 2 && (i * WIDE + j) % 2 != half) || row >= bottom || column >= to) continue;
                const double one = alpha * c[i][j][2 * h], two = alpha * c[i][j][2 * h + 1];
                squares += one * one;
#if ALIGNED
                *(double2*)(C + row * m + column) = make_double2(one, two);
                squares += two * two;
#else
                C[row * m + column] = one;
                if (column + 1 < to) {
                    C[row * m + column + 1] = two;
                    squares += two * two;
                }
#endif
            }
    if (!sum_out) return;
    squares = warp_sum(squares);
    if (lane == 0) room[1][warp] = squares;
    __syncthreads();
    if (threadIdx.x == 0) sum_out[blockIdx.x] = total(room[1]);
}

// C = A·A for A [size, size], divided by the sum of squares of A's entries if there is `sum_in`: what the launch that made A has written to
// its `sum_out`, a number for each thread block. Both may be null. The grid must be that of _square.py.
extern "C" __global__ void __launch_bounds__(THREADS, 1) square(
    const double* A, double* C, long long size, const double* sum_in, double* sum_out
) {
    let_the_next_begin();
    wait_for_the_one_before();
    constexpr int HIGH = TILE_M / 16 / WARPS_M, WIDE = TILE_N / 8 / WARPS_N;
    const int m = (int)size, down = m / TILE_M + (m % TILE_M > EDGE), aside = m / TILE_N + (m % TILE_N > EDGE);
    const int rows = min(m, down * TILE_M), columns = min(m, aside * TILE_N);  // the others are the edges
    int number = blockIdx.x;
    if (number < down * aside) {
        tile<HIGH, WIDE, WARPS_N>(A, C, m, sum_in, sum_out, number / aside * TILE_M, rows, number % aside * TILE_N, columns);
        return;
    }
    // An edge is shared out evenly, so that no block has more to read than it must; below, in multiples of 8 columns.
    constexpr int HEIGHT = PARTS * 16 * EDGE_HIGH, LENGTH = PARTS * 8 * EDGE_WIDE;
    const int beside = columns < m ? (rows + HEIGHT - 1) / HEIGHT : 0, below = (m + LENGTH - 1) / LENGTH;
    number -= down * aside;
    if (number < beside) {
        const int top = number * rows / beside, bottom = (number + 1) * rows / beside;
        tile<EDGE_HIGH, EDGE / 8, 1>(A, C, m, sum_in, sum_out, top, bottom, columns, m);
    } else {
        const int length = ((m + below - 1) / below + 7) / 8 * 8, from = (number - beside) * length;
        tile<EDGE / 16, EDGE_WIDE, PARTS>(A, C, m, sum_in, sum_out, rows, m, from, min(m, from + length));
    }
}
