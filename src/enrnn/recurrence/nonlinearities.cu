// The nonlinearities: h = s(z, b), and dz from dL/dh. This text stands before that of the kernels that use it.
//
// Set by the compiler's command line: SIGMA.

enum { MODRELU, RELU, TANH, IDENTITY, PAIRED_MODRELU, LEAKY_RELU };

constexpr float LEAK = 0.1f;                             // the leaky ReLU's slope below zero
constexpr float ROUNDING = 1.f / (1 << 23);
constexpr int PARTS = SIGMA == PAIRED_MODRELU ? 2 : 1;   // real numbers a unit is made of

__device__ float positive(float x) {  // max(x, 0), where NaN stays NaN
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

__device__ void activate(const float (&z)[PARTS], float b, float (&h)[PARTS]) {
    if constexpr (SIGMA == MODRELU) {
        h[0] = copysignf(positive(fabsf(z[0]) + b), z[0]);
        if (z[0] == 0.f && b > 0.f) h[0] = 0.f;
    }
    if constexpr (SIGMA == RELU) h[0] = positive(z[0] + b);
    if constexpr (SIGMA == LEAKY_RELU) {
        const float x = z[0] + b;
        h[0] = x > 0.f ? x : LEAK * x;
    }
    if constexpr (SIGMA == TANH) h[0] = tanhf(z[0] + b);
    if constexpr (SIGMA == IDENTITY) h[0] = z[0] + b;
    if constexpr (SIGMA == PAIRED_MODRELU) {
        const float size = hypotf(z[0], z[1]), scale = size == 0.f ? 0.f : fmaxf(size + b, 0.f) / size;
        h[0] = scale * z[0], h[1] = scale * z[1];
    }
}

// dz from g, by the state h alone.
__device__ void pull_back(const float (&g)[PARTS], const float (&h)[PARTS], float b, float (&dz)[PARTS]) {
    if constexpr (SIGMA == MODRELU) dz[0] = h[0] != 0.f ? g[0] : 0.f * g[0];
    if constexpr (SIGMA == RELU) dz[0] = h[0] > 0.f ? g[0] : 0.f * g[0];
    if constexpr (SIGMA == LEAKY_RELU) dz[0] = h[0] > 0.f ? g[0] : LEAK * g[0];
    if constexpr (SIGMA == TANH) dz[0] = (1.f - h[0] * h[0]) * g[0];
    if constexpr (SIGMA == IDENTITY) dz[0] = g[0];
    if constexpr (SIGMA == PAIRED_MODRELU) {
        const float size = hypotf(h[0], h[1]), before = fmaxf(fmaxf(size - b, ROUNDING * size), 1e-30f);  // not known to be less
        const float scale = size / before, along = size == 0.f ? 0.f : (1.f - scale) * (h[0] * g[0] + h[1] * g[1]) / (size * size);
        dz[0] = scale * g[0] + along * h[0], dz[1] = scale * g[1] + along * h[1];
    }
}
