// What stands around the inverse in the scaled Cayley transform and its gradient, entry by entry. DOUBLE tells the type of the parameter.

#if DOUBLE
typedef double real;
#else
typedef float real;
#endif

#define ENTRY \
    const long long n = size, at = (long long)blockIdx.x * blockDim.x + threadIdx.x; \
    if (at >= n * n) return; \
    const long long row = at / n, column = at % n;

// I + A and I, where A = triu(P, 1) - triu(P, 1)^T.
extern "C" __global__ void shift(const real* __restrict__ P, double* __restrict__ shifted, double* __restrict__ identity, long long size) {
    ENTRY
    identity[at] = row == column ? 1.0 : 0.0;
    shifted[at] = row < column ? (double)P[at] : row > column ? -(double)P[column * n + row] : 1.0;
}

// W = (2 X - I) D.
extern "C" __global__ void finish(const double* __restrict__ X, real* __restrict__ W, long long size, long long ones) {
    ENTRY
    const double value = 2.0 * X[at] - (row == column ? 1.0 : 0.0);
    W[at] = (real)(column < ones ? value : -value);
}

// dX = 2 G D.
extern "C" __global__ void widen(const real* __restrict__ G, double* __restrict__ dX, long long size, long long ones) {
    ENTRY
    dX[at] = (column < ones ? 2.0 : -2.0) * (double)G[at];
}

// dP = triu(V^T - V, 1), with V = X^T dX X^T.
extern "C" __global__ void narrow(const double* __restrict__ V, real* __restrict__ dP, long long size) {
    ENTRY
    dP[at] = row < column ? (real)(V[column * n + row] - V[at]) : (real)0.0;
}
