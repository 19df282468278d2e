// What a step that nobody looks at finds out about itself, and what it counts.

constexpr int THREADS = 256, EACH = 16, TENSORS = 64, FLAGS = 32;

struct Values {
    const float* start;
    long long size, block;  // entries, and the first of the tensor's thread blocks; rows that are not used begin beyond all blocks
};

// By value, as in fused.cu: a CUDA graph keeps a copy of it.
struct Table {
    Values values[TENSORS];
    const bool* flags[FLAGS];
    long long count;  // of the flags
};

// Whether all values are finite, no flag is up and nothing had stopped before. `seen` is zero between two launches: whether a thread block
// has found anything, and how many have ended. The last one to end has the last word.
extern "C" __global__ void __launch_bounds__(THREADS) judge(const __grid_constant__ Table table, unsigned* seen, bool* fine, bool* stopped) {
    int tensor = 0;
    while (tensor + 1 < TENSORS && table.values[tensor + 1].block <= (long long)blockIdx.x) tensor++;
    const Values& values = table.values[tensor];
    const long long first = ((long long)blockIdx.x - values.block) * THREADS * EACH + threadIdx.x;
    float entries[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) entries[i] = first + i * THREADS < values.size ? values.start[first + i * THREADS] : 0.f;
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) wrong |= !isfinite(entries[i]);
    wrong = __syncthreads_or(wrong);

    __shared__ bool last, before;
    if (threadIdx.x == 0) {
        if (wrong) atomicOr(seen, 1u);
        __threadfence();
        last = atomicInc(seen + 1, gridDim.x - 1) == gridDim.x - 1;  // and from there to zero
        if (last) {
            __threadfence();
            before = atomicExch(seen, 0u) != 0u;
            before |= *stopped;
        }
    }
    __syncthreads();
    if (!last) return;
    wrong = __syncthreads_or(threadIdx.x < table.count && *table.flags[threadIdx.x % FLAGS]) || before;
    if (threadIdx.x == 0) {
        *fine = !wrong;
        *stopped = wrong;
    }
}

// One more step: its place, its number, its loss; and for each switch that is on and was not, that number.
extern "C" __global__ void __launch_bounds__(FLAGS) count_step(
    const __grid_constant__ Table switches, const float* loss, long long* place, long long* done, double* losses, long long* switched_at
) {
    const long long number = *done + 1;
    __syncwarp();
    if (threadIdx.x < switches.count && *switches.flags[threadIdx.x] && switched_at[threadIdx.x] < 0) switched_at[threadIdx.x] = number;
    if (threadIdx.x > 0) return;
    *place += 1;
    *done = number;
    losses[0] += *loss;
    losses[1] += 1.0;
}
