// The gradient of the bias, summed over all steps and sequences in one pass over the states h and dz.
//
// A thread block sums its share of the rows, 32 units at a time; what the shares come to is added up afterwards, by the kernel of rule 0.
// RULE: 0, db = dz; 1, modReLU, db = sign(h) dz; 2, the paired modReLU, db = Re(conj(h) dz) / |h|.

constexpr int LINES = 8;

extern "C" __global__ void __launch_bounds__(32 * LINES) bias_gradient(
    const float* __restrict__ h, const float* __restrict__ dz, float* __restrict__ shares,  // [rows, n] twice, [gridDim.y, units]
    long long rows, long long n, long long h_row, long long dz_row)
{
    __shared__ float part[LINES][32];
    const long long units = RULE == 2 ? n / 2 : n, unit = 32LL * blockIdx.x + threadIdx.x % 32;
    const int line = threadIdx.x / 32;
    float sum = 0.f;
    if (unit < units)
#pragma unroll 4
        for (long long row = (long long)blockIdx.y * LINES + line; row < rows; row += (long long)gridDim.y * LINES) {
            const float d = dz[row * dz_row + unit];
            if (RULE == 0) sum += d;
            if (RULE == 1) {
                const float state = h[row * h_row + unit];
                sum += state < 0.f ? -d : state > 0.f ? d : 0.f * d;
            }
            if (RULE == 2) {
                const float re = h[row * h_row + unit], im = h[row * h_row + unit + units], size = hypotf(re, im);
                sum += size == 0.f ? 0.f : (re * d + im * dz[row * dz_row + unit + units]) / size;
            }
        }
    part[line][threadIdx.x % 32] = sum;
    __syncthreads();
    if (line == 0 && unit < units) {
        sum = 0.f;
        for (int k = 0; k < LINES; k++) sum += part[k][threadIdx.x];
        shares[blockIdx.y * units + unit] = sum;
    }
}
