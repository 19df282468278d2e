// The product Z^T H of two tall matrices, [rows, m] and [rows, n], in float32 throughout: the gradient of the weights is one,
// sum_t dz_t^T h_{t-1}. The rows of H may begin elsewhere, as those of h_{t-1} do with the initial state.
//
// A thread block takes a share of the rows and a tile of the output, 16 ROWS x 16 COLUMNS; up to 192 x 192 the tile is the whole
// output, and every input is read once. Its 16 x 16 threads have ROWS x COLUMNS sums each, in registers. Rows come by cp.async
// into a ring of STAGES chunks in shared memory. The tiles of all shares go to memory as the threads hold them, and `collect`
// adds up the shares, always in the same order.
//
// Reckoning, a row of the input and a warp: ROWS COLUMNS multiply-adds, a cycle each of one of four schedulers, against a load of
// 16 bytes a lane for every four ROWS and four COLUMNS, which is two wavefronts of the shared memory that all four have in
// common. With 12 x 12 that is 144 cycles, 6 loads (4 % of what is issued) and 12 wavefronts of 36 there is time for; with
// 10 x 10, 100 cycles, 6 loads and 10 of 25; with 8 x 8, 64, 4 and 8 of 16; with 4 x 4, 16, 2 and 4 of 4. A load takes two
// wavefronts, not four, because lanes i and i ^ 1 share a place in Z, lanes i and i ^ 2 one in H (`Place`). Registers: the sums
// and two rows' factors, 144 + 48 of 255 with 12 x 12, so one block to a multiprocessor, two up to 64 sums (64 + 32 of 128).
//
// Set by the compiler's command line: ROWS and COLUMNS of a thread; WIDTH, the floats (1, 2 or 4) that can be fetched at once, as
// the addresses are aligned; STAGES; BLOCKS, how many run at once on a multiprocessor.

constexpr int SIDE = 16, THREADS = SIDE * SIDE, CHUNK = 16;  // threads each way and in all; rows of the input fetched at once
constexpr int TALL = SIDE * ROWS, WIDE = SIDE * COLUMNS, SUMS = ROWS * COLUMNS, STAGE = CHUNK * (TALL + WIDE);
constexpr int UNROLL = SUMS > 72 ? 4 : SUMS > 36 ? 8 : 16;  // so that the loop stays within some 10 KiB of instructions
constexpr int LINES = 4;                                    // threads that add up shares for one sum

static_assert(CHUNK * SIDE == THREADS);  // to fetch, 16 threads have a row
static_assert(CHUNK % UNROLL == 0 && UNROLL % 2 == 0);

// Where a thread stands among 16 x 16: warps are 4 x 8, and pairs of lanes turn each way in turn.
struct Place {
    int row, column;
    __device__ explicit Place(int thread) {
        row = thread >> 6 << 2 | thread >> 1 & 1 | thread >> 2 & 2;
        column = thread >> 2 & 8 | thread & 1 | thread >> 1 & 2 | thread >> 2 & 4;
    }
};

// The PER entries of a line of 16 PER that belong to a place: by fours, then a pair, then a single one.
template <int PER>
__device__ int entry(int place, int i) {
    constexpr int fours = PER & ~3;
    if (i < fours) return 4 * SIDE * (i / 4) + 4 * place + i % 4;
    if (PER & 2 && i < fours + 2) return SIDE * fours + 2 * place + i - fours;
    return SIDE * (PER & ~1) + place;
}

template <int PER>
__device__ void pick(float (&to)[PER], const float* line, int place) {
#pragma unroll
    for (int i = 0; i + 4 <= PER; i += 4) {
        const float4 found = *reinterpret_cast<const float4*>(line + entry<PER>(place, i));
        to[i] = found.x, to[i + 1] = found.y, to[i + 2] = found.z, to[i + 3] = found.w;
    }
    if constexpr (PER & 2) {
        constexpr int i = PER & ~3;
        const float2 found = *reinterpret_cast<const float2*>(line + entry<PER>(place, i));
        to[i] = found.x, to[i + 1] = found.y;
    }
    if constexpr (PER & 1) to[PER - 1] = line[entry<PER>(place, PER - 1)];
}

// WIDTH floats, of which only so many bytes are there to be read and the others are zeros.
__device__ void fetch(float* to, const float* from, int bytes) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (WIDTH == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(from), "r"(bytes), "n"(4 * WIDTH)
                     : "memory");
}

// What one of 16 threads fetches of a line of 16 PER, from its first column on; `there` floats of the line are left from there.
template <int PER>
__device__ void fetch_line(float* to, const float* from, int column, int there) {
#pragma unroll
    for (int skip = 0; skip < SIDE * PER; skip += SIDE * WIDTH)
        if (skip + SIDE * WIDTH <= SIDE * PER || skip + column < SIDE * PER)
            fetch(to + skip, from + skip, 4 * max(0, min(WIDTH, there - skip)));
}

// All but the last STAGES - 2 chunks asked for are there, for every thread, and no thread reads the oldest any more.
__device__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gram(
    const float* __restrict__ z, const float* __restrict__ h,
    const float* __restrict__ early,  // the first rows of H, which are not in h; so many
    long long early_rows, long long early_row,
    float* __restrict__ shares,  // [gridDim.y, gridDim.x, SUMS, THREADS]
    long long rows, long long share, long long m, long long n, long long z_row, long long h_row)
{
    extern __shared__ __align__(16) float ring[];
    const int across = (int)((n + WIDE - 1) / WIDE), top = blockIdx.x / across * TALL, left = blockIdx.x % across * WIDE;
    const long long first = blockIdx.y * share;
    const int count = (int)min(share, rows - first), chunks = (count + CHUNK - 1) / CHUNK;

    const int line = threadIdx.x / SIDE, column = threadIdx.x % SIDE * WIDTH;  // of a chunk, where this thread fetches
    const float* z_next = z + (first + line) * z_row + top + column;
    const float* h_next = h + (first + line - early_rows) * h_row + left + column;
    int next = 0;  // the chunk that is to be asked for
    const auto ask = [&](int stage) {
        if (next < chunks) {
            float* const to = ring + stage * STAGE;
            const bool real = next * CHUNK + line < count;
            const long long row = first + next * CHUNK + line;
            const float* const from = row < early_rows ? early + row * early_row + left + column : h_next;
            fetch_line<ROWS>(to + line * TALL + column, z_next, column, real ? (int)m - top - column : 0);
            fetch_line<COLUMNS>(to + CHUNK * TALL + line * WIDE + column, from, column, real ? (int)n - left - column : 0);
            z_next += CHUNK * z_row;
            h_next += CHUNK * h_row;
        }
        next++;
        asm volatile("cp.async.commit_group;" ::: "memory");  // of nothing too: they are counted
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage);

    const Place place(threadIdx.x);
    float sum[ROWS][COLUMNS] = {}, a[2][ROWS], b[2][COLUMNS];
    const float *z_line = ring, *h_line = ring + CHUNK * TALL;
    arrived();
    pick(a[0], z_line, place.row);
    pick(b[0], h_line, place.column);

    int stage = 0, free = STAGES - 1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int depth = min(CHUNK, count - chunk * CHUNK);  // or a little more, of zeros
        ask(free);
        free = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
#pragma unroll 1
        for (int k = 0; k < depth; k += UNROLL)
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {  // fetches from shared memory a row ahead
                z_line += TALL;
                h_line += WIDE;
                if (u == UNROLL - 1 && k + UNROLL >= depth) {
                    arrived();
                    z_line = ring + stage * STAGE;
                    h_line = z_line + CHUNK * TALL;
                }
                pick(a[(u + 1) % 2], z_line, place.row);
                pick(b[(u + 1) % 2], h_line, place.column);
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) sum[i][j] += a[u % 2][i] * b[u % 2][j];
            }
    }

    float* const to = shares + ((long long)blockIdx.y * gridDim.x + blockIdx.x) * SUMS * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) to[(i * COLUMNS + j) * THREADS] = sum[i][j];
}

// A block for each of the SUMS of the threads of a tile.
extern "C" __global__ void __launch_bounds__(THREADS * LINES) collect(
    const float* __restrict__ shares, float* __restrict__ out, long long count, long long m, long long n)
{
    __shared__ float part[LINES][THREADS];
    const int thread = threadIdx.x % THREADS, line = threadIdx.x / THREADS, tile = blockIdx.y;
    const long long apart = (long long)gridDim.y * SUMS * THREADS;
    const float* const from = shares + ((long long)tile * SUMS + blockIdx.x) * THREADS + thread;
    float sum = 0.f;
#pragma unroll 8
    for (long long share = line; share < count; share += LINES) sum += from[share * apart];
    part[line][thread] = sum;
    __syncthreads();
    const int across = (int)((n + WIDE - 1) / WIDE);
    const Place place(thread);
    const int row = tile / across * TALL + entry<ROWS>(place.row, blockIdx.x / COLUMNS);
    const int column = tile % across * WIDE + entry<COLUMNS>(place.column, blockIdx.x % COLUMNS);
    if (line == 0 && row < m && column < n) {
        sum = 0.f;
        for (int k = 0; k < LINES; k++) sum += part[k][thread];
        out[row * n + column] = sum;
    }
}
