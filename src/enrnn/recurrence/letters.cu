// Letters: how the states of a recurrence go from thread block to thread block, and matrices that are multiplied with them by the tensor cores. This
// text stands before that of the kernels that use it.
//
// A team of thread blocks carries eight sequences; a block of it sends the new state of its units of a sequence as one letter. The units are sixteens,
// of which a block has TILES. Blocks have as many rows of a matrix, in the registers of their warps, SHARES of which
// share out the columns: these are the units of the blocks share, share + SHARES, … of the team that the letters come from.
//
// Tensor cores multiply halves, of 11 bits. A float is taken for the sum of two, scaled by a power of two which a sequence's units of one block
// have in common, and so has a row of the matrix; of four products three are taken.
//
// Set by the compiler's command line: TILES; TEAM, and FROM_TEAM that the letters come from; SHARES.

constexpr int SEQUENCES = 8, WARPS = 8, THREADS = 32 * WARPS, UNITS = 16 * TILES, PAIRS = UNITS / 2;
constexpr int SOURCES = (FROM_TEAM + SHARES - 1) / SHARES;            // blocks whose units a warp multiplies with
constexpr int MULTIPLYING = FROM_TEAM < SHARES ? FROM_TEAM : SHARES;  // shares that have any
constexpr unsigned NOTHING = 0xffffffffu;                             // a number that is not there yet: arithmetic does not give this NaN

constexpr int LETTER = 64 * TILES + 16;                               // bytes: two halves of every unit, and what 1 stands for

// A matrix as `pack.cu` lays it out.
struct Packed {
    uint4 words[TEAM][SHARES][SOURCES][TILES][TILES][2][32];  // of a block and a share, the units of another: of a row of tiles and a column, large and small halves
    float ones[TEAM][UNITS];                                       // what 1 stands for in a row
};

// Sums over shares of the columns, of eight sequences; four zeros at the end, for lanes without units.
typedef float Sums[MULTIPLYING][SEQUENCES][UNITS + 4];

// The k-th of the blocks whose units a share has; there may be none.
__device__ int source(int share, int k) { return share + k * SHARES; }

__device__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1, const float (&to)[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b0), "r"(b1), "f"(to[0]), "f"(to[1]), "f"(to[2]), "f"(to[3]));
}

// What this lane has of a sequence's sums, as many times what 1 stands for: two neighbouring units.
__device__ float2 add_up(const Sums& sums, int sequence, int lane, const float2& ones) {
    float2 two[MULTIPLYING];
#pragma unroll
    for (int k = 0; k < MULTIPLYING; k++) two[k] = *reinterpret_cast<const float2*>(&sums[k][sequence][lane < PAIRS ? 2 * lane : UNITS]);
#pragma unroll
    for (int many = 1; many < MULTIPLYING; many *= 2)
#pragma unroll
        for (int k = 0; k + many < MULTIPLYING; k += 2 * many) two[k].x += two[k + many].x, two[k].y += two[k + many].y;
    return make_float2(two[0].x * ones.x, two[0].y * ones.y);
}

// What 1 stands for in this lane's rows.
__device__ float2 ones_of(const Packed* packed, int rank, int lane) {
    return lane < PAIRS ? *reinterpret_cast<const float2*>(&packed->ones[rank][2 * lane]) : make_float2(0.f, 0.f);
}

// A share's sums to where they are added up.
__device__ void write(const float (&total)[TILES][4], Sums& sums, int share, int lane) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[share][2 * (lane % 4) + i % 2][m * 16 + lane / 4 + i / 2 * 8] = total[m][i];
}

__device__ unsigned address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

__device__ void open(unsigned barrier, int arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(barrier), "r"(arrivals) : "memory");
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
