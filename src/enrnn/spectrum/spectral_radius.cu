// The dominant eigenvalue of one small matrix in one thread block, or a cluster: _device.py as a single kernel, with an early end.
//
// The matrix lives in shared memory and is squared there by the tensor cores (mma in float64: a true product, no lower precision
// anywhere). 16 warps share out the product's tiles; sizes up to 32·TILES fit. With BLOCKS > 1, which needs clusters, TILES × 2 thread
// blocks compute a tile of the product each, and give it to those that need it: the blocks of the same rows and of the same columns. These
// count what has come (an mbarrier, one of two in turns), so that a squaring needs no barrier of the cluster. As soon as few eigenvalues
// seem to be left, one block reads λ, u and v off the power and checks them; when the check holds, the rest is saved.
// All sums are taken in a fixed order: the same matrix gives the same bits.

#define WARPS 16
#define THREADS (32 * WARPS)
#define SIZE (32 * TILES)
#define STRIDE (SIZE + 4)
#define LAST 40
#define FREE 4   // squarings without a look at the norm, which at the first look is no less than (ρ/‖T‖)^32
#define AGAIN 1  // pairs of further products that take the vectors beyond the power
#define RIPE 1e-2
#define MORE 3   // squarings of a core after it is ripe, which leave nothing of others but rounding, and show that it was not chance
#define UNIT 1.1102230246251565e-16
#define DOWN (BLOCKS > 1 ? TILES : 1)
#define ASIDE (BLOCKS / DOWN)
#define ROWS (SIZE / DOWN)  // of the product, that a block computes
#define COLUMNS (SIZE / ASIDE)

__device__ __forceinline__ double across_warp(double value, int offset) { return __shfl_xor_sync(0xffffffffu, value, offset); }

// The sum over the warp of each of N numbers. A lane ends up with number `which`, or with none if `left` is not positive.
template <int N, int OFFSET = 16>
__device__ __forceinline__ double folded(const double (&numbers)[N], int& which, int& left) {
    const bool upper = threadIdx.x & OFFSET;
    if constexpr (N == 1) {
        double sum = numbers[0];
#pragma unroll
        for (int offset = OFFSET; offset > 0; offset /= 2) sum += across_warp(sum, offset);
        return sum;
    } else {
        constexpr int HALF = (N + 1) / 2;
        double kept[HALF];
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const double low = numbers[i], high = i + HALF < N ? numbers[i + HALF < N ? i + HALF : 0] : 0.0;
            kept[i] = (upper ? high : low) + across_warp(upper ? low : high, OFFSET);
        }
        which += upper ? HALF : 0;
        left = upper ? left - HALF : min(left, HALF);
        return folded<HALF, OFFSET / 2>(kept, which, left);
    }
}

// N numbers, `step` apart, as a balanced sum.
template <int N> __device__ __forceinline__ double tree(const double* numbers, int step) {
    if constexpr (N == 1) return *numbers;
    else return tree<N / 2>(numbers, step) + tree<N / 2>(numbers + N / 2 * step, step);
}

typedef unsigned long long Gate;

#if BLOCKS > 1
__device__ __forceinline__ unsigned block() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Where a place in this block's shared memory is in that of another block.
__device__ __forceinline__ unsigned yonder(const void* here, unsigned other) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(here)), "r"(other));
    return there;
}

// A number into the shared memory of all blocks, counted by their gates.
__device__ __forceinline__ void put(double* here, double value, const Gate* gate) {
#pragma unroll
    for (unsigned other = 0; other < BLOCKS; other++)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(yonder(here, other)), "l"(__double_as_longlong(value)), "r"(yonder(gate, other)) : "memory");
}

// Two numbers that follow each other into Q, here and in the blocks of the same rows and of the same columns.
__device__ __forceinline__ void give(double* Q, int place, double one, double two, const Gate* gate) {
    *(double2*)(Q + place) = make_double2(one, two);
#pragma unroll
    for (unsigned k = 0; k < DOWN; k++) {  // the one beside this, then those below and above
        const unsigned other = k == 0 ? block() ^ 1 : (block() + 2 * k) % BLOCKS;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(yonder(Q, other) + 8 * place), "l"(__double_as_longlong(one)), "l"(__double_as_longlong(two)), "r"(yonder(gate, other)) : "memory");
    }
}

// Both gates open for a first time when every thread has arrived and all that was given and put has come. (A lane could arrive for its warp, in the
// same time; but compute-sanitizer would not see it.)
__device__ __forceinline__ void set_up(Gate* gates) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(gates + i)), "n"(THREADS) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
}

// The `count`-th passage of a gate: this thread has done its part, and so have the others here and yonder, who send so many bytes.
__device__ __forceinline__ void pass(const Gate* gate, int count, unsigned bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(gate);
    if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    else asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    unsigned done = 0;
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(at), "r"(count & 1) : "memory");
}

__device__ __forceinline__ void announce(double* verdict, double value) {
#pragma unroll
    for (unsigned other = 0; other < BLOCKS; other++)
        asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(yonder(verdict, other)), "d"(value) : "memory");
}

// The tiles of P that the first block was not given, in the first block.
__device__ __forceinline__ void gather(double* P) {
    constexpr int COUNT = (SIZE - ROWS) * COLUMNS / 2 / THREADS;
    static_assert(COUNT * THREADS * 2 == (SIZE - ROWS) * COLUMNS, "all threads have the same to fetch");
    double2 value[COUNT];
    double* here[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const int i = threadIdx.x + k * THREADS, row = ROWS + i / (COLUMNS / 2), col = COLUMNS + i % (COLUMNS / 2) * 2;
        here[k] = P + row * STRIDE + col;
        asm volatile("ld.shared::cluster.v2.f64 {%0, %1}, [%2];" : "=d"(value[k].x), "=d"(value[k].y) : "r"(yonder(here[k], row / ROWS * 2 + 1)));
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) *(double2*)here[k] = value[k];
    __syncthreads();
}

__device__ __forceinline__ void all_blocks() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
__device__ __forceinline__ unsigned block() { return 0; }
__device__ __forceinline__ void put(double* here, double value, const Gate*) { *here = value; }
__device__ __forceinline__ void give(double* Q, int place, double one, double two, const Gate*) { *(double2*)(Q + place) = make_double2(one, two); }
__device__ __forceinline__ void set_up(Gate*) {}
__device__ __forceinline__ void pass(const Gate*, int, unsigned) { __syncthreads(); }
__device__ __forceinline__ void announce(double* verdict, double value) { *verdict = value; }
__device__ __forceinline__ void gather(double* P) {}
__device__ __forceinline__ void all_blocks() { __syncthreads(); }
#endif

// The sums of what `OVER` blocks' warps have left in `room`, in every thread.
template <int OVER> __device__ __forceinline__ void total(double& one, double& two, const double* room) {
    const int lane = threadIdx.x % 32;
    const double* mine = room + lane / 16 * OVER * WARPS + lane % 16;
    double sum = mine[0];
#pragma unroll
    for (int i = 1; i < OVER; i++) sum += mine[i * WARPS];
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum += across_warp(sum, offset);
    one = __shfl_sync(0xffffffffu, sum, 0);
    two = __shfl_sync(0xffffffffu, sum, 16);
}

// Two sums over this thread block, in every thread. It has one barrier, so that `room`, 2·WARPS numbers, must not have been read
// since the barrier before.
__device__ __forceinline__ void sums(double& one, double& two, double* room) {
    const int lane = threadIdx.x % 32;
    const double both[2] = {one, two};
    int which = 0, left = 2;
    const double share = folded(both, which, left);
    if (lane % 16 == 0) room[which * WARPS + threadIdx.x / 32] = share;
    __syncthreads();
    total<1>(one, two, room);
}

// Numbers without a pattern, between -1 and 1.
__device__ __forceinline__ double scattered(unsigned i) {
    unsigned bits = (i + 1) * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    bits = (bits ^ bits >> 13) * 3266489917u;
    return (int)(bits ^ bits >> 16) * 4.656612873077393e-10;
}

#if __CUDA_ARCH__ >= 900 && TILES > 1
// From Hopper on, a warp multiplies 16×8 by 8×8 in one instruction. On an H200 the whole kernel became 1.3 to 1.5 times faster.
#define HIGH (ROWS < 96 ? 1 : 2)  // a warp has HIGH × WIDE tiles of 16 × 8
#define WIDE wide(1)
#define ACROSS (COLUMNS / 8 / WIDE)

// The least number that leaves enough warps for all tiles.
constexpr int wide(int least) {
    return COLUMNS / 8 % least == 0 && ROWS / 16 / HIGH * (COLUMNS / 8 / least) <= WARPS ? least : wide(least + 1);
}

__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], double b0, double b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}

// This block's tile of Q = alpha·P·P; `sum` and `trace` are this thread's shares of ‖Q‖² and of the trace of Q.
__device__ void square(const double* P, double* Q, double alpha, double& sum, double& trace, const Gate* gate) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sum = trace = 0.0;
    if (warp >= ROWS / 16 / HIGH * ACROSS) return;
    const int row0 = block() / ASIDE * ROWS + warp / ACROSS * 16 * HIGH + lane / 4, col0 = block() % ASIDE * COLUMNS + warp % ACROSS * 8 * WIDE;
    double c[HIGH][WIDE][4];
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0.0;
#pragma unroll(SIZE / 16)
    for (int k = 0; k < SIZE; k += 8) {
        double a[HIGH][4], b[WIDE][2];
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const double* at = P + (row0 + 16 * i) * STRIDE + k + lane % 4;
            a[i][0] = at[0], a[i][1] = at[8 * STRIDE], a[i][2] = at[4], a[i][3] = at[8 * STRIDE + 4];
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            const double* at = P + (k + lane % 4) * STRIDE + col0 + 8 * j + lane / 4;
            b[j][0] = at[0], b[j][1] = at[4 * STRIDE];
        }
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) mma(c[i][j], a[i], b[j][0], b[j][1]);
    }
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const double one = alpha * c[i][j][2 * h], two = alpha * c[i][j][2 * h + 1];
                const int row = row0 + 16 * i + 8 * h, col = col0 + 8 * j + 2 * (lane % 4);
                give(Q, row * STRIDE + col, one, two, gate);
                sum += one * one + two * two;
                trace += row == col ? one : row == col + 1 ? two : 0.0;
            }
}
#else
__device__ __forceinline__ void mma(double& c0, double& c1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(c0), "+d"(c1) : "d"(a), "d"(b));
}

// Q = alpha·P·P; `sum` and `trace` are this thread's shares of ‖Q‖² and of the trace of Q.
__device__ void square(const double* P, double* Q, double alpha, double& sum, double& trace, const Gate* gate) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = (warp / 4) * 8 * TILES + lane / 4, col0 = (warp % 4) * 8 * TILES;
    double c[TILES][TILES][2];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++) c[i][j][0] = c[i][j][1] = 0.0;
#pragma unroll 8
    for (int k = 0; k < SIZE; k += 4) {
        double a[TILES], b[TILES];
#pragma unroll
        for (int i = 0; i < TILES; i++) a[i] = P[(row0 + 8 * i) * STRIDE + k + lane % 4];
#pragma unroll
        for (int j = 0; j < TILES; j++) b[j] = P[(k + lane % 4) * STRIDE + col0 + 8 * j + lane / 4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < TILES; j++) mma(c[i][j][0], c[i][j][1], a[i], b[j]);
    }
    sum = trace = 0.0;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const double one = alpha * c[i][j][0], two = alpha * c[i][j][1];
            const int row = row0 + 8 * i, col = col0 + 8 * j + 2 * (lane % 4);
            give(Q, row * STRIDE + col, one, two, gate);
            sum += one * one + two * two;
            trace += row == col ? one : row == col + 1 ? two : 0.0;
        }
}
#endif

// Q = alpha·P·P, each block's rows and columns of it, and from step FREE + 1 on, ‖Q‖² and its trace. `line` is two rooms for sums, used in turns.
//
// A block that sends has what the receivers sent a step before, from all their warps, which therefore have read what it overwrites.
__device__ __forceinline__ void squared(const double* P, double* Q, double alpha, double& sum, double& trace, double* line, const Gate* gates, int step) {
    double* room = line + step % 2 * 2 * BLOCKS * WARPS;
    const Gate* gate = gates + step % 2;
    square(P, Q, alpha, sum, trace, gate);
    if (step > FREE) {
        const double both[2] = {sum, trace};
        int which = 0, left = 2;
        const double share = folded(both, which, left);
        if (threadIdx.x % 16 == 0) put(room + (which * BLOCKS + block()) * WARPS + threadIdx.x / 32, share, gate);
    }
    pass(gate, (step - 1) / 2, 8 * (DOWN * ROWS * COLUMNS + (step > FREE ? 2 * BLOCKS * WARPS : 0)));
    if (step > FREE) total<BLOCKS>(sum, trace, room);
}

// A power's trace and norm tell when it is time to look: with only two eigenvalues left, the traces of M, M² and M⁴ obey Newton's
// identity.
struct Signs {
    double t1 = 0.0, t2 = 0.0, n2 = 1.0;  // traces of the last two powers (of norm 1), and the norm of the last one's predecessor squared

    // After every step beyond FREE, with ‖Q‖², the trace of Q, and 1/‖Q‖.
    __device__ bool ripe(int step, double sum, double trace, double shrink) {
        const double n3 = sum * shrink, t3 = trace * shrink, p2 = n2 * t2, p4 = n2 * n2 * n3 * t3, e2 = (t1 * t1 - p2) / 2;
        t1 = t2; t2 = t3; n2 = n3;
        return step > FREE + 2 && fabs(p4 - (p2 * p2 - 2 * e2 * e2)) < RIPE * (p2 * p2 + 2 * e2 * e2);
    }
};

// A matrix is shared out: a warp has rows warp, warp + WARPS, …, a lane columns lane, lane + 32, ….
__device__ __forceinline__ int row_of(int i) { return threadIdx.x / 32 + WARPS * i; }
__device__ __forceinline__ int column_of(int j) { return threadIdx.x % 32 + 32 * j; }

// This thread's entries: `todo(i, j)` for each.
template <typename Todo> __device__ __forceinline__ void each_entry(Todo todo) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++) todo(i, j);
}

// T into shared memory, with zeros around it; it is there after `arrived`.
__device__ __forceinline__ void fetch(double* to, const double* T, int m) {
#pragma unroll 1  // for want of registers
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) {
        const int row = i / SIZE, col = i % SIZE, bytes = row < m && col < m ? 8 : 0;
        const unsigned there = (unsigned)__cvta_generic_to_shared(to + row * STRIDE + col);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(there), "l"(T + (bytes ? row * m + col : 0)), "r"(bytes) : "memory");
    }
}

__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

// y = scale·M x and z = scale·Mᵀ w, for M [SIZE, SIZE] in shared memory; `room` holds WARPS × SIZE numbers.
__device__ void both_products(const double* M, double scale, const double* x, double* y, const double* w, double* z, double* room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double rows[2 * TILES] = {}, columns[TILES] = {};
    each_entry([&](int i, int j) {
        const double value = scale * M[row_of(i) * STRIDE + column_of(j)];
        rows[i] += value * x[column_of(j)];
        columns[j] += value * w[row_of(i)];
    });
#pragma unroll
    for (int j = 0; j < TILES; j++) room[warp * SIZE + lane + 32 * j] = columns[j];
    int which = 0, left = 2 * TILES;
    const double sum = folded(rows, which, left);
    if (left > 0) y[warp + WARPS * which] = sum;
    __syncthreads();
    if (threadIdx.x < SIZE) z[threadIdx.x] = tree<WARPS>(room + threadIdx.x, SIZE);
    __syncthreads();
}

// z1 = scale·Mᵀ w1 and z2 = scale·Mᵀ w2; `room` holds 2 × WARPS × SIZE numbers.
__device__ void two_transposed(const double* M, double scale, const double* w1, double* z1, const double* w2, double* z2, double* room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double first[TILES] = {}, second[TILES] = {};
    each_entry([&](int i, int j) {
        const double value = M[row_of(i) * STRIDE + column_of(j)];
        first[j] += value * w1[row_of(i)];
        second[j] += value * w2[row_of(i)];
    });
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        room[warp * SIZE + lane + 32 * j] = first[j];
        room[(WARPS + warp) * SIZE + lane + 32 * j] = second[j];
    }
    __syncthreads();
    const int half = threadIdx.x / SIZE, col = threadIdx.x % SIZE;
    if (half < 2) (half ? z2 : z1)[col] = scale * tree<WARPS>(room + half * WARPS * SIZE + col, SIZE);
    __syncthreads();
}

// Vectors of one warp: lane l holds entries l, l + 32, …
struct Vector {
    double v[TILES];
    __device__ void load(const double* p) {
#pragma unroll
        for (int j = 0; j < TILES; j++) v[j] = p[threadIdx.x % 32 + 32 * j];
    }
    __device__ void store(double* p) const {
#pragma unroll
        for (int j = 0; j < TILES; j++) p[threadIdx.x % 32 + 32 * j] = v[j];
    }
    // The first m entries, as every other number of p, with a sign.
    __device__ void spread(double* p, int m, double sign) const {
#pragma unroll
        for (int j = 0; j < TILES; j++) { const int i = threadIdx.x % 32 + 32 * j; if (i < m) p[2 * i] = sign * v[j]; }
    }
    // This lane's share of the product.
    __device__ double dot(const Vector& o) const {
        double sum = 0.0;
#pragma unroll
        for (int j = 0; j < TILES; j++) sum += v[j] * o.v[j];
        return sum;
    }
    __device__ void scale(double s) {
#pragma unroll
        for (int j = 0; j < TILES; j++) v[j] *= s;
    }
    __device__ void add(double s, const Vector& o) {
#pragma unroll
        for (int j = 0; j < TILES; j++) v[j] += s * o.v[j];
    }
};

// Two sums over the warp, in every lane.
__device__ __forceinline__ void warp_sums(double& one, double& two) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) one += across_warp(one, offset), two += across_warp(two, offset);
}

__device__ __forceinline__ double warp_sum(double value) {
    double nothing = 0.0;
    warp_sums(value, nothing);
    return value;
}

// ρ must be exact to one part in `parts`. out: radius, condition, λ, certified, squarings, then u and v (v* is the left vector),
// complex numbers as pairs. All zeros and an infinite condition if it is not certified.
extern "C" __global__ void
#if BLOCKS > 1
__cluster_dims__(BLOCKS, 1, 1)
#endif
__launch_bounds__(THREADS, 1) spectral_radius(const double* __restrict__ T, long long size, double* __restrict__ out, long long parts) {
    const int m = (int)size;
    extern __shared__ double shared[];
    double* P = shared;
    double* Q = P + SIZE * STRIDE;
    double* room = Q + SIZE * STRIDE;             // 2 × WARPS × SIZE
    double* line = room + 2 * WARPS * SIZE;       // two rooms for sums after a squaring, used in turns, and one for others
    double* others = line + 4 * BLOCKS * WARPS;
    double* vec = others + 2 * WARPS;             // 13 vectors
    double *x = vec, *y = vec + SIZE, *Ax = vec + 2 * SIZE, *Ay = vec + 3 * SIZE, *q = vec + 4 * SIZE, *r = vec + 5 * SIZE;
    double *Aq = vec + 6 * SIZE, *Ar = vec + 7 * SIZE, *ur = vec + 8 * SIZE, *ui = vec + 9 * SIZE, *vr = vec + 10 * SIZE, *vi = vec + 11 * SIZE;
    double* probe = vec + 12 * SIZE;
    __shared__ double fact[9], verdict;
    __shared__ Gate gates[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    double largest = 0.0, given[2 * TILES][TILES];
    bool finite = true;
    each_entry([&](int i, int j) {
        given[i][j] = row_of(i) < m && column_of(j) < m ? T[row_of(i) * m + column_of(j)] : 0.0;
        largest = fmax(largest, fabs(given[i][j]));
        finite = finite && fabs(given[i][j]) <= 1.7976931348623157e308;
    });
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) largest = fmax(largest, across_warp(largest, offset));
    if (lane == 0) line[warp] = largest;
    finite = __syncthreads_and(finite);
#pragma unroll
    for (int i = 0; i < WARPS; i++) largest = fmax(largest, line[i]);
    for (int i = threadIdx.x; block() == 0 && i < 6 + 4 * m; i += THREADS) out[i] = i == 1 ? __longlong_as_double(0x7ff0000000000000LL) : 0.0;
    if (!finite || largest == 0.0) return;

    int exponent;
    frexp(largest, &exponent);
    exponent = max(-1000, min(1000, exponent));
    const double down = ldexp(1.0, -exponent);
    double sum = 0.0, trace = 0.0;
    each_entry([&](int i, int j) {
        const double value = given[i][j] * down;
        P[row_of(i) * STRIDE + column_of(j)] = value;
        sum += value * value;
    });
    if (threadIdx.x < SIZE) probe[threadIdx.x] = scattered(threadIdx.x);
    set_up(gates);
    sums(sum, trace, others);
    all_blocks();  // the others are there, and may be written to
    const double norm = sqrt(sum);
    double shrink = 1.0 / norm;  // the power is shrink·P
    Signs signs;
    for (int step = 1; step <= LAST; step++) {
        squared(P, Q, shrink * shrink, sum, trace, line, gates, step);
        double* swap = P; P = Q; Q = swap;
        if (step <= FREE) {
            shrink = 1.0;
            continue;
        }
        shrink = sum > 0.0 ? rsqrt(sum) : 0.0;
        if (!(signs.ripe(step, sum, trace, shrink) || (step >= 15 && step % 6 == 3) || step == LAST)) continue;
#if BLOCKS > 1
        all_blocks();  // what each block has of the power may be read by the first one
        if (block() > 0) {
            all_blocks();
            if (verdict > 0.0) return;
            continue;
        }
#endif
        fetch(Q, T, m);  // there is room until the next squaring
        // x = P³g, y = (Pᵀ)³g: in the range of λ's spectral projector, and in its row space.
        gather(P);
        both_products(P, shrink, probe, x, probe, y, room);
#pragma unroll 1
        for (int i = 0; i < AGAIN; i++) {
            both_products(P, shrink, x, Ax, y, Ay, room);
            both_products(P, shrink, Ax, x, Ay, y, room);
        }
        arrived();
        both_products(Q, down, x, Ax, y, Ay, room);
        double a = 0.0, c = 0.0, re = 0.0, im = 0.0;
        bool single = false;
        Vector base, image, hr, hi;
        if (warp < 2) {  // warp 0 for the right vector, warp 1 for the left one
            base.load(warp == 0 ? x : y); image.load(warp == 0 ? Ax : Ay);
            double square_of = base.dot(base);
            a = base.dot(image);
            warp_sums(square_of, a);
            const double inverse = rsqrt(square_of);
            a *= inverse * inverse;
            base.scale(inverse); image.scale(inverse);
            Vector second = image;
            second.add(-a, base);
            c = sqrt(warp_sum(second.dot(second)));
            single = c < 4 * UNIT * fabs(a);
            second.scale(single ? 0.0 : 1.0 / c);
            double along = base.dot(second), length = second.dot(second);
            warp_sums(along, length);
            second.add(-along, base);  // a rest at rounding level is not orthogonal to x the first time
            length -= along * along;
            second.scale(single || !(length > 0.0) ? 0.0 : rsqrt(length));
            base.store(warp == 0 ? x : y); second.store(warp == 0 ? q : r);
        }
        __syncthreads();
        both_products(Q, down, q, Aq, r, Ar, room);
        if (warp < 2) {
            Vector second, third;
            second.load(warp == 0 ? q : r); third.load(warp == 0 ? Aq : Ar);
            double b = base.dot(third), d = second.dot(third);
            warp_sums(b, d);
            const double half = (a + d) / 2, disc = (a - d) * (a - d) / 4 + b * c, root = sqrt(fabs(disc));
            const bool negative = c < 1e-6 * fabs(a) ? a < d : half < 0.0;
            re = single ? a : disc < 0.0 ? half : half + (negative ? -root : root);
            im = !single && disc < 0.0 ? root : 0.0;
            const double inverse = single ? 1.0 : rsqrt((re - d) * (re - d) + im * im + c * c);
            const double along = single ? 1.0 : (re - d) * inverse, across = single ? 0.0 : c * inverse, turned = im * inverse;
            hr = base; hr.scale(along); hr.add(across, second);
            hi = base; hi.scale(turned);
            hr.store(warp == 0 ? ur : vr); hi.store(warp == 0 ? ui : vi);
            if (threadIdx.x == 0) { fact[0] = re; fact[1] = im; fact[2] = along; fact[3] = across; fact[8] = single || im != 0.0 ? 0.0 : a + d - re; }
            third.scale(across); third.add(along, image);
            image.scale(turned);
            base = third;  // the image of h = hr + i·hi is base + i·image
        }
        __syncthreads();
        re = fact[0]; im = fact[1];
        if (warp < 2) {  // residuals with the right vector's λ
            base.add(-re, hr); base.add(im, hi);
            image.add(-re, hi); image.add(-im, hr);
            const double residual = warp_sum(base.dot(base) + image.dot(image));
            if (lane == 0) fact[4 + warp] = residual;
        } else if (warp == 2) {  // v* is the left vector: vᵀu without conjugation
            Vector lr, li;
            hr.load(ur); hi.load(ui); lr.load(vr); li.load(vi);
            double over_re = hr.dot(lr) - hi.dot(li), over_im = hr.dot(li) + hi.dot(lr);
            warp_sums(over_re, over_im);
            if (lane == 0) { fact[6] = over_re; fact[7] = over_im; }
        }
        // What of the power lies outside the plane of u, and outside u where that is real: rows xᵀP and qᵀP, then the rest.
        two_transposed(P, shrink, x, Ax, q, Aq, room);
        const double along = fact[2], across = fact[3];
        double line_sum = 0.0;
        sum = 0.0;
        each_entry([&](int i, int j) {
            const int row = row_of(i), col = column_of(j);
            const double here = shrink * P[row * STRIDE + col], one = Ax[col], two = Aq[col];
            const double outside = here - x[row] * one - q[row] * two, beside = here - ur[row] * (along * one + across * two);
            sum += outside * outside;
            line_sum += beside * beside;
        });
        sums(sum, line_sum, others);
        const double condition = 1.0 / hypot(fact[6], fact[7]), radius = hypot(re, im), rounding = 50 * UNIT * condition * norm;
        const double residual = sqrt(fmax(fact[4], fact[5])), outside = sqrt(sum), beside = sqrt(line_sum);
        const bool accurate = residual * condition < fmax(radius / parts, rounding) && rounding < 1e-6 * radius;
        const bool alone = im != 0.0 ? outside * 4 * condition * (condition + 1) < 0.1 : beside * condition * (condition + 2) < 0.1;
        const bool larger = fabs(fact[8]) <= radius * (1.0 + 1.0 / parts);  // than the other eigenvalue in the plane, if that is real
        const bool certified = accurate && (alone || (outside < 1e-6 && larger));
        if (threadIdx.x == 0) announce(&verdict, certified ? 1.0 : 0.0);
        all_blocks();
        if (certified && warp < 2) {
            double* to = out + 6 + 2 * m * warp;
            hr.spread(to, m, 1.0);
            hi.spread(to + 1, m, warp == 0 ? 1.0 : -1.0);
        }
        if (threadIdx.x == 0) {
            out[5] = step;
            const double up = ldexp(1.0, exponent);
            if (certified) { out[0] = radius * up; out[1] = condition; out[2] = re * up; out[3] = im * up; out[4] = __longlong_as_double(1LL); }
        }
        if (certified) return;
    }
}

#if TILES == 2 && BLOCKS == 1
// K = C^(2^i) / its norm for C [SIZE, SIZE], and K g, Kᵀ g for two vectors g without a pattern: for _compressed.py. i is as large as
// it has to be, and no more than `squarings`; `exponent` is 2^i.
extern "C" __global__ void __launch_bounds__(THREADS, 1) core_power(
    const double* C, double* K, double* right, double* left, double* exponent, long long squarings
) {
    let_the_next_begin();
    wait_for_the_one_before();
    extern __shared__ double shared[];
    double* P = shared;
    double* Q = P + SIZE * STRIDE;
    double* room = Q + SIZE * STRIDE;
    double* line = room + 2 * WARPS * SIZE;
    double* others = line + 4 * WARPS;
    double* probe = others + 2 * WARPS;
    double sum = 0.0, trace = 0.0;
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) {
        const double value = C[i];
        P[i / SIZE * STRIDE + i % SIZE] = value;
        sum += value * value;
    }
    if (threadIdx.x < 2 * SIZE) probe[threadIdx.x] = scattered(threadIdx.x);
    sums(sum, trace, others);
    double shrink = sum > 0.0 ? rsqrt(sum) : 0.0;
    Signs signs;
    int last = (int)squarings;
    for (int step = 1; step <= last; step++) {
        squared(P, Q, shrink * shrink, sum, trace, line, nullptr, step);
        double* swap = P; P = Q; Q = swap;
        shrink = step <= FREE ? 1.0 : sum > 0.0 ? rsqrt(sum) : 0.0;
        if (step <= FREE) continue;
        if (!signs.ripe(step, sum, trace, shrink)) last = (int)squarings;  // it was chance
        else if (last == squarings) last = min(last, step + MORE);
    }
    if (threadIdx.x == 0) *exponent = ldexp(1.0, last);
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) K[i] = shrink * P[i / SIZE * STRIDE + i % SIZE];
    for (int i = 0; i < 2; i++) both_products(P, shrink, probe + i * SIZE, right + i * SIZE, probe + i * SIZE, left + i * SIZE, room);
}
#endif
