// Floats as two halves each, for the tensor cores. This text stands before that of the kernels that use it.

constexpr int HIGHEST = 14, LOWEST = 27;  // the largest number's exponent when scaled; the least of a line, 2^-100, as a float's bits have it

// Two floats in pieces, both numbers of a piece in one word.
__device__ void cut(float low, float high, unsigned& large, unsigned& small) {
    float low_found, high_found;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(large) : "f"(high), "f"(low));
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}" : "=f"(low_found), "=f"(high_found) : "r"(large));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(small) : "f"(high - high_found), "f"(low - low_found));
}

// By the bits of the largest size of some numbers: what they are multiplied by, and what 1 stands for then. Where one is not finite, its halves
// are not, and whatever they are multiplied with.
__device__ void common_scale(unsigned most, float& scale, float& one) {
    const unsigned exponent = max(most & 0x7f800000u, (unsigned)LOWEST << 23);
    scale = __uint_as_float((2u * 127 + HIGHEST << 23) - exponent);
    one = __uint_as_float(exponent - (HIGHEST << 23));
}
