// The gradient of the bias, summed over all steps and sequences in one pass over the states h and dz.
//
// A thread block sums its share of the rows, 32 units at a time, and each thread 32 of its terms at a time, since a sum of thousands of like terms,
// one after the other, would lose three digits; what the shares come to is added up afterwards, by the kernel of rule 0.
// RULE: 0, db = dz; 1, modReLU, db = sign(h) dz; 2, the paired modReLU, db = Re(conj(h) dz) / |h|.

constexpr int LINES = 8, TERMS = 32;

extern "C" __global__ void __launch_bounds__(32 * LINES) bias_gradient(
    const float* __restrict__ h, const float* __restrict__ dz, float* __restrict__ shares,  // [rows, n] twice, [gridDim.y, units]
    long long rows, long long n, long long h_row, long long dz_row)
{
    __shared__ float part[LINES][32];
    const long long units = RULE == 2 ? n / 2 : n, unit = 32LL * blockIdx.x + threadIdx.x % 32;
    const int line = threadIdx.x / 32;
    float sum = 0.f;
    const long long stride = (long long)gridDim.y * LINES;
    long long row = (long long)blockIdx.y * LINES + line;
    for (long long left = unit < units && row < rows ? (rows - row - 1) / stride + 1 : 0; left > 0; left -= TERMS) {
        const int terms = left < TERMS ? (int)left : TERMS;
        float few = 0.f;
#pragma unroll 4
        for (int k = 0; k < terms; k++, row += stride) {
            const float d = dz[row * dz_row + unit];
            if (RULE == 0) few += d;
            if (RULE == 1) {
                const float state = h[row * h_row + unit];
                few += state < 0.f ? -d : state > 0.f ? d : 0.f * d;
            }
            if (RULE == 2) {
                const float re = h[row * h_row + unit], im = h[row * h_row + unit + units], size = hypotf(re, im);
                few += size == 0.f ? 0.f : (re * d + im * dz[row * dz_row + unit + units]) / size;
            }
        }
        sum += few;
    }
    part[line][threadIdx.x % 32] = sum;
    __syncthreads();
    if (line == 0 && unit < units) {
        sum = 0.f;
        for (int k = 0; k < LINES; k++) sum += part[k][threadIdx.x];
        shares[blockIdx.y * units + unit] = sum;
    }
}
