/* A float32 GEMM. Every element of the result is made in the same way, whatever the shape and the threads: K in pieces of
 * at most DEPTH, a chain of fused multiply-adds for each, added from the first to the last. */
#include <sys/mman.h>

#include "sgemm_operands.h"
#include "threads.h"

#define BAND 98          /* tiles of rows that a piece of w is copied for */
#define SMALL_BAND 4     /* where there would be too little to share; columns: */
#define SMALL_BLOCK 64
#define STEPS 4          /* of K between two looks ahead */
#define FRESH (32 << 20) /* bytes; malloc keeps less than that for the next one */
#define SHARES 4         /* for every thread, so that the others do the work of one that wakes late */

typedef struct {
    const Shape *shape;
    const float *x, *w;
    float *out;
    int64_t depth;                        /* of a piece of K */
    int64_t height, width, bands, blocks; /* of the rows and columns of one item; how many there are in a batch */
    int64_t items, threads;
} Work;

/* Some rows and columns of one batch. */
typedef struct {
    const float *x, *w;
    float *out;
    int64_t rows, columns;
} Item;

/* A vector that is loaded once: compilers would rather read it again with every multiply-add. */
#if defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#else
#define KEEP(vector)
#endif

/* Loops over registers must be gone before the compiler decides what is one. */
#define UNROLL _Pragma("GCC unroll 16")

INLINE void add_products(f32v sums[ROWS][VECTORS], const float *x, const float *w, int rows, int vectors) {
    f32v values[VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) {
        memcpy(&values[v], w + v * WIDE, sizeof values[v]);
        KEEP(values[v]);
    }
    UNROLL for (int r = 0; r < rows; r++) {
        f32v one = x[r * DEPTH] - (f32v){0};
        KEEP(one);
        UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = fused(one, values[v], sums[r][v]);
    }
}

/* One tile times one panel, added to the result or, in the first piece of K, written there. */
INLINE void multiply_tile(const float *x, const float *w, int64_t depth, float *out, int64_t stride, int64_t columns,
                          int first, Ahead next_x, Ahead next_w, int rows, int vectors) {
    f32v sums[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = (f32v){0};
    for (int r = 0; r < rows; r++) /* the lines that are written, for shallow K */
        for (int v = 0; v < vectors; v++) __builtin_prefetch(out + r * stride + v * WIDE, 1);
    int64_t k = 0;
    for (; k + STEPS <= depth; k += STEPS) {
        fetch(next_x, k), fetch(next_w, k);
        UNROLL for (int i = 0; i < STEPS; i++) add_products(sums, x + k + i, w + (k + i) * COLUMNS, rows, vectors);
    }
    for (; k < depth; k++) add_products(sums, x + k, w + k * COLUMNS, rows, vectors);
    if (!first) {
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                sums[r][v] += load_part(out + r * stride + v * WIDE, v + 1 < vectors ? WIDE : columns - v * WIDE);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            store_part(sums[r][v], out + r * stride + v * WIDE, v + 1 < vectors ? WIDE : columns - v * WIDE);
}

#define CASE(rows)                                                                                                 \
    case rows:                                                                                                     \
        if (columns > WIDE) multiply_tile(x, w, depth, out, stride, columns, first, next_x, next_w, rows, 2);      \
        else multiply_tile(x, w, depth, out, stride, columns, first, next_x, next_w, rows, 1);                     \
        break;

/* Not inlined: the registers of the callers would be too many. */
__attribute__((noinline)) static void multiply_rows(const float *x, const float *w, int64_t depth, float *out,
                                                    int64_t stride, int64_t columns, int first, Ahead next_x, Ahead next_w,
                                                    int64_t rows) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if WIDE == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
}

INLINE Item find_item(const Work *work, int64_t number) {
    const Shape *shape = work->shape;
    const int64_t batch = number / (work->blocks * work->bands), row = number / work->blocks % work->bands * work->height;
    const int64_t column = number % work->blocks * work->width;
    return (Item){work->x + batch * shape->x_batch + row * shape->x_row,
                  work->w + batch * shape->w_batch + column * shape->w_column,
                  work->out + (batch * shape->rows + row) * shape->columns + column,
                  least(work->height, shape->rows - row), least(work->width, shape->columns - column)};
}

/* One piece of K of an item; `next` is what is multiplied after it, from `next_k` on. */
static void multiply_piece(const Work *work, const Item *item, int64_t k, const Item *next, int64_t next_k, float *panels,
                           float *tile) {
    const Shape *shape = work->shape;
    const int64_t depth = least(work->depth, shape->depth - k), next_depth = least(work->depth, shape->depth - next_k);
    const int64_t tiles = (item->rows + ROWS - 1) / ROWS, calls = (item->columns + COLUMNS - 1) / COLUMNS;
    const float *x = item->x + k * shape->x_column, *next_x = next->x + next_k * shape->x_column;
    const float *next_w = next->w + next_k * shape->w_row;
    pack_panels(shape, item->w + k * shape->w_row, depth, item->columns, panels);
    for (int64_t t = 0; t < tiles; t++, x += ROWS * shape->x_row) {
        const int64_t row = t * ROWS, rows = least(ROWS, item->rows - row), left = item->rows - row - rows;
        pack_tile(shape, x, rows, depth, tile);
        for (int64_t c = 0; c < calls; c++) {
            const int64_t column = c * COLUMNS;
            const Ahead below = left ? look_ahead(x + ROWS * shape->x_row, least(ROWS, left), depth, shape->x_row,
                                                  shape->x_column, c, calls)
                                     : look_ahead(next_x, least(ROWS, next->rows), next_depth, shape->x_row,
                                                  shape->x_column, c, calls);
            const Ahead behind = look_ahead(next_w, next_depth, next->columns, shape->w_row, shape->w_column, t * calls + c,
                                            tiles * calls);
            multiply_rows(tile, panels + column * depth, depth, item->out + row * shape->columns + column, shape->columns,
                          least(COLUMNS, item->columns - column), k == 0, below, behind, rows);
        }
    }
}

static void multiply_items(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const int64_t all = work->shape->depth;
    float panels[DEPTH * BLOCK] __attribute__((aligned(64))), tile[ROWS * DEPTH] __attribute__((aligned(64)));
    for (int64_t number = begin; number < end; number++) {
        const Item item = find_item(work, number), next = find_item(work, least(number + work->threads, work->items - 1));
        for (int64_t k = 0; k < all; k += work->depth) {
            const int64_t after = k + work->depth;
            multiply_piece(work, &item, k, after < all ? &item : &next, after < all ? after : 0, panels, tile);
        }
    }
}

/* So much memory comes fresh from the system, which would clear and map it in 4 KiB; within 2 MiB borders it need not. */
static void ask_for_large_pages(float *out, int64_t size) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2 << 20, from = (uintptr_t)out, to = from + (uintptr_t)size;
    const uintptr_t begin = (from + page - 1) & ~(page - 1), end = to & ~(page - 1);
    if (size >= FRESH && begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#endif
}

/* x [batches, rows, depth] times w [batches, depth, columns], none of them 0; out is contiguous. */
int sgemm(const Threads *threads, const float *x, const float *w, float *out, const Shape *shape) {
    const int64_t pieces = (shape->depth + DEPTH - 1) / DEPTH, enough = threads->count > 1 ? threads->count * SHARES : 1;
    Work work = {shape, x, w, out, (shape->depth + pieces - 1) / pieces, BAND * ROWS, BLOCK, 0, 0, 0, threads->count};
    for (;;) {
        work.bands = (shape->rows + work.height - 1) / work.height;
        work.blocks = (shape->columns + work.width - 1) / work.width;
        work.items = shape->batches * work.bands * work.blocks;
        if (work.items >= enough) break;
        const int64_t tall = least(work.height, shape->rows), wide = least(work.width, shape->columns);
        if (wide > SMALL_BLOCK && (wide >= tall || tall <= SMALL_BAND * ROWS)) work.width /= 2;
        else if (tall > SMALL_BAND * ROWS) work.height = (tall / 2 + ROWS - 1) / ROWS * ROWS;
        else break;
    }
    ask_for_large_pages(out, shape->batches * shape->rows * shape->columns * 4);
    share(threads, work.items, multiply_items, &work);
    return 1;
}

/* Whether what was compiled works: 1.5 * 3 over 300 of K, with a row and columns that do not fill a vector. */
int check(void) {
    const Threads alone = {0, 1, 1};
    static float x[300], w[300 * 3];
    float out[3];
    const Shape shape = {1, 1, 300, 3, 0, 300, 1, 0, 3, 1};
    for (int i = 0; i < 300; i++) x[i] = 1.5f;
    for (int i = 0; i < 900; i++) w[i] = 3;
    return sgemm(&alone, x, w, out, &shape) && out[0] == 1350 && out[2] == 1350;
}
