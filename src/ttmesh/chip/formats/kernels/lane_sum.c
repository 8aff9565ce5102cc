/* Sums of lanes: one float32 chain per element in lane order, rounded once. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define WIDE 16
#define BLOCK (4 * WIDE)

typedef float f32v __attribute__((vector_size(WIDE * 4)));
typedef uint32_t u32v __attribute__((vector_size(WIDE * 4)));
typedef uint16_t u16v __attribute__((vector_size(WIDE * 2)));

/* Lanes [rows, columns]; strides in elements, 0 for a repeated lane. */
typedef struct {
    int64_t rows, columns, row_stride, column_stride;
    int64_t length; /* elements of a lane, contiguous */
    int64_t sum_rows, sum_columns;
} Lanes;

INLINE f32v load(const void *source, int64_t at, int narrow) {
    f32v values;
    if (narrow) {
        u16v half;
        memcpy(&half, (const uint16_t *)source + at, sizeof half);
        values = (f32v)(__builtin_convertvector(half, u32v) << 16);
    } else {
        memcpy(&values, (const float *)source + at, sizeof values);
    }
    return values;
}

/* Float32 bits to bfloat16's, still in the high halves. */
INLINE u32v rounded(f32v values) {
    u32v bits = (u32v)values;
    u32v nan = (u32v)(values != values);
    return ((bits + 0x7fff + ((bits >> 16) & 1)) & ~nan) | (nan & 0x7fc00000);
}

INLINE void store(void *target, int64_t at, f32v values, int narrow) {
    if (narrow) {
        u16v half = __builtin_convertvector(rounded(values) >> 16, u16v);
        memcpy((uint16_t *)target + at, &half, sizeof half);
    } else {
        memcpy((float *)target + at, &values, sizeof values);
    }
}

/* bfloat16 to bfloat16: a word holds two neighbours, whose sums are kept apart and joined at the end. */
INLINE void add_words(const uint16_t *source, int64_t first, const Lanes *lanes, int64_t rows, int64_t columns,
                      uint16_t *target) {
    f32v even_a = {0}, odd_a = even_a, even_b = even_a, odd_b = even_a;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            const uint16_t *at = source + first + row * lanes->row_stride + column * lanes->column_stride;
            u32v a, b;
            memcpy(&a, at, sizeof a);
            memcpy(&b, at + 2 * WIDE, sizeof b);
            even_a += (f32v)(a << 16);
            odd_a += (f32v)(a & 0xffff0000);
            even_b += (f32v)(b << 16);
            odd_b += (f32v)(b & 0xffff0000);
        }
    }
    u32v a = (rounded(even_a) >> 16) | (rounded(odd_a) & 0xffff0000);
    u32v b = (rounded(even_b) >> 16) | (rounded(odd_b) & 0xffff0000);
    memcpy(target, &a, sizeof a);
    memcpy(target + 2 * WIDE, &b, sizeof b);
}

INLINE void add_block(const void *source, int64_t first, const Lanes *lanes, int64_t rows, int64_t columns,
                      void *target, int64_t out, int narrow_in, int narrow_out) {
    f32v a = {0}, b = a, c = a, d = a; /* torch.sum starts from +0 too: lanes of -0 sum to +0 */
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            const int64_t at = first + row * lanes->row_stride + column * lanes->column_stride;
            a += load(source, at, narrow_in);
            b += load(source, at + WIDE, narrow_in);
            c += load(source, at + 2 * WIDE, narrow_in);
            d += load(source, at + 3 * WIDE, narrow_in);
        }
    }
    store(target, out, a, narrow_out);
    store(target, out + WIDE, b, narrow_out);
    store(target, out + 2 * WIDE, c, narrow_out);
    store(target, out + 3 * WIDE, d, narrow_out);
}

INLINE void sum(const void *source, void *target, int64_t begin, int64_t end, const Lanes *lanes, int narrow_in,
                int narrow_out) {
    const int64_t kept_rows = lanes->sum_rows ? 1 : lanes->rows, kept_columns = lanes->sum_columns ? 1 : lanes->columns;
    const int64_t rows = lanes->sum_rows ? lanes->rows : 1, columns = lanes->sum_columns ? lanes->columns : 1;
    for (int64_t lane = 0; lane < kept_rows * kept_columns; lane++) {
        const int64_t first =
            lane / kept_columns * lanes->row_stride + lane % kept_columns * lanes->column_stride;
        int64_t i = begin;
        for (; i + BLOCK <= end; i += BLOCK) {
            const int64_t out = lane * lanes->length + i;
            if (narrow_in && narrow_out) add_words(source, first + i, lanes, rows, columns, (uint16_t *)target + out);
            else add_block(source, first + i, lanes, rows, columns, target, out, narrow_in, narrow_out);
        }
        for (; i < end; i++) {
            float total = 0;
            for (int64_t row = 0; row < rows; row++) {
                for (int64_t column = 0; column < columns; column++) {
                    const int64_t at = first + i + row * lanes->row_stride + column * lanes->column_stride;
                    uint32_t bits;
                    float value;
                    if (narrow_in) bits = (uint32_t)((const uint16_t *)source)[at] << 16;
                    else bits = ((const uint32_t *)source)[at];
                    memcpy(&value, &bits, sizeof value);
                    total += value;
                }
            }
            uint32_t bits;
            memcpy(&bits, &total, sizeof bits);
            const int64_t out = lane * lanes->length + i;
            if (!narrow_out) ((uint32_t *)target)[out] = bits;
            else if (total != total) ((uint16_t *)target)[out] = 0x7fc0;
            else ((uint16_t *)target)[out] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        }
    }
}

/* Elements [begin, end) of every summed lane. */
void lane_sum(const void *source, void *target, int64_t begin, int64_t end, const Lanes *lanes, int narrow_in,
              int narrow_out) {
    const Lanes whole = *lanes;
    if (narrow_in && narrow_out) sum(source, target, begin, end, &whole, 1, 1);
    else if (narrow_in) sum(source, target, begin, end, &whole, 1, 0);
    else if (narrow_out) sum(source, target, begin, end, &whole, 0, 1);
    else sum(source, target, begin, end, &whole, 0, 0);
}
