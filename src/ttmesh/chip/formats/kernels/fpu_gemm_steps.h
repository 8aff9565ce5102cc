/* A 16-bit destination of fpu_gemm.c: products are added 16 of K at a time, and every sum is rounded in between.
 *
 * A rounding is a chain of up to sixteen instructions, for which the multipliers would wait. With AVX-512 a tile's rows are two
 * sets that take turns: while one is multiplied by a tile of K, the sums of the other are rounded. */
#pragma once

#include "fpu_gemm_operands.h"

#define STEP 16 /* of K between two writes to the destination */
#define TILE 32

/* Loaded once: compilers would rather read it again with every multiply-add, which is more than the cache can give. */
#if defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#else
#define KEEP(vector)
#endif

/* One panel of one tile: its sums between two chunks of K, what L1 holds of them, and those of the second half of its rows
 * that were multiplied and not rounded yet. */
typedef struct {
    f32v partial[ROWS][VECTORS], held[ROWS][VECTORS], waiting[ROWS / 2][VECTORS];
} Sums;

/* What roundings add and keep. Read from memory: the registers are full of sums. */
typedef struct {
    uint32_t up, upper, below; /* 9/16 of a place; the bits that stay; those that do not */
    uint32_t nearest, one;     /* just under half a place, for nearest even */
    uint32_t on_top;           /* all ones: the next block is computed on top of L1's sum; 0: from zero */
    float lower;
} Rounding;

INLINE f32v spread(float value) { return value - (f32v){0}; }
INLINE f32v add_bits(f32v value, uint32_t bits) { return (f32v)((u32v)value + bits); }
INLINE f32v and_bits(f32v value, uint32_t bits) { return (f32v)((u32v)value & bits); }
INLINE f32v round_dest(f32v value, const Rounding *rounding) {
    return and_bits(add_bits(value, rounding->up), rounding->upper);
}

/* The lower bits' share of what a tile added. A sum that needs no rounding came without one. */
INLINE f32v second_write(f32v sum, f32v before, const Rounding *rounding) {
#ifdef __AVX512F__
    const __mmask16 odd = _mm512_test_epi32_mask((__m512i)sum, _mm512_set1_epi32((int)rounding->below));
    return (f32v)_mm512_maskz_mul_ps(odd, (__m512)(sum - before), _mm512_set1_ps(rounding->lower));
#else
    const u32v even = (u32v)(((u32v)sum << 16) == 0);
    return (f32v)((u32v)((sum - before) * rounding->lower) & ~even);
#endif
}

/* A sum at the end of a tile of K, without its second write and then with it. */
INLINE f32v write_both(f32v first, f32v second, const Rounding *rounding, int form) {
    first = round_dest(first, rounding);
    return form == 1 ? first : round_dest(first + second, rounding);
}

/* The packer adds a block to what L1 holds; what the next one begins with. */
INLINE f32v add_block(f32v sum, f32v *held, const Rounding *rounding) {
    const u32v total = (u32v)(sum + *held);
    *held = (f32v)((total + ((total >> 16) & rounding->one) + rounding->nearest) & rounding->upper);
    return and_bits(*held, rounding->on_top);
}

INLINE f32v multiply_add(uint32_t x, f32v w, f32v dest, int pair) {
#if HAS_PAIRS
    if (pair) return (f32v)_mm512_dpbf16_ps((__m512)dest, (__m512bh)(x - (u32v){0}), (__m512bh)w);
#endif
    return fused(spread(as_float(x)), w, dest);
}

/* `count` words of K. */
INLINE void add_products(f32v dest[ROWS][VECTORS], const uint32_t *x, const uint32_t *w, int64_t count, int rows, int pair) {
    for (int64_t i = 0; i < count; i++) {
        f32v values[VECTORS];
        memcpy(values, w + i * COLUMNS, sizeof values);
        for (int v = 0; v < VECTORS; v++) KEEP(values[v]);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) dest[r][v] = multiply_add(x[i * ROWS + r], values[v], dest[r][v], pair);
    }
}

/* The block of K that is being added, and where it ends. */
typedef struct {
    int64_t block, end;
} Blocks;

INLINE Blocks blocks_from(const Work *work, int64_t first_k) {
    const int64_t size = work->shape->block, block = first_k / size;
    return (Blocks){block, (block + 1) * size - first_k};
}

INLINE void set_next_block(const Work *work, const Blocks *blocks, Rounding *rounding) {
    rounding->on_top = blocks->block < work->blocks - 1 ? 0 : 0xffffffff;
}

/* Whether a block ends at `k` and goes to L1; the last one does not. */
INLINE int ends_block(const Work *work, Blocks *blocks, int64_t k, Rounding *rounding) {
    if (k != blocks->end || ++blocks->block >= work->blocks) return 0;
    blocks->end += work->shape->block;
    set_next_block(work, blocks, rounding);
    return 1;
}

INLINE Rounding rounding_of(const Work *work) { return (Rounding){0x9000, 0xffff0000, 0xffff, 0x7fff, 1, 0, work->lower}; }

/* A chunk of K. The registers are copies, so that nothing takes their address. */
INLINE void add_steps(const Work *work, Sums *sums, const uint32_t *x, const uint32_t *w, int64_t first_k, int64_t depth,
                      int rows, int form, int pair) {
    const int64_t half = STEP >> pair;
    Blocks blocks = blocks_from(work, first_k);
    Rounding rounding = rounding_of(work);
    f32v dest[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) dest[r][v] = sums->partial[r][v];
    for (int64_t k = TILE; k <= depth; k += TILE, x += 2 * half * ROWS, w += 2 * half * COLUMNS) {
        add_products(dest, x, w, half, rows, pair);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) dest[r][v] = round_dest(dest[r][v], &rounding);
        add_products(dest, x + half * ROWS, w + half * COLUMNS, half, rows, pair);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) {
                const f32v second = form == 1 ? (f32v){0} : second_write(dest[r][v], sums->partial[r][v], &rounding);
                dest[r][v] = write_both(dest[r][v] - second, second, &rounding, form);
            }
        if (ends_block(work, &blocks, k, &rounding))
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < VECTORS; v++) dest[r][v] = add_block(dest[r][v], &sums->held[r][v], &rounding);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) sums->partial[r][v] = dest[r][v];
    }
}

#ifdef __AVX512F__
#define SET (ROWS / 2)
/* Arrays of sums stay in registers where every index is a constant from the beginning: so no loops. */
#define EACH_SUM(DO) \
    DO(0, 0) DO(0, 1) DO(0, 2) DO(1, 0) DO(1, 1) DO(1, 2) DO(2, 0) DO(2, 1) DO(2, 2) DO(3, 0) DO(3, 1) DO(3, 2)
#define EIGHT_WORDS(DO, i) DO(i) DO(i + 1) DO(i + 2) DO(i + 3) DO(i + 4) DO(i + 5) DO(i + 6) DO(i + 7)

/* What is added to a set's sums after the tile that they have. */
typedef struct {
    f32v (*before)[VECTORS], (*held)[VECTORS]; /* where the destination and L1 have them */
    f32v second;                               /* of the sum that is being rounded */
} Writes;

/* The first half of rounding sum `n`, whose chain of instructions is long: the second half comes a word later. */
INLINE void begin_write(f32v sums[SET][VECTORS], Writes *writes, const Rounding *rounding, int form, int n) {
    if (form == 1 || n < 0 || n >= SET * VECTORS) return;
    const int r = n / VECTORS, v = n % VECTORS;
    writes->second = second_write(sums[r][v], writes->before[r][v], rounding);
    sums[r][v] -= writes->second;
}

INLINE void end_write(f32v sums[SET][VECTORS], Writes *writes, const Rounding *rounding, int edge, int form, int n) {
    if (n < 0 || n >= SET * VECTORS) return;
    const int r = n / VECTORS, v = n % VECTORS;
    sums[r][v] = write_both(sums[r][v], writes->second, rounding, form);
    if (edge) sums[r][v] = add_block(sums[r][v], &writes->held[r][v], rounding);
    writes->before[r][v] = sums[r][v];
}

/* The products of one word of K for one set; then a step of rounding the other. */
INLINE void multiply_word(f32v dest[SET][VECTORS], f32v other[SET][VECTORS], Writes *writes, const uint32_t *x,
                          const uint32_t *w, const Rounding *rounding, int edge, int form, int pair, int word) {
    f32v values[VECTORS];
    __asm__ volatile("" ::: "memory"); /* what was read before is read again, not kept in a register */
#define LOAD(v) \
    memcpy(&values[v], w + word * COLUMNS + v * WIDE, sizeof values[v]); \
    KEEP(values[v]);
    LOAD(0) LOAD(1) LOAD(2)
#undef LOAD
#define MULTIPLY(r, v) dest[r][v] = multiply_add(x[word * ROWS + r], values[v], dest[r][v], pair);
    EACH_SUM(MULTIPLY)
#undef MULTIPLY
    if (!pair && word % 2 == 0) return; /* there are two words for every sum */
    const int n = (pair ? word : word / 2) - 1;
    end_write(other, writes, rounding, edge, form, n - 1);
    begin_write(other, writes, rounding, form, n);
}

/* A tile of K for one set, while the sums of the other are rounded at the end of the tile that they have. */
INLINE void multiply_set(f32v dest[SET][VECTORS], f32v other[SET][VECTORS], f32v (*before)[VECTORS],
                         f32v (*held)[VECTORS], const uint32_t *x, const uint32_t *w, const Rounding *rounding, int edge,
                         int form, int pair) {
    Writes writes = {before, held, {0}};
#define WORD(i) multiply_word(dest, other, &writes, x, w, rounding, edge, form, pair, i);
#define ROUND(r, v) dest[r][v] = round_dest(dest[r][v], rounding);
    EIGHT_WORDS(WORD, 0)
    if (!pair) { EIGHT_WORDS(WORD, 8) }
    EACH_SUM(ROUND)
    if (pair) {
        EIGHT_WORDS(WORD, 8)
    } else {
        EIGHT_WORDS(WORD, 16)
        EIGHT_WORDS(WORD, 24)
    }
#undef ROUND
#undef WORD
}

/* A chunk of K for all rows of a tile. Sums of the second set wait for the next chunk to be rounded. Rounding a sum again that
 * is rounded already leaves it as it is: the first chunk begins so. */
INLINE void add_steps_in_turns(const Work *work, Sums *sums, const uint32_t *x, const uint32_t *w, int64_t first_k,
                               int64_t depth, int form, int pair) {
    Blocks blocks = blocks_from(work, first_k);
    Rounding rounding = rounding_of(work);
    int edge = first_k > 0 && first_k % work->shape->block == 0;
    if (edge) set_next_block(work, &blocks, &rounding);
    __asm__ volatile("" : : "r"(&rounding) : "memory");
    f32v first[SET][VECTORS], second[SET][VECTORS];
#define LOAD(r, v) first[r][v] = sums->partial[r][v], second[r][v] = sums->waiting[r][v];
    EACH_SUM(LOAD)
#undef LOAD
#define MULTIPLY(set, other, row, at) \
    multiply_set(set, other, sums->partial + SET - row, sums->held + SET - row, x + row, w, &rounding, at, form, pair)
    for (int64_t k = TILE; k <= depth; k += TILE, x += (TILE >> pair) * ROWS, w += (TILE >> pair) * COLUMNS) {
        if (edge) MULTIPLY(first, second, 0, 1);
        else MULTIPLY(first, second, 0, 0);
        edge = ends_block(work, &blocks, k, &rounding);
        if (edge) MULTIPLY(second, first, SET, 1);
        else MULTIPLY(second, first, SET, 0);
    }
#undef MULTIPLY
    if (first_k + depth < work->depth) {
#define KEEP_WAITING(r, v) sums->waiting[r][v] = second[r][v];
        EACH_SUM(KEEP_WAITING)
#undef KEEP_WAITING
        return;
    }
    Writes writes = {sums->partial + SET, sums->held + SET, {0}};
#define FINISH(r, v) \
    begin_write(second, &writes, &rounding, form, r * VECTORS + v); \
    if (edge) end_write(second, &writes, &rounding, 1, form, r * VECTORS + v); \
    else end_write(second, &writes, &rounding, 0, form, r * VECTORS + v);
    EACH_SUM(FINISH)
#undef FINISH
}
#endif
