// Matrices as halves, laid out as the kernels want them that multiply them with letters (see `letters.cu`): up to three at once.
//
// A warp has eight rows of one, and the columns of a block of units. The warps that have the same rows are of one thread block, and find the largest
// number of each row together.
//
// Set by the compiler's command line: TILES.

constexpr int WARPS = 16, UNITS = 16 * TILES;

struct Plan {
    Block matrix;                // [n, columns]
    uint4* words;                // [team][shares][sources][TILES][TILES][2][32]: a lane's part of 16 x 16, large and small halves; rows 0 to 7 of them come first
    float* ones;                 // [team][UNITS]
    int n, columns;
    int team, shares, sources;   // blocks that have rows; shares of the columns, and the blocks of units that a share has: shares times sources is 4, 8 or 16
    int first;                   // of the thread blocks that have this matrix
};

struct Plans {
    Plan of[3];
};

// Beside that, `cleared` is filled with ones: NOTHING, as `letters.cu` has it.
extern "C" __global__ void __launch_bounds__(32 * WARPS) pack(const __grid_constant__ Plans plans, uint4* cleared, long long many) {
    let_the_next_begin();
    __shared__ unsigned largest[WARPS][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int index = (blockIdx.x >= plans.of[1].first) + (blockIdx.x >= plans.of[2].first);
    const Plan& plan = plans.of[index];
    const int together = plan.shares * plan.sources, place = warp & together - 1;  // warps that have the same eight rows
    const int here = ((blockIdx.x - plan.first) * WARPS + warp) / together, share = place / plan.sources, k = place % plan.sources;
    const int first = here * 8 + lane / 4, from = (k * plan.shares + share) * UNITS + lane % 4 * 2;  // row, and column
    float number[TILES][2][2];
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) {
        const int column = from + i / 4 * 16 + i / 2 % 2 * 8 + i % 2;
        number[i / 4][i / 2 % 2][i % 2] = first < plan.n && column < plan.columns ? plan.matrix.at(first, column) : 0.f;
    }
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < many; i += gridDim.x * blockDim.x) cleared[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) most = max(most, __float_as_uint(fabsf(number[i / 4][i / 2 % 2][i % 2])));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
    if (lane % 4 == 0) largest[warp][lane / 4] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) most = max(most, largest[warp - place + (i & together - 1)][lane / 4]);
    float scale, one;
    common_scale(most, scale, one);
    if (here < plan.team * TILES * 2) {
        if (place == 0 && lane % 4 == 0) plan.ones[first] = one;
        uint2* const to = reinterpret_cast<uint2*>(plan.words + ((here / (2 * TILES) * together + place) * TILES + here / 2 % TILES) * (TILES * 2 * 32) + lane) + here % 2;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint2 large, small;
            cut(number[t][0][0] * scale, number[t][0][1] * scale, large.x, small.x);
            cut(number[t][1][0] * scale, number[t][1][1] * scale, large.y, small.y);
            to[t * 2 * 64] = large;
            to[t * 2 * 64 + 64] = small;
        }
    }
}
