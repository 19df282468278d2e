// The dominant eigenvalue of one small matrix in one thread block: _device.py as a single kernel, with an early end.
//
// The matrix lives in shared memory and is squared there by the tensor cores (mma.m8n8k4 in float64: a true product, no lower
// precision anywhere). 16 warps form a 4×4 grid; each owns TILES×TILES tiles of 8×8 of the product, so that sizes up to
// 32·TILES fit. Every few squarings λ, u and v are read off the power and checked; when the check holds, the rest is saved.
// All sums are taken in a fixed order: the same matrix gives the same bits.

#define WARPS 16
#define THREADS (32 * WARPS)
#define SIZE (32 * TILES)
#define STRIDE (SIZE + 4)
#define LAST 27
#define COPY (TILES < 3)  // whether T itself fits into shared memory beside its powers
#define UNIT 1.1102230246251565e-16

__device__ __forceinline__ double warp_sum(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__device__ __forceinline__ double warp_max(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Two sums over the block, in every thread; `room` holds 2·WARPS numbers.
__device__ void block_sums(double& one, double& two, double* room) {
    one = warp_sum(one);
    two = warp_sum(two);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        room[threadIdx.x / 32] = one;
        room[WARPS + threadIdx.x / 32] = two;
    }
    __syncthreads();
    one = two = 0.0;
    for (int i = 0; i < WARPS; i++) {
        one += room[i];
        two += room[WARPS + i];
    }
}

__device__ double block_sum(double value, double* room) {
    double nothing = 0.0;
    block_sums(value, nothing, room);
    return value;
}

#if __CUDA_ARCH__ >= 900 && TILES > 1
// From Hopper on, a warp multiplies 16×8 by 8×8 in one instruction. On an H200 the whole kernel became 1.3 to 1.5 times faster.
#define GRID_ROWS (TILES == 2 ? 4 : 3)  // 16 or 12 of the warps, in rows of 4
#define HIGH (SIZE / GRID_ROWS / 16)
#define WIDE TILES

__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], double b0, double b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}

// Q = alpha·P·P; `sum` and `trace` are this thread's shares of ‖Q‖² and of the trace of Q.
__device__ void square(const double* P, double* Q, double alpha, double& sum, double& trace) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sum = trace = 0.0;
    if (warp >= 4 * GRID_ROWS) return;
    const int row0 = (warp / 4) * 16 * HIGH + lane / 4, col0 = (warp % 4) * 8 * WIDE;
    double c[HIGH][WIDE][4];
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0.0;
#pragma unroll 4
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
            for (int h = 0; h < 4; h++) {
                const double value = alpha * c[i][j][h];
                const int row = row0 + 16 * i + 8 * (h / 2), col = col0 + 8 * j + 2 * (lane % 4) + h % 2;
                Q[row * STRIDE + col] = value;
                sum += value * value;
                if (row == col) trace += value;
            }
}
#else
__device__ __forceinline__ void mma(double& c0, double& c1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(c0), "+d"(c1) : "d"(a), "d"(b));
}

// Q = alpha·P·P; `sum` and `trace` are this thread's shares of ‖Q‖² and of the trace of Q.
__device__ void square(const double* P, double* Q, double alpha, double& sum, double& trace) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = (warp / 4) * 8 * TILES + lane / 4, col0 = (warp % 4) * 8 * TILES;
    double c[TILES][TILES][2];
    for (int i = 0; i < TILES; i++)
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
        for (int j = 0; j < TILES; j++)
            for (int h = 0; h < 2; h++) {
                const double value = alpha * c[i][j][h];
                const int row = row0 + 8 * i, col = col0 + 8 * j + 2 * (lane % 4) + h;
                Q[row * STRIDE + col] = value;
                sum += value * value;
                if (row == col) trace += value;
            }
}
#endif

// y = scale·M x and z = scale·Mᵀ w, for M [m, m] with the given row stride, in shared or global memory.
__device__ void both_products(
    const double* M, int stride, int m, double scale, const double* x, double* y, const double* w, double* z, double* room
) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double columns[TILES];
    for (int j = 0; j < TILES; j++) columns[j] = 0.0;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        const int row = warp + WARPS * i;
        double sum = 0.0;
        if (row < m) {
            const double weight = w[row];
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const int col = lane + 32 * j;
                const double value = col < m ? M[row * stride + col] : 0.0;
                sum += value * (col < m ? x[col] : 0.0);
                columns[j] += value * weight;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0 && row < m) y[row] = scale * sum;
    }
    for (int j = 0; j < TILES; j++) room[warp * SIZE + lane + 32 * j] = columns[j];
    __syncthreads();
    for (int col = threadIdx.x; col < m; col += THREADS) {
        double sum = 0.0;
        for (int i = 0; i < WARPS; i++) sum += room[i * SIZE + col];
        z[col] = scale * sum;
    }
    __syncthreads();
}

// z1 = scale·Mᵀ w1 and z2 = scale·Mᵀ w2.
__device__ void two_transposed(
    const double* M, int stride, int m, double scale, const double* w1, double* z1, const double* w2, double* z2, double* room
) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double first[TILES], second[TILES];
    for (int j = 0; j < TILES; j++) first[j] = second[j] = 0.0;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        const int row = warp + WARPS * i;
        if (row < m) {
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const int col = lane + 32 * j;
                const double value = col < m ? M[row * stride + col] : 0.0;
                first[j] += value * w1[row];
                second[j] += value * w2[row];
            }
        }
    }
    for (int half = 0; half < 2; half++) {
        for (int j = 0; j < TILES; j++) room[warp * SIZE + lane + 32 * j] = half ? second[j] : first[j];
        __syncthreads();
        for (int col = threadIdx.x; col < m; col += THREADS) {
            double sum = 0.0;
            for (int i = 0; i < WARPS; i++) sum += room[i * SIZE + col];
            (half ? z2 : z1)[col] = scale * sum;
        }
        __syncthreads();
    }
}

// Vectors of one warp: lane l holds entries l, l + 32, …
struct Vector {
    double v[TILES];
    __device__ void load(const double* p, int m) {
        for (int j = 0; j < TILES; j++) { const int i = threadIdx.x % 32 + 32 * j; v[j] = i < m ? p[i] : 0.0; }
    }
    __device__ void store(double* p, int m, int step = 1) const {
        for (int j = 0; j < TILES; j++) { const int i = threadIdx.x % 32 + 32 * j; if (i < m) p[step * i] = v[j]; }
    }
    __device__ double dot(const Vector& o) const {
        double sum = 0.0;
        for (int j = 0; j < TILES; j++) sum += v[j] * o.v[j];
        return warp_sum(sum);
    }
    __device__ void scale(double s) { for (int j = 0; j < TILES; j++) v[j] *= s; }
    __device__ void add(double s, const Vector& o) { for (int j = 0; j < TILES; j++) v[j] += s * o.v[j]; }
};

// ρ must be exact to one part in `parts`. out: radius, condition, λ, certified, squarings, then u and v (v* is the left vector), complex numbers as pairs. All zeros and an
// infinite condition if it is not certified.
extern "C" __global__ void __launch_bounds__(THREADS, 1) spectral_radius(const double* __restrict__ T, long long size, double* __restrict__ out, long long parts) {
    const int m = (int)size;
    extern __shared__ double shared[];
    double* P = shared;
    double* Q = P + SIZE * STRIDE;
    double* room = Q + SIZE * STRIDE;        // WARPS × SIZE
    double* line = room + WARPS * SIZE;      // 2·WARPS
    double* vec = line + 2 * WARPS;          // 13 vectors
    double *x = vec, *y = vec + SIZE, *Ax = vec + 2 * SIZE, *Ay = vec + 3 * SIZE, *q = vec + 4 * SIZE, *r = vec + 5 * SIZE;
    double *Aq = vec + 6 * SIZE, *Ar = vec + 7 * SIZE, *ur = vec + 8 * SIZE, *ui = vec + 9 * SIZE, *vr = vec + 10 * SIZE, *vi = vec + 11 * SIZE;
    double* probe = vec + 12 * SIZE;
    __shared__ double fact[8];               // Re λ, Im λ, right residual, verdict, …
    const int warp = threadIdx.x / 32;

    double largest = 0.0;
    bool finite = true;
    for (int i = threadIdx.x; i < m * m; i += THREADS) {
        const double value = fabs(T[i]);
        largest = fmax(largest, value);
        finite = finite && value <= 1.7976931348623157e308;
    }
    finite = __syncthreads_and(finite);
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) line[warp] = largest;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) largest = fmax(largest, line[i]);
    for (int i = threadIdx.x; i < 6 + 4 * m; i += THREADS) out[i] = i == 1 ? __longlong_as_double(0x7ff0000000000000LL) : 0.0;
    if (!finite || largest == 0.0) return;

    int exponent;
    frexp(largest, &exponent);
    exponent = max(-1000, min(1000, exponent));
    const double down = ldexp(1.0, -exponent), up = ldexp(1.0, exponent);
    double sum = 0.0;
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) {
        const int row = i / SIZE, col = i % SIZE;
        const double value = row < m && col < m ? T[row * m + col] * down : 0.0;
        P[row * STRIDE + col] = value;
#if COPY
        probe[SIZE + row * STRIDE + col] = value;  // T once more, where it is near
#endif
        sum += value * value;
    }
#if COPY
    const double* A = probe + SIZE;
    const int stride = STRIDE;
    const double near = 1.0;
#else
    const double* A = T;
    const int stride = m;
    const double near = down;
#endif
    for (int i = threadIdx.x; i < SIZE; i += THREADS) {
        const double s = sin((i + 1) * 12.9898) * 43758.5453;
        probe[i] = s - trunc(s);
    }
    const double norm = sqrt(block_sum(sum, line));
    double shrink = 1.0 / norm;  // the power is shrink·P
    double t1 = 0.0, t2 = 0.0, n2 = 1.0;  // traces of the last two powers (of norm 1), and the norm of the last one's predecessor squared
    for (int step = 1; step <= LAST; step++) {
        double trace;
        square(P, Q, shrink * shrink, sum, trace);
        block_sums(sum, trace, line);
        double* swap = P; P = Q; Q = swap;
        const double n3 = sqrt(sum);
        shrink = sum > 0.0 ? 1.0 / n3 : 0.0;
        // With only two eigenvalues left, the traces of M, M² and M⁴ obey Newton's identity: a cheap sign that it is time to look.
        const double t3 = trace * shrink, p2 = n2 * t2, p4 = n2 * n2 * n3 * t3, e2 = (t1 * t1 - p2) / 2;
        const bool ripe = step > 3 && fabs(p4 - (p2 * p2 - 2 * e2 * e2)) < 1e-5 * (p2 * p2 + 2 * e2 * e2);
        t1 = t2; t2 = t3; n2 = n3;
        if (!(ripe || step == 15 || step == 21 || step == LAST)) continue;

        // x = P g, y = Pᵀ g: in the range of λ's spectral projector, and in its row space.
        both_products(P, STRIDE, m, shrink, probe, x, probe, y, room);
        if (warp < 2) {
            double* p = warp == 0 ? x : y;
            Vector a; a.load(p, m); a.scale(rsqrt(a.dot(a))); a.store(p, m);
        }
        __syncthreads();
        both_products(A, stride, m, near, x, Ax, y, Ay, room);
        double a = 0.0, c = 0.0;
        bool single = false;
        if (warp < 2) {  // warp 0 for the right vector, warp 1 for the left one
            Vector base, image; base.load(warp == 0 ? x : y, m); image.load(warp == 0 ? Ax : Ay, m);
            a = base.dot(image);
            image.add(-a, base);
            c = sqrt(image.dot(image));
            single = c < 4 * UNIT * fabs(a);
            image.scale(single ? 0.0 : 1.0 / c);
            image.add(-base.dot(image), base);
            const double length = image.dot(image);
            image.scale(single || length == 0.0 ? 0.0 : rsqrt(length));
            image.store(warp == 0 ? q : r, m);
        }
        __syncthreads();
        both_products(A, stride, m, near, q, Aq, r, Ar, room);
        double re = 0.0, im = 0.0;
        Vector hr, hi, Ahr, Ahi;  // the vector and its image
        if (warp < 2) {
            Vector base, image, second, third;
            base.load(warp == 0 ? x : y, m); image.load(warp == 0 ? Ax : Ay, m);
            second.load(warp == 0 ? q : r, m); third.load(warp == 0 ? Aq : Ar, m);
            const double b = base.dot(third), d = second.dot(third), half = (a + d) / 2;
            const double disc = (a - d) * (a - d) / 4 + b * c, root = sqrt(fabs(disc));
            const bool negative = c < 1e-6 * fabs(a) ? a < d : half < 0.0;
            re = single ? a : disc < 0.0 ? half : half + (negative ? -root : root);
            im = !single && disc < 0.0 ? root : 0.0;
            hr = base; hr.scale(single ? 1.0 : re - d); hr.add(single ? 0.0 : c, second);
            hi = base; hi.scale(single ? 0.0 : im);
            Ahr = image; Ahr.scale(single ? 1.0 : re - d); Ahr.add(single ? 0.0 : c, third);
            Ahi = image; Ahi.scale(single ? 0.0 : im);
            const double inverse = rsqrt(hr.dot(hr) + hi.dot(hi));
            hr.scale(inverse); hi.scale(inverse); Ahr.scale(inverse); Ahi.scale(inverse);
            hr.store(warp == 0 ? ur : vr, m); hi.store(warp == 0 ? ui : vi, m);
            if (warp == 0 && threadIdx.x == 0) { fact[0] = re; fact[1] = im; }
        }
        __syncthreads();
        if (warp < 2) {  // residuals with the right vector's λ
            re = fact[0]; im = fact[1];
            Ahr.add(-re, hr); Ahr.add(im, hi);
            Ahi.add(-re, hi); Ahi.add(-im, hr);
            const double residual = sqrt(Ahr.dot(Ahr) + Ahi.dot(Ahi));
            if (threadIdx.x % 32 == 0) fact[2 + warp] = residual;
        }
        // What of the power lies outside the plane of u: rows xᵀP and qᵀP, then the rest, entry by entry.
        two_transposed(P, STRIDE, m, shrink, x, Ax, q, Aq, room);
        sum = 0.0;
        for (int i = threadIdx.x; i < m * m; i += THREADS) {
            const int row = i / m, col = i % m;
            const double rest = shrink * P[row * STRIDE + col] - x[row] * Ax[col] - q[row] * Aq[col];
            sum += rest * rest;
        }
        const double outside = sqrt(block_sum(sum, line));
        if (warp == 0) {
            Vector lr, li; lr.load(vr, m); li.load(vi, m);
            const double over_re = hr.dot(lr) - hi.dot(li), over_im = hr.dot(li) + hi.dot(lr);
            const double condition = 1.0 / hypot(over_re, over_im), radius = hypot(re, im);
            const double residual = fmax(fact[2], fact[3]), rounding = 50 * UNIT * condition * norm;
            const bool accurate = residual * condition < fmax(radius / parts, rounding) && rounding < 1e-6 * radius;
            const bool certified = accurate && outside < 1e-6;
            if (certified) {
                Vector minus = li; minus.scale(-1.0);
                hr.store(out + 6, m, 2); hi.store(out + 7, m, 2); lr.store(out + 6 + 2 * m, m, 2); minus.store(out + 7 + 2 * m, m, 2);
            }
            if (threadIdx.x == 0) {
                fact[4] = certified;
                out[5] = step;
                if (certified) { out[0] = radius * up; out[1] = condition; out[2] = re * up; out[3] = im * up; out[4] = 1.0; }
            }
        }
        __syncthreads();
        if (fact[4] != 0.0) return;
        __syncthreads();
    }
}

#if TILES == 2
// K = C^(2^squarings) / its norm for C [SIZE, SIZE], and K g, K^T g for two vectors g without a pattern: for _compressed.py.
extern "C" __global__ void __launch_bounds__(THREADS, 1) core_power(const double* __restrict__ C, double* __restrict__ K, double* __restrict__ right, double* __restrict__ left, long long squarings) {
    extern __shared__ double shared[];
    double* P = shared;
    double* Q = P + SIZE * STRIDE;
    double* room = Q + SIZE * STRIDE;
    double* line = room + WARPS * SIZE;
    double* probe = line + 2 * WARPS;
    double sum = 0.0, trace;
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) {
        const double value = C[i];
        P[i / SIZE * STRIDE + i % SIZE] = value;
        sum += value * value;
    }
    for (int i = threadIdx.x; i < 2 * SIZE; i += THREADS) {
        const double s = sin((i + 1) * 12.9898) * 43758.5453;
        probe[i] = s - trunc(s);
    }
    sum = block_sum(sum, line);
    double shrink = sum > 0.0 ? 1.0 / sqrt(sum) : 0.0;
    for (int step = 0; step < squarings; step++) {
        square(P, Q, shrink * shrink, sum, trace);
        sum = block_sum(sum, line);
        double* swap = P; P = Q; Q = swap;
        shrink = sum > 0.0 ? 1.0 / sqrt(sum) : 0.0;
    }
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) K[i] = shrink * P[i / SIZE * STRIDE + i % SIZE];
    for (int i = 0; i < 2; i++) both_products(P, STRIDE, SIZE, shrink, probe + i * SIZE, right + i * SIZE, probe + i * SIZE, left + i * SIZE, room);
}
#endif
