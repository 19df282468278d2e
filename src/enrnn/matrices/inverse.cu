// An inverse, and the products around it, in double precision.
//
// `eliminate` is one step of an inversion in place by blocks (Gauss and Jordan), without pivoting.
//
// With the pivot rows and columns of block k first, the matrix is [[D, S], [C, M]], and the step turns it into
//     [[P, P S], [-C P, M - C P S]],    P = D^-1;
// after a step for every block the matrix is inverted. A thread block makes a tile of SIDE x SIDE; every one inverts the small
// matrix D for itself, which costs less than to wait for another to do it. The step reads one matrix and writes another, so that
// no thread block sees what another has made.

constexpr int SIDE = 32, THREADS = 256;
constexpr int LEFT = 36, RIGHT = 40;  // row strides of a left and a right factor, such that a warp's loads meet no bank conflict

// Pivots are at least one: no scaling and no special cases.
__device__ double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    for (int i = 0; i < 2; i++) y = fma(y, fma(-x, y, 1.0), y);  // 23 bits, 46, all
    return y;
}

// sum += sign * A B for two 8 x 8 tiles next to each other, over SIDE inner indices, by the tensor cores.
__device__ void multiply(double (&sum)[2][2], const double* A, const double* B, double sign) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < SIDE; k += 4) {
        const double a = sign * A[lane / 4 * LEFT + k + lane % 4];
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            const double b = B[(k + lane % 4) * RIGHT + 8 * tile + lane / 4];
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(sum[tile][0]), "+d"(sum[tile][1]) : "d"(a), "d"(b));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) eliminate(const double* __restrict__ from, double* __restrict__ to, long long size, long long step)
{
    __shared__ double P[SIDE * LEFT], C[SIDE * LEFT], S[SIDE * RIGHT], R[SIDE * RIGHT];
    __shared__ double row[2][SIDE], column[2][SIDE], inverse[2];
    const int n = (int)size, pivot = (int)step * SIDE, first_column = blockIdx.x * SIDE, first_row = blockIdx.y * SIDE;
    const auto at = [&](int r, int c, double beyond) { return r < n && c < n ? from[(long long)r * n + c] : beyond; };

    const int i = threadIdx.x / 8, j = threadIdx.x % 8;  // this thread's row of D, and columns j, j + 8, …
    double d[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int c = j + 8 * k;
        d[k] = at(pivot + i, pivot + c, i == c ? 1.0 : 0.0);  // beyond the edge, the identity
        S[i * RIGHT + c] = at(pivot + i, first_column + c, 0.0);
        C[i * LEFT + c] = at(first_row + i, pivot + c, 0.0);
    }
    // D inverted, each thread keeping its four entries; one barrier a pivot. The owner of a pivot gives out its reciprocal.
#pragma unroll
    for (int k0 = 0; k0 < 4; k0++)
#pragma unroll 1
        for (int j0 = 0; j0 < 8; j0++) {
            const int p = 8 * k0 + j0, now = j0 & 1;
            if (i == p)
#pragma unroll
                for (int k = 0; k < 4; k++) row[now][j + 8 * k] = d[k];
            if (j == j0) {
                column[now][i] = d[k0];
                if (i == p) inverse[now] = reciprocal(d[k0]);
            }
            __syncthreads();
            const double factor = column[now][i] * inverse[now];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const double other = row[now][j + 8 * k];
                d[k] = i == p ? d[k] * inverse[now] : d[k] - factor * other;
            }
            if (j == j0) d[k0] = i == p ? inverse[now] : -factor;
        }
#pragma unroll
    for (int k = 0; k < 4; k++) P[i * LEFT + j + 8 * k] = d[k];
    __syncthreads();

    // Each warp makes two 8 x 8 tiles: rows 8·(warp / 2) and 16 columns from 16·(warp % 2).
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int r = 8 * (warp / 2) + lane / 4, c = 16 * (warp % 2) + lane % 4 * 2;  // this thread's first entry
    const bool pivot_rows = first_row == pivot, pivot_columns = first_column == pivot;
    double sum[2][2] = {};
    multiply(sum, P + 8 * (warp / 2) * LEFT, S + 16 * (warp % 2), 1.0);
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int there = c + 8 * (t / 2) + t % 2;
        if (pivot_columns) sum[t / 2][t % 2] = P[r * LEFT + there];
        R[r * RIGHT + there] = sum[t / 2][t % 2];
    }
    __syncthreads();
    if (!pivot_rows) {
#pragma unroll
        for (int t = 0; t < 4; t++) sum[t / 2][t % 2] = pivot_columns ? 0.0 : at(first_row + r, first_column + c + 8 * (t / 2) + t % 2, 0.0);
        multiply(sum, C + 8 * (warp / 2) * LEFT, R + 16 * (warp % 2), -1.0);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int across = first_column + c + 8 * (t / 2) + t % 2, down = first_row + r;
        if (down < n && across < n) to[(long long)down * n + across] = sum[t / 2][t % 2];
    }
}

// A number into shared memory, or zero.
__device__ void copy(double* to, const double* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}

constexpr int STAGES = 4, STAGE = SIDE * (LEFT + RIGHT);  // chunks in shared memory, all but one of them on their way; and the numbers of one

// added + sign * A B, for square matrices of any strides, of which the result and what is added (or null) have rows one after the other. A thread block
// makes a tile of SIDE x SIDE, whose factors come SIDE inner indices at a time.
extern "C" __global__ void __launch_bounds__(THREADS) product(
    const double* A, long long a_down, long long a_right, const double* B, long long b_down, long long b_right,
    const double* added, double* out, long long size, long long sign)
{
    extern __shared__ __align__(16) double ring[];
    const int n = (int)size, first_column = blockIdx.x * SIDE, first_row = blockIdx.y * SIDE, chunks = (n + SIDE - 1) / SIDE;
    int next = 0;  // the chunk that is to be fetched
    const auto fetch = [&]() {  // neighbouring threads along the smaller stride
        double* const left = ring + next % STAGES * STAGE;
        double* const right = left + SIDE * LEFT;
        const int k = next * SIDE;
        if (next < chunks)
#pragma unroll
            for (int i = 0; i < SIDE * SIDE / THREADS; i++) {
                const int line = threadIdx.x / SIDE + i * (THREADS / SIDE), place = threadIdx.x % SIDE;
                const int a_row = a_right <= a_down ? line : place, a_column = a_right <= a_down ? place : line;
                const int b_row = b_right <= b_down ? line : place, b_column = b_right <= b_down ? place : line;
                const bool a_there = first_row + a_row < n && k + a_column < n, b_there = k + b_row < n && first_column + b_column < n;
                copy(left + a_row * LEFT + a_column, A + (a_there ? (first_row + a_row) * a_down + (k + a_column) * a_right : 0), a_there);
                copy(right + b_row * RIGHT + b_column, B + (b_there ? (k + b_row) * b_down + (first_column + b_column) * b_right : 0), b_there);
            }
        next++;
        asm volatile("cp.async.commit_group;" ::: "memory");  // of nothing too: they are counted
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) fetch();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = 8 * (warp / 2) + lane / 4, c = 16 * (warp % 2) + lane % 4 * 2;
    double sum[2][2] = {};
    for (int chunk = 0; chunk < chunks; chunk++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // it is there for all, and nobody reads the one before any more
        fetch();
        const double* const left = ring + chunk % STAGES * STAGE;
        multiply(sum, left + 8 * (warp / 2) * LEFT, left + SIDE * LEFT + 16 * (warp % 2), (double)sign);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int across = first_column + c + 8 * (t / 2) + t % 2, down = first_row + r;
        const long long at = (long long)down * n + across;
        if (down < n && across < n) out[at] = (added ? added[at] : 0.0) + sum[t / 2][t % 2];
    }
}
