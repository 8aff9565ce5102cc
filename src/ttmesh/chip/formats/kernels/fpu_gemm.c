/* A GEMM whose operands are cut to the bits that a fidelity multiplies and whose sums are rounded as the chip's registers are.
 *
 * With a 16-bit destination the register is rounded after every 16 of K: to 11 bits, then to 8, ties away. Both together are
 * one addition of 9/16 of the last place: half a place and half of the 11-bit place. Fidelities above LoFi write the weights'
 * lower bits' products afterwards, per tile of K; `lower` says which share of the tile's sum that is.
 * chip/numerics/realistic_matmul.py has the model and the torch version. */
#include <stdlib.h>

#include "fpu_gemm_operands.h"
#include "threads.h"

#define STEP 16 /* of K between two writes to the destination */
#define TILE 32
#define BAND (64 / ROWS)   /* tiles of rows whose chunk of K stays in the second cache beside a group of panels */
#define SLICE (256 / ROWS) /* tiles of rows whose sums stay in the second cache between two chunks of K */
#define GROUP 4            /* panels that are prepared together: rows of the weights are read in longer pieces */

typedef int32_t s32v __attribute__((vector_size(WIDE * 4)));

INLINE f32v spread(float value) { return value - (f32v){0}; }

/* Loaded once: compilers would rather read it again with every multiply-add, which is more than the cache can give. */
#if defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#else
#define KEEP(vector)
#endif

/* A register packed to bfloat16, in its lower half: ties away; NaN becomes infinity, subnormals and -0 become +0. */
INLINE u32v pack_half(u32v bits) {
    const u32v magnitude = bits & 0x7fffffff; /* compared as signed numbers, which every vector unit can do */
    const u32v above = (u32v)((s32v)magnitude > 0x7f7f7fff), below = (u32v)((s32v)magnitude < 0x800000);
    const u32v rounded = (above & 0x7f800000) | (~above & (magnitude + 0x8000));
    return ((rounded | (bits & 0x80000000)) & ~below) >> 16;
}

/* One panel of one tile: its sums between two chunks of K, and what L1 holds of them. */
typedef struct {
    f32v partial[ROWS][VECTORS], held[ROWS][VECTORS];
} Sums;

INLINE f32v round_dest(f32v value) { return (f32v)(((u32v)value + 0x9000) & 0xffff0000); }
/* The second write is the lower bits' share of what the tile added. A sum that needs no rounding came without one. */
INLINE f32v write_twice(f32v sum, f32v before, float lower) {
#ifdef __AVX512F__
    const __mmask16 odd = _mm512_test_epi32_mask((__m512i)sum, _mm512_set1_epi32(0xffff));
    const f32v second = (f32v)_mm512_maskz_mul_ps(odd, (__m512)(sum - before), _mm512_set1_ps(lower));
#else
    const u32v even = (u32v)(((u32v)sum << 16) == 0);
    const f32v second = (f32v)((u32v)((sum - before) * lower) & ~even);
#endif
    return round_dest(round_dest(sum - second) + second);
}
INLINE f32v round_even(f32v value) {
    const u32v bits = (u32v)value;
    return (f32v)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
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

/* A tile of K with a 16-bit destination. */
INLINE void add_tile(f32v sums[ROWS][VECTORS], const uint32_t *x, const uint32_t *w, float lower, int rows, int form,
                     int pair) {
    const int64_t half = STEP >> pair;
    f32v before[ROWS][VECTORS];
    for (int r = 0; form == 2 && r < rows; r++)
        for (int v = 0; v < VECTORS; v++) before[r][v] = sums[r][v];
    add_products(sums, x, w, half, rows, pair);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = round_dest(sums[r][v]);
    add_products(sums, x + half * ROWS, w + half * COLUMNS, half, rows, pair);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = form == 2 ? write_twice(sums[r][v], before[r][v], lower) : round_dest(sums[r][v]);
}

/* A chunk of K with a 16-bit destination. The registers are copies, so that nothing takes their address. */
INLINE void add_steps(const Work *work, f32v dest[ROWS][VECTORS], f32v *held, const uint32_t *x, const uint32_t *w,
                      int64_t first_k, int64_t depth, int rows, int form, int pair) {
    const int64_t size = work->shape->block;
    int64_t block = first_k / size, edge = (block + 1) * size - first_k;
    f32v sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = dest[r][v];
    for (int64_t k = 0; k < depth; k += TILE) {
        add_tile(sums, x + (k >> pair) * ROWS, w + (k >> pair) * COLUMNS, work->lower, rows, form, pair);
        if (k + TILE != edge || ++block >= work->blocks) continue;
        edge += size;
        for (int r = 0; block > 1 && r < rows; r++) /* the packer adds the block to what L1 holds */
            for (int v = 0; v < VECTORS; v++) sums[r][v] = round_even(sums[r][v] + held[r * VECTORS + v]);
        for (int r = 0; block < work->blocks - 1 && r < rows; r++) /* else the last block is computed on top */
            for (int v = 0; v < VECTORS; v++) held[r * VECTORS + v] = sums[r][v], sums[r][v] = (f32v){0};
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) dest[r][v] = sums[r][v];
}

/* To the output's rows from element `at` on. */
INLINE void store_rows(const Work *work, f32v dest[ROWS][VECTORS], int64_t at, int64_t columns, int rows) {
    for (int r = 0; r < rows; r++, at += work->shape->columns) {
        if (!work->shape->out_half) {
            memcpy((float *)work->out + at, dest[r], (size_t)columns * 4);
            continue;
        }
        u16v halves[VECTORS];
        for (int v = 0; v < VECTORS; v++) halves[v] = __builtin_convertvector(pack_half((u32v)dest[r][v]), u16v);
        memcpy((uint16_t *)work->out + at, halves, (size_t)columns * 2);
    }
}

/* A chunk of K for one tile of rows and one panel; `form` 0: 32 bits, 1: 16 bits, 2: 16 bits written twice a step. Sums that
 * wait for the next chunk lie together: rows of the output are far apart, often in the same places of the caches. */
INLINE void multiply_tile(const Work *work, const uint32_t *x, const uint32_t *w, int64_t first_k, int64_t depth, int64_t at,
                          Sums *sums, int64_t columns, int rows, int left, int form, int terms, int pair) {
    f32v dest[ROWS][VECTORS] = {0};
    for (int r = 0; first_k && r < rows; r++)
        for (int v = 0; v < VECTORS; v++) dest[r][v] = sums->partial[r][v];
    if (form) add_steps(work, dest, sums->held[0], x, w, first_k, depth, rows, form, pair);
    else add_products(dest, x, w, count_words(depth, terms, pair), rows, pair);
    if (first_k + depth < work->depth) {
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) sums->partial[r][v] = dest[r][v];
    } else {
        store_rows(work, dest, at, columns, left);
    }
}

/* A chunk of K for a band of tiles and one panel. */
INLINE void multiply_band(const Work *work, int64_t batch, int64_t tile, int64_t end, int64_t column, int64_t k,
                          int64_t depth, int64_t right, const uint32_t *panel, Sums *sums, int form, int terms, int pair) {
    const Shape *shape = work->shape;
    const int64_t columns = right < COLUMNS ? right : COLUMNS;
    for (; tile < end; tile++, sums++) {
        const int64_t own = shape->x_batch ? batch : 0; /* or one for all */
        const int64_t before = (own * work->depth + k) * work->tiles + tile * depth;
        const uint32_t *x = work->packed + count_words(before, terms, pair) * ROWS;
        const int64_t row = tile * ROWS, at = (batch * shape->rows + row) * shape->columns + column;
        const int left = shape->rows - row < ROWS ? (int)(shape->rows - row) : ROWS;
        switch (left) {
        case 1: multiply_tile(work, x, panel, k, depth, at, sums, columns, 1, 1, form, terms, pair); break;
        case 2: multiply_tile(work, x, panel, k, depth, at, sums, columns, 2, 2, form, terms, pair); break;
        case 3:
        case 4: multiply_tile(work, x, panel, k, depth, at, sums, columns, 4, left, form, terms, pair); break;
        default: multiply_tile(work, x, panel, k, depth, at, sums, columns, ROWS, left, form, terms, pair);
        }
    }
}

/* One group of panels of one batch: a slice of rows after the other, each chunk by chunk of K. */
INLINE void multiply_group(const Work *work, int64_t item, uint32_t *panels, Sums (*sums)[SLICE], int form, int terms,
                           int pair) {
    const Shape *shape = work->shape;
    const int64_t batch = item / work->groups, first = item % work->groups * work->group * COLUMNS;
    const int64_t right = shape->columns - first;
    const int64_t columns = right < work->group * COLUMNS ? right : work->group * COLUMNS;
    const int64_t chunk = chunk_depth(terms, pair), from = batch * shape->w_batch + first * shape->w_column;
    for (int64_t slice = 0; slice < work->tiles; slice += SLICE) {
        const int64_t slice_end = slice + SLICE < work->tiles ? slice + SLICE : work->tiles;
        for (int64_t k = 0; k < work->depth; k += chunk) {
            const int64_t left = work->depth - k, depth = left < chunk ? left : chunk;
            if (slice == 0 || work->depth > chunk) pack_panels(work, from, columns, k, depth, terms, pair, panels);
            for (int64_t tile = slice; tile < slice_end; tile += BAND) {
                const int64_t end = tile + BAND < slice_end ? tile + BAND : slice_end;
                for (int64_t c = 0; c < columns; c += COLUMNS)
                    multiply_band(work, batch, tile, end, first + c, k, depth, columns - c,
                                  panels + c * count_words(depth, terms, pair), &sums[c / COLUMNS][tile - slice], form,
                                  terms, pair);
            }
        }
    }
}

INLINE void multiply_item(const Work *work, int64_t item, uint32_t *panels, Sums (*sums)[SLICE], int pair) {
    if (work->shape->narrow) {
        if (work->lower > 0) multiply_group(work, item, panels, sums, 2, 1, pair);
        else multiply_group(work, item, panels, sums, 1, 1, pair);
    } else if (work->shape->terms > 1) {
        multiply_group(work, item, panels, sums, 0, 2, pair);
    } else {
        multiply_group(work, item, panels, sums, 0, 1, pair);
    }
}

static void multiply_groups(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    uint32_t panels[GROUP * CHUNK * COLUMNS] __attribute__((aligned(64)));
    Sums sums[GROUP][SLICE];
    for (int64_t item = begin; item < end; item++) {
        if (HAS_PAIRS && work->pair) multiply_item(work, item, panels, sums, 1);
        else multiply_item(work, item, panels, sums, 0);
    }
}

/* x [batches, rows, depth] times w [batches, depth, columns]; out is contiguous. 0 without memory. */
int fpu_gemm(const Threads *threads, const void *x, const void *w, void *out, const Shape *shape, float lower) {
    const int64_t depth = (shape->depth + TILE - 1) / TILE * TILE, tiles = (shape->rows + ROWS - 1) / ROWS;
    const int64_t count = (shape->x_batch ? shape->batches : 1) * tiles, panels = (shape->columns + COLUMNS - 1) / COLUMNS;
    const int64_t blocks = (depth + shape->block - 1) / shape->block;
    const int pair = takes_pairs(shape);
    const int64_t elements = count * ROWS * count_words(depth, shape->terms, pair);
    uint32_t *packed = aligned_alloc(64, ((size_t)elements * 4 + 63) & ~(size_t)63);
    if (!packed) return 0;
    const int64_t fair = shape->batches * panels / (threads->count * 4); /* small groups where threads would wait */
    const int64_t group = fair < 1 ? 1 : fair < GROUP ? fair : GROUP, groups = (panels + group - 1) / group;
    const Work work = {shape, x, w, out, packed, groups, group, tiles, depth, blocks, pair, lower};
    Threads by_tiles = *threads;
    by_tiles.step = count / (threads->count * 4) + 1;
    share(&by_tiles, count, pack_tiles, &work);
    share(threads, shape->batches * groups, multiply_groups, &work);
    free(packed);
    return 1;
}

typedef struct {
    const uint32_t *dest;
    uint16_t *to;
    int64_t count;
} Packed;

/* Pieces of WIDE elements; the last may be shorter. */
static void pack_pieces(const void *data, int64_t begin, int64_t end) {
    const Packed *packed = data;
    for (int64_t piece = begin; piece < end; piece++) {
        const int64_t at = piece * WIDE, rest = packed->count - at;
        const size_t length = rest < WIDE ? (size_t)rest : WIDE;
        u32v bits = {0};
        if (length == WIDE) memcpy(&bits, packed->dest + at, sizeof bits);
        else memcpy(&bits, packed->dest + at, length * 4);
        const u16v halves = __builtin_convertvector(pack_half(bits), u16v);
        if (length == WIDE) memcpy(packed->to + at, &halves, sizeof halves);
        else memcpy(packed->to + at, &halves, length * 2);
    }
}

int pack_bfloat16(const Threads *threads, const uint32_t *dest, uint16_t *to, int64_t count) {
    const Packed packed = {dest, to, count};
    Threads by_pieces = *threads;
    by_pieces.step = (threads->step + WIDE - 1) / WIDE;
    share(&by_pieces, (count + WIDE - 1) / WIDE, pack_pieces, &packed);
    return 1;
}

/* Whether what was compiled works: 1.5 * 3 over 40 of K, with a row and columns that do not fill a vector. */
int check(void) {
    const Threads alone = {0, 1, 1};
    static uint32_t x[40], w[40 * 3];
    float out[3];
    const Shape shape = {1, 1, 40, 3, 0, 40, 0, 0, 3, 1, 0, 0xfffe0000, 0xffffc000, 1, 0, 0, 0, 64, 0};
    for (int i = 0; i < 40; i++) x[i] = 0x3fc00000;
    for (int i = 0; i < 120; i++) w[i] = 0x40400000;
    return fpu_gemm(&alone, x, w, out, &shape, 0) && out[0] == 180 && out[2] == 180;
}
