// The mean cross-entropy of rows of outputs with their targets, and its gradient. A warp has a row.
// Sums are taken in a fixed order: the same outputs give the same bits. A target that there is not gives NaN.

constexpr int WARPS = 8;

__device__ float over_lanes(float value, bool largest) {
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = largest ? fmaxf(value, other) : value + other;
    }
    return value;
}

// A row's largest number, and the sum of the exponentials of all over that one's.
struct Row {
    float largest, sum;
    __device__ Row(const float* row, int classes, int lane) {
        largest = -__int_as_float(0x7f800000), sum = 0.f;
        for (int i = lane; i < classes; i += 32) largest = fmaxf(largest, row[i]);
        largest = over_lanes(largest, true);
        for (int i = lane; i < classes; i += 32) sum += expf(row[i] - largest);
        sum = over_lanes(sum, false);
    }
};

// Of each thread block's rows, the sum of their cross-entropies.
extern "C" __global__ void __launch_bounds__(32 * WARPS) entropies(
    const float* outputs, long long stride, const long long* targets, double* shares, long long rows, long long classes)
{
    let_the_next_begin();
    __shared__ double part[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double sum = 0.0;
    for (long long r = (long long)blockIdx.x * WARPS + warp; r < rows; r += (long long)gridDim.x * WARPS) {
        const float* at = outputs + r * stride;
        const long long target = targets[r];
        const Row row(at, (int)classes, lane);
        const bool there = target >= 0 && target < classes;
        sum += there ? logf(row.sum) - (at[target] - row.largest) : __int_as_float(0x7fc00000);
    }
    if (lane == 0) part[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < WARPS; i++) sum += part[i];
    shares[blockIdx.x] = sum;
}

// One warp.
extern "C" __global__ void __launch_bounds__(32) mean(const double* shares, float* loss, long long count, long long rows) {
    wait_for_the_one_before();
    double sum = 0.0;
    for (int i = threadIdx.x; i < count; i += 32) sum += shares[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) *loss = (float)(sum / rows);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) gradient(
    const float* outputs, long long stride, const long long* targets, const float* upstream, float* out, long long rows, long long classes)
{
    const int lane = threadIdx.x % 32;
    const long long r = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= rows) return;
    const float* at = outputs + r * stride;
    const long long target = targets[r];
    const Row row(at, (int)classes, lane);
    const bool there = target >= 0 && target < classes;
    const float scale = there ? *upstream / rows : __int_as_float(0x7fc00000);
    for (int i = lane; i < classes; i += 32) out[r * classes + i] = (expf(at[i] - row.largest) / row.sum - (i == target)) * scale;
}
