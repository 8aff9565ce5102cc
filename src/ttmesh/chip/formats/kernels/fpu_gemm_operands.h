/* The operands of fpu_gemm.c: cut to the bits that are multiplied, in the order in which they are read.
 *
 * They are kept in words of 32 bits. A word is one float32, or, where the machine multiplies bfloat16, a pair of those: two
 * elements of K, or both terms of one. The first is in the upper half, which the instruction adds first: sums are those of
 * one multiply-add after the other. */
#pragma once

#include "vectors.h"

#define VECTORS 3
#define COLUMNS (WIDE * VECTORS)
#define ROWS (WIDE == 16 ? 8 : 4) /* with the columns: the sums leave registers for the operands */
#define CHUNK (2048 / WIDE)       /* words of K: a panel's share stays in the first cache */

#ifdef __AVX512BF16__
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

typedef uint16_t u16v __attribute__((vector_size(WIDE * 2)));

typedef struct {
    int64_t batches, rows, depth, columns;
    int64_t x_batch, x_row, x_half;             /* strides in elements; bfloat16 rather than float32 */
    int64_t w_batch, w_row, w_column, w_half;
    int64_t x_mask, w_mask;                     /* the bits of the first product */
    int64_t terms, x_whole, w_upper;            /* 2: also what x_mask cuts of x_whole times w_upper's bits */
    int64_t narrow, block;                      /* 16-bit destination; of K, added in L1: whole tiles */
    int64_t out_half;                           /* packed to bfloat16 rather than registers in float32 */
} Shape;

typedef struct {
    const Shape *shape;
    const void *x, *w;
    void *out;
    uint32_t *packed;                           /* [tiles, words, ROWS] */
    int64_t groups, group;                      /* groups of panels of a batch, of so many panels */
    int64_t tiles, depth, blocks;               /* depth padded to whole tiles of K */
    int pair;
    float lower;
} Work;

/* Whether both operands fit bfloat16 after the cut, and the machine multiplies that. */
INLINE int takes_pairs(const Shape *shape) {
    return HAS_PAIRS && (shape->narrow || (shape->x_half && shape->w_half));
}

INLINE uint32_t bits_at(const void *data, int64_t at, int64_t half) {
    return half ? (uint32_t)((const uint16_t *)data)[at] << 16 : ((const uint32_t *)data)[at];
}

/* So many words hold `depth` elements of K. */
INLINE int64_t count_words(int64_t depth, int64_t terms, int pair) { return depth * terms >> pair; }

INLINE uint32_t join(uint32_t first, uint32_t second) { return (first & 0xffff0000) | second >> 16; }

/* One row of activations from element `from` on: every ROWS words. */
INLINE void pack_row(const Work *work, int64_t from, int64_t there, uint32_t *to, int half, int terms, int pair) {
    const uint32_t mask = (uint32_t)work->shape->x_mask, whole = (uint32_t)work->shape->x_whole;
    const int64_t step = pair && terms == 1 ? 2 : 1;
    const int64_t paired = there / step * step;
    for (int64_t k = 0; k < paired; k += step, to += ROWS) {
        const uint32_t bits = bits_at(work->x, from + k, half), first = bits & mask;
        uint32_t second = 0;
        if (terms > 1) second = as_bits(as_float(bits & whole) - as_float(first));
        else if (pair) second = bits_at(work->x, from + k + 1, half) & mask;
        to[0] = pair ? join(first, second) : first;
        if (terms > 1 && !pair) to += ROWS, to[0] = second;
    }
    if (paired < there) to[0] = bits_at(work->x, from + paired, half) & mask & 0xffff0000, to += ROWS;
    const int64_t written = count_words((there + step - 1) / step * step, terms, pair);
    for (int64_t word = written; word < count_words(work->depth, terms, pair); word++, to += ROWS) to[0] = 0;
}

/* Tiles of ROWS rows. */
static void pack_tiles(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const Shape *shape = work->shape;
    const int terms = (int)shape->terms;
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t batch = tile / work->tiles, row = tile % work->tiles * ROWS;
        uint32_t *to = work->packed + count_words(tile * work->depth, terms, work->pair) * ROWS;
        for (int r = 0; r < ROWS; r++) {
            const int64_t from = batch * shape->x_batch + (row + r) * shape->x_row;
            const int64_t there = row + r < shape->rows ? shape->depth : 0;
            if (HAS_PAIRS && work->pair && terms == 1 && shape->x_half) pack_row(work, from, there, to + r, 1, 1, 1);
            else if (HAS_PAIRS && work->pair) pack_row(work, from, there, to + r, (int)shape->x_half, terms, 1);
            else pack_row(work, from, there, to + r, (int)shape->x_half, terms, 0);
        }
    }
}

/* A vector of weights' patterns. */
INLINE u32v load_weights(const Work *work, int64_t at) {
    u32v bits;
    if (work->shape->w_half) {
        u16v half;
        memcpy(&half, (const uint16_t *)work->w + at, sizeof half);
        bits = __builtin_convertvector(half, u32v) << 16;
    } else {
        memcpy(&bits, (const uint32_t *)work->w + at, sizeof bits);
    }
    return bits;
}

/* [panels, words, COLUMNS] of the weights from `first_k` on; what lies outside them is zero. */
INLINE void pack_panels(const Work *work, int64_t from, int64_t columns, int64_t first_k, int64_t depth, int terms,
                        int pair, uint32_t *to) {
    const Shape *shape = work->shape;
    const uint32_t mask = (uint32_t)shape->w_mask, upper = (uint32_t)shape->w_upper;
    const int64_t rest = shape->depth - first_k, there = rest < depth ? rest : depth, step = pair && terms == 1 ? 2 : 1;
    const int64_t size = count_words(depth, terms, pair) * COLUMNS, panels = (columns + COLUMNS - 1) / COLUMNS;
    if (columns % COLUMNS || there < depth) memset(to, 0, (size_t)(panels * size) * 4);
    const int64_t vectors = shape->w_column == 1 ? columns / WIDE : 0;
    for (int64_t k = 0; k < there; k += step) {
        const int64_t at = from + (first_k + k) * shape->w_row, word = count_words(k, terms, pair) * COLUMNS;
        for (int64_t v = 0; v < vectors; v++) {
            uint32_t *place = to + v / VECTORS * size + word + v % VECTORS * WIDE;
            const u32v bits = load_weights(work, at + v * WIDE);
            u32v first = bits & mask, second = {0};
            if (terms > 1) second = bits & upper;
            else if (pair && k + 1 < there) second = load_weights(work, at + shape->w_row + v * WIDE) & mask;
            if (pair) first = (first & 0xffff0000) | second >> 16;
            memcpy(place, &first, sizeof first);
            if (terms > 1 && !pair) memcpy(place + COLUMNS, &second, sizeof second);
        }
    }
    for (int64_t c = vectors * WIDE; c < columns; c++) {
        uint32_t *place = to + c / COLUMNS * size + c % COLUMNS;
        const int64_t at = from + first_k * shape->w_row + c * shape->w_column;
        for (int64_t k = 0; k < there; k += step, place += COLUMNS) {
            const uint32_t bits = bits_at(work->w, at + k * shape->w_row, shape->w_half), first = bits & mask;
            uint32_t second = 0;
            if (terms > 1) second = bits & upper;
            else if (pair && k + 1 < there) second = bits_at(work->w, at + (k + 1) * shape->w_row, shape->w_half) & mask;
            place[0] = pair ? join(first, second) : first;
            if (terms > 1 && !pair) place += COLUMNS, place[0] = second;
        }
    }
}
