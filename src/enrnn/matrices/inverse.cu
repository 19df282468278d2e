// One step of an inversion in place by blocks (Gauss and Jordan), without pivoting, in double precision.
//
// With the pivot rows and columns of block k first, the matrix is [[D, S], [C, M]], and the step turns it into
//     [[D^-1, D^-1 S], [-C D^-1, M - C D^-1 S]];
// after a step for every block the matrix is inverted. A thread block makes a tile of ROWS x SIDE; every one inverts the small
// matrix D for itself, which costs less than to wait for another to do it. The step reads one matrix and writes another, so that
// no thread block sees what another has made.

constexpr int SIDE = 32, ROWS = 64, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) eliminate(const double* __restrict__ from, double* __restrict__ to, long long size, long long step)
{
    __shared__ double D[SIDE][SIDE + 1], S[SIDE][SIDE + 1], R[SIDE][SIDE + 1], C[ROWS][SIDE + 1], row[2][SIDE], column[2][SIDE];
    const int n = (int)size, pivot = (int)step * SIDE, first_column = blockIdx.x * SIDE, first_row = blockIdx.y * ROWS;
    const int i = threadIdx.x / 8, j = threadIdx.x % 8;  // this thread's row of 32, and columns j, j + 8, …
    const auto at = [&](int r, int c, double beyond) { return r < n && c < n ? from[(long long)r * n + c] : beyond; };

    double d[4];
    for (int k = 0; k < 4; k++) {
        const int c = j + 8 * k;
        d[k] = at(pivot + i, pivot + c, i == c ? 1.0 : 0.0);  // beyond the edge, the identity
        S[i][c] = at(pivot + i, first_column + c, 0.0);
        C[i][c] = at(first_row + i, pivot + c, 0.0);
        C[i + SIDE][c] = at(first_row + i + SIDE, pivot + c, 0.0);
    }
    for (int p = 0; p < SIDE; p++) {  // D inverted, each thread keeping its four entries
        const int now = p & 1;
        for (int k = 0; k < 4; k++) {
            if (i == p) row[now][j + 8 * k] = d[k];
            if (j + 8 * k == p) column[now][i] = d[k];
        }
        __syncthreads();
        const double inverse = 1.0 / row[now][p], factor = column[now][i] * inverse;
        for (int k = 0; k < 4; k++) {
            const int c = j + 8 * k;
            d[k] = i == p ? (c == p ? inverse : d[k] * inverse) : (c == p ? -factor : d[k] - factor * row[now][c]);
        }
    }
    for (int k = 0; k < 4; k++) D[i][j + 8 * k] = d[k];
    __syncthreads();

    const bool pivot_columns = first_column == pivot;
    double sum[4] = {};  // R = D^-1 S, or D^-1 itself in the pivot columns
    for (int m = 0; m < SIDE; m++)
        for (int k = 0; k < 4; k++) sum[k] += D[i][m] * S[m][j + 8 * k];
    for (int k = 0; k < 4; k++) R[i][j + 8 * k] = pivot_columns ? D[i][j + 8 * k] : sum[k];
    __syncthreads();

    for (int half = 0; half < 2; half++) {
        const int r = first_row + half * SIDE + i;
        double made[4];
        for (int k = 0; k < 4; k++) made[k] = pivot_columns ? 0.0 : at(r, first_column + j + 8 * k, 0.0);
        for (int m = 0; m < SIDE; m++)
            for (int k = 0; k < 4; k++) made[k] -= C[half * SIDE + i][m] * R[m][j + 8 * k];
        for (int k = 0; k < 4; k++) {
            const int c = first_column + j + 8 * k, in_pivot = r - pivot;
            if (r < n && c < n) to[(long long)r * n + c] = in_pivot >= 0 && in_pivot < SIDE ? R[in_pivot][j + 8 * k] : made[k];
        }
    }
}
