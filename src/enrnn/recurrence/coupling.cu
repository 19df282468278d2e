// C times every state of a recurrence, as soon as it is there, for one that follows: `eights.cu` runs before this kernel, at the same time, and after it.
//
// A block has 16 TILES rows of C in registers, and takes all states of one or more teams one after the other, each of these an item: the warp with the
// fewest columns looks whether there are letters, and has them copied into a ring in shared memory; all warps multiply, each with its columns, and add
// up a sequence each of the item before. What they find goes to memory, where NOTHING was before: whoever waits for it looks there.
//
// All thread blocks are one cluster, although they do not speak to one another, so that they have their places side by side: the clusters of the
// follower need what is left of the chip in one piece.
//
// Reckoning, C of 310 x 720 and 32 sequences in 14 blocks: 216 products of 16 x 8 x 16 for a tensor core at every step, some 1,900 cycles.
//
// Set by the compiler's command line: TEAM, TILES, FROM_TEAM, SHARES, AT_ONCE, CLUSTER, SHARED_BYTES.

constexpr int RING = 2, LISTENER = WARPS - 1, TOGETHER = AT_ONCE * (WARPS / SHARES);  // teams of an item

struct Shared {
    unsigned char letters[RING][TOGETHER][FROM_TEAM][SEQUENCES][LETTER];
    Sums sums[2][TOGETHER];
    unsigned long long come[RING], summed[2];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");

// A share of C times the letters of AT_ONCE teams. Tensor cores may add over all units of a block here: what they cut off does not add up over the steps.
__device__ void multiply(const unsigned char (&letters)[FROM_TEAM][SEQUENCES][LETTER], int share, int lane, const uint4 (&c)[SOURCES][TILES][TILES][2], float (&total)[AT_ONCE][TILES][4]) {
    constexpr int APART = FROM_TEAM * SEQUENCES * LETTER, MANY = AT_ONCE * TILES;  // from one team to the next; sums of 16 x 8
#pragma unroll
    for (int k = 0; k < SOURCES; k++) {
        if (source(share, k) >= FROM_TEAM) break;
        const unsigned char* const from = letters[source(share, k)][0];
        float part[MANY][4] = {}, ones[AT_ONCE][2];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint4 word[AT_ONCE];  // of a tile of units: 2 column and the next, and both 8 further on; large halves, and small ones
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) word[e] = *reinterpret_cast<const uint4*>(from + e * APART + lane / 4 * LETTER + t * 64 + lane % 4 * 16);
#pragma unroll
            for (int i = 0; i < MANY; i++) mma(part[i], c[k][i / AT_ONCE][t][1], word[i % AT_ONCE].x, word[i % AT_ONCE].y, part[i]);
#pragma unroll
            for (int i = 0; i < MANY; i++) mma(part[i], c[k][i / AT_ONCE][t][0], word[i % AT_ONCE].z, word[i % AT_ONCE].w, part[i]);
#pragma unroll
            for (int i = 0; i < MANY; i++) mma(part[i], c[k][i / AT_ONCE][t][0], word[i % AT_ONCE].x, word[i % AT_ONCE].y, part[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE * 2; i++) ones[i / 2][i % 2] = *reinterpret_cast<const float*>(from + i / 2 * APART + (2 * (lane % 4) + i % 2) * LETTER + 64 * TILES);
#pragma unroll
        for (int i = 0; i < MANY * 4; i++) total[i / 4 % AT_ONCE][i / 4 / AT_ONCE][i % 4] += part[i / 4][i % 4] * ones[i / 4 % AT_ONCE][i % 2];
    }
}

// To this block's shared memory.
__device__ void copy_in(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

__device__ bool there_yet(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

__device__ void arrive(unsigned barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) couple(
    const Packed* packed,                          // C, or its transpose for a reverse sweep, as `pack.cu` lays it out
    const unsigned char* letters, long long turn,  // of the recurrence that is followed, and from one state to the next
    const int* told,                               // [its teams]: how many letters there are
    float* gained,                                 // [last + 1][teams][TEAM][SEQUENCES][UNITS]
    long long from, long long last,                // the states that are multiplied
    long long teams, long long each)               // that have sequences, and how many of them a block takes
{
    let_the_next_begin();
    extern __shared__ __align__(128) unsigned char raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int rank = blockIdx.x % TEAM, first = blockIdx.x / TEAM * (int)each, mine = min((int)each, (int)teams - first), many = (mine + TOGETHER - 1) / TOGETHER;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), share = warp % SHARES, side = warp / SHARES, lane = threadIdx.x % 32;
    constexpr int TEAM_LETTERS = sizeof(shared.letters[0][0]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) open(address(&shared.come[i]));
        for (int i = 0; i < 2; i++) open(address(&shared.summed[i]), THREADS);
    }
    for (int i = threadIdx.x; i < 2 * TOGETHER * MULTIPLYING * SEQUENCES * 4; i += THREADS) shared.sums[0][0][0][i / 4][UNITS + i % 4] = 0.f;
    __syncthreads();

    uint4 c[SOURCES][TILES][TILES][2];
#pragma unroll
    for (int i = 0; i < SOURCES * TILES * TILES * 2; i++)
        c[i / (TILES * TILES * 2)][i / (TILES * 2) % TILES][i / 2 % TILES][i % 2] = (&packed->words[rank][share][0][0][0][0][0])[i * 32 + lane];
    const float2 ones = ones_of(packed, rank, lane);
    const int items = (int)(last + 1 - from) * many;

    // The teams of an item; of an odd number the last one twice.
    const auto team = [&](int place, int e) { return first + min(place * TOGETHER + e, mine - 1); };

    // Letters for items that have room, if there are any: at the item j, up to j + RING - 1, since all warps have read those of j - 1. The item itself
    // is waited for.
    int there = 0, asked = 0, place = 0;  // letters of the team `first + lane`; items, and of the next one the teams
    long long state = from;
    const auto ask = [&](int item) {
#pragma unroll 1
        while (asked < items && asked < item + RING) {
            if (!__all_sync(0xffffffffu, there > state || lane / TOGETHER != place || lane >= mine)) {
                if (lane < mine) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(told + first + lane) : "memory");
                if (!__all_sync(0xffffffffu, there > state || lane / TOGETHER != place || lane >= mine)) {
                    if (asked > item) return;
                    continue;
                }
            }
            const unsigned barrier = address(&shared.come[asked % RING]);
            if (lane == 0) expect(barrier, TOGETHER * TEAM_LETTERS);
            __syncwarp();
            if (lane < TOGETHER) {
                asm volatile("fence.proxy.async.global;" ::: "memory");
                copy_in(address(shared.letters[asked % RING][lane]), letters + state * turn + team(place, lane) * (long long)TEAM_LETTERS, TEAM_LETTERS, barrier);
            }
            asked++;
            if (++place == many) place = 0, state++;
        }
    };

    constexpr int STATE = TEAM * SEQUENCES * UNITS;  // of a team
    float* to = gained + from * teams * STATE + (rank * SEQUENCES + warp) * UNITS + 2 * lane;
    int done = 0;  // items of this state
    const auto finish = [&](int item) {  // a sequence of each team of an item that all have multiplied
        wait(address(&shared.summed[item & 1]), item >> 1 & 1);
#pragma unroll
        for (int e = 0; e < TOGETHER; e++) {
            const float2 sum = add_up(shared.sums[item & 1][e], warp, lane, ones);  // if it is not a number, it is not NOTHING
            if (lane < PAIRS) asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to + team(done, e) * STATE), "f"(sum.x), "f"(sum.y) : "memory");
        }
        if (++done == many) done = 0, to += teams * STATE;
    };
#pragma unroll 1
    for (int item = 0; item < items; item++) {
        const int slot = item % RING;
        float total[AT_ONCE][TILES][4] = {};
        // Half of the warps multiply first, unless they would have to wait, so that they do not all stand in one another's way.
        const bool before = item > 0 && (warp >= WARPS / 2 || !__all_sync(0xffffffffu, there_yet(address(&shared.come[slot]), item / RING & 1)));
        if (before) finish(item - 1);
        if (warp == LISTENER) ask(item);  // it is one of those that finish before
        wait(address(&shared.come[slot]), item / RING & 1);
        multiply(shared.letters[slot][side * AT_ONCE], share, lane, c, total);
        if (item > 0 && !before) finish(item - 1);
        if (share < MULTIPLYING)
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) write(total[e], shared.sums[item & 1][side * AT_ONCE + e], share, lane);
        arrive(address(&shared.summed[item & 1]));  // every thread: of a lane's for its warp compute-sanitizer does not know
    }
    if (items > 0) finish(items - 1);
    wait_for_the_one_before();  // or what is launched next might begin while the other is still writing
}
