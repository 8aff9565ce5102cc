/* A GEMM whose operands are cut to the bits that a fidelity multiplies and whose sums are rounded as the chip's registers are.
 *
 * With a 16-bit destination the register is rounded after every 16 of K: to 11 bits, then to 8, ties away. Both together are
 * one addition of 9/16 of the last place: half a place and half of the 11-bit place. Fidelities above LoFi write the weights'
 * lower bits' products afterwards, per tile of K; `lower` says which share of the tile's sum that is.
 * chip/numerics/realistic_matmul.py has the model and the torch version. */
#include <stdlib.h>

#include "fpu_gemm_steps.h"
#include "threads.h"

#define BAND (64 / ROWS)   /* tiles of rows whose chunk of K stays in the second cache beside a group of panels */
#define SLICE (256 / ROWS) /* tiles of rows whose sums stay in the second cache between two chunks of K */
#define GROUP 4            /* panels that are prepared together: rows of the weights are read in longer pieces */

typedef int32_t s32v __attribute__((vector_size(WIDE * 4)));

/* A register packed to bfloat16, in its lower half: ties away; NaN becomes infinity, subnormals and -0 become +0. */
INLINE u32v pack_half(u32v bits) {
    const u32v magnitude = bits & 0x7fffffff; /* compared as signed numbers, which every vector unit can do */
    const u32v above = (u32v)((s32v)magnitude > 0x7f7f7fff), below = (u32v)((s32v)magnitude < 0x800000);
    const u32v rounded = (above & 0x7f800000) | (~above & (magnitude + 0x8000));
    return ((rounded | (bits & 0x80000000)) & ~below) >> 16;
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
    const int last = first_k + depth == work->depth;
    if (form) {
        if (!first_k) *sums = (Sums){0};
#ifdef __AVX512F__
        if (rows == ROWS) add_steps_in_turns(work, sums, x, w, first_k, depth, form, pair);
        else
#endif
            add_steps(work, sums, x, w, first_k, depth, rows, form, pair);
        if (last) store_rows(work, sums->partial, at, columns, left);
        return;
    }
    f32v dest[ROWS][VECTORS] = {0};
    for (int r = 0; first_k && r < rows; r++)
        for (int v = 0; v < VECTORS; v++) dest[r][v] = sums->partial[r][v];
    add_products(dest, x, w, count_words(depth, terms, pair), rows, pair);
    if (last) store_rows(work, dest, at, columns, left);
    for (int r = 0; !last && r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sums->partial[r][v] = dest[r][v];
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
INLINE void multiply_group(const Work *work, int64_t item, uint32_t *space, Sums (*sums)[SLICE], int form, int terms,
                           int pair) {
    const Shape *shape = work->shape;
    const int64_t batch = item / work->groups, first = item % work->groups * work->group * COLUMNS;
    const int64_t right = shape->columns - first;
    const int64_t columns = right < work->group * COLUMNS ? right : work->group * COLUMNS;
    const int64_t kept = work->tiles > SLICE ? (columns + COLUMNS - 1) / COLUMNS * COLUMNS : 0; /* else used once */
    const int64_t chunk = chunk_depth(terms, pair), from = batch * shape->w_batch + first * shape->w_column;
    for (int64_t slice = 0; slice < work->tiles; slice += SLICE) {
        const int64_t slice_end = slice + SLICE < work->tiles ? slice + SLICE : work->tiles;
        for (int64_t k = 0; k < work->depth; k += chunk) {
            const int64_t left = work->depth - k, depth = left < chunk ? left : chunk;
            uint32_t *panels = space + count_words(k, terms, pair) * kept;
            if (slice == 0) pack_panels(work, from, columns, k, depth, terms, pair, panels);
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
    if (work->shape->narrow && pair == HAS_PAIRS) {
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
    const int64_t chunk = chunk_depth(work->shape->terms, work->pair);
    const int64_t depth = work->tiles > SLICE || work->depth < chunk ? work->depth : chunk;
    const int64_t words = work->group * COLUMNS * count_words(depth, work->shape->terms, work->pair);
    uint32_t *panels = aligned_alloc(64, (size_t)words * 4);
    if (!panels) {
        __atomic_store_n(work->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    Sums sums[GROUP][SLICE];
    for (int64_t item = begin; item < end; item++) {
        if (HAS_PAIRS && work->pair) multiply_item(work, item, panels, sums, 1);
        else multiply_item(work, item, panels, sums, 0);
    }
    free(panels);
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
    int failed = 0;
    const Work work = {shape, x, w, out, packed, &failed, groups, group, tiles, depth, blocks, pair, lower};
    Threads by_tiles = *threads;
    by_tiles.step = count / (threads->count * 4) + 1;
    share(&by_tiles, count, pack_tiles, &work);
    share(threads, shape->batches * groups, multiply_groups, &work);
    free(packed);
    return !failed;
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
