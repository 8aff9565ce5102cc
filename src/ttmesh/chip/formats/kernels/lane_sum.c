/* Sums of lanes: one float32 chain per element in lane order, rounded once. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "threads.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
/* As wide as the machine's: GCC keeps wider vectors in memory, three to five times slower.
   RUN: vectors of one lane that are read in a run, PAIRS: of words that hold two. Short runs stall where the target is a
   little behind a lane, modulo 4 KiB (a load waits for the store it is mistaken for); longer ones do not fit into the
   registers. */
#ifdef __AVX512F__
#define WIDE 16
#define PAIRS 8
#else
#define WIDE 8
#define PAIRS 4
#endif
#define RUN 8
#define UNROLL _Pragma("GCC unroll 8")

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

/* Two neighbours' bfloat16 in one word. */
INLINE u32v interleave(f32v even, f32v odd) {
#ifdef __AVX512BF16__
    /* The instruction flushes subnormals and keeps the payload of NaNs: those are converted by hand. */
    const int special = 0xa1; /* quiet NaN, subnormal, signalling NaN */
    const __mmask16 a = _mm512_fpclass_ps_mask((__m512)even, special), b = _mm512_fpclass_ps_mask((__m512)odd, special);
    if (__builtin_expect(_kortestz_mask16_u8(a, b), 1)) {
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                               21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
        return (u32v)_mm512_permutexvar_epi16(order, both);
    }
#endif
    return (rounded(even) >> 16) | (rounded(odd) & 0xffff0000);
}

/* total + term; where there is a multiplier beside the adder, by way of it: times one is exact. */
INLINE f32v add(f32v total, f32v term) {
#ifdef __AVX512F__
    return (f32v)_mm512_fmadd_ps((__m512)term, _mm512_set1_ps(1), (__m512)total);
#else
    return total + term;
#endif
}

/* bfloat16 to bfloat16: a word holds two neighbours, whose sums are computed separately and interleaved at the end. */
INLINE void add_words(const uint16_t *source, int64_t first, const Lanes *lanes, int64_t rows, int64_t columns,
                      uint16_t *target) {
    f32v even[PAIRS], odd[PAIRS];
    UNROLL for (int k = 0; k < PAIRS; k++) even[k] = odd[k] = (f32v){0};
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            const uint16_t *at = source + first + row * lanes->row_stride + column * lanes->column_stride;
            UNROLL for (int k = 0; k < PAIRS; k++) {
                u32v words;
                memcpy(&words, at + k * 2 * WIDE, sizeof words);
                even[k] += (f32v)(words << 16);
                odd[k] = add(odd[k], (f32v)(words & 0xffff0000));
            }
        }
    }
    UNROLL for (int k = 0; k < PAIRS; k++) {
        u32v words = interleave(even[k], odd[k]);
        memcpy(target + k * 2 * WIDE, &words, sizeof words);
    }
}

INLINE void add_block(const void *source, int64_t first, const Lanes *lanes, int64_t rows, int64_t columns,
                      void *target, int64_t out, int narrow_in, int narrow_out) {
    f32v total[RUN]; /* torch.sum starts from +0 too: lanes of -0 sum to +0 */
    UNROLL for (int k = 0; k < RUN; k++) total[k] = (f32v){0};
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            const int64_t at = first + row * lanes->row_stride + column * lanes->column_stride;
            UNROLL for (int k = 0; k < RUN; k++) total[k] += load(source, at + k * WIDE, narrow_in);
        }
    }
    UNROLL for (int k = 0; k < RUN; k++) store(target, out + k * WIDE, total[k], narrow_out);
}

INLINE void sum(const void *source, void *target, int64_t begin, int64_t end, const Lanes *lanes, int narrow_in,
                int narrow_out) {
    const int64_t kept_rows = lanes->sum_rows ? 1 : lanes->rows, kept_columns = lanes->sum_columns ? 1 : lanes->columns;
    const int64_t rows = lanes->sum_rows ? lanes->rows : 1, columns = lanes->sum_columns ? lanes->columns : 1;
    for (int64_t lane = 0; lane < kept_rows * kept_columns; lane++) {
        const int64_t first =
            lane / kept_columns * lanes->row_stride + lane % kept_columns * lanes->column_stride;
        const int64_t block = WIDE * (narrow_in && narrow_out ? 2 * PAIRS : RUN);
        int64_t i = begin;
        for (; i + block <= end; i += block) {
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

typedef struct {
    Lanes lanes;
    int64_t narrow_in, narrow_out;
} Sum;

/* All elements, by few arguments: each takes the interpreter a tenth of a microsecond. */
void lane_sum_whole(const void *source, void *target, const Sum *all) {
    lane_sum(source, target, 0, all->lanes.length, &all->lanes, (int)all->narrow_in, (int)all->narrow_out);
}

typedef struct {
    const void *source;
    void *target;
    const Lanes *lanes;
    int narrow_in, narrow_out;
} Work;

static void run(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    lane_sum(work->source, work->target, begin, end, work->lanes, work->narrow_in, work->narrow_out);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

/* The same by a team. Returns how many nanoseconds it took. */
int64_t lane_sum_team(const Threads *threads, const void *source, void *target, const Lanes *lanes, int narrow_in,
                      int narrow_out) {
    const Work work = {source, target, lanes, narrow_in, narrow_out};
    const int64_t start = now_ns();
    share(threads, lanes->length, run, &work);
    return now_ns() - start;
}

/* Whether what was compiled works: 1 + 2 + 3 + 4 in every element. */
int check(void) {
    enum { LENGTH = 301 };
    static float lanes[4 * LENGTH], sums[LENGTH];
    static uint16_t narrow[LENGTH];
    const Lanes all = {2, 2, 2 * LENGTH, LENGTH, LENGTH, 1, 1};
    for (int i = 0; i < 4 * LENGTH; i++) lanes[i] = (float)(1 + i / LENGTH);
    const Sum wide = {all, 0, 0};
    lane_sum_whole(lanes, sums, &wide);
    lane_sum(lanes, narrow, 0, LENGTH, &all, 0, 1);
    for (int i = 0; i < LENGTH; i++)
        if (sums[i] != 10.0f || narrow[i] != 0x4120) return 0;
    return 1;
}
