// What _compressed.py needs beside library products: a matrix in range, a Cholesky factor, products with vectors, and the eigenvalue at the end.
// Sums are taken in a fixed order: the same matrix gives the same bits. What is not a number makes a result uncertified.

#define WIDTH 64        // columns of the basis
#define THREADS 512
#define WARPS (THREADS / 32)
#define SHARES 64       // thread blocks that look for the largest entry
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

// What is not a number is larger than all numbers.
__device__ __forceinline__ double larger(double a, double b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ double warp_largest(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
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

// The largest |entry| of each thread block's share of a matrix; not a number if an entry is not.
extern "C" __global__ void __launch_bounds__(THREADS) largest(const double* matrix, double* shares, long long count) {
    let_the_next_begin();
    __shared__ double room[WARPS];
    double most = 0.0;
#pragma unroll 4
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += gridDim.x * (long long)THREADS)
        most = larger(most, fabs(matrix[i]));
    most = warp_largest(most);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < WARPS; i++) most = larger(most, room[i]);
    shares[blockIdx.x] = most;
}

// The matrix over the power of two just above its largest entry, as `power_of_two_above` has it. What is not finite stays so.
template <class Real> __device__ __forceinline__ void divide(const Real* matrix, const Real* shares, double* result, double* scale, long long count) {
    wait_for_the_one_before();
    let_the_next_begin();
    double most = 0.0;
    for (int i = threadIdx.x % 32; i < SHARES; i += 32) most = larger(most, (double)shares[i]);
    most = warp_largest(most);
    int exponent = 0;
    if (isfinite(most)) frexp(most, &exponent);
    exponent = min(max(exponent, -1000), 1000);
    const double inverse = __longlong_as_double((1023LL - exponent) << 52);
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += gridDim.x * (long long)THREADS) result[i] = matrix[i] * inverse;
    if (blockIdx.x == 0 && threadIdx.x == 0) *scale = __longlong_as_double((1023LL + exponent) << 52);
}
extern "C" __global__ void __launch_bounds__(THREADS) scaled(const double* matrix, const double* shares, double* result, double* scale, long long count) {
    divide(matrix, shares, result, scale, count);
}
// A matrix in single precision, whose largest entries normalize.cu has looked for.
extern "C" __global__ void __launch_bounds__(THREADS) scaled_single(const float* matrix, const float* shares, double* result, double* scale, long long count) {
    divide(matrix, shares, result, scale, count);
}

// Shares of ‖P − X R‖², for P [m, m], in tiles of 64 × 64. What is read was there before the kernel before this one began, and nothing else uses
// the memory that is written; so that one is waited for at the end only, for the sake of those that come after. There are few thread blocks, for
// they keep their places until then.
extern "C" __global__ void __launch_bounds__(256, 2) missed(const double* P, const double* X, const double* R, double* shares, long long size) {
    constexpr int TILE = 64, DEPTH = 16;
    __shared__ double left[DEPTH][TILE + 1], right[DEPTH][TILE];
    __shared__ double part[8];
    const int m = (int)size, tiles = (m + TILE - 1) / TILE, down = threadIdx.x / 16, across = threadIdx.x % 16;
    double sum = 0.0;
    for (int tile = blockIdx.x; tile < tiles * tiles; tile += gridDim.x) {
        const int row = tile / tiles * TILE, column = tile % tiles * TILE;
        double rest[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = row + down + 16 * i, to = column + across + 16 * j;
                rest[i][j] = at < m && to < m ? P[(long long)at * m + to] : 0.0;
            }
        for (int k = 0; k < WIDTH; k += DEPTH) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int of_X = threadIdx.x / DEPTH + 16 * i, of_R = threadIdx.x / TILE + 4 * i;
                const int at = row + of_X, to = column + threadIdx.x % TILE;
                left[threadIdx.x % DEPTH][of_X] = at < m ? X[(long long)at * WIDTH + k + threadIdx.x % DEPTH] : 0.0;
                right[of_R][threadIdx.x % TILE] = to < m ? R[(long long)(k + of_R) * m + to] : 0.0;
            }
            __syncthreads();
#pragma unroll
            for (int inner = 0; inner < DEPTH; inner++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) rest[i][j] -= left[inner][down + 16 * i] * right[inner][across + 16 * j];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum += rest[i][j] * rest[i][j];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0;
        for (int i = 0; i < 8; i++) sum += part[i];
        shares[blockIdx.x] = sum;
    }
    let_the_next_begin();
    wait_for_the_one_before();
}

// C = Σ_k a_k b_kᵀ, [WIDTH, WIDTH]: the entries of a_k lie a_step apart, and a_(k+1) begins a_next further on. A thread block makes a square of 8 × 8,
// and each of its warps a share of the sum.
extern "C" __global__ void __launch_bounds__(THREADS) inner(
    const double* A, long long a_next, long long a_step, const double* B, long long b_next, long long b_step, double* C, long long size
) {
    wait_for_the_one_before();
    let_the_next_begin();
    constexpr int SIDE = 8, AT_ONCE = 12;
    __shared__ double part[WARPS][SIDE][SIDE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x / (WIDTH / SIDE) * SIDE, column = blockIdx.x % (WIDTH / SIDE) * SIDE;
    const double *a = A + (row + lane / 4) * a_step, *b = B + (column + lane / 4) * b_step;
    const long long length = (size + 4 * WARPS - 1) / (4 * WARPS) * 4, begin = warp * length, end = min(size, begin + length);
    double sums[2] = {};
    for (long long start = begin; start < end; start += 4 * AT_ONCE) {
        double x[AT_ONCE], y[AT_ONCE];  // all are fetched before the first is used: at m = 720, all there are
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const long long k = start + 4 * n + lane % 4;
            x[n] = k < end ? a[k * a_next] : 0.0, y[n] = k < end ? b[k * b_next] : 0.0;
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(sums[0]), "+d"(sums[1]) : "d"(x[n]), "d"(y[n]));
    }
    for (int i = 0; i < 2; i++) part[warp][lane / 4][lane % 4 * 2 + i] = sums[i];
    __syncthreads();
    if (threadIdx.x >= SIDE * SIDE) return;
    const int down = threadIdx.x / SIDE, across = threadIdx.x % SIDE;
    double sum = 0.0;
    for (int i = 0; i < WARPS; i++) sum += part[i][down][across];
    C[(row + down) * WIDTH + column + across] = sum;
}

// Z = X M for X [m, WIDTH], eight rows to a thread block.
extern "C" __global__ void __launch_bounds__(256) apply(const double* X, const double* M, double* Z, long long size) {
    wait_for_the_one_before();
    let_the_next_begin();
    __shared__ double rows[8][WIDTH], factor[WIDTH * WIDTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long first = 8LL * blockIdx.x;
    for (int i = threadIdx.x; i < 8 * WIDTH; i += 256) rows[i / WIDTH][i % WIDTH] = first + i / WIDTH < size ? X[first * WIDTH + i] : 0.0;
#pragma unroll
    for (int i = 0; i < WIDTH * WIDTH; i += 256) factor[i + threadIdx.x] = M[i + threadIdx.x];
    __syncthreads();
    double sums[2] = {};
#pragma unroll 16
    for (int k = 0; k < WIDTH; k++)
        for (int h = 0; h < 2; h++) sums[h] += rows[warp][k] * factor[k * WIDTH + lane + 32 * h];
    if (first + warp < size)
        for (int h = 0; h < 2; h++) Z[(first + warp) * WIDTH + lane + 32 * h] = sums[h];
}

// M = R^-1 with R^T R = G + shift·max(diag G)·I, upper triangular: Z M is orthonormal where Z^T Z = G, but for the shift.
//
// Pivot by pivot, row p of G is subtracted from the rows below it, and from the rows of the inverse above it by the same formula; so both live in
// one array, a thread having every sixteenth row and column. Two pivots are taken at a time: their rows and columns are exchanged behind one
// barrier, and what the first does to those of the second every thread works out for itself, with one reciprocal for both.
extern "C" __global__ void __launch_bounds__(256, 1) orthonormalizer(const double* G, double* M, long long last) {
    wait_for_the_one_before();
    let_the_next_begin();
    __shared__ double row[2][2][WIDTH], column[2][2][WIDTH], diagonal[WIDTH];  // of G, and later the pivots
    const int i = threadIdx.x / 16, j = threadIdx.x % 16;  // this thread's first row and column
    double a[4][4], done[4][4];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) a[r][c] = G[(i + 16 * r) * WIDTH + j + 16 * c];
    if (i == j)
#pragma unroll
        for (int r = 0; r < 4; r++) diagonal[i + 16 * r] = a[r][r];
    __syncthreads();
    const double largest = warp_largest(fmax(diagonal[threadIdx.x % 32], diagonal[threadIdx.x % 32 + 32]));
    if (i == j)
#pragma unroll
        for (int r = 0; r < 4; r++) a[r][r] += largest * (last ? 1e-15 : 1e-12);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll 1
        for (int t = 0; t < 16; t += 2) {
            const int p = 16 * k + t, now = t / 2 & 1;
            const bool in_row = i / 2 == t / 2, in_column = j / 2 == t / 2;
            if (in_row)
#pragma unroll
                for (int c = 0; c < 4; c++) row[now][i % 2][j + 16 * c] = a[k][c];
            if (in_column)  // and in the rows of the pivots what makes them come out right by the formula of all others
#pragma unroll
                for (int r = 0; r < 4; r++) column[now][j % 2][i + 16 * r] = in_row && r == k ? (double)(i == j) : a[r][k];
            if (in_row)
#pragma unroll
                for (int c = 0; c < 4; c++) a[k][c] = 0.0;
            __syncthreads();
            const double one = row[now][0][p], across = row[now][0][p + 1], below = row[now][1][p];
            const double both = one * row[now][1][p + 1] - across * below, inverse = reciprocal(one * both);
            const double of_first = both * inverse, of_second = one * one * inverse, carry = below * of_first;  // 1 over either pivot
            double top[4], next[4];
#pragma unroll
            for (int c = 0; c < 4; c++) top[c] = row[now][0][j + 16 * c], next[c] = row[now][1][j + 16 * c] - carry * top[c];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const double before = column[now][0][i + 16 * r], factor = before * of_first, left = column[now][1][i + 16 * r] - factor * across;
                const double again = left * of_second;
#pragma unroll
                for (int c = 0; c < 4; c++) a[r][c] = a[r][c] - factor * top[c] - again * next[c];
                if (in_column) done[r][k] = j % 2 ? left : before;
            }
            if (threadIdx.x == 0) diagonal[p] = one, diagonal[p + 1] = both * of_first;
        }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int to = j + 16 * c;
        const double root = rsqrt(diagonal[to]);
#pragma unroll
        for (int r = 0; r < 4; r++) M[(i + 16 * r) * WIDTH + to] = i + 16 * r < to ? done[r][c] * root : i + 16 * r == to ? root : 0.0;
    }
}

// y = A x for A [rows, inner], and z = B^T w for B [depth, columns], for `count` (one or two) vectors x and w, one after the other in
// memory, as their results are; `squares`, if given, takes the sum of squares of every row of A. And if there is X [rows, WIDTH], `in_basis`
// takes the products X^T p for two vectors p, `apart` one after the other.
extern "C" __global__ void __launch_bounds__(256) products(
    const double* A, const double* x, double* y, double* squares, long long rows, long long inner,
    const double* B, const double* w, double* z, long long depth, long long columns, long long count,
    const double* X, const double* p, long long apart, double* in_basis
) {
    wait_for_the_one_before();
    let_the_next_begin();
    const int row_blocks = (int)((rows + 7) / 8), column_blocks = (int)((columns + 7) / 8);
    if (blockIdx.x < row_blocks) {  // a warp makes a row
        const long long row = 8LL * blockIdx.x + threadIdx.x / 32;
        if (row >= rows) return;
        const double *at = A + row * inner, *second = x + (count - 1) * inner;
        double sum = 0.0, other = 0.0, square = 0.0;
#pragma unroll 8
        for (int k = threadIdx.x % 32; k < inner; k += 32) {
            const double value = at[k];
            sum += value * x[k];
            other += value * second[k];
            square += value * value;
        }
        sum = warp_sum(sum);
        other = warp_sum(other);
        square = warp_sum(square);
        if (threadIdx.x % 32 == 0) {
            y[row] = sum;
            if (count > 1) y[rows + row] = other;
            if (squares) squares[row] = square;
        }
        return;
    }
    __shared__ double part[2][32][9];  // eight columns, the rows in 32 shares
    const int share = threadIdx.x / 8, mine = threadIdx.x % 8;
    const bool is_X = blockIdx.x >= row_blocks + column_blocks;
    const long long column = 8LL * (blockIdx.x - row_blocks - (is_X ? column_blocks : 0)) + mine;
    const double* second = w + (count - 1) * depth;
    if (is_X) B = X, w = p, second = p + apart, z = in_basis, depth = rows, columns = WIDTH, count = 2;
    double sum = 0.0, other = 0.0;
    if (column < columns)
#pragma unroll 8
        for (int k = share; k < depth; k += 32) {
            const double value = B[k * columns + column];
            sum += value * w[k];
            other += value * second[k];
        }
    part[0][share][mine] = sum, part[1][share][mine] = other;
    __syncthreads();
    if (share < count && column < columns) {
        sum = 0.0;
        for (int k = 0; k < 32; k++) sum += part[share][k][mine];
        z[share * columns + column] = sum;
    }
}

// An orthonormal basis (x, q) of the plane of u, for the right side (block 0) and the left one (block 1).
//
// vectors: rows of m numbers. Given are, of each side, two vectors that the power was applied to (rows 0 and 1, 2 and 3), and the
// image of the first under T (rows 4 and 5). To be written: x (rows 6 and 7), its image (8 and 9), q (10 and 11). Where the power has
// left a plane, as for a complex pair, q comes from the second vector: the image of x would give it too, but badly, where the pair is
// nearly double. Where there is a line, q comes from the image: it tells λ and nearly -λ apart, which the power could not. Where x is an
// eigenvector but for rounding, q is zero. A trace of a second direction, down to 1e-10, is a better q than an image that differs from x
// by rounding alone. from_power: of each side, whether there is more of it than a trace.
extern "C" __global__ void __launch_bounds__(THREADS) plane(double* vectors, double* from_power, long long size) {
    wait_for_the_one_before();
    let_the_next_begin();
    const int m = (int)size;
    const double *first = vectors + 2 * blockIdx.x * size, *second = first + size, *raw = vectors + (4 + blockIdx.x) * size;
    double *x = vectors + (6 + blockIdx.x) * size, *image = x + 2 * size, *q = x + 4 * size;
    double sums[4] = {};
    for (int i = threadIdx.x; i < m; i += THREADS) {
        sums[0] += first[i] * first[i], sums[1] += first[i] * raw[i];
        sums[2] += second[i] * second[i], sums[3] += first[i] * second[i];
    }
    block_sums(sums);
    const double inverse = rsqrt(sums[0]), a = sums[1] * inverse * inverse, along = sums[3] * inverse;
    double rests[2] = {};  // of the second vector and of the image, outside x
    for (int i = threadIdx.x; i < m; i += THREADS) {
        const double here = first[i] * inverse, there = raw[i] * inverse, one = second[i] - along * here, other = there - a * here;
        x[i] = here, image[i] = there;
        rests[0] += one * one, rests[1] += other * other;
    }
    block_sums(rests);
    const bool wide = rests[0] > 1e-20 * sums[2], single = !wide && rests[1] < 16 * UNIT * UNIT * a * a;
    const double shrink = single ? 0.0 : rsqrt(wide ? rests[0] : rests[1]);
    const auto rest = [&](int i) { return (wide ? second[i] - along * x[i] : image[i] - a * x[i]) * shrink; };
    double overlap[2] = {};  // a rest at rounding level is not orthogonal to x the first time
    for (int i = threadIdx.x; i < m; i += THREADS) {
        const double r = rest(i);
        overlap[0] += r * x[i], overlap[1] += r * r;
    }
    block_sums(overlap);
    const double length = overlap[1] - overlap[0] * overlap[0], again = single || !(length > 0.0) ? 0.0 : rsqrt(length);
    for (int i = threadIdx.x; i < m; i += THREADS) q[i] = (rest(i) - overlap[0] * x[i]) * again;
    if (threadIdx.x == 0) from_power[blockIdx.x] = rests[0] > 1e-12 * sums[2];
}

struct Side {
    double re, im, along, across;  // λ; the vector is (along + i·im)·x + across·q
    double other;                  // the other eigenvalue in the plane, if that is real
    // From the matrix [[a, b], [c, d]] of T in the basis (x, q); with q = 0, b = c = d = 0. Of two real eigenvalues λ is the larger one
    // in a plane that the power has left; in one that holds x and its image, where x is nearly an eigenvector, λ is that of x.
    __device__ Side(double a, double b, double c, double d, bool from_power) {
        const bool single = c == 0.0 && d == 0.0;
        const double half = (a + d) / 2, disc = (a - d) * (a - d) / 4 + b * c, root = sqrt(fabs(disc));
        const bool negative = !from_power && fabs(c) < 1e-6 * fabs(a) ? a < d : half < 0.0;
        re = single ? a : disc < 0.0 ? half : half + (negative ? -root : root);
        im = !single && disc < 0.0 ? root : 0.0;
        other = single || im != 0.0 ? 0.0 : a + d - re;
        // Of the two formulas the one without cancellation; in a plane of a complex pair they are the same vector.
        const bool lower = im != 0.0 || hypot(re - d, c) >= hypot(b, re - a);
        along = single ? 1.0 : lower ? re - d : b;
        across = single ? 0.0 : lower ? c : re - a;
    }
};

// The eigenvalue, its vectors and the verdict. `given`: what `plane` has left, with the images of q at its end (four pairs of vectors);
// `in_basis`: X^T x and X^T q; K [WIDTH, WIDTH] of norm 1 with T^K = X K R; `start` and `power`: x before and after the power T^k was applied to it;
// delta: so many shares of the squared norm of T^k - X R; `exponent`: what T^k was raised to. out: as in spectral_radius.cu.
extern "C" __global__ void __launch_bounds__(THREADS, 1) finish(
    const double* given, const double* from_power, const double* in_basis, const double* K,
    const double* start, const double* power, const double* squares, const double* delta,
    const double* exponent, const double* scale, double* out, long long size, long long deltas,
    long long parts, long long k  // ρ must be exact to one part in so many; T^k was compressed
) {
    wait_for_the_one_before();
    let_the_next_begin();
    __shared__ double in_plane[2][WIDTH], rows[2][WIDTH];
    const int m = (int)size;
    const double *x = given, *y = x + m, *Tx = y + m, *Ty = Tx + m, *q = Ty + m, *r = q + m, *Tq = r + m, *Tr = Tq + m;

    double inner[12] = {};
    for (int i = threadIdx.x; i < m; i += THREADS) {
        inner[0] += x[i] * Tx[i], inner[1] += x[i] * Tq[i], inner[2] += q[i] * Tx[i], inner[3] += q[i] * Tq[i];
        inner[4] += y[i] * Ty[i], inner[5] += y[i] * Tr[i], inner[6] += r[i] * Ty[i], inner[7] += r[i] * Tr[i];
        inner[8] += squares[i], inner[9] += start[i] * start[i], inner[10] += power[i] * power[i];
    }
    for (int i = threadIdx.x; i < deltas; i += THREADS) inner[11] += delta[i];
    block_sums(inner);
    const Side right(inner[0], inner[1], inner[2], inner[3], from_power[0] > 0.0), left(inner[4], inner[5], inner[6], inner[7], from_power[1] > 0.0);
    const double norm = sqrt(inner[8]), missed = sqrt(inner[11]) * sqrt(inner[9] / inner[10]);

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

    // What of the power K lies outside the plane of u, and outside u where that is real.
    if (threadIdx.x < 2 * WIDTH) in_plane[threadIdx.x / WIDTH][threadIdx.x % WIDTH] = in_basis[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 2 * WIDTH) {
        double sum = 0.0;
#pragma unroll 16
        for (int i = 0; i < WIDTH; i++) sum += in_plane[threadIdx.x / WIDTH][i] * K[i * WIDTH + threadIdx.x % WIDTH];
        rows[threadIdx.x / WIDTH][threadIdx.x % WIDTH] = sum;
    }
    __syncthreads();
    double outside[2] = {};
    const double along = right.along * one, across = right.across * one;
    for (int i = threadIdx.x; i < WIDTH * WIDTH; i += THREADS) {
        const double p0 = in_plane[0][i / WIDTH], p1 = in_plane[1][i / WIDTH], r0 = rows[0][i % WIDTH], r1 = rows[1][i % WIDTH];
        const double rest = K[i] - p0 * r0 - p1 * r1, beside = K[i] - (along * p0 + across * p1) * (along * r0 + across * r1);
        outside[0] += rest * rest, outside[1] += beside * beside;
    }
    block_sums(outside);

    const bool accurate = residual * condition < fmax(radius / parts, rounding) && rounding < 1e-6 * radius;
    // What T^k has lost moves the logarithm of another eigenvalue's power by some missed·condition·exponent. Outside says that it is -13.
    const bool sharp = (missed + k * UNIT) * condition * *exponent < 0.1;
    const bool larger = fabs(right.other) <= radius * (1.0 + 1.0 / parts), alone = right.im == 0.0 && outside[1] < 1e-12;
    const bool certified = accurate && outside[0] < 1e-12 && missed < 1e-6 && sharp && (larger || alone);
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
        out[4] = __longlong_as_double(certified);
        out[5] = 0.0;
    }
}
