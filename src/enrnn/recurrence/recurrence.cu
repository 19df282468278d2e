// The recurrence h_t = s(x_t + W h_{t-1}, b) over a whole sequence in one launch, and its reverse sweep.
//
// A cluster of CLUSTER thread blocks (one block where CLUSTER is 1) carries BATCH sequences from the first step to the last.
// Its blocks share out the rows of W, which stay in registers (and, from CHUNKS on, in shared memory) all the time; the state
// stands in the shared memory of every block, in two copies taken in turns, so that a step costs one exchange and no more:
// a block barrier, or in a cluster one message to each block, counted by the receiver's mbarrier.
//
// Within a block, LANES neighbouring threads share ROWS rows of W, each with its own columns:
//     acc[row][sequence] += w[chunk][row][column] * h[column][sequence]          for every chunk of 16 bytes of h
// after which the LANES partial sums are folded so that each (row, sequence) ends with one owner thread. The owner adds x_t,
// applies the nonlinearity, and writes the new state to memory and to every block. What the owner reads from memory is
// fetched at least UNROLL steps before its use.
//
// With GROUPS = 2 the sequences of a cluster are two groups that take turns: while the new state of one is on its way, the other is
// computed. The weights are the same registers for both.
//
// The reverse sweep is the same machine with W transposed, dz in the place of h, and the nonlinearity's pull-back:
//     g_t = dL/dh_t + W' dz_{t+1},     dz_t = (ds/dz)' g_t.
//
// With SHORT_ROWS > 0 (one block only) the matrix is [[W_L, W_C], [0, W_S]], and its zeros are left out: the last SHORT_ROWS rows of
// every thread are rows of the short part, and the first LONG_CHUNKS chunks of the state are the long part, filled up to whole
// chunks. Forward, short rows have nothing to do with long chunks; in reverse, long rows have nothing to do with short ones.
//
// Set by the compiler's command line: CLUSTER, THREADS, LANES, ROWS, CHUNKS, SHARED_CHUNKS, BATCH, GROUPS, SHORT_ROWS, LONG_CHUNKS,
// RESIDENT, UNROLL, SIGMA, BACKWARD, SHARED_BYTES.

constexpr int V = GROUPS > 1 || BATCH > 2 ? 1 : 4 / BATCH;  // columns in one chunk of state
constexpr int WARPS = THREADS / 32, WARP_ROWS = 32 / LANES * ROWS, BLOCK_ROWS = WARPS * WARP_ROWS;
constexpr int COLUMNS = (CHUNKS + SHARED_CHUNKS) * LANES * V;
constexpr int up4(int n) { return (n + 3) / 4 * 4; }     // to whole 16-byte words
constexpr int SLOTS = up4(COLUMNS > CLUSTER * BLOCK_ROWS ? COLUMNS : CLUSTER * BLOCK_ROWS);  // room for units in a copy of the state
constexpr int STREAMS = BACKWARD ? 2 : 1;                // what an owner reads at each step: x, or dL/dh and h
constexpr int QUADS = up4(ROWS * V) / 4;                 // a chunk of weights in shared memory, in 16-byte words a thread
static_assert(ROWS % PARTS == 0 && THREADS % 32 == 0 && 32 % LANES == 0 && UNROLL % 2 == 0, "not a shape for this kernel");
static_assert(GROUPS == 1 || GROUPS == 2 && BATCH > 1 && CLUSTER > 1, "not so many groups");
constexpr bool SPLIT = SHORT_ROWS > 0;
constexpr int LONG_ROWS = ROWS - SHORT_ROWS, LONG_SLOTS = LONG_CHUNKS * LANES * V;
static_assert(!SPLIT || CLUSTER == 1 && GROUPS == 1 && PARTS == 1 && SHARED_CHUNKS == 0, "zeros are left out in one block only");
// Whether register row r has weights in this chunk; and in which order a lane holds its rows, see row_of: not sorted if SPLIT.
constexpr bool present(int chunk, int r) { return !SPLIT || (BACKWARD ? r >= LONG_ROWS || chunk < LONG_CHUNKS : r < LONG_ROWS || chunk >= LONG_CHUNKS); }
// The chunks in the order in which they are multiplied: those that only some rows have come first, so that afterwards all rows have as
// much before them, and go through a chunk together. (The assembler hurries rows that have more; then each reads the state for itself.)
constexpr int nth(int k) { return SPLIT && BACKWARD ? (k + LONG_CHUNKS) % CHUNKS : k; }
constexpr int SORTED_ROWS = SPLIT ? 1 : ROWS / PARTS;

constexpr int owned(int count, int lanes) { return lanes == 1 ? count : owned((count + 1) / 2, lanes / 2); }

// SIZE sequences that are carried together. Their state is held in planes of [slot][4 sequences], and one of [slot][TAIL].
template <int SIZE>
struct Group {
    static constexpr int FULL = (SIZE + 1) / 4, TAIL = SIZE > 4 * FULL ? SIZE - 4 * FULL : 0, ROOM = 4 * FULL + TAIL;
    static constexpr int UNITS = ROWS / PARTS * SIZE;    // (unit, sequence) pairs that LANES threads reduce together
    static constexpr int OWNED = owned(UNITS, LANES);

    // Where (unit, sequence) stands in a state with so many slots.
    static __device__ constexpr int offset(int slots, int place, int b) {
        return b < 4 * FULL ? (b / 4 * slots + place) * 4 + b % 4 : 4 * FULL * slots + place * TAIL + b - 4 * FULL;
    }

    struct Shared {
        float state[2][SLOTS * ROOM];
        float staging[CLUSTER > 1 ? WARPS : 1][CLUSTER > 1 ? up4(WARP_ROWS * ROOM) : 4];   // what a warp is about to send
        float ahead[2][UNROLL][STREAMS][OWNED * PARTS][THREADS];
        unsigned long long arrived[2];
    };
};
constexpr int FIRST = (BATCH + GROUPS - 1) / GROUPS, SECOND = BATCH / GROUPS;  // sequences of the two groups; the same of the one

struct Shared {
    Group<FIRST>::Shared first;
#if GROUPS > 1
    Group<SECOND>::Shared second;
#endif
    float4 weights[SHARED_CHUNKS ? SHARED_CHUNKS : 1][SHARED_CHUNKS ? QUADS : 1][SHARED_CHUNKS ? THREADS : 1];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");

__device__ unsigned address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

__device__ void fetch(const float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(to)), "l"(from) : "memory");
}

__device__ void block_barrier() {
    if constexpr (THREADS == 32) __syncwarp();
    else __syncthreads();
}

__device__ void store(float* to, float value) {  // in the order written here, which the compiler would change
    asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

#if CLUSTER > 1
__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
#endif

#if CLUSTER > 1
__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ unsigned of_block(unsigned here, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
}
template <int WIDTH>
__device__ void send(unsigned to, const float* v, unsigned bell) {
    const unsigned* bits = reinterpret_cast<const unsigned*>(v);
    if constexpr (WIDTH == 4)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]), "r"(bell) : "memory");
    if constexpr (WIDTH == 2)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(bits[0]), "r"(bits[1]), "r"(bell) : "memory");
    if constexpr (WIDTH == 1)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(bits[0]), "r"(bell) : "memory");
}
// A warp's messages of one kind, to all blocks; every lane sends its share of them, the same at each step.
template <int WIDTH, int COUNT>
struct Messages {
    static constexpr int EACH = (COUNT + 31) / 32, A_BLOCK = COUNT ? COUNT / CLUSTER : 1;
    unsigned to[EACH ? EACH : 1], bell[EACH ? EACH : 1];
    int from[EACH ? EACH : 1];

    // message -> where it stands in the warp's staging, and where in the state
    template <class Room, class Source, class Target>
    __device__ void prepare(Room& shared, int rank, Source source, Target target) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int index = k * 32 + threadIdx.x % 32, message = index % A_BLOCK, block = (rank + index / A_BLOCK) % CLUSTER;
            from[k] = index < COUNT ? source(message) : -1;
            to[k] = of_block(address(&shared.state[0][target(message)]), block);
            bell[k] = of_block(address(&shared.arrived[0]), block);
        }
    }
    __device__ void go(const float* staging, int buffer, int bytes) const {  // which copy of the state, of how many bytes each
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (from[k] >= 0) {
                float v[WIDTH];
                if constexpr (WIDTH == 4) *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(staging + from[k]);
                if constexpr (WIDTH == 2) *reinterpret_cast<float2*>(v) = *reinterpret_cast<const float2*>(staging + from[k]);
                if constexpr (WIDTH == 1) v[0] = staging[from[k]];
                send<WIDTH>(to[k] + buffer * bytes, v, bell[k] + buffer * 8);
            }
    }
};
__device__ void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
#endif

// Which row of its group register row r stands for, in a given lane: a lane that will keep the upper half of its sums at some
// exchange holds that half first, so that what is kept and what is given away always have the same names.
template <int COUNT, int BIT>
__device__ int row_of(int r, int lane) {
    if constexpr (BIT > 0 && COUNT > 1 && COUNT % 2 == 0) {
        constexpr int HALF = COUNT / 2;
        const int upper = (lane & BIT ? 1 : 0) ^ r / HALF;
        return upper * HALF + row_of<HALF, BIT / 2>(r % HALF, lane);
    }
    return r;
}

// Sum v[0 … COUNT) over the lanes that differ in the bits below 2·BIT, halving what a lane is responsible for at each exchange.
// ORDERED units at the front of the group are still in the order of row_of.
template <int COUNT, int BIT, int ORDERED, int UNITS>
__device__ void fold(float (&v)[UNITS], int lane) {
    if constexpr (BIT > 0 && COUNT > 1) {
        constexpr int HALF = (COUNT + 1) / 2;
        constexpr bool sorted = ORDERED % 2 == 0;
        const bool upper = lane & BIT;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float low = v[i], high = i + HALF < COUNT ? v[i + HALF] : 0.f;
            const float kept = !sorted && upper ? high : low, given = !sorted && upper ? low : high;
            v[i] = kept + __shfl_xor_sync(0xffffffffu, given, BIT);
        }
        fold<HALF, BIT / 2, sorted ? ORDERED / 2 : 1, UNITS>(v, lane);
    } else if constexpr (BIT > 0) {
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], BIT);
        fold<1, BIT / 2, 1, UNITS>(v, lane);
    }
}

// Which of the COUNT values this lane owns after the fold: [first, end), none where another lane holds the same.
template <int COUNT, int BIT>
__device__ void ownership(int lane, int& first, int& end) {
    if constexpr (BIT > 0 && COUNT > 1) {
        constexpr int HALF = (COUNT + 1) / 2;
        if (lane & BIT) first += HALF;
        else end = min(end, first + HALF);
        ownership<HALF, BIT / 2>(lane, first, end);
    } else if constexpr (BIT > 0) {
        if (lane & BIT) end = first;
        ownership<1, BIT / 2>(lane, first, end);
    }
}

// Slots are the order in which the kernels hold units; the two parts of a complex unit are neighbours there, n / 2 apart outside. A
// slot that only fills up has no unit: -1.
__device__ int unit_of(int slot, int n, int q) {
    if (SPLIT && slot < LONG_SLOTS) return slot < q ? slot : -1;
    if (SPLIT) slot += q - LONG_SLOTS;
    if (slot >= n) return -1;
    return PARTS == 1 ? slot : slot / 2 + (slot & 1) * (n / 2);
}
// The slot of row r of a thread's group, of all groups of the cluster.
__device__ int slot_of(int group, int r) {
    if (SPLIT) return r < LONG_ROWS ? group * LONG_ROWS + r : LONG_SLOTS + group * SHORT_ROWS + r - LONG_ROWS;
    return group * ROWS + r;
}

// Lay out W = [[W_L, W_C], [0, W_S]], or its transpose in the reverse sweep, as the threads of `sweep` want it: block (rank, chunk, k)
// of this grid writes, for each thread of block `rank` of a cluster, the k-th four weights of that chunk.
extern "C" __global__ void __launch_bounds__(THREADS) pack(const __grid_constant__ Matrix matrix, float4* packed) {
    let_the_next_begin();
    const int n = (int)matrix.n, q = (int)matrix.q;
    const int rank = blockIdx.x / QUADS / (CHUNKS + SHARED_CHUNKS), chunk = blockIdx.x / QUADS % (CHUNKS + SHARED_CHUNKS);
    const int lane = threadIdx.x % LANES, group = (rank * THREADS + threadIdx.x) / LANES;
    float quad[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = (blockIdx.x % QUADS * 4 + i) / V, e = i % V;
        if (r >= ROWS) continue;
        const int row = SPLIT ? r : row_of<ROWS / PARTS, LANES / 2>(r / PARTS, lane) * PARTS + r % PARTS;
        const int here = unit_of(slot_of(group, row), n, q), there = unit_of((chunk * LANES + lane) * V + e, n, q);
        if (here >= 0 && there >= 0) quad[i] = BACKWARD ? matrix.at(there, here) : matrix.at(here, there);
    }
    packed[blockIdx.x * THREADS + threadIdx.x] = make_float4(quad[0], quad[1], quad[2], quad[3]);
}

// What the kernel is given, with steps in the order in which they are taken.
struct Given {
    const float4* packed;
    const float* bias;
    const long long* lengths;
    const float* start;
    long long start_row;
    float* finish;
    long long finish_row;
    const float *x, *h;
    float* out;
    long long x_step, x_row, h_step, h_row, out_step, out_row, B;
    int T, n, q;
};

typedef float Weights[CHUNKS][QUADS * 4];

// One group of sequences, from the first step to the last: what this thread has to do with it.
template <int SIZE>
struct Carrier {
    using Planes = Group<SIZE>;
    static constexpr int FULL = Planes::FULL, TAIL = Planes::TAIL, ROOM = Planes::ROOM, UNITS = Planes::UNITS, OWNED = Planes::OWNED;
    typename Planes::Shared& shared;
    const Given& given;
    bool mine[OWNED], real[OWNED];
    int length[OWNED], part[OWNED];  // part: from one slot to the next, in the plane of an owned value
    long long unit[OWNED], sequence[OWNED];
    float *to[OWNED], b[OWNED], kept[OWNED][PARTS], done[OWNED][PARTS], sum[PARTS][UNITS];
    const float *x_next[OWNED], *h_next[OWNED];
    float* out_next[OWNED];
#if CLUSTER > 1
    // Messages of 16 bytes from the full planes, and of as many floats from the tail as divide it.
    static constexpr int TAIL_FLOATS = WARP_ROWS * TAIL, TAIL_WIDTH = TAIL_FLOATS % 4 == 0 ? 4 : TAIL_FLOATS % 2 == 0 ? 2 : 1;
    Messages<4, WARP_ROWS * FULL * CLUSTER> messages;
    Messages<TAIL_WIDTH, TAIL_FLOATS / TAIL_WIDTH * CLUSTER> tail_messages;
    unsigned bytes;  // that come at each step: every warp sends all its rows
#endif

    __device__ Carrier(typename Planes::Shared& room, const Given& all, int rank, long long first_sequence)
        : shared(room), given(all) {
        const int n = given.n, lane = threadIdx.x % LANES, warp = threadIdx.x / 32, apart = n / 2, group = (rank * THREADS + threadIdx.x) / LANES, warp_slot = rank * BLOCK_ROWS + warp * WARP_ROWS;
#if GROUPS == 1
        clear_and_start(first_sequence);
#endif

        // What this thread owns after the fold, and where that lies.
        int first = 0, end = UNITS;
        ownership<UNITS, LANES / 2>(lane, first, end);
#pragma unroll
        for (int k = 0; k < OWNED; k++) {
            const int index = first + k, column = index % SIZE, slot = slot_of(group, index / SIZE * PARTS), found = unit_of(slot, n, given.q);
            sequence[k] = first_sequence + column;
            unit[k] = found;
            to[k] = CLUSTER > 1 ? &shared.staging[warp][Planes::offset(WARP_ROWS, slot - warp_slot, column)] : &shared.state[0][Planes::offset(SLOTS, slot, column)];
            part[k] = column < 4 * FULL ? 4 : TAIL;
            mine[k] = index < end && found >= 0;
            real[k] = mine[k] && sequence[k] < given.B;
            length[k] = real[k] && given.lengths ? (int)given.lengths[sequence[k]] : given.T;
            b[k] = given.bias && mine[k] ? given.bias[SPLIT ? found : slot / PARTS] : 0.f;
            const long long t = BACKWARD ? given.T - 1 : 0;  // steps are negative then
            x_next[k] = given.x + (BACKWARD ? -t : t) * given.x_step + sequence[k] * given.x_row + unit[k];
            h_next[k] = given.h + (BACKWARD ? -t : t) * given.h_step + sequence[k] * given.h_row + unit[k];
            out_next[k] = given.out + (BACKWARD ? -t : t) * given.out_step + sequence[k] * given.out_row + unit[k] - given.out_step;
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                kept[k][p] = given.start && real[k] ? given.start[sequence[k] * given.start_row + unit[k] + p * apart] : 0.f, done[k][p] = 0.f;
#if GROUPS > 1
            if (!real[k])  // nothing will be fetched
#pragma unroll
                for (int i = 0; i < 2 * UNROLL * STREAMS * PARTS; i++)
                    shared.ahead[i / (UNROLL * STREAMS * PARTS)][i / (STREAMS * PARTS) % UNROLL][i / PARTS % STREAMS][k * PARTS + i % PARTS][threadIdx.x] = 0.f;
#endif
        }
#if CLUSTER > 1
        messages.prepare(shared, rank, [&](int m) { return m * 4; }, [&](int m) { return (m / WARP_ROWS * SLOTS + warp_slot + m % WARP_ROWS) * 4; });
        tail_messages.prepare(shared, rank, [&](int m) { return WARP_ROWS * FULL * 4 + m * TAIL_WIDTH; },
                              [&](int m) { return 4 * FULL * SLOTS + warp_slot * TAIL + m * TAIL_WIDTH; });
        for (int i = threadIdx.x % 32; i < WARP_ROWS * ROOM; i += 32) shared.staging[warp][i] = 0.f;
        bytes = (n + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS * ROOM * 4;
        if (threadIdx.x == 0)
            for (int i = 0; i < 2; i++) {
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&shared.arrived[i])) : "memory");
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
                expect(address(&shared.arrived[i]), bytes);
            }
#endif
        fetch_ahead(0, 0);
    }

#if GROUPS == 1
    // The state before the first step. (`fill` would do; but then the compiler makes slower sweeps: a training step at 96 + 64 units took 8 % longer.)
    __device__ void clear_and_start(long long first_sequence) {
        for (int i = threadIdx.x; i < SLOTS * ROOM; i += THREADS) shared.state[0][i] = shared.state[1][i] = 0.f;
        for (int i = threadIdx.x; i < (int)(sizeof(shared.ahead) / 4); i += THREADS) (&shared.ahead[0][0][0][0][0])[i] = 0.f;
        block_barrier();
        if (given.start)
#pragma unroll 4
            for (int i = threadIdx.x; i < SLOTS * SIZE; i += THREADS) {
                const int slot = i / SIZE, c = i % SIZE, unit = unit_of(slot, given.n, given.q);
                if (unit >= 0 && first_sequence + c < given.B) shared.state[0][Planes::offset(SLOTS, slot, c)] = given.start[(first_sequence + c) * given.start_row + unit];
            }
    }
#else
    // The same, all numbers asked for at once and no barrier between, while the weights are on their way: 3 µs less.
    __device__ void fill(long long first_sequence) {
        constexpr int ALL = SLOTS * ROOM, EACH = (ALL + THREADS - 1) / THREADS, AT_ONCE = EACH < 8 ? EACH : 8;
#pragma unroll 1
        for (int base = 0; base < ALL; base += AT_ONCE * THREADS) {
            float value[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int i = base + k * THREADS + threadIdx.x, in_tail = i - 4 * FULL * SLOTS;
                const int slot = in_tail < 0 ? i / 4 % SLOTS : in_tail / (TAIL ? TAIL : 1), c = in_tail < 0 ? i / (4 * SLOTS) * 4 + i % 4 : 4 * FULL + in_tail % (TAIL ? TAIL : 1);
                const int unit = i < ALL && c < SIZE ? unit_of(slot, given.n, given.q) : -1;
                value[k] = given.start && unit >= 0 && first_sequence + c < given.B ? given.start[(first_sequence + c) * given.start_row + unit] : 0.f;
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int i = base + k * THREADS + threadIdx.x;
                if (i < ALL) shared.state[0][i] = value[k], shared.state[1][i] = 0.f;
            }
        }
    }
#endif

    __device__ void fetch_ahead(int half, int step) {  // UNROLL steps from `step` on
        const int apart = given.n / 2;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int k = 0; k < OWNED; k++) {
                if (real[k] && step + u < given.T)
#pragma unroll
                    for (int p = 0; p < PARTS; p++) {
                        fetch(&shared.ahead[half][u][0][k * PARTS + p][threadIdx.x], x_next[k] + p * apart);
                        if (BACKWARD) fetch(&shared.ahead[half][u][STREAMS - 1][k * PARTS + p][threadIdx.x], h_next[k] + p * apart);
                    }
                x_next[k] += given.x_step;
                if (BACKWARD) h_next[k] += given.h_step;
            }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ void write_out(bool some) {  // what the step before has made
        const int apart = given.n / 2;
#pragma unroll
        for (int k = 0; k < OWNED; k++) {
            if (real[k] && some && given.out)
#pragma unroll
                for (int p = 0; p < PARTS; p++) store(out_next[k] + p * apart, done[k][p]);
            out_next[k] += given.out_step;
        }
    }

    // Wait until the whole state of the step before has come.
    __device__ void arrive(int now, int step) {
#if CLUSTER > 1
        if (step > 0) wait(address(&shared.arrived[now]), (step - 1) >> 1 & 1);
#endif
    }

    // W times the state in shared.state[now]; this thread's share is then in sum[…][0 … OWNED). The work of `meanwhile` is not
    // urgent, and is placed where the first values of the state are still on their way.
    template <class Meanwhile>
    __device__ void product(const Weights& w, const Shared& all, int now, Meanwhile meanwhile) {
        const int lane = threadIdx.x % LANES;
        const float* state = shared.state[now];
        const auto chunk = [&](int i, float (&value)[V * SIZE]) {
            const int column = i * LANES + lane;
            if constexpr (V > 1) {
                const float4 four = reinterpret_cast<const float4*>(state)[column];
                value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
            } else {
#pragma unroll
                for (int plane = 0; plane < FULL; plane++) {
                    const float4 four = reinterpret_cast<const float4*>(state)[plane * SLOTS + column];
                    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        if (4 * plane + c < SIZE) value[4 * plane + c < SIZE ? 4 * plane + c : 0] = each[c];
                }
                if constexpr (TAIL == 1) value[4 * FULL] = state[4 * FULL * SLOTS + column];
                if constexpr (TAIL == 2) {
                    const float2 two = reinterpret_cast<const float2*>(state + 4 * FULL * SLOTS)[column];
                    value[SIZE - 2] = two.x, value[SIZE - 1] = two.y;
                }
            }
        };
        constexpr int EARLY = CHUNKS < 4 ? CHUNKS : 4;
        float early[EARLY][V * SIZE];
#pragma unroll
        for (int k = 0; k < EARLY; k++) chunk(nth(k), early[k]);
        meanwhile();
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int u = 0; u < UNITS; u++) sum[p][u] = 0.f;
#pragma unroll
        for (int k = 0; k < CHUNKS + SHARED_CHUNKS; k++) {
            const int i = nth(k);
            float quad[QUADS * 4], value[V * SIZE];
            if (i >= CHUNKS)
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    const float4 four = all.weights[i - CHUNKS][j][threadIdx.x];
                    quad[4 * j] = four.x, quad[4 * j + 1] = four.y, quad[4 * j + 2] = four.z, quad[4 * j + 3] = four.w;
                }
            if (k >= EARLY) chunk(i, value);
#pragma unroll
            for (int e = 0; e < V; e++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int c = 0; c < SIZE; c++)
                        if (present(i, r)) sum[r % PARTS][r / PARTS * SIZE + c] += (i < CHUNKS ? w[i < CHUNKS ? i : 0][r * V + e] : quad[r * V + e]) *
                                                                (k < EARLY ? early[k < EARLY ? k : 0][e * SIZE + c] : value[e * SIZE + c]);
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) fold<UNITS, LANES / 2, SORTED_ROWS>(sum[p], lane);
    }

    // One step. `u` is its place among those written out in a row, the first of which is `base`.
    __device__ void step(const Weights& w, const Shared& all, int base, int u, int half) {
        const int step = base + u, now = u & 1, next = now ^ 1;
        float read[STREAMS][OWNED][PARTS];
        arrive(now, step);
        product(w, all, now, [&] {
            if (u == 0) {
                fetch_ahead(half ^ 1, base + UNROLL);
                asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
            }
#pragma unroll
            for (int i = 0; i < STREAMS * OWNED * PARTS; i++)
                read[i / (OWNED * PARTS)][i / PARTS % OWNED][i % PARTS] = shared.ahead[half][u][i / (OWNED * PARTS)][i % (OWNED * PARTS)][threadIdx.x];
            write_out(step > 0);
        });
#if CLUSTER > 1
        if (threadIdx.x == 0 && step > 0) expect(address(&shared.arrived[now]), bytes);
        __syncwarp();  // every lane has sent what staging held
#endif
#pragma unroll
        for (int k = 0; k < OWNED; k++) {
            float z[PARTS], result[PARTS];
#pragma unroll
            for (int p = 0; p < PARTS; p++) z[p] = sum[p][k] + read[0][k][p];
            if (!BACKWARD) {
                activate(z, b[k], result);
#pragma unroll
                for (int p = 0; p < PARTS; p++) kept[k][p] = result[p] = step < length[k] ? result[p] : kept[k][p];
            } else {
                const bool running = given.T - 1 - step < length[k];
#pragma unroll
                for (int p = 0; p < PARTS; p++) z[p] += kept[k][p];
                pull_back(z, read[STREAMS - 1][k], b[k], result);
#pragma unroll
                for (int p = 0; p < PARTS; p++) {
                    kept[k][p] = running ? 0.f : z[p];
                    if (!running) result[p] = 0.f;
                }
            }
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                done[k][p] = result[p];
                if (mine[k]) to[k][p * part[k] + (CLUSTER > 1 ? 0 : next * SLOTS * ROOM)] = result[p];
            }
        }
#if CLUSTER > 1
        if (BACKWARD || step + 1 < given.T) {
            __syncwarp();
            messages.go(shared.staging[threadIdx.x / 32], next, SLOTS * ROOM * 4);
            tail_messages.go(shared.staging[threadIdx.x / 32], next, SLOTS * ROOM * 4);
        }
#else
        block_barrier();
#endif
    }

    __device__ void end(const Weights& w, const Shared& all) {
        write_out(true);
        if (BACKWARD) {
            arrive(given.T & 1, given.T);
            product(w, all, given.T & 1, [] {});
        }
#pragma unroll
        for (int k = 0; k < OWNED; k++)
            if (real[k])
#pragma unroll
                for (int p = 0; p < PARTS; p++) given.finish[sequence[k] * given.finish_row + unit[k] + p * (given.n / 2)] = kept[k][p] + (BACKWARD ? sum[p][k] : 0.f);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
sweep(
    const float4* packed,                       // W, or its transpose in the reverse sweep, as `pack` has written it
    const float* bias,                          // [n / PARTS] or null
    const long long* lengths,                   // [B] or null
    const float* start, long long start_row,    // [B, n] or null: the state before the first step
    float* finish, long long finish_row,        // [B, n]: the state after the last step, or the gradient of the initial state
    const float* x, long long x_step, long long x_row,        // [T, B, n]: x, or dL/dh
    const float* h, long long h_step, long long h_row,        // [T, B, n]: the states, read in the reverse sweep
    float* out, long long out_step, long long out_row,        // [T, B, n]: the states, or dz; null where nobody wants them
    long long steps, long long B, long long size, long long long_size)
{
    extern __shared__ __align__(16) unsigned char raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int T = (int)steps, rank = blockIdx.x % CLUSTER, sign = BACKWARD ? -1 : 1;
    const long long first_sequence = (long long)(blockIdx.x / CLUSTER) * BATCH;
    const Given given = {packed, bias, lengths, start, start_row, finish, finish_row, x, h, out, sign * x_step, x_row, sign * h_step, h_row, sign * out_step, out_row, B, T, (int)size, (int)long_size};

    Carrier<FIRST> one(shared.first, given, rank, first_sequence);
#if GROUPS > 1
    Carrier<SECOND> two(shared.second, given, rank, first_sequence + FIRST);
#endif

    wait_for_the_one_before();  // which is `pack`
    Weights w;
#pragma unroll
    for (int i = 0; i < CHUNKS + SHARED_CHUNKS; i++)
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const float4 four = packed[((rank * (CHUNKS + SHARED_CHUNKS) + i) * QUADS + k) * THREADS + threadIdx.x];
            if (i < CHUNKS) w[i < CHUNKS ? i : 0][4 * k] = four.x, w[i < CHUNKS ? i : 0][4 * k + 1] = four.y, w[i < CHUNKS ? i : 0][4 * k + 2] = four.z, w[i < CHUNKS ? i : 0][4 * k + 3] = four.w;
            else shared.weights[i - CHUNKS][k][threadIdx.x] = four;
        }
#if GROUPS > 1
    one.fill(first_sequence);
    two.fill(first_sequence + FIRST);
#endif
#if CLUSTER > 1
    cluster_barrier();
    if (rank * BLOCK_ROWS + threadIdx.x / 32 * WARP_ROWS < (int)size) {  // a warp that owns nothing must not wait for anything
#else
    block_barrier();
    {
#endif
        int half = 0;
        for (int base = 0; base < T; base += UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (base + u >= T) break;
                one.step(w, shared, base, u, half);
#if GROUPS > 1
                two.step(w, shared, base, u, half);
#endif
            }
            half ^= 1;
        }
        one.end(w, shared);
#if GROUPS > 1
        two.end(w, shared);
#endif
    }
#if CLUSTER > 1
    cluster_barrier();  // no block leaves while another may still write to it
#endif
}
