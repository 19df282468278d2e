// What a step of the gated recurrence does beside its product with the weights, and the same of its reverse sweep:
//     r = sigmoid(x_r + W_r h),   z = sigmoid(x_z + W_z h),   c = s(x_c + r (Q h), b),   h' = z h + (1 - z) c.
//
// A thread has one unit of one sequence, or of every gridDim.y-th, and works on no other's numbers. Rows lie as `_gated.py` has
// them: inputs [T, B, 3n] are x_r, x_z, x_c; kept [T, B, 4n] holds [Q h | r | z | c], whose first three parts are the product
// [Q; W_r; W_z] h when `forward` begins; swept [T, B, 4n] is filled with the gradients at [Q h | x_r | x_z | x_c].
//
// Set by the compiler's command line: SIGMA.

enum { MODRELU, RELU, TANH, IDENTITY, LEAKY_RELU = 5 };

constexpr float LEAK = 0.1f;  // the leaky ReLU's slope below zero
constexpr int THREADS = 128;  // of a block, at most

__device__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ float positive(float x) { return x < 0.f ? 0.f : x; }  // max(x, 0), where NaN stays NaN

__device__ float activate(float z, float b) {
    if (SIGMA == MODRELU) return z == 0.f ? 0.f : copysignf(positive(fabsf(z) + b), z);
    if (SIGMA == RELU) return positive(z);
    if (SIGMA == LEAKY_RELU) return z > 0.f ? z : LEAK * z;
    if (SIGMA == TANH) return tanhf(z);
    return z;
}

// The gradient at the argument of s from the one at c = s(z, b).
__device__ float pull_back(float g, float c) {
    if (SIGMA == MODRELU) return c != 0.f ? g : 0.f * g;
    if (SIGMA == RELU) return c > 0.f ? g : 0.f * g;
    if (SIGMA == LEAKY_RELU) return c > 0.f ? g : LEAK * g;
    if (SIGMA == TANH) return (1.f - c * c) * g;
    return g;
}

// The state before step t, of a sequence and unit.
__device__ float before(
    const float* states, const float* initial, long long initial_row, long long t, long long B, long long n, long long sequence,
    long long unit)
{
    return t == 0 ? initial[sequence * initial_row + unit] : states[((t - 1) * B + sequence) * n + unit];
}

extern "C" __global__ void __launch_bounds__(THREADS) forward(
    const float* __restrict__ inputs, long long inputs_step, long long inputs_row, const float* __restrict__ initial,
    long long initial_row, const float* __restrict__ bias, const long long* __restrict__ lengths,
    float* kept, long long kept_step,  // 0 where only one step has room
    float* states, long long t, long long B, long long n)
{
    const long long unit = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= n) return;
    const float b = SIGMA == MODRELU ? bias[unit] : 0.f;
    for (long long sequence = blockIdx.y; sequence < B; sequence += gridDim.y) {
        const float* x = inputs + t * inputs_step + sequence * inputs_row + unit;
        float* row = kept + t * kept_step + sequence * 4 * n + unit;
        const float h = before(states, initial, initial_row, t, B, n, sequence, unit);
        const float r = sigmoid(x[0] + row[n]), z = sigmoid(x[n] + row[2 * n]);
        const float c = activate(x[2 * n] + r * row[0], b);
        row[n] = r;
        row[2 * n] = z;
        row[3 * n] = c;
        const bool running = lengths == nullptr || t < lengths[sequence];
        states[(t * B + sequence) * n + unit] = running ? z * h + (1.f - z) * c : h;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) backward(
    const float* __restrict__ grad_states, long long grad_step, long long grad_row, const float* __restrict__ states,
    const float* __restrict__ initial, long long initial_row, const long long* __restrict__ lengths,
    const float* __restrict__ kept,
    float* __restrict__ carried,  // [B, n]: dL/dh_t by way of later steps, to which it then adds the product with the weights
    float* __restrict__ swept, long long t, long long B, long long n)
{
    const long long unit = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= n) return;
    for (long long sequence = blockIdx.y; sequence < B; sequence += gridDim.y) {
        const long long place = (t * B + sequence) * 4 * n + unit;
        const float g = grad_states[t * grad_step + sequence * grad_row + unit] + carried[sequence * n + unit];
        float by_product = 0.f, by_reset = 0.f, by_update = 0.f, by_candidate = 0.f, by_state = g;
        if (lengths == nullptr || t < lengths[sequence]) {
            const float h = before(states, initial, initial_row, t, B, n, sequence, unit);
            const float turned = kept[place], r = kept[place + n], z = kept[place + 2 * n], c = kept[place + 3 * n];
            by_candidate = pull_back(g * (1.f - z), c);
            by_product = by_candidate * r;
            by_reset = by_candidate * turned * (1.f - r) * r;
            by_update = g * (h - c) * (1.f - z) * z;
            by_state = g * z;
        }
        swept[place] = by_product;
        swept[place + n] = by_reset;
        swept[place + 2 * n] = by_update;
        swept[place + 3 * n] = by_candidate;
        carried[sequence * n + unit] = by_state;
    }
}
