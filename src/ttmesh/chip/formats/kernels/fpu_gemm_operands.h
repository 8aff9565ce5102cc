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
    uint32_t *packed;                           /* [batches, chunks of K, tiles, words, ROWS] */
    int *failed;                                /* a thread found no memory */
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

/* Elements of K that are multiplied at a time. */
INLINE int64_t chunk_depth(int64_t terms, int pair) { return (CHUNK << pair) / terms; }

/* What a word holds of a row of activations from element `at` on. */
INLINE uint32_t first_word(const Work *work, int64_t at, int half, int pair) {
    const uint32_t mask = (uint32_t)work->shape->x_mask, first = bits_at(work->x, at, half) & mask;
    return pair ? join(first, bits_at(work->x, at + 1, half) & mask) : first;
}

/* The words of one element of K of which two terms are multiplied. */
INLINE void pack_terms(const Work *work, int64_t at, uint32_t *to, int half, int pair) {
    const uint32_t bits = bits_at(work->x, at, half), first = bits & (uint32_t)work->shape->x_mask;
    const uint32_t second = as_bits(as_float(bits & (uint32_t)work->shape->x_whole) - as_float(first));
    to[0] = pair ? join(first, second) : first;
    if (!pair) to[ROWS] = second;
}

#if HAS_PAIRS
/* 32 elements of K of ROWS rows of bfloat16: 16 words of each, halves exchanged, then transposed. */
INLINE void pack_pairs(const uint16_t *from, int64_t stride, uint32_t mask, uint32_t *to) {
    const __m512i kept = _mm512_set1_epi32((int)(mask >> 16 | (mask & 0xffff0000)));
    for (int first = 0; first < ROWS; first += 4) {
        __m512i rows[4], pairs[4];
        for (int r = 0; r < 4; r++) {
            const __m512i words = _mm512_loadu_si512(from + (first + r) * stride);
            rows[r] = _mm512_and_si512(_mm512_rol_epi32(words, 16), kept);
        }
        for (int r = 0; r < 4; r += 2) {
            pairs[r] = _mm512_unpacklo_epi32(rows[r], rows[r + 1]);
            pairs[r + 1] = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
        }
        for (int word = 0; word < 4; word++) { /* of every four words one, of all four rows */
            const __m512i quads = word % 2 ? _mm512_unpackhi_epi64(pairs[word / 2], pairs[word / 2 + 2])
                                           : _mm512_unpacklo_epi64(pairs[word / 2], pairs[word / 2 + 2]);
            _mm_storeu_si128((__m128i *)(to + word * ROWS + first), _mm512_extracti32x4_epi32(quads, 0));
            _mm_storeu_si128((__m128i *)(to + (4 + word) * ROWS + first), _mm512_extracti32x4_epi32(quads, 1));
            _mm_storeu_si128((__m128i *)(to + (8 + word) * ROWS + first), _mm512_extracti32x4_epi32(quads, 2));
            _mm_storeu_si128((__m128i *)(to + (12 + word) * ROWS + first), _mm512_extracti32x4_epi32(quads, 3));
        }
    }
}
#endif

/* A chunk of K of one tile of rows; what lies outside the rows and K is zero. */
INLINE void pack_chunk(const Work *work, int64_t from, int64_t rows, int64_t there, int64_t depth, uint32_t *to, int half,
                       int terms, int pair) {
    const int64_t stride = work->shape->x_row, step = terms == 1 ? 1 + pair : 1, width = terms == 1 || pair ? 1 : 2;
    const int64_t even = there / step * step;
    if (rows < ROWS || even < depth) memset(to, 0, (size_t)(count_words(depth, terms, pair) * ROWS) * 4);
    int64_t k = 0;
#if HAS_PAIRS
    for (; terms == 1 && pair && half && rows >= ROWS && k + 32 <= even; k += 32)
        pack_pairs((const uint16_t *)work->x + from + k, stride, (uint32_t)work->shape->x_mask, to + k / 2 * ROWS);
#endif
    for (; k < even; k += step) {
        uint32_t *word = to + k / step * width * ROWS;
        for (int64_t r = 0; r < (rows < ROWS ? rows : ROWS); r++) {
            if (terms == 1) word[r] = first_word(work, from + r * stride + k, half, pair);
            else pack_terms(work, from + r * stride + k, word + r, half, pair);
        }
    }
    const uint32_t upper = (uint32_t)work->shape->x_mask & 0xffff0000;
    for (int64_t r = 0; even < there && r < (rows < ROWS ? rows : ROWS); r++) /* half a pair is left */
        to[even / step * ROWS + r] = bits_at(work->x, from + r * stride + even, half) & upper;
}

/* Tiles of ROWS rows, of as many batches as there are: one may serve all. */
static void pack_tiles(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const Shape *shape = work->shape;
    const int terms = (int)shape->terms, pair = work->pair;
    const int64_t chunk = chunk_depth(terms, pair);
    for (int64_t item = begin; item < end; item++) {
        const int64_t batch = item / work->tiles, tile = item % work->tiles, rows = shape->rows - tile * ROWS;
        for (int64_t k = 0; k < work->depth; k += chunk) {
            const int64_t left = work->depth - k, depth = left < chunk ? left : chunk, rest = shape->depth - k;
            const int64_t from = batch * shape->x_batch + tile * ROWS * shape->x_row + k;
            const int64_t there = rest < depth ? rest : depth;
            const int64_t before = (batch * work->depth + k) * work->tiles + tile * depth;
            uint32_t *to = work->packed + count_words(before, terms, pair) * ROWS;
            if (terms == 1 && HAS_PAIRS && pair && shape->x_half) pack_chunk(work, from, rows, there, depth, to, 1, 1, 1);
            else if (terms == 1 && HAS_PAIRS && pair) pack_chunk(work, from, rows, there, depth, to, 0, 1, 1);
            else if (terms == 1 && shape->x_half) pack_chunk(work, from, rows, there, depth, to, 1, 1, 0);
            else if (terms == 1) pack_chunk(work, from, rows, there, depth, to, 0, 1, 0);
            else pack_chunk(work, from, rows, there, depth, to, (int)shape->x_half, 2, pair);
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

#if HAS_PAIRS
/* Pairs of bfloat16 where K is what lies together (keys of attention): `count` columns, whole vectors, and 32 of K at a time.
 * Returns how much of K that was. */
INLINE int64_t pack_transposed(const Work *work, int64_t from, int64_t count, int64_t there, int64_t size, uint32_t *to) {
    const int64_t stride = work->shape->w_column, end = there / 32 * 32;
    const uint32_t mask = (uint32_t)work->shape->w_mask;
    const __m512i kept = _mm512_set1_epi32((int)(mask >> 16 | (mask & 0xffff0000)));
    for (int64_t c = 0; c < count; c += WIDE) {
        uint32_t *panel = to + c / COLUMNS * size + c % COLUMNS;
        for (int64_t k = 0; k < end; k += 32) {
            __m512 words[16];
            for (int i = 0; i < 16; i++) {
                const __m512i pairs = _mm512_loadu_si512((const uint16_t *)work->w + from + (c + i) * stride + k);
                words[i] = (__m512)_mm512_and_si512(_mm512_rol_epi32(pairs, 16), kept);
            }
            transpose_vectors(words);
            for (int i = 0; i < 16; i++) _mm512_store_ps(panel + (k / 2 + i) * COLUMNS, words[i]);
        }
    }
    return end;
}
#endif

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
    int64_t packed = 0, whole = 0; /* of K, in so many columns */
#if HAS_PAIRS
    if (pair && terms == 1 && shape->w_half && shape->w_row == 1 && shape->w_column != 1) {
        whole = columns / WIDE * WIDE;
        packed = pack_transposed(work, from + first_k, whole, there, size, to);
    }
#endif
    for (int64_t c = vectors * WIDE; c < columns; c++) {
        const int64_t begin = c < whole ? packed : 0, at = from + first_k * shape->w_row + c * shape->w_column;
        uint32_t *place = to + c / COLUMNS * size + c % COLUMNS + count_words(begin, terms, pair) * COLUMNS;
        for (int64_t k = begin; k < there; k += step, place += COLUMNS) {
            const uint32_t bits = bits_at(work->w, at + k * shape->w_row, shape->w_half), first = bits & mask;
            uint32_t second = 0;
            if (terms > 1) second = bits & upper;
            else if (pair && k + 1 < there) second = bits_at(work->w, at + (k + 1) * shape->w_row, shape->w_half) & mask;
            place[0] = pair ? join(first, second) : first;
            if (terms > 1 && !pair) place += COLUMNS, place[0] = second;
        }
    }
}
