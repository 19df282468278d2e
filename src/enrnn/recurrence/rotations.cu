// The recurrence h_t = s(x_t + D F_L ... F_1 h_{t-1}, b) of n complex units, where each F turns pairs of units and D is a
// diagonal of phases, over a whole sequence in one launch, and its reverse sweep. No matrix is formed.
//
// A thread block carries one sequence after another from the first step to the last; the state, one float2 a unit, stands in
// shared memory. A layer is n / 2 slots, each a pair of units (a, b) with its own thread:
//     y = e^{i phi} h_b,   h_a <- cos(theta) h_a - sin(theta) y,   h_b <- sin(theta) h_a + cos(theta) y
// in place, and then a barrier. The thread that turns a pair in the last layer also has the rest of the step for both units:
// phase, input, nonlinearity, output. For an odd n there is one unit more, always zero; units without a partner are made
// pairs, n - 1 with 0 or either with the one more, that turn by the angle zero. So every unit is in one slot of every layer.
//
// The reverse sweep forms the product D F_L ... F_1 h_{t-1} of a step anew from the saved state, and then undoes the layers, in
// the product x and in its gradient g alike. A pair turned to (x_a, x_b) gives its angle the gradient g_b.x_a - g_a.x_b, and a phase
// that made y gives Im(conj(y) g_y). A slot's sums over all steps are its thread's own, so they need no barrier; what the
// blocks have come to is added up by `collect`, always in the same order.
//
// Set by the compiler's command line: SIGMA; BUTTERFLY, whether pairs are those of a Fourier transform, not neighbours; AHEAD, whether no thread has more than one slot, so that there are registers to
// fetch a step ahead; SUMS_IN_SHARED, whether there is room for the sums in shared memory beside the states.

enum { RELU = 1, TANH, IDENTITY, PAIRED_MODRELU, LEAKY_RELU };

constexpr float LEAK = 0.1f;   // the leaky ReLU's slope below zero
constexpr float ROUNDING = 1.f / (1 << 23);
constexpr int THREADS = 1024;  // of a block, at most

// A loop left as it is: written out, the sweeps would not do with the 64 registers that so many threads leave for each.
#define ROLLED _Pragma("unroll 1")
#define EACH_SLOT ROLLED for (int slot = threadIdx.x; slot < slots; slot += blockDim.x)

// The two units of a slot, of an even number m of them.
struct Pair {
    int a, b;
    __device__ Pair(int slot, int layer, int m) {
        if (BUTTERFLY) {
            const int distance = m >> (layer + 1);
            a = 2 * (slot & ~(distance - 1)) + (slot & (distance - 1));
            b = a + distance;
        } else {
            a = 2 * slot + (layer & 1);
            b = a + 1 < m ? a + 1 : 0;
        }
    }
};

// Of a pair: cos and sin of theta, and of phi.
struct Turn {
    float c, s, re, im;
};

// Of a unit: cos and sin of its phase in D, and its bias.
struct Unit {
    float re, im, b, unused;
};

__device__ float2 times(float2 z, float re, float im) { return make_float2(re * z.x - im * z.y, im * z.x + re * z.y); }
__device__ float2 mix(float u, float2 x, float v, float2 y) { return make_float2(u * x.x + v * y.x, u * x.y + v * y.y); }
__device__ float2 plus(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
__device__ float inner(float2 x, float2 y) { return x.x * y.x + x.y * y.y; }
__device__ float twist(float2 y, float2 g) { return g.y * y.x - g.x * y.y; }  // Im(conj(y) g)

__device__ void turn(const Turn& by, float2& a, float2& b) {
    const float2 y = times(b, by.re, by.im), x = a;
    a = mix(by.c, x, -by.s, y);
    b = mix(by.s, x, by.c, y);
}

// The real rotation alone, backwards.
__device__ void turn_back(const Turn& by, float2& a, float2& b) {
    const float2 x = a;
    a = mix(by.c, x, by.s, b);
    b = mix(by.c, b, -by.s, x);
}

__device__ float positive(float x) { return x < 0.f ? 0.f : x; }  // max(x, 0), where NaN stays NaN

__device__ float2 activate(float2 z, float b) {
    if (SIGMA == RELU) return make_float2(positive(z.x), positive(z.y));
    if (SIGMA == LEAKY_RELU) return make_float2(z.x > 0.f ? z.x : LEAK * z.x, z.y > 0.f ? z.y : LEAK * z.y);
    if (SIGMA == TANH) return make_float2(tanhf(z.x), tanhf(z.y));
    if (SIGMA == PAIRED_MODRELU) {
        const float size = hypotf(z.x, z.y), scale = size == 0.f ? 0.f : positive(size + b) / size;
        return make_float2(scale * z.x, scale * z.y);
    }
    return z;
}

// dz from g, by the state h alone; what the bias gains is added to its gradient.
__device__ float2 pull_back(float2 g, float2 h, float b, float& by_bias) {
    if (SIGMA == RELU) return make_float2(h.x > 0.f ? g.x : 0.f * g.x, h.y > 0.f ? g.y : 0.f * g.y);
    if (SIGMA == LEAKY_RELU) return make_float2(h.x > 0.f ? g.x : LEAK * g.x, h.y > 0.f ? g.y : LEAK * g.y);
    if (SIGMA == TANH) return make_float2((1.f - h.x * h.x) * g.x, (1.f - h.y * h.y) * g.y);
    if (SIGMA == PAIRED_MODRELU) {  // with u = h / |h|: dz = c g + (1 - c) (u.g) u, where c = |h| / |z|; and the bias has u.g
        const float size = hypotf(h.x, h.y), scale = __fdividef(size, fmaxf(fmaxf(size - b, ROUNDING * size), 1e-30f));
        const float inverse = size < 1e-30f ? 0.f : __fdividef(1.f, size);
        const float2 u = make_float2(h.x * inverse, h.y * inverse);
        const float along = inner(u, g);
        by_bias += along;
        return mix(scale, g, (1.f - scale) * along, u);
    }
    return g;
}

// A row [2n] of real parts and imaginary parts; the unit beyond the last one is zero.
__device__ float2 read(const float* row, int unit, int n) {
    return unit < n ? make_float2(row[unit], row[unit + n]) : make_float2(0.f, 0.f);
}
__device__ void write(float* row, int unit, int n, float2 value) {
    if (unit < n) row[unit] = value.x, row[unit + n] = value.y;
}

// The two units of a slot.
struct Two {
    float2 a, b;
};
__device__ Two read(const float* row, Pair at, int n) { return {read(row, at.a, n), read(row, at.b, n)}; }
__device__ void write(float* row, Pair at, int n, const Two& value) {
    write(row, at.a, n, value.a);
    write(row, at.b, n, value.b);
}

// Where the angle of a slot is among the 2n x columns angles, its phase n rows below; -1 for a slot that does not turn.
__device__ long long place(int slot, int layer, int n, int layers) {
    const Pair at(slot, layer, n + (n & 1));
    return at.a < at.b && at.b < n ? (long long)(2 * slot + (layer & 1)) * ((layers + 1) / 2) + layer / 2 : -1;
}

// What the sweeps want to know of all layers, [layers, slots], and of all units, [m].
extern "C" __global__ void prepare(
    const float* __restrict__ angles, const float* __restrict__ phases, const float* __restrict__ bias, Turn* __restrict__ turns,
    Unit* __restrict__ units, long long n, long long layers)
{
    const int m = n + (n & 1), slots = m / 2;
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < layers * slots) {
        const long long at = place(index % slots, index / slots, n, layers);
        double c = 1.0, s = 0.0, re = 1.0, im = 0.0;
        if (at >= 0) {
            sincos((double)angles[at], &s, &c);
            sincos((double)angles[at + n * ((layers + 1) / 2)], &im, &re);
        }
        turns[index] = {(float)c, (float)s, (float)re, (float)im};
    } else if (index - layers * slots < m) {
        const long long unit = index - layers * slots;
        double re = 1.0, im = 0.0;
        if (unit < n) sincos((double)phases[unit], &im, &re);
        units[unit] = {(float)re, (float)im, bias && unit < n ? bias[unit] : 0.f, 0.f};
    }
}

// How many steps a sequence has before it keeps its state.
__device__ int steps_of(const long long* lengths, int b, int T) {
    const long long length = lengths ? lengths[b] : T;
    return length < 0 ? 0 : length < T ? length : T;
}

__device__ Turn fetch(const Turn* turns, int index) {
    const float4 found = __ldg(reinterpret_cast<const float4*>(turns) + index);
    return {found.x, found.y, found.z, found.w};
}
__device__ Unit fetch(const Unit* units, int index) {
    const float4 found = __ldg(reinterpret_cast<const float4*>(units) + index);
    return {found.x, found.y, found.z, found.w};
}

extern __shared__ float4 memory[];

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(
    const Turn* __restrict__ turns, const Unit* __restrict__ units, const long long* __restrict__ lengths,
    const float* __restrict__ initial, long long initial_row,                        // [B, 2n]
    const float* __restrict__ inputs, long long inputs_step, long long inputs_row,   // [T, B, 2n]
    float* __restrict__ states,                                                      // [T, B, 2n], without gaps
    long long T, long long B, long long size, long long layer_count)
{
    const int n = size, layers = layer_count, m = n + (n & 1), slots = m / 2, last = layers - 1;
    float2* h = reinterpret_cast<float2*>(memory);
    ROLLED for (int b = blockIdx.x; b < B; b += gridDim.x) {
        const float* x = inputs + b * inputs_row;
        float* out = states + b * 2LL * n;
        const long long out_step = B * 2 * n;
        const int steps = steps_of(lengths, b, T);
        Two ahead = {};
        EACH_SLOT {
            const Pair at(slot, last, m);
            const Two first = read(initial + b * initial_row, at, n);
            h[at.a] = first.a, h[at.b] = first.b;
            if (AHEAD && steps > 0) ahead = read(x, at, n);
        }
        __syncthreads();
        ROLLED for (int t = 0; t < steps; t++) {
            Two now = ahead;
            if (AHEAD && t + 1 < steps && threadIdx.x < slots) ahead = read(x + (t + 1) * inputs_step, Pair(threadIdx.x, last, m), n);
            ROLLED for (int layer = 0; layer < last; layer++) {
                EACH_SLOT {
                    const Pair at(slot, layer, m);
                    turn(fetch(turns, layer * slots + slot), h[at.a], h[at.b]);
                }
                __syncthreads();
            }
            EACH_SLOT {
                const Pair at(slot, last, m);
                Two z = {h[at.a], h[at.b]};
                turn(fetch(turns, last * slots + slot), z.a, z.b);
                const Unit a = fetch(units, at.a), b = fetch(units, at.b);
                if (!AHEAD) now = read(x + t * inputs_step, at, n);
                z = {plus(now.a, times(z.a, a.re, a.im)), plus(now.b, times(z.b, b.re, b.im))};
                const Two next = {activate(z.a, a.b), activate(z.b, b.b)};
                h[at.a] = next.a, h[at.b] = next.b;
                write(out + t * out_step, at, n, next);
            }
            __syncthreads();
        }
        EACH_SLOT {
            const Pair at(slot, last, m);
            const Two kept = {h[at.a], h[at.b]};
            ROLLED for (int t = steps; t < T; t++) write(out + t * out_step, at, n, kept);
        }
    }
}

// From the gradient g of a unit's new state h to that of the product x before its phase, by way of dz, which is written to its row.
__device__ float2 back_to_product(float2 g, float2 h, float2 x, const Unit& unit, float* dz, int index, int n, float& by_phase, float& by_bias) {
    g = pull_back(g, h, unit.b, by_bias);
    write(dz, index, n, g);
    g = times(g, unit.re, -unit.im);
    by_phase += twist(x, g);  // the same before the phase as after it
    return g;
}

// A slot's sums: of the angle and of the phase of each layer, then for the two units of the last layer the phases of D, then their biases.
__device__ int sums_a_slot(int layers) { return 2 * layers + 4; }

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(
    const Turn* __restrict__ turns, const Unit* __restrict__ units, const long long* __restrict__ lengths,
    const float* __restrict__ initial, long long initial_row,                                 // [B, 2n]
    const float* __restrict__ grad_states, long long grad_states_step, long long grad_states_row,  // [T, B, 2n]
    const float* __restrict__ states, float* __restrict__ grad_z,                             // [T, B, 2n], without gaps
    float* __restrict__ grad_initial,                                                         // [B, 2n], without gaps
    float* __restrict__ shares,                                                               // [blocks, 2 layers + 4, slots]
    long long T, long long B, long long size, long long layer_count)
{
    const int n = size, layers = layer_count, m = n + (n & 1), slots = m / 2, last = layers - 1, rows = sums_a_slot(layers);
    float2 *x = reinterpret_cast<float2*>(memory), *g = x + m;
    float* share = shares + (long long)blockIdx.x * rows * slots;
    float* sums = SUMS_IN_SHARED ? reinterpret_cast<float*>(g + m) : share;
    EACH_SLOT
        ROLLED for (int row = 0; row < rows; row++) sums[row * slots + slot] = 0.f;
    ROLLED for (int b = blockIdx.x; b < B; b += gridDim.x) {
        const float *start = initial + b * initial_row, *upstream = grad_states + b * grad_states_row, *h = states + b * 2LL * n;
        float* dz = grad_z + b * 2LL * n;
        const long long step = B * 2 * n;
        const int steps = steps_of(lengths, b, T);
        const float2 zero = make_float2(0.f, 0.f);
        Two before = {}, given = {};  // h_{t-1} and dL/dh_t of the one slot there is, if they are fetched ahead
        EACH_SLOT {
            const Pair at(slot, last, m);
            Two carried = {zero, zero};
            ROLLED for (int t = T - 1; t >= steps; t--) {
                const Two more = read(upstream + t * grad_states_step, at, n);
                carried = {plus(carried.a, more.a), plus(carried.b, more.b)};
                write(dz + t * step, at, n, {zero, zero});
            }
            g[at.a] = carried.a, g[at.b] = carried.b;
            if (AHEAD && steps > 0) {
                before = read(steps > 1 ? h + (steps - 2) * step : start, at, n);
                given = read(upstream + (steps - 1) * grad_states_step, at, n);
            }
        }
        ROLLED for (int t = steps - 1; t >= 0; t--) {
            EACH_SLOT {
                const Pair at(slot, last, m);
                const Two value = AHEAD ? before : read(t > 0 ? h + (t - 1) * step : start, at, n);
                const Two more = AHEAD ? given : read(upstream + t * grad_states_step, at, n);
                x[at.a] = value.a, x[at.b] = value.b;
                g[at.a] = plus(g[at.a], more.a), g[at.b] = plus(g[at.b], more.b);
            }
            __syncthreads();
            ROLLED for (int layer = 0; layer < last; layer++) {
                EACH_SLOT {
                    const Pair at(slot, layer, m);
                    turn(fetch(turns, layer * slots + slot), x[at.a], x[at.b]);
                }
                __syncthreads();
            }
            ROLLED for (int layer = last; layer >= 0; layer--) {
                EACH_SLOT {
                    const Pair at(slot, layer, m);
                    const Turn by = fetch(turns, layer * slots + slot);
                    float* sum = sums + slot;
                    Two p = {x[at.a], x[at.b]}, q = {g[at.a], g[at.b]};
                    if (layer == last) {
                        turn(by, p.a, p.b);
                        const Two state = read(h + t * step, at, n);
                        float *row = dz + t * step, *ends = sum + 2 * layers * slots;
                        q.a = back_to_product(q.a, state.a, p.a, fetch(units, at.a), row, at.a, n, ends[0], ends[2 * slots]);
                        q.b = back_to_product(q.b, state.b, p.b, fetch(units, at.b), row, at.b, n, ends[slots], ends[3 * slots]);
                        if (AHEAD && t > 0) {
                            before = read(t > 1 ? h + (t - 2) * step : start, at, n);
                            given = read(upstream + (t - 1) * grad_states_step, at, n);
                        }
                    }
                    sum[2 * layer * slots] += inner(q.b, p.a) - inner(q.a, p.b);
                    turn_back(by, p.a, p.b);
                    turn_back(by, q.a, q.b);
                    sum[(2 * layer + 1) * slots] += twist(p.b, q.b);
                    x[at.a] = p.a, x[at.b] = times(p.b, by.re, -by.im);
                    g[at.a] = q.a, g[at.b] = times(q.b, by.re, -by.im);
                }
                __syncthreads();
            }
        }
        EACH_SLOT {
            const Pair at(slot, last, m);
            write(grad_initial + b * 2LL * n, at, n, {g[at.a], g[at.b]});
        }
    }
    if (SUMS_IN_SHARED)
        EACH_SLOT
            ROLLED for (int row = 0; row < rows; row++) share[row * slots + slot] = sums[row * slots + slot];
}

// The shares of all blocks, added up and put where the angles, the phases of D and the biases are. What no slot turns is left as it is.
extern "C" __global__ void collect(
    const float* __restrict__ shares, float* __restrict__ grad_angles, float* __restrict__ grad_phases, float* __restrict__ grad_bias,
    long long blocks, long long n, long long layers)
{
    const int m = n + (n & 1), slots = m / 2, rows = sums_a_slot(layers);
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (long long)rows * slots) return;
    double sum = 0.0;
    for (long long block = 0; block < blocks; block++) sum += (double)shares[block * rows * slots + index];
    const int row = index / slots, slot = index % slots;
    if (row < 2 * layers) {
        const long long at = place(slot, row / 2, n, layers);
        if (at >= 0) grad_angles[at + (row & 1) * n * ((layers + 1) / 2)] = (float)sum;
        return;
    }
    const Pair at(slot, layers - 1, m);
    const int unit = row & 1 ? at.b : at.a;
    float* target = row < 2 * layers + 2 ? grad_phases : grad_bias;
    if (target && unit < n) target[unit] = (float)sum;
}
