// What _compressed.py needs beside library products: a Cholesky factor, products with vectors, and the eigenvalue at the end.
// Sums are taken in a fixed order: the same matrix gives the same bits. What is not a number makes a result uncertified.

#define WIDTH 64        // columns of the basis
#define THREADS 512
#define WARPS (THREADS / 32)
#define UNIT 1.1102230246251565e-16

__device__ __forceinline__ double warp_sum(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// 1/x for a positive x of moderate size, from 23 bits by two steps of Newton's.
__device__ double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    for (int i = 0; i < 2; i++) y = fma(y, fma(-x, y, 1.0), y);
    return y;
}

// COUNT sums over the block at once, in every thread.
template <int COUNT> __device__ void block_sums(double (&value)[COUNT]) {
    __shared__ double room[COUNT][WARPS];
#pragma unroll
    for (int i = 0; i < COUNT; i++) value[i] = warp_sum(value[i]);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < COUNT; i++) room[i][threadIdx.x / 32] = value[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        value[i] = 0.0;
        for (int warp = 0; warp < WARPS; warp++) value[i] += room[i][warp];
    }
}

// M = R^-1 with R^T R = G + shift·max(diag G)·I, upper triangular: Z M is orthonormal where Z^T Z = G, but for the shift.
//
// Pivot by pivot, row p of G is subtracted from the rows below it, and from the rows of the inverse above it by the same formula;
// so both live in one array, eight entries to a thread, and there is one barrier a pivot.
extern "C" __global__ void __launch_bounds__(THREADS) orthonormalizer(const double* __restrict__ G, double* __restrict__ M, long long last) {
    __shared__ double row[2][WIDTH], column[2][WIDTH], diagonal[WIDTH];
    const int i = threadIdx.x / 8, j = threadIdx.x % 8;  // this thread's row, and columns j, j + 8, …
    if (threadIdx.x < WIDTH) diagonal[threadIdx.x] = G[threadIdx.x * (WIDTH + 1)];
    __syncthreads();
    double largest = 0.0;
    for (int k = 0; k < WIDTH; k++) largest = fmax(largest, diagonal[k]);
    const double shift = largest * (last ? 1e-15 : 1e-12);
    double a[WIDTH / 8];
#pragma unroll
    for (int k = 0; k < WIDTH / 8; k++) a[k] = G[i * WIDTH + j + 8 * k] + (i == j + 8 * k ? shift : 0.0);
#pragma unroll
    for (int k0 = 0; k0 < WIDTH / 8; k0++)
#pragma unroll 1
        for (int j0 = 0; j0 < 8; j0++) {
            const int p = 8 * k0 + j0, now = j0 & 1;
            if (i == p)
#pragma unroll
                for (int k = 0; k < WIDTH / 8; k++) row[now][j + 8 * k] = a[k];
            if (j == j0) column[now][i] = a[k0];
            __syncthreads();
            const double factor = (i == p ? 1.0 : column[now][i]) * reciprocal(row[now][p]);
#pragma unroll
            for (int k = 0; k < WIDTH / 8; k++) a[k] = (i == p ? 0.0 : a[k]) - factor * row[now][j + 8 * k];
            if (j == j0) {
                const double root = rsqrt(row[now][p]);
                M[i * WIDTH + p] = i < p ? column[now][i] * root : i == p ? root : 0.0;
            }
        }
}

// y = A x for A [rows, inner], and z = B^T w for B [depth, columns]; `squares`, if given, takes the sum of squares of every row of A.
extern "C" __global__ void __launch_bounds__(256) products(
    const double* __restrict__ A, const double* __restrict__ x, double* __restrict__ y, double* __restrict__ squares, long long rows, long long inner,
    const double* __restrict__ B, const double* __restrict__ w, double* __restrict__ z, long long depth, long long columns
) {
    const int row_blocks = (int)((rows + 7) / 8);
    if (blockIdx.x < row_blocks) {  // a warp makes a row
        const long long row = 8LL * blockIdx.x + threadIdx.x / 32;
        if (row >= rows) return;
        const double* at = A + row * inner;
        double sum = 0.0, square = 0.0;
#pragma unroll 8
        for (int k = threadIdx.x % 32; k < inner; k += 32) {
            const double value = at[k];
            sum += value * x[k];
            square += value * value;
        }
        sum = warp_sum(sum);
        square = warp_sum(square);
        if (threadIdx.x % 32 == 0) {
            y[row] = sum;
            if (squares) squares[row] = square;
        }
        return;
    }
    __shared__ double part[32][9];  // eight columns, the rows in 32 shares
    const int share = threadIdx.x / 8, mine = threadIdx.x % 8;
    const long long column = 8LL * (blockIdx.x - row_blocks) + mine;
    double sum = 0.0;
    if (column < columns)
#pragma unroll 8
        for (int k = share; k < depth; k += 32) sum += B[k * columns + column] * w[k];
    part[share][mine] = sum;
    __syncthreads();
    if (share == 0 && column < columns) {
        sum = 0.0;
        for (int k = 0; k < 32; k++) sum += part[k][mine];
        z[column] = sum;
    }
}

// vectors holds, for the right side (block 0) and the left one (block 1), m numbers each: x and its image Mx, then, to be written,
// x of length one with its image, and q, the second direction of the plane. facts: a = x·Mx and c, the length of the image outside x.
extern "C" __global__ void __launch_bounds__(THREADS) plane(double* __restrict__ vectors, double* __restrict__ facts, long long size) {
    const int m = (int)size;
    const double *x = vectors + blockIdx.x * size, *Mx = x + 2 * size;
    double *base = vectors + (4 + blockIdx.x) * size, *image = base + 2 * size, *second = base + 4 * size;
    double sums[2] = {0.0, 0.0};
    for (int i = threadIdx.x; i < m; i += THREADS) sums[0] += x[i] * x[i], sums[1] += x[i] * Mx[i];
    block_sums(sums);
    const double inverse = rsqrt(sums[0]), a = sums[1] * inverse * inverse;
    double rest[1] = {0.0};
    for (int i = threadIdx.x; i < m; i += THREADS) {
        const double u = x[i] * inverse, v = Mx[i] * inverse, r = v - a * u;
        base[i] = u, image[i] = v;
        rest[0] += r * r;
    }
    block_sums(rest);
    const double c = sqrt(rest[0]);
    const bool single = c < 4 * UNIT * fabs(a);  // x is an eigenvector but for rounding
    const double shrink = single ? 0.0 : 1.0 / c;
    double overlap[2] = {0.0, 0.0};  // a rest at rounding level is not orthogonal to x the first time
    for (int i = threadIdx.x; i < m; i += THREADS) {
        const double q = (image[i] - a * base[i]) * shrink;
        overlap[0] += q * base[i], overlap[1] += q * q;
    }
    block_sums(overlap);
    const double length = overlap[1] - overlap[0] * overlap[0], again = single || !(length > 0.0) ? 0.0 : rsqrt(length);
    for (int i = threadIdx.x; i < m; i += THREADS) second[i] = ((image[i] - a * base[i]) * shrink - overlap[0] * base[i]) * again;
    if (threadIdx.x == 0) facts[2 * blockIdx.x] = a, facts[2 * blockIdx.x + 1] = single ? -1.0 : c;
}

struct Side {
    double re, im, along, across;  // λ; the vector is (along + i·im)·x + across·q
    __device__ Side(double a, double c, double b, double d) {
        const bool single = c < 0.0;
        const double half = (a + d) / 2, disc = (a - d) * (a - d) / 4 + b * c, root = sqrt(fabs(disc));
        const bool negative = c < 1e-6 * fabs(a) ? a < d : half < 0.0;
        re = single ? a : disc < 0.0 ? half : half + (negative ? -root : root);
        im = !single && disc < 0.0 ? root : 0.0;
        along = single ? 1.0 : re - d;
        across = single ? 0.0 : c;
    }
};

// The eigenvalue, its vectors and the verdict. `given`: what `plane` has left, with the images of q at its end (six pairs of vectors);
// X [m, WIDTH], K [WIDTH, WIDTH] of norm 1 with T^K = X K R; `start` and `power`: x before and after the power T^k was applied to it;
// delta: the norm of T^k - X R. out: as in spectral_radius.cu.
extern "C" __global__ void __launch_bounds__(THREADS) finish(
    const double* __restrict__ given, const double* __restrict__ facts, const double* __restrict__ X, const double* __restrict__ K,
    const double* __restrict__ start, const double* __restrict__ power, const double* __restrict__ squares, const double* __restrict__ delta,
    const double* __restrict__ scale, double* __restrict__ out, long long size
) {
    __shared__ double part[WARPS][2][WIDTH], in_plane[2][WIDTH], rows[2][WIDTH];
    const int m = (int)size, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const double *x = given, *y = x + m, *Tx = y + m, *Ty = Tx + m, *q = Ty + m, *r = q + m, *Tq = r + m, *Tr = Tq + m;

    double inner[7] = {};
    for (int i = threadIdx.x; i < m; i += THREADS) {
        inner[0] += x[i] * Tq[i], inner[1] += q[i] * Tq[i];
        inner[2] += y[i] * Tr[i], inner[3] += r[i] * Tr[i];
        inner[4] += squares[i], inner[5] += start[i] * start[i], inner[6] += power[i] * power[i];
    }
    block_sums(inner);
    const Side right(facts[0], facts[1], inner[0], inner[1]), left(facts[2], facts[3], inner[2], inner[3]);
    const double norm = sqrt(inner[4]), missed = *delta * sqrt(inner[5] / inner[6]);

    double sums[6] = {};  // lengths, residuals with the right side's λ, and the product of the two vectors
    for (int i = threadIdx.x; i < m; i += THREADS) {
        const double hr = right.along * x[i] + right.across * q[i], hi = right.im * x[i];
        const double gr = left.along * y[i] + left.across * r[i], gi = left.im * y[i];
        const double er = right.along * Tx[i] + right.across * Tq[i] - right.re * hr + right.im * hi, ei = right.im * Tx[i] - right.re * hi - right.im * hr;
        const double fr = left.along * Ty[i] + left.across * Tr[i] - right.re * gr + right.im * gi, fi = left.im * Ty[i] - right.re * gi - right.im * gr;
        sums[0] += hr * hr + hi * hi, sums[1] += gr * gr + gi * gi;
        sums[2] += er * er + ei * ei, sums[3] += fr * fr + fi * fi;
        sums[4] += hr * gr - hi * gi, sums[5] += hr * gi + hi * gr;
    }
    block_sums(sums);
    const double one = rsqrt(sums[0]), other = rsqrt(sums[1]);
    const double residual = fmax(sqrt(sums[2]) * one, sqrt(sums[3]) * other), radius = hypot(right.re, right.im);
    const double condition = 1.0 / (hypot(sums[4], sums[5]) * one * other), rounding = 50 * UNIT * condition * norm;

    // What of the power K lies outside the plane of u.
    double share[2][2] = {};
#pragma unroll 8
    for (int i = warp; i < m; i += WARPS)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const double value = X[(long long)i * WIDTH + lane + 32 * h];
            share[0][h] += value * x[i], share[1][h] += value * q[i];
        }
#pragma unroll
    for (int h = 0; h < 2; h++) part[warp][0][lane + 32 * h] = share[0][h], part[warp][1][lane + 32 * h] = share[1][h];
    __syncthreads();
    if (threadIdx.x < 2 * WIDTH) {
        double sum = 0.0;
        for (int i = 0; i < WARPS; i++) sum += part[i][threadIdx.x / WIDTH][threadIdx.x % WIDTH];
        in_plane[threadIdx.x / WIDTH][threadIdx.x % WIDTH] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 2 * WIDTH) {
        double sum = 0.0;
#pragma unroll 16
        for (int i = 0; i < WIDTH; i++) sum += in_plane[threadIdx.x / WIDTH][i] * K[i * WIDTH + threadIdx.x % WIDTH];
        rows[threadIdx.x / WIDTH][threadIdx.x % WIDTH] = sum;
    }
    __syncthreads();
    double outside[1] = {0.0};
    for (int i = threadIdx.x; i < WIDTH * WIDTH; i += THREADS) {
        const double rest = K[i] - in_plane[0][i / WIDTH] * rows[0][i % WIDTH] - in_plane[1][i / WIDTH] * rows[1][i % WIDTH];
        outside[0] += rest * rest;
    }
    block_sums(outside);

    const bool accurate = residual * condition < fmax(1e-12 * radius, rounding) && rounding < 1e-6 * radius;
    const bool certified = accurate && outside[0] < 1e-12 && missed < 1e-6;
    for (int i = threadIdx.x; i < m; i += THREADS) {
        double *u = out + 6 + 2 * i, *v = u + 2 * size;
        u[0] = certified ? one * (right.along * x[i] + right.across * q[i]) : 0.0;
        u[1] = certified ? one * right.im * x[i] : 0.0;
        v[0] = certified ? other * (left.along * y[i] + left.across * r[i]) : 0.0;
        v[1] = certified ? -other * left.im * y[i] : 0.0;
    }
    if (threadIdx.x == 0) {
        out[0] = certified ? radius * *scale : 0.0;
        out[1] = certified ? condition : __longlong_as_double(0x7ff0000000000000LL);
        out[2] = certified ? right.re * *scale : 0.0;
        out[3] = certified ? right.im * *scale : 0.0;
        out[4] = certified ? 1.0 : 0.0;
        out[5] = 0.0;
    }
}
