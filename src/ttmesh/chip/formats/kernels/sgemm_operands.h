/* The operands of sgemm.c: copied into the order in which they are read, and brought closer before that. */
#pragma once

#include "vectors.h"

#define ROWS (WIDE == 16 ? 14 : 6) /* of a tile: with two vectors of columns its sums leave registers for the operands */
#define VECTORS 2
#define COLUMNS (VECTORS * WIDE)   /* of a panel */
#define DEPTH 512                  /* of K in a piece, at most */
#define BLOCK 128                  /* columns whose piece of K stays in the second cache */
#define FAR 8                      /* rows of w that are fetched before they are copied */

typedef struct {
    int64_t batches, rows, depth, columns;
    int64_t x_batch, x_row, x_column; /* strides in elements */
    int64_t w_batch, w_row, w_column;
} Shape;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* `count` elements, at most a vector; the others are zero. */
INLINE f32v load_part(const float *from, int64_t count) {
#ifdef __AVX512F__
    return (f32v)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    f32v values = {0};
    if (count == WIDE) memcpy(&values, from, sizeof values);
    else memcpy(&values, from, (size_t)count * 4);
    return values;
#endif
}

INLINE void store_part(f32v values, float *to, int64_t count) {
#ifdef __AVX512F__
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)values);
#else
    if (count == WIDE) memcpy(to, &values, sizeof values);
    else memcpy(to, &values, (size_t)count * 4);
#endif
}

/* [rows, columns] of the source as [columns, rows]; both at most 16. */
INLINE void transpose_block(const float *from, int64_t stride, int64_t rows, int64_t columns, float *to, int64_t to_stride) {
#ifdef __AVX512F__
    __m512 r[16];
    const __mmask16 there = (__mmask16)((1u << columns) - 1), kept = (__mmask16)((1u << rows) - 1);
    for (int i = 0; i < 16; i++)
        r[i] = i < rows ? _mm512_maskz_loadu_ps(there, from + i * stride) : _mm512_setzero_ps();
    transpose_vectors(r);
    for (int i = 0; i < columns; i++) _mm512_mask_storeu_ps(to + i * to_stride, kept, r[i]);
#else
    for (int64_t c = 0; c < columns; c++)
        for (int64_t i = 0; i < rows; i++) to[c * to_stride + i] = from[i * stride + c];
#endif
}

/* A piece of a tile's rows of x, [rows, DEPTH]. */
static void pack_tile(const Shape *shape, const float *x, int64_t rows, int64_t depth, float *to) {
    if (shape->x_column == 1) {
        for (int64_t r = 0; r < rows; r++) memcpy(to + r * DEPTH, x + r * shape->x_row, (size_t)depth * 4);
    } else if (shape->x_row == 1) {
        for (int64_t k = 0; k < depth; k += 16)
            transpose_block(x + k * shape->x_column, shape->x_column, least(16, depth - k), rows, to + k, DEPTH);
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < depth; k++) to[r * DEPTH + k] = x[r * shape->x_row + k * shape->x_column];
    }
}

/* A piece of w, [panels, depth, COLUMNS]; columns that w does not have are left as they are: nobody reads their sums. */
static void pack_panels(const Shape *shape, const float *w, int64_t depth, int64_t columns, float *to) {
    const int64_t size = depth * COLUMNS;
    if (shape->w_column == 1) {
        for (int64_t k = 0; k < depth; k++, w += shape->w_row, to += COLUMNS) {
            for (int64_t c = 0; c < columns; c += WIDE) {
                __builtin_prefetch(w + FAR * shape->w_row + c);
                const f32v values = load_part(w + c, least(WIDE, columns - c));
                memcpy(to + c / COLUMNS * size + c % COLUMNS, &values, sizeof values);
            }
        }
    } else if (shape->w_row == 1) {
        for (int64_t c = 0; c < columns; c += WIDE)
            for (int64_t k = 0; k < depth; k += 16)
                transpose_block(w + c * shape->w_column + k, shape->w_column, least(WIDE, columns - c), least(16, depth - k),
                                to + c / COLUMNS * size + k * COLUMNS + c % COLUMNS, COLUMNS);
    } else {
        for (int64_t c = 0; c < columns; c++)
            for (int64_t k = 0; k < depth; k++)
                to[c / COLUMNS * size + k * COLUMNS + c % COLUMNS] = w[k * shape->w_row + c * shape->w_column];
    }
}

/* Rows of an operand that are copied soon: fetched while the present piece is multiplied. */
typedef struct {
    const float *from;
    int64_t rows, columns, stride;
} Ahead;

/* The share of one call among `calls` in fetching [rows, columns] of an operand; nothing where rows do not lie together. */
INLINE Ahead look_ahead(const float *from, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride,
                        int64_t call, int64_t calls) {
    const int64_t each = (rows + calls - 1) / calls, first = call * each;
    return (Ahead){from + first * row_stride, column_stride == 1 ? least(each, rows - first) : 0, columns, row_stride};
}

INLINE void fetch(Ahead ahead, int64_t column) {
    if (column >= ahead.columns) return;
    for (int64_t i = 0; i < ahead.rows; i++) __builtin_prefetch(ahead.from + i * ahead.stride + column, 0, 2);
}
