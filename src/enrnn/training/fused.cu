// A step of an optimiser for up to 32 tensors at once, spread over the whole device: each thread block has 1024 entries of one tensor. The
// operations and their order are those of torch's own kernels, so that the digits are theirs too.
//
// The table is an argument of the kernel, by value: a CUDA graph keeps a copy of it, and nothing on the host must outlive the launch. The
// learning rate and the count of the steps are read on the device, anew at each replay.

constexpr int THREADS = 256, EACH = 4, TENSORS = 32;

struct Row {
    float* parameter;
    const float* gradient;
    float *first, *second;  // the states; a second one need not be there
    float* count;           // of the steps before this one; not there for a rule that has no use for it
    const float* rate;
    long long size, block;  // entries, and the first of the tensor's thread blocks; rows that are not used begin beyond all blocks
};

struct Table {
    Row rows[TENSORS];
    float options[4];
};

// The tensor that this thread block belongs to: as many begin at it or before it, less one. Lane i of each warp looks at row i.
__device__ __forceinline__ int tensor_of_block(const Table& table) {
    return __popc(__ballot_sync(0xffffffffu, table.rows[threadIdx.x % TENSORS].block <= (long long)blockIdx.x)) - 1;
}

// What one thread updates: four entries in a row, or what is left of them.
struct Entries {
    float parameter[EACH], gradient[EACH], first[EACH], second[EACH];
    long long start, left;
    bool together;  // all four are there, and 16 bytes can be moved at a time

    __device__ __forceinline__ explicit Entries(const Row& row) {
        start = EACH * (((long long)blockIdx.x - row.block) * THREADS + threadIdx.x);
        left = row.size - start;
        const size_t addresses = (size_t)row.parameter | (size_t)row.gradient | (size_t)row.first | (size_t)row.second;
        together = left >= EACH && addresses % sizeof(float4) == 0;
        if (together) {
            load(parameter, row.parameter), load(gradient, row.gradient), load(first, row.first);
            if (row.second) load(second, row.second);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (i < left) {
                    parameter[i] = row.parameter[start + i], gradient[i] = row.gradient[start + i], first[i] = row.first[start + i];
                    if (row.second) second[i] = row.second[start + i];
                }
        }
    }

    __device__ __forceinline__ void write(const Row& row) const {
        if (together) {
            store(row.parameter, parameter), store(row.first, first);
            if (row.second) store(row.second, second);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (i < left) {
                    row.parameter[start + i] = parameter[i], row.first[start + i] = first[i];
                    if (row.second) row.second[start + i] = second[i];
                }
        }
    }

    __device__ __forceinline__ void load(float (&to)[EACH], const float* from) const {
        const float4 four = *(const float4*)(from + start);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }

    __device__ __forceinline__ void store(float* to, const float (&from)[EACH]) const {
        *(float4*)(to + start) = make_float4(from[0], from[1], from[2], from[3]);
    }
};

// Options: β₁, β₂, ε. Every thread block reads the count of its tensor, and the last one to have read it counts on: `readers` has how many
// have, and is back at zero when all have.
extern "C" __global__ void __launch_bounds__(THREADS) adam(const __grid_constant__ Table table, unsigned* readers) {
    const int tensor = tensor_of_block(table);
    const Row& row = table.rows[tensor];
    const float beta1 = table.options[0], beta2 = table.options[1], eps = table.options[2];
    Entries mine(row);

    __shared__ float corrected_rate, correction;
    const unsigned others = row.size > 0 ? (unsigned)((row.size - 1) / (THREADS * EACH)) : 0;
    unsigned before = 0;
    float count = 0.0f;
    if (threadIdx.x == 0) {
        count = *(volatile float*)row.count + 1.0f;
        // Counts up to `others`, and then from zero. A release: the count has been read before. Its result is not waited for here.
        asm volatile("atom.release.gpu.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(readers + tensor), "r"(others) : "memory");
        corrected_rate = *row.rate / (1.0f - powf(beta1, count));
        correction = sqrtf(1.0f - powf(beta2, count));
    }
    __syncthreads();

    const float rate = corrected_rate, root = correction;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float g = mine.gradient[i], power = __fmul_rn(g, g);
        mine.first[i] = __fmaf_rn(beta1, mine.first[i], __fmaf_rn(-beta1, g, g));
        mine.second[i] = __fmaf_rn(beta2, mine.second[i], __fmaf_rn(-beta2, power, power));
        const float below = __fadd_rn(__fdiv_rn(__fsqrt_rn(mine.second[i]), root), eps);
        mine.parameter[i] = __fsub_rn(mine.parameter[i], __fdiv_rn(__fmul_rn(rate, mine.first[i]), below));
    }
    mine.write(row);
    if (threadIdx.x == 0 && before == others) {
        __threadfence();
        *row.count = count;
    }
}

// Options: the decay, 1 − decay, the momentum, ε. Without a second state, there is no momentum.
extern "C" __global__ void __launch_bounds__(THREADS) rmsprop_tf(const __grid_constant__ Table table) {
    const Row& row = table.rows[tensor_of_block(table)];
    const float decay = table.options[0], rest = table.options[1], momentum = table.options[2], eps = table.options[3];
    const float rate = *row.rate;
    Entries mine(row);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float g = mine.gradient[i];
        mine.first[i] = __fmaf_rn(rest, __fmul_rn(g, g), __fmul_rn(mine.first[i], decay));
        float change = __fmul_rn(__fdiv_rn(g, __fsqrt_rn(__fadd_rn(mine.first[i], eps))), rate);
        if (row.second) change = mine.second[i] = __fadd_rn(__fmul_rn(mine.second[i], momentum), change);
        mine.parameter[i] = __fsub_rn(mine.parameter[i], change);
    }
    mine.write(row);
}
