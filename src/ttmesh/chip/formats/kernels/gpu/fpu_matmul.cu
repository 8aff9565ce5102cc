/* The FPU's products on a GPU, bit for bit; chip/numerics/fpu_reference.py has the rules.
 *
 * As in ../fpu_matmul.c a group of eight products, aligned and rounded, is eight fused multiply-adds. Here the
 * accumulator begins at 1.5 * 2^23 units of the group's own exponent, so that operands need no scaling; SrcB's parts carry
 * the factor 1 + 2^-14 that pushes ties away from zero. A write to a 16-bit destination is four more additions of that
 * kind, two of them rounded down: a sum is rounded to the 24-bit place and then to the 11-bit place, ties up each time,
 * which is adding 1/2 + 2^-14 of a place and rounding down once.
 *
 * Exponents of operands are 83 to 172 (gpu_fpu_matmul.py asks): nothing leaves the range of normal numbers. */

#define TILE 32   /* of K */
#define GROUP 8
#define ROWS 64   /* of a block's output */
#define COLUMNS 64
#define DOWN 4    /* of a thread's output */
#define ACROSS 4
#define PAIRS (ACROSS / 2)
#define THREADS (ROWS / DOWN * (COLUMNS / ACROSS))
#define NOTHING -8192 /* the exponent of zero: below all others, twice of it fits 16 bits */

typedef unsigned int Bits;

__device__ inline Bits bits_of(float value) { return __float_as_uint(value); }
__device__ inline float value_of(Bits bits) { return __uint_as_float(bits); }

/* SrcB's matrices [batches, rows, depth] or SrcA's [batches, depth, columns] as operands [depth, extent]: upper bits, lower
 * bits, and the exponent in both halves of a word. Padding is zero. */
template <bool IS_SRC_A>
__global__ void prepare(const float *values, float *high, float *low, Bits *exponent, int extent, int depth, int padded,
                        int deep) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y;
    if (at >= padded) return;
    const long long batch = blockIdx.z, place = (batch * deep + k) * padded + at;
    const bool there = at < extent && k < depth;
    const long long source = IS_SRC_A ? (batch * depth + k) * extent + at : (batch * extent + at) * depth + k;
    const Bits bits = there ? bits_of(values[source]) : 0u;
    const int own = (bits >> 23) & 0xff;
    const Bits normal = own ? bits : 0u;
    const float upper = value_of(normal & (IS_SRC_A ? 0xfff80000u : 0xfffe0000u));
    const float whole = value_of(normal & (IS_SRC_A ? 0xffffc000u : 0xffffe000u));
    const float away = IS_SRC_A ? 1.0f : 1.0f + 0x1p-14f;
    high[place] = upper * away;
    low[place] = (whole - upper) * (IS_SRC_A ? 32.0f : 128.0f) * away;
    const int shown = own ? (IS_SRC_A ? own : own - 127) : NOTHING;
    exponent[place] = (Bits)(shown & 0xffff) * 0x10001u;
}

/* One of two exponents in a word, where a float has its exponent. */
template <int HALF> __device__ inline Bits place_exponent(Bits pair) {
    return HALF ? (pair >> 16) << 23 : pair << 23;
}

/* What a group's sum starts from: 1.5 * 2^23 units, of which 2^10 are one at the group's exponent. */
__device__ inline float start_of(Bits exponent) { return value_of(exponent + ((13u << 23) | 0x400000u)); }

template <int LOWER>
__device__ inline float write_narrow(float first, float second, Bits most, float dest) {
    const int below = (int)most - (LOWER << 23), held = (int)(bits_of(dest) & 0x7f800000u);
    const float unit = value_of((Bits)(below > held ? below : held));
    const float start = unit * 12288.0f, half = unit * (0x1p-11f + 0x1p-24f), scale = 1.0f / (1 << LOWER);
    float total = __fmaf_rn(dest, 1.0f + 0x1p-14f, start);
    total = __fadd_rd(total, __fmaf_rn(first, scale, half));
    total = __fadd_rd(total, __fmaf_rn(second, scale, half));
    total = __fsub_rn(total, start);
    return value_of((bits_of(total) + 0x8000u) & 0xffff0000u);
}

__device__ inline int shift_right(int value, int by) { /* by any amount from 0 on */
    int result;
    asm("shr.s32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(by));
    return result;
}

/* `first` and `second` are what the accumulators hold: the sum lies in their low 18 bits. */
template <int LOWER>
__device__ inline float write_wide(float first, float second, int first_e, int second_e, float dest, bool fault) {
    const Bits old = bits_of(dest);
    const int held = old ? (int)((old >> 23) & 0xff) : -64;
    first_e -= LOWER;
    second_e -= LOWER;
    const int e = max(max(first_e, second_e), held);
    const int a = (shift_right((int)(bits_of(first) << 14), e - first_e) + 1) >> 1;
    const int b = (shift_right((int)(bits_of(second) << 14), e - second_e) + 1) >> 1;
    const int d = (shift_right((int)(((old & 0x7fffffu) | 0x800000u) << 1), e - held) + 1) >> 1;
    int total = a + b + ((int)old < 0 ? -d : d);
    if (fault && total == -1) total = -(1 << 27);
    const int magnitude = abs(total);
    /* Above 24 bits the conversion rounds to even: one bit more below makes ties go away. */
    const Bits bits = bits_of(__int2float_rn(magnitude + magnitude + (magnitude > 0xffffff)));
    const Bits result = (bits + ((Bits)(e - 151) << 23)) | ((Bits)total & 0x80000000u);
    return total ? value_of(result) : 0.0f;
}

/* A block and what L1 holds, to nearest even. */
template <bool WIDE> __device__ inline float add_in_l1(float held, float block) {
    const float total = __fadd_rn(held, block);
    if (WIDE) return total;
    const Bits bits = bits_of(total);
    return value_of((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

struct Shared {
    float x_high[TILE][ROWS], w_high[TILE][COLUMNS], w_low[TILE][COLUMNS];
    Bits x_exponent[TILE][ROWS];
    Bits w_exponent[TILE][COLUMNS / 2];
};

/* The largest exponents of a group: two columns in a word. */
__device__ inline void find_exponents(const Shared &shared, int k, int row, int column, Bits most[DOWN][PAIRS]) {
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < PAIRS; c++) most[r][c] = 0;
#pragma unroll 2
    for (int i = 0; i < GROUP; i++) {
        Bits x[DOWN], w[PAIRS];
#pragma unroll
        for (int r = 0; r < DOWN; r += 4) *(uint4 *)&x[r] = *(const uint4 *)&shared.x_exponent[k + i][row + r];
        *(uint2 *)w = *(const uint2 *)&shared.w_exponent[k + i][column / 2];
#pragma unroll
        for (int r = 0; r < DOWN; r++)
#pragma unroll
            for (int c = 0; c < PAIRS; c++) most[r][c] = __viaddmax_s16x2(x[r], w[c], most[r][c]);
    }
}

/* A group's sums in one phase, on top of their starts. */
__device__ inline void add_products(const float (*x_part)[ROWS], const float (*w_part)[COLUMNS], int k, int row, int column,
                                    float total[DOWN][ACROSS]) {
#pragma unroll 2
    for (int i = 0; i < GROUP; i++) {
        float x[DOWN], w[ACROSS];
#pragma unroll
        for (int r = 0; r < DOWN; r += 4) *(float4 *)&x[r] = *(const float4 *)&x_part[k + i][row + r];
        *(float4 *)w = *(const float4 *)&w_part[k + i][column];
#pragma unroll
        for (int r = 0; r < DOWN; r++)
#pragma unroll
            for (int c = 0; c < ACROSS; c++) total[r][c] = __fmaf_rn(x[r], w[c], total[r][c]);
    }
}

__device__ inline Bits exponent_at(const Bits most[DOWN][PAIRS], int r, int c) {
    return c & 1 ? place_exponent<1>(most[r][c / 2]) : place_exponent<0>(most[r][c / 2]);
}

/* Keeps the compiler from holding what it derives from exponents in registers: there are none left. */
__device__ inline void forget(Bits most[DOWN][PAIRS]) {
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < PAIRS; c++) asm volatile("" : "+r"(most[r][c]));
}

/* Both groups of a step in one phase, added and written to the destination. */
template <int LOWER, bool WIDE>
__device__ inline void run_step(const float (*x_part)[ROWS], const float (*w_part)[COLUMNS], int k, int row, int column,
                                Bits first_e[DOWN][PAIRS], Bits second_e[DOWN][PAIRS], bool fault,
                                float dest[DOWN][ACROSS]) {
    float first[DOWN][ACROSS], second[DOWN][ACROSS];
    forget(first_e), forget(second_e);
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            first[r][c] = start_of(exponent_at(first_e, r, c));
            second[r][c] = start_of(exponent_at(second_e, r, c));
        }
    add_products(x_part, w_part, k, row, column, first);
    add_products(x_part, w_part, k + GROUP, row, column, second);
    forget(first_e), forget(second_e);
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            const Bits a = exponent_at(first_e, r, c), b = exponent_at(second_e, r, c);
            if (WIDE) {
                const int a_e = (int)(a >> 23), b_e = (int)(b >> 23);
                dest[r][c] = write_wide<LOWER>(first[r][c], second[r][c], a_e, b_e, dest[r][c], fault);
            } else {
                const float one = __fsub_rn(first[r][c], start_of(a)), two = __fsub_rn(second[r][c], start_of(b));
                dest[r][c] = write_narrow<LOWER>(one, two, a > b ? a : b, dest[r][c]);
            }
        }
}

/* A block's tile of out = x [deep, rows] transposed times w [deep, columns], all padded.
 * keep: on top of what out holds; block: of K, added up in L1, 0: none are; fault: Wormhole's renormalisation of -1. */
template <int PHASES, bool WIDE>
__global__ void __launch_bounds__(THREADS, 2)
multiply(const float *x_high, const float *x_low, const Bits *x_exponent, const float *w_high, const float *w_low,
         const Bits *w_exponent, float *out, int rows, int columns, int deep, int x_batches, int w_batches, int block,
         int keep, int fault) {
    __shared__ Shared shared;
    __shared__ float x_lower[PHASES > 2 ? TILE : 1][ROWS];
    const int across = columns / COLUMNS, thread = threadIdx.x;
    const int first_row = blockIdx.x / across * ROWS, first_column = blockIdx.x % across * COLUMNS;
    const int row = thread / (COLUMNS / ACROSS) * DOWN, column = thread % (COLUMNS / ACROSS) * ACROSS;
    const long long batch = blockIdx.y, x_batch = x_batches > 1 ? batch : 0, w_batch = w_batches > 1 ? batch : 0;
    const long long x_start = x_batch * deep * rows + first_row, w_start = w_batch * deep * columns + first_column;
    float *target = out + (batch * rows + first_row + row) * columns + first_column + column;
    float dest[DOWN][ACROSS], held[DOWN][ACROSS];
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < ACROSS; c++) dest[r][c] = keep ? target[(long long)r * columns + c] : 0.0f;
    for (int start = 0; start < deep; start += TILE) {
        __syncthreads();
        for (int i = thread; i < TILE * ROWS / 4; i += THREADS) {
            const int k = i / (ROWS / 4), r = i % (ROWS / 4) * 4;
            const long long at = x_start + (long long)(start + k) * rows + r;
            *(float4 *)&shared.x_high[k][r] = *(const float4 *)(x_high + at);
            *(uint4 *)&shared.x_exponent[k][r] = *(const uint4 *)(x_exponent + at);
            if (PHASES > 2) *(float4 *)&x_lower[k][r] = *(const float4 *)(x_low + at);
        }
        for (int i = thread; i < TILE * COLUMNS / 4; i += THREADS) {
            const int k = i / (COLUMNS / 4), c = i % (COLUMNS / 4) * 4;
            const long long at = w_start + (long long)(start + k) * columns + c;
            *(float4 *)&shared.w_high[k][c] = *(const float4 *)(w_high + at);
            if (PHASES > 1) *(float4 *)&shared.w_low[k][c] = *(const float4 *)(w_low + at);
            const uint4 e = *(const uint4 *)(w_exponent + at);
            *(uint2 *)&shared.w_exponent[k][c / 2] = make_uint2(__byte_perm(e.x, e.y, 0x5410), __byte_perm(e.z, e.w, 0x5410));
        }
        __syncthreads();
        Bits e0[DOWN][PAIRS], e1[DOWN][PAIRS], e2[DOWN][PAIRS], e3[DOWN][PAIRS];
        find_exponents(shared, 0, row, column, e0);
        find_exponents(shared, GROUP, row, column, e1);
        run_step<0, WIDE>(shared.x_high, shared.w_high, 0, row, column, e0, e1, fault, dest);
        find_exponents(shared, 2 * GROUP, row, column, e2);
        find_exponents(shared, 3 * GROUP, row, column, e3);
        run_step<0, WIDE>(shared.x_high, shared.w_high, 2 * GROUP, row, column, e2, e3, fault, dest);
        if (PHASES > 1) {
            run_step<5, WIDE>(shared.x_high, shared.w_low, 0, row, column, e0, e1, fault, dest);
            run_step<5, WIDE>(shared.x_high, shared.w_low, 2 * GROUP, row, column, e2, e3, fault, dest);
        }
        if (PHASES > 2) {
            run_step<7, WIDE>(x_lower, shared.w_high, 0, row, column, e0, e1, fault, dest);
            run_step<7, WIDE>(x_lower, shared.w_high, 2 * GROUP, row, column, e2, e3, fault, dest);
        }
        if (PHASES > 3) {
            run_step<12, WIDE>(x_lower, shared.w_low, 0, row, column, e0, e1, fault, dest);
            run_step<12, WIDE>(x_lower, shared.w_low, 2 * GROUP, row, column, e2, e3, fault, dest);
        }
        const int done = start + TILE;
        if (!block || done % block || done >= deep) continue;
#pragma unroll
        for (int r = 0; r < DOWN; r++)
#pragma unroll
            for (int c = 0; c < ACROSS; c++) {
                held[r][c] = done == block ? dest[r][c] : add_in_l1<WIDE>(held[r][c], dest[r][c]);
                dest[r][c] = done + block >= deep ? held[r][c] : 0.0f; /* the last block is computed on top of the others */
            }
    }
#pragma unroll
    for (int r = 0; r < DOWN; r++) *(float4 *)(target + (long long)r * columns) = *(float4 *)dest[r];
}
