// Copies many tensors at once. The table holds, for each, where to, where from, and how many bytes, all of them allocations of torch,
// which begin at multiples of 16 bytes. With a flag that is set, nothing is copied.

extern "C" __global__ void __launch_bounds__(256) copy(const long long* __restrict__ table, const unsigned char* __restrict__ unless) {
    if (unless && *unless) return;
    const long long* entry = table + 3 * blockIdx.x;
    unsigned char *to = (unsigned char*)entry[0], *from = (unsigned char*)entry[1];
    const long long bytes = entry[2], words = ((entry[0] | entry[1]) & 15) ? 0 : bytes / 16;
    const long long first = (long long)blockIdx.y * blockDim.x + threadIdx.x, step = (long long)gridDim.y * blockDim.x;
    for (long long i = first; i < words; i += step) ((uint4*)to)[i] = ((const uint4*)from)[i];
    for (long long i = 16 * words + first; i < bytes; i += step) to[i] = from[i];
}
