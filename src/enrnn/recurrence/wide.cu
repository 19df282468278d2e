// The recurrence h_t = s(x_t + W h_{t-1}, b) for many sequences, and its reverse sweep, by the tensor cores.
//
// A thread block carries 8·SPANS sequences from the first step to the last. A warp has 16 rows of W, a tile of them for every 16
// columns, in registers all the time; the state stands in shared memory, in two copies taken in turns, so that a step costs one
// barrier. There is no exchange between blocks. What a warp reads from memory is fetched a step before its use.
//
// Tensor cores multiply numbers of 8 bits. A float of 24 bits is the sum of three such numbers, w = w0 + w1 + w2, each 2^-8 or less
// of the one before. Of the nine products of two of these sums, six are taken; the other three are below 2^-24 of the whole:
//     W h = w0 h0 + (w1 h0 + w0 h1) + (w1 h1 + w0 h2 + w2 h0).
// The tensor cores add in single precision, but cut off instead of rounding. So the small products are summed by them, and the
// large one, which would shrink a little with every sum, only over 16 columns; these sums are then added as usual.
// Where the user has allowed a lower precision, PIECES is 2: w0 h0 + w1 h0 + w0 h1, off by 2^-16 of a product.
//
// The reverse sweep is the same machine with W transposed, dz in the place of h, and the nonlinearity's pull-back.
//
// With SHORT_TILES > 0 the matrix is [[W_L, W_C], [0, W_S]]: tiles belong to the one part or to the other, and those of zeros are left
// out. Rows of one part are then heavy, as they multiply with all tiles, and rows of the other are light; a warp may have EACH rows of
// light tiles. ORDER says which rows a warp has, four bits each, so that all four quarters of a multiprocessor have about as much to do.
//
// Set by the compiler's command line: LONG_TILES, SHORT_TILES, SPANS, PIECES, EACH, ORDER, RESIDENT, LENGTHS, SIGMA, BACKWARD, SHARED_BYTES.

constexpr int TILES = LONG_TILES + SHORT_TILES, PAIRS = (TILES + 1) / 2;
constexpr int SMALL = PIECES * (PIECES + 1) / 2 - 1;  // products beside the large one
constexpr bool SPLIT = SHORT_TILES > 0;
constexpr int HEAVY = !SPLIT ? TILES : BACKWARD ? SHORT_TILES : LONG_TILES, LIGHT = TILES - HEAVY;  // rows of tiles
constexpr int FIRST_HEAVY = SPLIT && BACKWARD ? LONG_TILES : 0, FIRST_LIGHT = BACKWARD ? 0 : LONG_TILES;
constexpr int WARPS = HEAVY + (LIGHT + EACH - 1) / EACH, THREADS = 32 * WARPS;
constexpr int HELD = TILES > EACH * LIGHT ? TILES : EACH * LIGHT;  // tiles in a warp's registers
static_assert(WARPS <= 8, "a thread would not have 255 registers");

// In a copy of the state, a lane's 16 bytes are what it multiplies two tiles with.
typedef uint4 State[SPANS][PIECES][PAIRS][32];
constexpr int COPY_BYTES = sizeof(State), SPAN_BYTES = COPY_BYTES / SPANS, TILE_BYTES = 8 * 20 * 4;

constexpr int STREAMS = BACKWARD ? 2 : 1;  // what is read at each step: x, or dL/dh and h
// Of a step: [sequence][row], filled up so that the lanes of a warp read from different banks.
typedef float Ahead[STREAMS][SPANS][TILES][8][20];

struct Shared {
    State state[2];
    Ahead ahead;
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launch would not give as much shared memory as the kernel takes");

template <int N>
struct Number {
    static constexpr int value = N;
};

// The unit of row `row` of a tile, or -1 where the tile is only filled up. The parts of a complex unit are eight rows apart.
__device__ int unit_of(int tile, int row, int n, int q) {
    if (PARTS == 2) return tile * 8 + row % 8 < n / 2 ? tile * 8 + row % 8 + row / 8 * (n / 2) : -1;
    const int slot = tile * 16 + row;
    if (!SPLIT) return slot < n ? slot : -1;
    if (tile < LONG_TILES) return slot < q ? slot : -1;
    return slot - LONG_TILES * 16 + q < n ? slot - LONG_TILES * 16 + q : -1;
}

// Two floats in pieces, both numbers of a piece in one word.
__device__ void split(float low, float high, unsigned (&word)[PIECES]) {
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[p]) : "f"(high), "f"(low));
        low -= __uint_as_float(word[p] << 16);
        high -= __uint_as_float(word[p] & 0xffff0000u);
    }
}

// Lay out W, or its transpose in the reverse sweep: a warp for each of TILES × TILES tiles. Within one, columns c and c + 8 are neighbours, as
// rows r and r + 8 of the product are the same lane's.
extern "C" __global__ void __launch_bounds__(32) pack(const __grid_constant__ Matrix matrix, uint4* packed) {
    let_the_next_begin();
    const int n = (int)matrix.n, q = (int)matrix.q, lane = threadIdx.x;
    const auto weight = [&](int row, int column) {
        const int here = unit_of(blockIdx.x / TILES, row, n, q), there = unit_of(blockIdx.x % TILES, column, n, q);
        if (here < 0 || there < 0) return 0.f;
        return BACKWARD ? matrix.at(there, here) : matrix.at(here, there);
    };
    unsigned word[4][PIECES];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int row = lane / 4 + k % 2 * 8, column = lane % 4 + k / 2 * 4;
        split(weight(row, column), weight(row, column + 8), word[k]);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) packed[(blockIdx.x * PIECES + p) * 32 + lane] = make_uint4(word[0][p], word[1][p], word[2][p], word[3][p]);
}

__device__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// z: a row of tiles, which stands in w from BASE on, times tiles FROM … TO - 1 of eight sequences' state, of which a lane's first part is given.
template <int FROM, int TO, int BASE>
__device__ void multiplied(const uint4 (&w)[HELD][PIECES], const unsigned char* state, float (&z)[4]) {
    float sum[4] = {}, small[SMALL][4] = {};  // a sum for every kind of product, as each waits for the one before in its sum
    uint4 h[PIECES];
#pragma unroll
    for (int k = FROM; k < TO; k++) {
        if (k % 2 == 0 || k == FROM)
#pragma unroll
            for (int p = 0; p < PIECES; p++) h[p] = *reinterpret_cast<const uint4*>(state + (p * PAIRS + k / 2) * 512);
        const auto add = [&](float (&to)[4], int i, int j) { mma(to, w[BASE + k - FROM][i], k % 2 ? h[j].z : h[j].x, k % 2 ? h[j].w : h[j].y); };
        float large[4] = {};
        add(large, 0, 0);
        int count = 0;
#pragma unroll
        for (int i = PIECES - 1; i >= 0; i--)
#pragma unroll
            for (int j = i ? 0 : 1; i + j < PIECES; j++) add(small[count++], i, j);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += large[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        z[i] = small[0][i];
#pragma unroll
        for (int k = 1; k < SMALL; k++) z[i] += small[k][i];
        z[i] += sum[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) sweep(
    const uint4* packed,                        // W, or its transpose in the reverse sweep, as `pack` has written it
    const float* bias,                          // [n / PARTS] or null
    const long long* lengths,                   // [B], or null without LENGTHS
    const float* start, long long start_row,    // [B, n] or null: the state before the first step
    float* finish, long long finish_row,        // [B, n]: the state after the last step, or the gradient of the initial state
    const float* x, long long x_step, long long x_row,        // [T, B, n]: x, or dL/dh
    const float* h, long long h_step, long long h_row,        // [T, B, n]: the states, read in the reverse sweep
    float* out, long long out_step, long long out_row,        // [T, B, n]: the states, or dz; null where nobody wants them
    long long steps, long long B, long long size, long long long_size)
{
    extern __shared__ __align__(16) unsigned char raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int T = (int)steps, n = (int)size, q = (int)long_size, lane = threadIdx.x % 32, row = lane / 4;
    const int job = (int)((unsigned long long)ORDER >> threadIdx.x / 32 * 4 & 15);
    const bool heavy = job < HEAVY;
    const int tile = heavy ? FIRST_HEAVY + job : FIRST_LIGHT + (job - HEAVY) * EACH, rows = heavy ? 1 : min(EACH, LIGHT - (job - HEAVY) * EACH);
    const long long block = (long long)blockIdx.x * 8 * SPANS, first = block + lane % 4 * 2;  // of this lane's two neighbouring sequences in a span
    const int left = (int)min(B - first, 8LL * SPANS);
    const int unit = unit_of(tile, row, n, q), apart = PARTS == 2 ? n / 2 : 8;  // the first row's, and from there to the second's
    bool there[EACH][2];
    float b[EACH][2];
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            there[e][r] = e < rows && unit_of(tile + e, row + 8 * r, n, q) >= 0;
            b[e][r] = bias && there[e][r] ? bias[unit + 16 * e + (PARTS == 1 ? 8 * r : 0)] : 0.f;
        }

    wait_for_the_one_before();  // which is `pack`
    uint4 w[HELD][PIECES];
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const int e = heavy || LIGHT == 0 ? 0 : k / (LIGHT ? LIGHT : 1), column = heavy ? k : FIRST_LIGHT + k - e * LIGHT;
            if (heavy ? k < TILES : e < rows) w[k][p] = packed[(((tile + e) * TILES + column) * PIECES + p) * 32 + lane];
        }

    // This lane's four numbers of a span and a row of tiles: rows r and r + 8, of two sequences each.
    const auto real = [&](int e, int span, int i) { return there[e][i / 2] && span * 8 + i % 2 < left; };
    const auto at = [&](int e, int i, long long of_row) { return i % 2 * of_row + 16 * e + i / 2 * apart; };
    // Places in shared memory, by their bytes: as numbers that the compiler takes for given, or it would count them out every time.
    const auto given_place = [&](const void* at) {
        int bytes = (int)(reinterpret_cast<const unsigned char*>(at) - raw);
        asm volatile("" : "+r"(bytes));
        return bytes;
    };
    const int reader = lane % 4 * 8 + row % 4;  // of this lane's first sequence; of the second, the fourth lane from there
    const int to_state = given_place(reinterpret_cast<unsigned*>(&shared.state[0][0][0][tile / 2][reader ^ (reader >> 3 & 1) << 2]) + tile % 2 * 2 + row / 4);
    const int from_state = given_place(&shared.state[0][0][0][0][lane ^ (lane >> 3 & 1) << 2]);  // so mixed that stores meet fewer others of the same bank
    const int to_ahead = given_place(&shared.ahead[0][0][tile][lane / 16][lane % 16]), from_ahead = given_place(&shared.ahead[0][0][tile][lane % 4 * 2][row]);
    const auto keep = [&](int copy, int e, int span, const float (&v)[4]) {
        const int from_even = FIRST_LIGHT % 2 ? 512 - 8 : 8;  // from a light tile's place to the next one's
        const int place = to_state + copy * COPY_BYTES + span * SPAN_BYTES + e * from_even;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            unsigned word[PIECES];
            split(v[c], v[2 + c], word);
#pragma unroll
            for (int p = 0; p < PIECES; p++) *reinterpret_cast<unsigned*>(raw + (place ^ c * 64) + p * PAIRS * 512) = word[p];
        }
    };

    // Fetching: a lane has a row of every second sequence.
    const long long origin = BACKWARD ? T - 1 : 0, sign = BACKWARD ? -1 : 1;
    const int column = unit_of(tile, lane % 16, n, q), fetched = (int)min(B - block, 8LL * SPANS) - lane / 16;
    bool present[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) present[e] = e < rows && unit_of(tile + e, lane % 16, n, q) >= 0;
    const float* next[2] = {x + origin * x_step + (block + lane / 16) * x_row + column, h + origin * h_step + (block + lane / 16) * h_row + column};
    const auto fetch = [&](auto count, int span, bool some) {  // of `count` rows of tiles at most
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
#pragma unroll
                for (int e = 0; e < count.value; e++) {
                    const unsigned to = (unsigned)__cvta_generic_to_shared(raw) + to_ahead + (stream * SPANS + span) * TILES * TILE_BYTES + e * TILE_BYTES + j * 80;
                    const int bytes = some && present[e] && span * 8 + j < fetched ? 4 : 0;
                    if (e == 0 || e < rows) asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(next[stream] + 16 * e), "r"(bytes) : "memory");
                }
                next[stream] += 2 * (stream ? h_row : x_row);
            }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (span + 1 == SPANS)
#pragma unroll
            for (int stream = 0; stream < STREAMS; stream++) next[stream] += sign * (stream ? h_step : x_step) - 8 * SPANS * (stream ? h_row : x_row);
    };
    float* out_next = out + origin * out_step + first * out_row + unit;
    const auto last = [&](int e, int span, int i) -> float& { return finish[(first + span * 8) * finish_row + unit + at(e, i, finish_row)]; };
    const auto length = [&](int span, int i) { return lengths[first + span * 8 + i % 2]; };

    for (int span = 0; span < SPANS; span++) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (e < rows) {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = start && real(e, span, i) ? start[(first + span * 8) * start_row + unit + at(e, i, start_row)] : 0.f;
                    if (!BACKWARD && (LENGTHS || T == 0) && real(e, span, i)) last(e, span, i) = v[i];
                }
                keep(0, e, span, v);
            }
        fetch(Number<EACH>(), span, T > 0);
    }
    __syncthreads();

    int step = 0, t = (int)origin;
    typedef float Read[EACH][STREAMS][4];
    const auto read = [&](auto count, int span, Read& numbers) {  // what was fetched, and the next step's in its place
        asm volatile("cp.async.wait_group %0;" ::"n"(SPANS - 1) : "memory");
        __syncwarp();
#pragma unroll
        for (int e = 0; e < count.value; e++)
#pragma unroll
            for (int stream = 0; stream < STREAMS; stream++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (e == 0 || e < rows) numbers[e][stream][i] = *reinterpret_cast<const float*>(raw + from_ahead + (stream * SPANS + span) * TILES * TILE_BYTES + e * TILE_BYTES + i % 2 * 80 + i / 2 * 32);
        __syncwarp();
        fetch(count, span, step + 1 < T);
    };
    const auto finished = [&](int e, int span, float (&z)[4], const float (&given)[STREAMS][4]) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z[i] += given[0][i];
            if (BACKWARD && LENGTHS && real(e, span, i) && t + 1 < T && t + 1 >= length(span, i)) z[i] += last(e, span, i);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (PARTS == 1 || i < 2) {  // both parts of a complex unit at once
                float from[PARTS], to[PARTS], state[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; p++) from[p] = z[i + 2 * p], state[p] = given[STREAMS - 1][i + 2 * p];
                if (BACKWARD) pull_back(from, state, b[e][i / 2], to);
                else activate(from, b[e][i / 2], to);
#pragma unroll
                for (int p = 0; p < PARTS; p++) v[i + 2 * p] = to[p];
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool counts = real(e, span, i);
            if (LENGTHS && counts) {
                const bool over = t >= length(span, i);
                if (BACKWARD && over) last(e, span, i) = z[i], v[i] = 0.f;
                if (!BACKWARD && over) v[i] = last(e, span, i);
                if (!BACKWARD && !over) last(e, span, i) = v[i];
            }
            if (!counts) v[i] = 0.f;
        }
        keep(step + 1 & 1, e, span, v);
        if (!LENGTHS && !BACKWARD && step == T - 1)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (real(e, span, i)) last(e, span, i) = v[i];
        if (out)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (real(e, span, i)) out_next[at(e, i, out_row)] = v[i];
    };
    const auto state_of = [&](int span) { return raw + from_state + (step & 1) * COPY_BYTES + span * SPAN_BYTES; };
    const auto heavily = [&](int span, float (&z)[4]) { multiplied<0, TILES, 0>(w, state_of(span), z); };
    const auto lightly = [&](int span, float (&z)[EACH][4]) {
        multiplied<FIRST_LIGHT, FIRST_LIGHT + LIGHT, 0>(w, state_of(span), z[0]);
        if constexpr (EACH > 1) multiplied<FIRST_LIGHT, FIRST_LIGHT + LIGHT, LIGHT>(w, state_of(span), z[EACH - 1]);
    };
    for (; step < T; step++, t += (int)sign) {
        if (heavy) {  // while a span's numbers are worked on, the products of the next are under way
            float z[4];
            Read given;
            heavily(0, z);
#pragma unroll 1
            for (int span = 0; span + 1 < SPANS; span++) {
                float following[4];
                read(Number<1>(), span, given);
                heavily(span + 1, following);
                finished(0, span, z, given[0]);
                out_next += 8 * out_row;
#pragma unroll
                for (int i = 0; i < 4; i++) z[i] = following[i];
            }
            read(Number<1>(), SPANS - 1, given);
            finished(0, SPANS - 1, z, given[0]);
        } else if constexpr (LIGHT > 0) {
#pragma unroll 1
            for (int span = 0; span < SPANS; span++) {
                Read given;
                float z[EACH][4];
                read(Number<EACH>(), span, given);
                lightly(span, z);
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (e < rows) finished(e, span, z[e], given[e]);
                if (span + 1 < SPANS) out_next += 8 * out_row;
            }
        }
        out_next += sign * out_step - (SPANS - 1) * 8 * out_row;
        __syncthreads();
    }
    if (BACKWARD)
        for (int span = 0; span < SPANS; span++) {
            float z[EACH][4];
            if (heavy) heavily(span, z[0]);
            else if constexpr (LIGHT > 0) lightly(span, z);
#pragma unroll
            for (int e = 0; e < EACH; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (real(e, span, i)) last(e, span, i) = LENGTHS && T > 0 && length(span, i) <= 0 ? last(e, span, i) + z[e][i] : z[e][i];
        }
}
