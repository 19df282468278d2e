// The recurrent matrix as its blocks, [[W_L, W_C], [0, W_S]], each with strides of its own. This text stands before that of the kernels that use it.

struct Block {
    const float* from;      // or null
    long long down, right;  // to the next row, and to the next column
    __device__ float at(long long i, long long j) const { return from ? from[i * down + j * right] : 0.f; }
};

struct Matrix {
    Block long_long, long_short, short_short;
    long long n, q;  // units, and those of the long part
    __device__ float at(long long i, long long j) const {
        if (i < q) return j < q ? long_long.at(i, j) : long_short.at(i, j - q);
        return j < q ? 0.f : short_short.at(i - q, j - q);
    }
};
