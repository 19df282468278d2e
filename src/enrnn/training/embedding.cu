// The gradient of an embedding: for each symbol, the sum of the gradient's rows at its places.
//
// A thread block has one symbol and a few columns. Each of its warps looks through a share of the places and adds up what it finds, in their
// order; the shares are added up in theirs. So the same gradient gives the same bits.

constexpr int WARPS = 16, COLUMNS = 4, AT_ONCE = 128;  // columns of a lane; places that a warp looks through before it adds

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) embedding_gradient(
    const long long* __restrict__ symbols, const float* __restrict__ gradient, float* __restrict__ out, long long count, long long width, long long row)
{
    __shared__ int found[WARPS][AT_ONCE];
    __shared__ float part[WARPS][COLUMNS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long symbol = blockIdx.x, column = 32LL * COLUMNS * blockIdx.y + lane, share = (count + WARPS - 1) / WARPS;
    const long long end = min(count, (warp + 1) * share);
    float sum[COLUMNS] = {};
    for (long long start = warp * share; start < end; start += AT_ONCE) {
        int number = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i += 32) {
            const bool here = start + i + lane < end && symbols[start + i + lane] == symbol;
            const unsigned all = __ballot_sync(0xffffffffu, here);
            if (here) found[warp][number + __popc(all & ((1u << lane) - 1u))] = i + lane;
            number += __popc(all);
        }
        __syncwarp();
#pragma unroll 8
        for (int i = 0; i < number; i++) {
            const float* at = gradient + (start + found[warp][i]) * row + column;
#pragma unroll
            for (int k = 0; k < COLUMNS; k++)
                if (column + 32 * k < width) sum[k] += at[32 * k];
        }
        __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) part[warp][k][lane] = sum[k];
    __syncthreads();
    if (warp >= COLUMNS || column + 32 * warp >= width) return;
    float total = 0.f;
    for (int i = 0; i < WARPS; i++) total += part[i][warp][lane];
    out[symbol * width + column + 32 * warp] = total;
}
