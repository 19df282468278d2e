// The recurrence h_t = s(x_t + W h_{t-1}, b) for a large matrix and eights of sequences, and its reverse sweep, by the tensor cores; it may be followed,
// or follow another and gain what that gives for every step, by way of `coupling.cu`, while all are running.
//
// A team of TEAM thread blocks carries eight sequences from the first step to the last; a cluster is TEAMS of them. A block has 16 TILES rows of W
// in registers all the time. The state stands in the shared memory of every block, in two copies taken in turns. A step:
//     - a warp waits for the state of its columns, multiplies, and writes its sums to shared memory; a block barrier;
//     - a sequence's warp adds up its sums, adds x_t, applies the nonlinearity, and writes the block's new units to memory, as a letter, from
//       where one copy takes them to all blocks of the team, counted by the receivers' mbarriers.
// A recurrence that is followed keeps all its letters, and tells in memory how many there are. One that follows adds to x_t what it finds in memory,
// as soon as that is there.
//
// The reverse sweep is the same machine with W transposed, dz in the place of h, and the nonlinearity's pull-back.
//
// A follower must not be launched before all thread blocks of those that it waits for have let the next begin: it would keep them from their places
// for ever. They never wait for it.
//
// Reckoning, a step of 720 units in 15 blocks: a tensor core has 108 products of 16 x 8 x 16, some 8 cycles each, 900; adding up, the nonlinearity and
// the halves are a chain of 250 cycles, the way to memory and from there to all blocks 700. Measured were 2,300 to 2,400, at a clock that such
// bursts lower from 1.98 to 1.6 GHz.
//
// Set by the compiler's command line: TEAM, TEAMS, TILES; FOLLOWS, SIGMA, BACKWARD, SHARED_BYTES.

constexpr int SLOT = 64 * ((TILES + 1) | 1);       // from one to the next in a state, so that lanes read from different banks
constexpr int TELLER = WARPS - 1;                  // the warp with the fewest sources
static_assert(PARTS == 1 && TILES <= 3 && TEAM * TEAMS <= 16, "not a shape for this kernel");

struct Shared {
    unsigned char state[2][TEAM][SEQUENCES][SLOT];
    Sums sums[2];
    unsigned long long arrived[2][WARPS];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");

// A block's rows times the units of one of a warp's blocks: added to `total`. As tensor cores cut off where they add, which over many steps would
// let a state shrink, they add over 16 columns only. Products that do not wait for each other stand next to each other.
__device__ void multiply(const unsigned char* letters, int lane, float (&total)[TILES][4], const uint4 (&weight)[TILES][TILES][2]) {
    const int row = lane / 4, column = lane % 4;
    uint4 word[TILES];  // of a tile of units: 2 column and the next, and both 8 further on; large halves, and small ones
#pragma unroll
    for (int t = 0; t < TILES; t++) word[t] = *reinterpret_cast<const uint4*>(letters + row * SLOT + t * 64 + column * 16);
    const float of_state[2] = {*reinterpret_cast<const float*>(letters + 2 * column * SLOT + 64 * TILES), *reinterpret_cast<const float*>(letters + (2 * column + 1) * SLOT + 64 * TILES)};
    float part[TILES][TILES][4];
    const float nothing[4] = {};
#pragma unroll
    for (int i = 0; i < TILES * TILES; i++) mma(part[i % TILES][i / TILES], weight[i % TILES][i / TILES][1], word[i / TILES].x, word[i / TILES].y, nothing);
#pragma unroll
    for (int i = 0; i < TILES * TILES; i++) mma(part[i % TILES][i / TILES], weight[i % TILES][i / TILES][0], word[i / TILES].z, word[i / TILES].w, part[i % TILES][i / TILES]);
#pragma unroll
    for (int i = 0; i < TILES * TILES; i++) mma(part[i % TILES][i / TILES], weight[i % TILES][i / TILES][0], word[i / TILES].x, word[i / TILES].y, part[i % TILES][i / TILES]);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = part[m][0][i];
#pragma unroll
            for (int t = 1; t < TILES; t++) sum += part[m][t][i];
            total[m][i] += sum * of_state[i % 2];
        }
}

__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(TEAM * TEAMS, 1, 1) sweep(
    const Packed* packed,                       // W, or its transpose in the reverse sweep, as `pack.cu` lays it out
    unsigned char* letters, long long turn,     // [T + 1 or 2][teams][TEAM][SEQUENCES][LETTER], and from one state to the next
    int* tells,                                 // [teams] or null: how many letters there are; all are kept then
    const float* gained,                        // [T + 1][teams that have sequences][TEAM][SEQUENCES][UNITS], if it FOLLOWS; NOTHING where it is not there yet
    const float* bias,                          // [n] or null
    const long long* lengths,                   // [B] or null
    const float* start, long long start_row,    // [B, n] or null: the state before the first step
    float* finish, long long finish_row,        // [B, n]: the state after the last step, or the gradient of the initial state
    const float* x, long long x_step, long long x_row,        // [T, B, n]: x, or dL/dh
    const float* h, long long h_step, long long h_row,        // [T, B, n]: the states, read in the reverse sweep
    float* out, long long out_step, long long out_row,        // [T, B, n]: the states, or dz; null where nobody wants them
    long long steps, long long B, long long size, long long)
{
    extern __shared__ __align__(128) unsigned char raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int T = (int)steps, n = (int)size, place = blockIdx.x % (TEAM * TEAMS), rank = place % TEAM, team = blockIdx.x / TEAM;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));  // or it would be asked for again in every step
    const int sources = warp < TEAM ? (TEAM - warp + WARPS - 1) / WARPS : 0;
    const int first = start ? 0 : 1;  // the first state that is multiplied

    if (tells && threadIdx.x == 0 && rank == 0) {
        tells[team] = 0;
        __threadfence();
    }

    // What this lane has of the new state: two neighbouring units of the warp's sequence.
    const int unit = rank * UNITS + 2 * lane;
    const long long sequence = (long long)team * SEQUENCES + warp, origin = BACKWARD ? T - 1 : 0;
    const bool given = sequence < B;
    const int length = !given ? 0 : lengths ? (int)lengths[sequence] : T;
    bool real[2];
    float b[2], kept[2], ahead[2][2][2];  // of the next steps: x, or dL/dh, and h
    const float *x_next = x + origin * x_step + sequence * x_row + unit, *h_next = h + origin * h_step + sequence * h_row + unit;
    float* out_next = out + origin * out_step + sequence * out_row + unit;
    const auto fetch = [&](int slot, bool some) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            ahead[slot][0][e] = some && real[e] ? x_next[e] : 0.f;
            if (BACKWARD) ahead[slot][1][e] = some && real[e] ? h_next[e] : 0.f;
        }
        x_next = BACKWARD ? x_next - x_step : x_next + x_step;
        if (BACKWARD) h_next -= h_step;
    };
#pragma unroll
    for (int e = 0; e < 2; e++) {
        real[e] = given && lane < PAIRS && unit + e < n;
        kept[e] = start && real[e] ? start[sequence * start_row + unit + e] : 0.f;
        b[e] = bias && lane < PAIRS && unit + e < n ? bias[unit + e] : 0.f;
    }
    fetch(0, true);
    fetch(1, T > 1);

    // What is gained at a step is looked for before the products, and again where it was not there yet.
    const bool gains = FOLLOWS && given && lane < PAIRS;
    const long long gained_turn = (B + SEQUENCES - 1) / SEQUENCES * (TEAM * SEQUENCES * UNITS);
    const float* gained_next = gained + first * gained_turn + ((team * TEAM + rank) * SEQUENCES + warp) * UNITS + 2 * lane;
    unsigned more[2] = {};
    const auto look = [&]() {
        if (gains) asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(more[0]), "=r"(more[1]) : "l"(gained_next) : "memory");
    };

    // A letter of this block and sequence, and of this lane in it: both halves of its units, or what 1 stands for.
    unsigned char* letter = letters + ((team * TEAM + rank) * SEQUENCES + warp) * (long long)LETTER + (lane < PAIRS ? lane / 8 * 64 + lane % 4 * 16 + lane / 4 % 2 * 4 : 64 * TILES);
    const unsigned to = address(shared.state[0][rank][warp]), bell = address(&shared.arrived[0][rank % WARPS]);
    const unsigned short team_mask = (unsigned short)(((1 << TEAM) - 1) << (place - rank));
    const auto send = [&](int copy, const float (&value)[2]) {
        float scale, one;
        unsigned large, small;
        common_scale(__reduce_max_sync(0xffffffffu, max(__float_as_uint(fabsf(value[0])), __float_as_uint(fabsf(value[1])))), scale, one);
        cut(value[0] * scale, value[1] * scale, large, small);
        if (lane <= PAIRS)
            asm volatile("st.global.u32 [%0], %1;\n\tst.global.u32 [%0 + 8], %2;" ::"l"(letter), "r"(lane < PAIRS ? large : __float_as_uint(one)), "r"(small) : "memory");
        asm volatile("fence.proxy.async.global;" ::: "memory");
        __syncwarp();
        if (lane == 0)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to + copy * (TEAM * SEQUENCES * SLOT)), "l"(letter),
                         "r"(LETTER), "r"(bell + copy * WARPS * 8), "h"(team_mask) : "memory");
        letter = tells || copy == 0 ? letter + turn : letter - turn;
    };

    const unsigned bytes = sources * SEQUENCES * LETTER, mine = address(&shared.arrived[0][warp]);
    if (lane == 0) {
        for (int i = 0; i < 2; i++) {
            open(mine + i * WARPS * 8);
            if (i == 0 && !start) expect(mine, 0);  // nothing is sent before the first step: as if it had come
            if (sources) expect(mine + i * WARPS * 8, bytes);
        }
    }
    for (int i = threadIdx.x; i < 2 * MULTIPLYING * SEQUENCES * 4; i += THREADS) shared.sums[0][0][i / 4][UNITS + i % 4] = 0.f;
    cluster_barrier();
    if (!start) letter += turn;
    else send(0, kept);

    if (!FOLLOWS) wait_for_the_one_before();  // which is `pack`; that of a follower has come before
    if (tells) {
        __syncthreads();
        let_the_next_begin();
    }
    uint4 w[SOURCES][TILES][TILES][2];
#pragma unroll
    for (int i = 0; i < SOURCES * TILES * TILES * 2; i++) w[i / (TILES * TILES * 2)][i / (TILES * 2) % TILES][i / 2 % TILES][i % 2] = (&packed->words[rank][warp][0][0][0][0][0])[i * 32 + lane];
    const float2 ones = ones_of(packed, rank, lane);

    // W times the state in copy `now`: after this, `sums` has it.
    const auto product = [&](int index, int now) {
        look();
        if (sources) {
            float total[TILES][4] = {};
            wait(mine + now * WARPS * 8, index >> 1 & 1);
            if (lane == 0) expect(mine + now * WARPS * 8, bytes);
#pragma unroll
            for (int k = 0; k < SOURCES; k++)
                if (k < sources) multiply(shared.state[now][source(warp, k)][0], lane, total, w[k]);
            write(total, shared.sums[now], warp, lane);
        }
        __syncthreads();
    };
    const auto add = [&](int now, float (&z)[2]) {
        const float2 sum = add_up(shared.sums[now], warp, lane, ones);
        z[0] = sum.x, z[1] = sum.y;
        if (FOLLOWS) {
            while (more[0] == NOTHING || more[1] == NOTHING) look();
            z[0] += __uint_as_float(more[0]), z[1] += __uint_as_float(more[1]);
            gained_next += gained_turn;
        }
    };

    // How many letters there are, all of which have come to this block. (The loop is a branch: a predicate would have all warps wait where one does.)
    const bool teller = !FOLLOWS && tells && rank == 0 && warp == TELLER && lane == 0;
    const auto tell = [&](int count) {
#pragma unroll 1
        for (unsigned once = gridDim.y; once > 0; once--) asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(tells + team), "r"(count) : "memory");
    };
    const auto step = [&](int index, int u) {  // u: which copy of the state is read
        float z[2] = {}, result[2];
        if (index >= first) {
            product(index, u);
            add(u, z);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float given[1] = {z[e] + ahead[u][0][e]}, made[1];
            if (!BACKWARD) {
                activate(given, b[e], made);
                kept[e] = result[e] = index < length ? made[0] : kept[e];
            } else {
                const bool running = T - 1 - index < length;
                const float state[1] = {ahead[u][1][e]};
                given[0] += kept[e];
                pull_back(given, state, b[e], made);
                kept[e] = running ? 0.f : given[0];
                result[e] = running ? made[0] : 0.f;
            }
        }
        if (BACKWARD || index + 1 < T) send(u ^ 1, result);
        if (teller) tell(index + 1);
        if (out)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (real[e]) out_next[e] = result[e];
        out_next = BACKWARD ? out_next - out_step : out_next + out_step;
        fetch(u, index + 2 < T);
    };
#pragma unroll 1
    for (int base = 0; base < T; base += 2) {
        step(base, 0);
        if (base + 1 < T) step(base + 1, 1);
    }
    float z[2] = {};
    if (BACKWARD) {
        product(T, T & 1);
        if (teller) tell(T + 1);
        add(T & 1, z);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (real[e]) finish[sequence * finish_row + unit + e] = kept[e] + z[e];
    if (FOLLOWS) wait_for_the_one_before();  // or what is launched next might begin while that is still writing
    cluster_barrier();  // no block leaves while another may still write to it
}
