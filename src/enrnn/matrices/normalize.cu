// The eigenvalue normalisation around its solver: everything that _eigenvalue_normalized.py says in torch's operations, in a few
// kernels. Sums are taken in a fixed order: the same matrix gives the same bits.

#if DOUBLE
typedef double real;
#define LARGEST 1.7976931348623157e308
#else
typedef float real;
#define LARGEST 3.4028234663852886e38
#endif
#define THREADS 256
#define SHARES 64

// The sum over the thread block, in every thread.
__device__ double block_sum(double value) {
    __shared__ double parts[THREADS / 32];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0;
    for (int i = 0; i < THREADS / 32; i++) value += parts[i];
    return value;
}

// What is not a number is larger than all numbers.
__device__ __forceinline__ real larger(real a, real b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ real warp_largest(real value) {
    for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// The largest |entry| of each thread block's share of T; not a number if an entry is not.
extern "C" __global__ void __launch_bounds__(THREADS) largest(const real* __restrict__ T, real* __restrict__ shares, long long count) {
    __shared__ real room[THREADS / 32];
    real most = 0;
#pragma unroll 8
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += SHARES * (long long)THREADS) most = larger(most, fabs(T[i]));
    most = warp_largest(most);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < THREADS / 32; i++) most = larger(most, room[i]);
    shares[blockIdx.x] = most;
}

// W, ρ and ∂ρ/∂T = Re(λ̄/|λ| · v̄ uᵀ/(v*u)), zero where λ is not simple, and the flags.
extern "C" __global__ void __launch_bounds__(THREADS, 2) normalize(
    const real* T, const real* shares, const double* radius, const double2* eigenvalue, const double2* right, const double2* left,
    const double* condition, const bool* certified, const bool* normalizing, double epsilon, long long m,
    real* W, real* rho, real* derivative, bool* switched, bool* applied, bool* simple, bool* finite
) {
    wait_for_the_one_before();
    let_the_next_begin();
    real most = 0;
    for (int i = threadIdx.x % 32; i < SHARES; i += 32) most = larger(most, shares[i]);
    most = warp_largest(most);
    double re = 0.0, im = 0.0;  // v*u
    for (long long i = threadIdx.x; i < m; i += THREADS) {
        const double2 v = left[i], u = right[i];
        re += v.x * u.x + v.y * u.y;
        im += v.x * u.y - v.y * u.x;
    }
    re = block_sum(re);
    im = block_sum(im);
    const double r = *radius, divisor = r + epsilon, limit = divisor * LARGEST;
    const bool on = *normalizing || r > 1.0, overflows = (double)most >= limit || limit <= 1.0 || isinf(divisor);
    const bool divide = on && *certified && !overflows, smooth = *condition < 1e6 && r > 0.0;  // 1e6: 1 / DEFECTIVE
    double2 factor = make_double2(0.0, 0.0);  // (λ̄/|λ|) / (v*u)
    if (smooth) {
        const double2 value = *eigenvalue;
        const double scale = fmax(fabs(value.x), fabs(value.y)), x = value.x / scale, y = -value.y / scale;
        const double below = (re * re + im * im) * sqrt(x * x + y * y);
        factor = make_double2((x * re + y * im) / below, (y * re - x * im) / below);
    }
    for (long long row = blockIdx.x; row < m; row += gridDim.x) {
        const double2 v = left[row];
        for (long long column = threadIdx.x, i = row * m + column; column < m; column += THREADS, i += THREADS) {
            const real entry = T[i];
            W[i] = divide ? (real)((double)entry / divisor) : entry;
            const double2 u = right[column];
            const double x = v.x * u.x + v.y * u.y, y = v.x * u.y - v.y * u.x;  // v̄ u
            derivative[i] = (real)(factor.x * x - factor.y * y);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *rho = (real)r;
        *switched = on;
        *applied = divide;
        *simple = smooth;
        *finite = isfinite((double)most);
    }
}

// Shares of ⟨G, W⟩.
extern "C" __global__ void __launch_bounds__(THREADS) share(const real* __restrict__ G, const real* __restrict__ W, double* __restrict__ shares, long long count) {
    double sum = 0.0;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += SHARES * (long long)THREADS) sum += (double)G[i] * (double)W[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) shares[blockIdx.x] = sum;
}

// ∂L/∂T = (G − ⟨G, W⟩ ∂ρ/∂T) / (ρ + ε), or G where T was not divided: Proposition 3.2.
extern "C" __global__ void __launch_bounds__(THREADS) pull_back(
    const real* __restrict__ G, const double* __restrict__ shares, const real* __restrict__ derivative, const real* __restrict__ rho, const bool* __restrict__ applied,
    double epsilon, real* __restrict__ gradient, long long count
) {
    double pull = 0.0;
    for (int i = 0; i < SHARES; i++) pull += shares[i];
    const bool divided = *applied;
    const double divisor = (double)*rho + epsilon;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += gridDim.x * (long long)THREADS)
        gradient[i] = divided ? (real)(((double)G[i] - pull * (double)derivative[i]) / divisor) : G[i];
}

// What a step writes down. In training: the switch, the counts and ρ as well. Without `fell_back`, only what is certified.
extern "C" __global__ void note(
    const bool* finite, const bool* certified, const bool* switched, const bool* applied, const bool* simple, const bool* fell_back, const real* rho,
    bool* not_finite, bool* uncertified, bool* normalizing, long long* nearly_defective, long long* fallbacks, real* radius, long long training
) {
    wait_for_the_one_before();
    if (!fell_back && !*certified) return;
    *not_finite = *not_finite || !*finite;
    *uncertified = *uncertified || (!*certified && *finite);
    if (!training) return;
    *normalizing = *switched;
    *nearly_defective += *applied && !*simple;
    *fallbacks += fell_back && *fell_back;
    *radius = *rho;
}
