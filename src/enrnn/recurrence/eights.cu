// The recurrence h_t = s(x_t + W h_{t-1}, b) for a large matrix and eights of sequences, and its reverse sweep, by the tensor cores; and one that
// follows another while that is still running: h_t = s(x_t + W h_{t-1} + C g_{t-1}, b), where g are the states of the other.
//
// A team of TEAM thread blocks carries eight sequences from the first step to the last; a cluster is TEAMS of them. A block has 16 TILES rows of W
// in registers all the time; its eight warps share out the columns, which are the units of the blocks warp, warp + 8, … of the team. The state
// stands in the shared memory of every block, in two copies taken in turns. A step:
//     - a warp waits for the state of its columns, multiplies, and writes its sums to shared memory; a block barrier;
//     - a sequence's warp adds up its sums, adds x_t, applies the nonlinearity, and writes the block's new units to memory, as a letter, from
//       where one copy takes them to all blocks of the team, counted by the receivers' mbarriers;
//     - meanwhile a follower's warps multiply the other's next state with C, and ask for the one after that.
// A recurrence that is followed keeps all its letters, and tells in memory how many there are.
//
// Tensor cores multiply halves, of 11 bits. A float is taken for the sum of two, scaled by a power of two which a sequence's units of one block
// have in common, and so have a row of W and of C in the columns of one warp; of four products three are taken. As tensor cores cut off where they
// add, they add over 16 columns only.
//
// The reverse sweep is the same machine with W transposed, dz in the place of h, and the nonlinearity's pull-back.
//
// A follower must not be launched before all thread blocks of the other have let the next begin: it would keep them from their places for ever. The
// other never waits for it.
//
// Reckoning, a step of 720 units in 15 blocks: a tensor core has 108 products of 16 x 8 x 16, some 8 cycles each, 900; adding up, the nonlinearity and
// the halves are a chain of 250 cycles, the way to memory and from there to all blocks 700. Measured were 2,300 to 2,400, at a clock that such
// bursts lower from 1.98 to 1.6 GHz.
//
// Set by the compiler's command line: TEAM, TEAMS, TILES; of the recurrence that is followed OTHER_TEAM, or 0, and OTHER_TILES; SIGMA, BACKWARD,
// SHARED_BYTES.

constexpr int SEQUENCES = 8, WARPS = 8, THREADS = 32 * WARPS, UNITS = 16 * TILES, PAIRS = UNITS / 2;
constexpr int LETTER = 64 * TILES + 16;                            // bytes: two halves of every unit, and what 1 stands for
constexpr int SLOT = 64 * ((TILES + 1) | 1);                       // from one to the next in a state, so that lanes read from different banks
constexpr int SOURCES = (TEAM + WARPS - 1) / WARPS;                // blocks whose units a warp multiplies with
constexpr bool FOLLOWS = OTHER_TEAM > 0;

// Of a follower, four warps take two sequences each to the next step, while the four others multiply with C. For the first blocks of the other C is
// in registers, if these have room, one for each warp; for those that are left it is in shared memory, and the four others multiply with it.
constexpr int EACH = FOLLOWS ? 2 : 1, FINISHING = SEQUENCES / EACH, FREE = FOLLOWS ? WARPS - FINISHING : 1, AHEAD = 2 / EACH;
constexpr int HELD = FOLLOWS && SOURCES == 1 ? 1 : 0, STORED = OTHER_TEAM > HELD * WARPS ? OTHER_TEAM - HELD * WARPS : 0;
constexpr int OTHER_SOURCES = HELD + (STORED + FREE - 1) / FREE, OTHER_LETTER = 64 * OTHER_TILES + 16;

constexpr int MULTIPLYING = FOLLOWS || TEAM > WARPS ? WARPS : TEAM;   // warps that have sums
constexpr int PACKING = SOURCES + (FOLLOWS ? OTHER_SOURCES : 0);      // warps of a block of `pack`
constexpr int TELLER = WARPS - 1;                                     // the warp with the fewest sources
static_assert(PARTS == 1 && TILES <= 3 && TEAM * TEAMS <= 16, "not a shape for this kernel");

struct Shared {
    unsigned char state[2][TEAM][SEQUENCES][SLOT];
    float sums[2][MULTIPLYING][SEQUENCES][UNITS + 4];  // four zeros at the end, for lanes without units
    float ones[WARPS][UNITS];                          // what 1 stands for in a row of W and C, in the columns of a warp
    unsigned long long arrived[2][WARPS], there, unused;
    uint4 coupling[STORED ? STORED : 1][TILES][OTHER_TILES][2][32];
    unsigned char other[2][FOLLOWS ? OTHER_TEAM : 1][SEQUENCES][OTHER_LETTER];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");

// W and C as `pack` writes them.
struct Packed {
    uint4 words[TEAM][WARPS][SOURCES][TILES][TILES][2][32];  // of a block and a warp, the units of another: of a row of tiles and a column, large and small halves
    uint4 coupling[FOLLOWS ? TEAM : 1][FOLLOWS ? OTHER_TEAM : 1][TILES][OTHER_TILES][2][32];
    float ones[TEAM][WARPS][UNITS];
};

// What is followed: of each of its teams the letters, and how many there are.
struct Other {
    const unsigned char* letters;
    long long turn;
    const int* told;
};

// The blocks whose units a warp multiplies with: of its own team, and of the other; there may be none.
__device__ int own_block(int warp, int k) { return warp + k * WARPS; }
__device__ int other_block(int warp, int k) {
    if (k < HELD) return warp + k * WARPS;
    return warp < FINISHING ? OTHER_TEAM : HELD * WARPS + warp - FINISHING + (k - HELD) * FREE;
}

// By the bits of the largest size of some numbers: what they are multiplied by, and what 1 stands for then. Where one is not finite, its halves
// are not, and whatever they are multiplied with.
__device__ void common_scale(unsigned most, float& scale, float& one) {
    const unsigned exponent = max(most & 0x7f800000u, (unsigned)LOWEST << 23);
    scale = __uint_as_float((2u * 127 + HIGHEST << 23) - exponent);
    one = __uint_as_float(exponent - (HIGHEST << 23));
}

// What a lane has of a row of tiles of a matrix [n, columns] in the columns of a block of 16 WIDE units.
template <int WIDE>
struct Piece {
    float weight[WIDE][4][2];

    __device__ void take(const Block& matrix, int first, int n, int columns, int block, int lane, unsigned (&most)[2]) {
#pragma unroll
        for (int i = 0; i < WIDE * 8; i++) {
            const int here = first + lane / 4 + i / 2 % 2 * 8, there = (block * WIDE + i / 8) * 16 + lane % 4 * 2 + i / 4 % 2 * 8 + i % 2;
            weight[i / 8][i / 2 % 4][i % 2] = here < n && there < columns ? matrix.at(here, there) : 0.f;
        }
#pragma unroll
        for (int i = 0; i < WIDE * 8; i++) most[i / 2 % 2] = max(most[i / 2 % 2], __float_as_uint(fabsf(weight[i / 8][i / 2 % 4][i % 2])));
    }

    __device__ void give(const float (&scale)[2], uint4 (&to)[WIDE][2][32], int lane) const {
#pragma unroll
        for (int t = 0; t < WIDE; t++) {
            unsigned large[4], small[4];
#pragma unroll
            for (int i = 0; i < 4; i++) cut(weight[t][i][0] * scale[i % 2], weight[t][i][1] * scale[i % 2], large[i], small[i]);
            to[t][0][lane] = make_uint4(large[0], large[1], large[2], large[3]);
            to[t][1][lane] = make_uint4(small[0], small[1], small[2], small[3]);
        }
    }
};

// A thread block for each (block, warp of it, row of tiles), with a warp for each block whose units that warp multiplies with. W is [n, n], C is [n, columns].
extern "C" __global__ void __launch_bounds__(32 * PACKING) pack(const __grid_constant__ Block matrix, const __grid_constant__ Block coupling, long long size, long long columns, Packed* packed) {
    let_the_next_begin();
    __shared__ unsigned largest[PACKING][16];
    const int rank = blockIdx.x / TILES / WARPS, warp = blockIdx.x / TILES % WARPS, m = blockIdx.x % TILES, k = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n = (int)size, first = rank * UNITS + m * 16;
    Piece<TILES> own;
    Piece<OTHER_TILES> others;
    unsigned most[2] = {};
    if (k < SOURCES) own.take(matrix, first, n, n, own_block(warp, k), lane, most);
    else others.take(coupling, first, n, (int)columns, other_block(warp, k - SOURCES), lane, most);
#pragma unroll
    for (int down = 0; down < 2; down++) {
        most[down] = max(most[down], __shfl_xor_sync(0xffffffffu, most[down], 1));
        most[down] = max(most[down], __shfl_xor_sync(0xffffffffu, most[down], 2));
        if (lane % 4 == 0) largest[k][lane / 4 + down * 8] = most[down];
    }
    __syncthreads();
    float scale[2], one[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
        for (int i = 0; i < PACKING; i++) most[down] = max(most[down], largest[i][lane / 4 + down * 8]);
        common_scale(most[down], scale[down], one[down]);
        if (k == 0 && lane % 4 == 0) packed->ones[rank][warp][m * 16 + lane / 4 + down * 8] = one[down];
    }
    if (k < SOURCES) own.give(scale, packed->words[rank][warp][k][m], lane);
    else if (other_block(warp, k - SOURCES) < OTHER_TEAM) others.give(scale, packed->coupling[rank][other_block(warp, k - SOURCES)][m], lane);
    wait_for_the_one_before();  // which may be another `pack`: who waits for this one waits for both
}

__device__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1, const float (&to)[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(to[0]), "f"(to[1]), "f"(to[2]), "f"(to[3]));
}

// A block's rows times the units of one of a warp's blocks, whose letters are `apart` from one sequence to the next: added to `total`.
// `weight(m, t, 0 or 1)` has large or small halves. Products that do not wait for each other stand next to each other.
template <int WIDE, class Weight>
__device__ void multiply(const unsigned char* letters, int apart, int lane, float (&total)[TILES][4], Weight weight) {
    const int row = lane / 4, column = lane % 4;
    uint4 word[WIDE];  // of a tile of units: 2 column and the next, and both 8 further on; large halves, and small ones
#pragma unroll
    for (int t = 0; t < WIDE; t++) word[t] = *reinterpret_cast<const uint4*>(letters + row * apart + t * 64 + column * 16);
    const float of_state[2] = {*reinterpret_cast<const float*>(letters + 2 * column * apart + 64 * WIDE), *reinterpret_cast<const float*>(letters + (2 * column + 1) * apart + 64 * WIDE)};
    float part[TILES][WIDE][4];
    const float nothing[4] = {};
#pragma unroll
    for (int i = 0; i < TILES * WIDE; i++) mma(part[i % TILES][i / TILES], weight(i % TILES, i / TILES, 1), word[i / TILES].x, word[i / TILES].y, nothing);
#pragma unroll
    for (int i = 0; i < TILES * WIDE; i++) mma(part[i % TILES][i / TILES], weight(i % TILES, i / TILES, 0), word[i / TILES].z, word[i / TILES].w, part[i % TILES][i / TILES]);
#pragma unroll
    for (int i = 0; i < TILES * WIDE; i++) mma(part[i % TILES][i / TILES], weight(i % TILES, i / TILES, 0), word[i / TILES].x, word[i / TILES].y, part[i % TILES][i / TILES]);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = part[m][0][i];
#pragma unroll
            for (int t = 1; t < WIDE; t++) sum += part[m][t][i];
            total[m][i] += sum * of_state[i % 2];
        }
}

__device__ unsigned address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ void open(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
}

__device__ void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}

// To this block's shared memory.
__device__ void copy_in(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(TEAM * TEAMS, 1, 1) sweep(
    const Packed* packed,                       // W, or its transpose in the reverse sweep, and C, as `pack` has written them
    unsigned char* letters, long long turn,     // [T + 1 or 2][teams][TEAM][SEQUENCES][LETTER], and from one state to the next
    int* tells,                                 // [teams] or null: how many letters there are; all are kept then
    const __grid_constant__ Other other,
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

    // What this lane has of the new state, if its warp finishes it: two neighbouring units of one or two sequences.
    const int unit = rank * UNITS + 2 * lane;
    const long long sequence = (long long)team * SEQUENCES + warp * EACH, origin = BACKWARD ? T - 1 : 0;
    const bool finishing = warp < FINISHING;
    int length[EACH];
    bool real[EACH][2];
    float b[2], kept[EACH][2], ahead[AHEAD][EACH][2][2];  // of the next steps: x, or dL/dh, and h
    const float *x_next = x + origin * x_step + sequence * x_row + unit, *h_next = h + origin * h_step + sequence * h_row + unit;
    float* out_next = out + origin * out_step + sequence * out_row + unit;
    const auto fetch = [&](int slot, bool some) {
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                ahead[slot][j][0][e] = some && real[j][e] ? x_next[j * x_row + e] : 0.f;
                if (BACKWARD) ahead[slot][j][1][e] = some && real[j][e] ? h_next[j * h_row + e] : 0.f;
            }
        x_next = BACKWARD ? x_next - x_step : x_next + x_step;
        if (BACKWARD) h_next -= h_step;
    };
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const bool given = finishing && sequence + j < B;
        length[j] = !given ? 0 : lengths ? (int)lengths[sequence + j] : T;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            real[j][e] = given && lane < PAIRS && unit + e < n;
            kept[j][e] = start && real[j][e] ? start[(sequence + j) * start_row + unit + e] : 0.f;
            b[e] = bias && lane < PAIRS && unit + e < n ? bias[unit + e] : 0.f;
        }
    }
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) fetch(slot, slot < T);

    // A letter of this block and sequence, and of this lane in it: both halves of its units, or what 1 stands for.
    unsigned char* letter = letters + ((team * TEAM + rank) * SEQUENCES + warp * EACH) * (long long)LETTER + (lane < PAIRS ? lane / 8 * 64 + lane % 4 * 16 + lane / 4 % 2 * 4 : 64 * TILES);
    const unsigned to = address(shared.state[0][rank][warp * EACH % SEQUENCES]), bell = address(&shared.arrived[0][rank % WARPS]);
    const unsigned short team_mask = (unsigned short)(((1 << TEAM) - 1) << (place - rank));
    const auto send = [&](int copy, const float (&value)[EACH][2]) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            float scale, one;
            unsigned large, small;
            common_scale(__reduce_max_sync(0xffffffffu, max(__float_as_uint(fabsf(value[j][0])), __float_as_uint(fabsf(value[j][1])))), scale, one);
            cut(value[j][0] * scale, value[j][1] * scale, large, small);
            if (lane <= PAIRS)
                asm volatile("st.global.u32 [%0], %1;\n\tst.global.u32 [%0 + 8], %2;" ::"l"(letter + j * LETTER), "r"(lane < PAIRS ? large : __float_as_uint(one)), "r"(small) : "memory");
        }
        asm volatile("fence.proxy.async.global;" ::: "memory");
        __syncwarp();
        if (lane == 0)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to + copy * (TEAM * SEQUENCES * SLOT) + j * SLOT), "l"(letter + j * LETTER),
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
        if (warp == 0) open(address(&shared.there));
    }
    for (int i = threadIdx.x; i < 2 * MULTIPLYING * SEQUENCES * 4; i += THREADS) shared.sums[0][0][i / 4][UNITS + i % 4] = 0.f;
    cluster_barrier();
    if (!start) letter += turn;
    else if (finishing) send(0, kept);

    if (!FOLLOWS) wait_for_the_one_before();  // which is `pack`; that of a follower has come before
    if (tells) {
        __syncthreads();
        let_the_next_begin();
    }
    uint4 w[SOURCES][TILES][TILES][2];
#pragma unroll
    for (int i = 0; i < SOURCES * TILES * TILES * 2; i++) w[i / (TILES * TILES * 2)][i / (TILES * 2) % TILES][i / 2 % TILES][i % 2] = (&packed->words[rank][warp][0][0][0][0][0])[i * 32 + lane];
    for (int i = lane; i < UNITS; i += 32) shared.ones[warp][i] = packed->ones[rank][warp][i];
    if constexpr (FOLLOWS) {
        if (threadIdx.x == 0 && STORED) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            expect(address(&shared.there), sizeof(shared.coupling));
            for (int k = 0; k < STORED; k++) copy_in(address(shared.coupling[k]), packed->coupling[rank][k + HELD * WARPS], sizeof(shared.coupling[k]), address(&shared.there));
        }
    }
    uint4 held[HELD ? HELD : 1][TILES][OTHER_TILES][2];
    if constexpr (HELD)
#pragma unroll
        for (int i = 0; i < HELD * TILES * OTHER_TILES * 2; i++) {
            const int k = i / (TILES * OTHER_TILES * 2), m = i / (OTHER_TILES * 2) % TILES, t = i / 2 % OTHER_TILES;
            held[k][m][t][i % 2] = other_block(warp, k) < OTHER_TEAM ? packed->coupling[rank][other_block(warp, k)][m][t][i % 2][lane] : make_uint4(0, 0, 0, 0);
        }
    if (FOLLOWS && STORED) wait(address(&shared.there), 0);
    __syncwarp();

    // The other's letters, state after state, in two places taken in turns: a warp asks for those that it multiplies with as soon as it has read those
    // of two states before, if they are there.
    const int last = BACKWARD ? T : T - 1;  // the last state that is multiplied
    int told = 0, asked = first;
    const auto listen = [&]() { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(told) : "l"(other.told + team) : "memory"); };
    const auto ask = [&]() {
#pragma unroll
        for (int k = 0; k < OTHER_SOURCES; k++) {
            const int block = other_block(warp, k);
            const unsigned char* const from = other.letters + asked * other.turn + (team * OTHER_TEAM + block) * (SEQUENCES * OTHER_LETTER);
            const unsigned here = address(shared.other[asked & 1][block]);
            if (block < OTHER_TEAM)
#pragma unroll
                for (int i = 0; i < SEQUENCES * OTHER_LETTER; i += 512)
                    if (i + lane * 16 < SEQUENCES * OTHER_LETTER) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(here + i + lane * 16), "l"(from + i + lane * 16) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asked++;
    };
    float total[TILES][4] = {};
    const auto couple = [&](int index) {  // total = C times the other's state `index`
        if constexpr (FOLLOWS) {
            if (asked == index) {
                while (told <= index) listen();
                ask();
            }
            if (asked == index + 1) asm volatile("cp.async.wait_group 0;" ::: "memory");
            else asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncwarp();
#pragma unroll
            for (int k = 0; k < OTHER_SOURCES; k++) {
                const int block = other_block(warp, k);
                if (block < OTHER_TEAM)
                    multiply<OTHER_TILES>(shared.other[index & 1][block][0], OTHER_LETTER, lane, total, [&](int m, int t, int piece) {
                        return k < HELD ? held[k < HELD ? k : 0][m][t][piece] : shared.coupling[block - HELD * WARPS][m][t][piece][lane];
                    });
            }
            __syncwarp();
            if (asked == index + 1 && asked <= last && told <= asked) listen();
            if (asked == index + 1 && asked <= last && told > asked) ask();
            if (asked == index + 2 && asked <= last && told > asked) ask();
        }
    };
    const bool coupled = FOLLOWS && team * SEQUENCES < B && other_block(warp, 0) < OTHER_TEAM;
    if (start && coupled) couple(0);

    // W times the state in copy `now`, and what was there before: after this, `sums` has it.
    const auto product = [&](int index, int now) {
        float ones[TILES][2];
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) ones[i / 2][i % 2] = shared.ones[warp][i * 8 + lane / 4];
        if (sources) {
            wait(mine + now * WARPS * 8, index >> 1 & 1);
            if (lane == 0) expect(mine + now * WARPS * 8, bytes);
#pragma unroll
            for (int k = 0; k < SOURCES; k++)
                if (k < sources) multiply<TILES>(shared.state[now][own_block(warp, k)][0], SLOT, lane, total, [&](int m, int t, int piece) { return w[k][m][t][piece]; });
        }
        if (warp < MULTIPLYING) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    shared.sums[now][warp][2 * (lane % 4) + i % 2][m * 16 + lane / 4 + i / 2 * 8] = total[m][i] * ones[m][i / 2];
                    total[m][i] = 0.f;
                }
        }
        __syncthreads();
    };
    const auto add_up = [&](int now, float (&z)[EACH][2]) {  // this lane's units
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            float2 two[MULTIPLYING];
#pragma unroll
            for (int k = 0; k < MULTIPLYING; k++) two[k] = *reinterpret_cast<const float2*>(&shared.sums[now][k][warp * EACH + j][lane < PAIRS ? 2 * lane : UNITS]);
#pragma unroll
            for (int many = 1; many < MULTIPLYING; many *= 2)
#pragma unroll
                for (int k = 0; k + many < MULTIPLYING; k += 2 * many) two[k].x += two[k + many].x, two[k].y += two[k + many].y;
            z[j][0] = two[0].x, z[j][1] = two[0].y;
        }
    };

    // How many letters there are, all of which have come to this block. (The loop is a branch: a predicate would have all warps wait where one does.)
    const bool teller = !FOLLOWS && tells && rank == 0 && warp == TELLER && lane == 0;
    const auto tell = [&](int count) {
#pragma unroll 1
        for (unsigned once = gridDim.y; once > 0; once--) asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(tells + team), "r"(count) : "memory");
    };
    const auto finish_step = [&](int index, int u) {
        float z[EACH][2] = {}, result[EACH][2];
        if (index >= first) add_up(u, z);
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const int j = i / 2, e = i % 2, slot = u % AHEAD;
            float given[1] = {z[j][e] + ahead[slot][j][0][e]}, made[1];
            if (!BACKWARD) {
                activate(given, b[e], made);
                kept[j][e] = result[j][e] = index < length[j] ? made[0] : kept[j][e];
            } else {
                const bool running = T - 1 - index < length[j];
                const float state[1] = {ahead[slot][j][1][e]};
                given[0] += kept[j][e];
                pull_back(given, state, b[e], made);
                kept[j][e] = running ? 0.f : given[0];
                result[j][e] = running ? made[0] : 0.f;
            }
        }
        if (BACKWARD || index + 1 < T) send(u ^ 1, result);
        if (teller) tell(index + 1);
        if (out)
#pragma unroll
            for (int i = 0; i < 2 * EACH; i++)
                if (real[i / 2][i % 2]) out_next[i / 2 * out_row + i % 2] = result[i / 2][i % 2];
        out_next = BACKWARD ? out_next - out_step : out_next + out_step;
        fetch(u % AHEAD, index + AHEAD < T);
    };
    const auto step = [&](int index, int u) {  // u: which copy of the state is read
        if (index >= first) product(index, u);
        if (finishing) finish_step(index, u);
        if (coupled && index < last) couple(index + 1);
    };
    if constexpr (AHEAD == 1) {
#pragma unroll 1
        for (int index = 0; index < T; index++) step(index, index & 1);
    } else
#pragma unroll 1
        for (int base = 0; base < T; base += 2) {
            step(base, 0);
            if (base + 1 < T) step(base + 1, 1);
        }
    float z[EACH][2] = {};
    if (BACKWARD) {
        product(T, T & 1);
        if (finishing) add_up(T & 1, z);
        if (teller) tell(T + 1);
    }
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++)
        if (real[i / 2][i % 2]) finish[(sequence + i / 2) * finish_row + unit + i % 2] = kept[i / 2][i % 2] + z[i / 2][i % 2];
    if (FOLLOWS) wait_for_the_one_before();  // or what is launched next might begin while the other is still writing
    cluster_barrier();  // no block leaves while another may still write to it
}
