/* Attention of a few rows per head over many keys, in float32: keys and values are read once and widened piece by piece.
 *
 * Keys come in chunks; when a chunk has a larger score than those before it, what was added up is scaled down. */
#include "threads.h"
#include "vectors.h"

#define CHUNK 128 /* keys: their scores stay in the first cache */
#define MOST_ROWS 16
#define MOST_WIDTH 256
#define SOME 4                     /* rows that share what is loaded of a key */
#define PIECE (WIDE == 16 ? 4 : 2) /* vectors of a value that are added up in registers */
#define NEVER (-__builtin_inff())

typedef uint16_t u16v __attribute__((vector_size(WIDE * 2)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t s32v __attribute__((vector_size(WIDE * 4)));

typedef struct {
    int64_t batches, heads, rows, keys, width;
    int64_t q_batch, q_head, q_row, q_half; /* strides in elements; bfloat16 rather than float32 */
    int64_t k_batch, k_head, k_key, k_half;
    int64_t v_batch, v_head, v_key, v_half;
    int64_t mask_batch, mask_head, mask_row; /* of float32, a number per key */
    int64_t out_half;
} Shape;

typedef struct {
    const Shape *shape;
    const void *q, *k, *v;
    const float *mask;
    void *out;
    float scale;
} Work;

typedef struct {
    float q[MOST_ROWS][MOST_WIDTH], sums[MOST_ROWS][MOST_WIDTH], scores[MOST_ROWS][CHUNK];
    float largest[MOST_ROWS], total[MOST_ROWS];
} __attribute__((aligned(64))) Head;

INLINE f32v spread(float value) { return value - (f32v){0}; }

INLINE f32v load(const void *from, int64_t at, int half) {
    f32v values;
    if (half) {
        u16v halves;
        memcpy(&halves, (const uint16_t *)from + at, sizeof halves);
        return (f32v)(__builtin_convertvector(halves, u32v) << 16);
    }
    memcpy(&values, (const float *)from + at, sizeof values);
    return values;
}

INLINE float add_up(f32v values) {
    f32x4 parts[WIDE / 4], sum;
    memcpy(parts, &values, sizeof values);
    sum = parts[0] + parts[1];
    for (int i = 2; i < WIDE / 4; i++) sum += parts[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

INLINE float larger(float a, float b) { return a > b ? a : b; }

/* e^x of x <= 0, to two units of the last place: 2^n e^r with |r| <= ln 2 / 2, by Cephes' polynomial. */
INLINE f32v exponential(f32v x) {
    const float coefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    const u32v there = ~(u32v)(x <= -87.3f); /* NaN stays */
    const f32v kept = (f32v)((u32v)x & there); /* the others are not to become integers that overflow */
    const f32v n = (kept * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounded: 1.5 * 2^23 has no fraction */
    const f32v r = fused(n, spread(2.12194440e-4f), fused(n, spread(-0.693359375f), kept));
    f32v series = spread(1.9875691500e-4f);
    for (int i = 0; i < 5; i++) series = fused(series, r, spread(coefficients[i]));
    const f32v power = fused(series * r, r, r) + 1.0f;
    return (f32v)(((u32v)power + ((u32v)__builtin_convertvector(n, s32v) << 23)) & there);
}

/* Scores of a chunk of keys for `rows` rows from `row` on. */
INLINE void score(const Work *work, Head *head, int64_t row, int64_t key, int64_t first_k, int64_t count, int rows,
                  int half) {
    const int64_t width = work->shape->width;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = first_k + (key + i) * work->shape->k_key;
        f32v sums[SOME] = {0};
        for (int64_t d = 0; d < width; d += WIDE) {
            const f32v values = load(work->k, at + d, half);
            for (int r = 0; r < rows; r++) sums[r] = fused(load(head->q[row + r], d, 0), values, sums[r]);
        }
        for (int r = 0; r < rows; r++) head->scores[row + r][i] = add_up(sums[r]) * work->scale;
    }
}

/* Scores become weights; what was added up before is scaled to the new largest score. */
INLINE void weigh(const Work *work, Head *head, int64_t row, const float *mask, int64_t count) {
    float *scores = head->scores[row], largest = head->largest[row];
    for (int64_t i = 0; mask && i < count; i++) scores[i] += mask[i];
    for (int64_t i = 0; i < count; i++) largest = larger(largest, scores[i]);
    for (int64_t i = count; i < (count + WIDE - 1) / WIDE * WIDE; i++) scores[i] = NEVER;
    const float base = largest == NEVER ? 0 : largest;
    f32v total = {0};
    for (int64_t i = 0; i < count; i += WIDE) {
        const f32v weights = exponential(load(scores, i, 0) - base);
        memcpy(scores + i, &weights, sizeof weights);
        total += weights;
    }
    const f32v before = exponential(spread(head->largest[row] == NEVER ? NEVER : head->largest[row] - base));
    head->total[row] = head->total[row] * before[0] + add_up(total);
    head->largest[row] = largest;
    for (int64_t d = 0; before[0] != 1 && d < work->shape->width; d += WIDE) {
        const f32v sum = load(head->sums[row], d, 0) * before;
        memcpy(head->sums[row] + d, &sum, sizeof sum);
    }
}

/* Weights times a piece of the values of a chunk of keys, for `rows` rows from `row` on. */
INLINE void add_values(const Work *work, Head *head, int64_t row, int64_t at, int64_t d, int64_t count, int rows, int half,
                       int vectors) {
    f32v sums[SOME][PIECE];
    for (int r = 0; r < rows; r++) memcpy(sums[r], head->sums[row + r] + d, (size_t)vectors * sizeof(f32v));
    for (int64_t i = 0; i < count; i++, at += work->shape->v_key) {
        for (int p = 0; p < vectors; p++) {
            const f32v values = load(work->v, at + d + p * WIDE, half);
            for (int r = 0; r < rows; r++) sums[r][p] = fused(spread(head->scores[row + r][i]), values, sums[r][p]);
        }
    }
    for (int r = 0; r < rows; r++) memcpy(head->sums[row + r] + d, sums[r], (size_t)vectors * sizeof(f32v));
}

/* One chunk of keys for a few rows. */
INLINE void attend_rows(const Work *work, Head *head, int64_t row, int64_t key, int64_t count, int64_t first_k,
                        int64_t first_v, const float *mask, int rows, int k_half, int v_half) {
    const Shape *shape = work->shape;
    score(work, head, row, key, first_k, count, rows, k_half);
    for (int r = 0; r < rows; r++)
        weigh(work, head, row + r, mask ? mask + (row + r) * shape->mask_row + key : 0, count);
    int64_t d = 0;
    for (; d + PIECE * WIDE <= shape->width; d += PIECE * WIDE)
        add_values(work, head, row, first_v + key * shape->v_key, d, count, rows, v_half, PIECE);
    for (; d < shape->width; d += WIDE)
        add_values(work, head, row, first_v + key * shape->v_key, d, count, rows, v_half, 1);
}

INLINE void attend_head(const Work *work, Head *head, int64_t batch, int64_t index, int k_half, int v_half) {
    const Shape *shape = work->shape;
    const int64_t first_k = batch * shape->k_batch + index * shape->k_head;
    const int64_t first_v = batch * shape->v_batch + index * shape->v_head;
    const float *mask = work->mask ? work->mask + batch * shape->mask_batch + index * shape->mask_head : 0;
    for (int64_t key = 0; key < shape->keys; key += CHUNK) {
        const int64_t left = shape->keys - key, count = left < CHUNK ? left : CHUNK;
        int64_t row = 0;
        for (; row + SOME <= shape->rows; row += SOME)
            attend_rows(work, head, row, key, count, first_k, first_v, mask, SOME, k_half, v_half);
        for (; row < shape->rows; row++)
            attend_rows(work, head, row, key, count, first_k, first_v, mask, 1, k_half, v_half);
    }
}

INLINE void store_row(const Work *work, const float *sums, float factor, int64_t at) {
    for (int64_t d = 0; d < work->shape->width; d += WIDE) {
        const f32v values = load(sums, d, 0) * factor;
        if (work->shape->out_half) { /* to nearest, ties to even */
            const u32v bits = (u32v)values;
            const u16v halves = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, u16v);
            memcpy((uint16_t *)work->out + at + d, &halves, sizeof halves);
        } else {
            memcpy((float *)work->out + at + d, &values, sizeof values);
        }
    }
}

static void attend_heads(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const Shape *shape = work->shape;
    Head head;
    for (int64_t item = begin; item < end; item++) {
        const int64_t batch = item / shape->heads, index = item % shape->heads;
        for (int64_t row = 0; row < shape->rows; row++) {
            const int64_t at = batch * shape->q_batch + index * shape->q_head + row * shape->q_row;
            head.largest[row] = NEVER, head.total[row] = 0;
            for (int64_t d = 0; d < shape->width; d += WIDE) {
                const f32v values = load(work->q, at + d, (int)shape->q_half), zero = {0};
                memcpy(head.q[row] + d, &values, sizeof values);
                memcpy(head.sums[row] + d, &zero, sizeof zero);
            }
        }
        if (shape->k_half && shape->v_half) attend_head(work, &head, batch, index, 1, 1);
        else attend_head(work, &head, batch, index, (int)shape->k_half, (int)shape->v_half);
        for (int64_t row = 0; row < shape->rows; row++) /* a row that sees no key has zeros */
            store_row(work, head.sums[row], head.total[row] == 0 ? 0 : 1 / head.total[row],
                      (item * shape->rows + row) * shape->width);
    }
}

/* out [batches, heads, rows, width] = softmax(q kT scale + mask) v. */
int attend(const Threads *threads, const void *q, const void *k, const void *v, const float *mask, void *out,
           const Shape *shape, float scale) {
    const Work work = {shape, q, k, v, mask, out, scale};
    share(threads, shape->batches * shape->heads, attend_heads, &work);
    return 1;
}

/* Whether what was compiled works: equal scores weigh alike, and a masked key does not count. */
int check(void) {
    const Threads alone = {0, 1, 1};
    static float q[WIDE], k[3 * WIDE], v[3 * WIDE], out[WIDE];
    const float mask[] = {0, 0, NEVER};
    for (int i = 0; i < 3 * WIDE; i++) q[i % WIDE] = k[i] = 1, v[i] = i < WIDE ? 2 : i < 2 * WIDE ? 4 : 100;
    const Shape shape = {1, 1, 1, 3, WIDE, 0, 0, 0, 0, 0, 0, WIDE, 0, 0, 0, WIDE, 0, 0, 0, 0, 0};
    return attend(&alone, q, k, v, mask, out, &shape, 1) && out[0] == 3 && out[WIDE - 1] == 3;
}
