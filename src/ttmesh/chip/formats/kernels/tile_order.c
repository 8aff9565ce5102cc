/* Matrices to tile order and back, for elements of 1, 2, 4 or 8 bytes; tilize.py has the torch version. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#define FACE_COLUMNS 16
#define BAND 4 /* rows walked together from tile to tile: few streams for the prefetcher, whole lines of a tile */
#define INLINE static inline __attribute__((always_inline))

/* How a matrix is divided into tiles. */
typedef struct {
    int64_t rows, columns;           /* of a matrix, without padding */
    int64_t tile_rows, tile_columns; /* of a tile */
    int64_t face_rows;               /* of a face */
} Tiling;

/* `run` is a face row in bytes: a constant in each of the four copies, so that memcpy becomes a move. */
INLINE void convert_strips(uint8_t *matrices, uint8_t *tiles, int64_t begin, int64_t end, const Tiling *tiling, int64_t size,
                 int to_tiles, const uint8_t *padding) {
    const int64_t run = FACE_COLUMNS * size;
    const int64_t down = (tiling->rows + tiling->tile_rows - 1) / tiling->tile_rows;
    const int64_t across = (tiling->columns + tiling->tile_columns - 1) / tiling->tile_columns;
    const int64_t faces_across = tiling->tile_columns / FACE_COLUMNS;
    const int64_t face_rows = tiling->face_rows;
    const int64_t tile_size = tiling->tile_rows * tiling->tile_columns * size;
    const int64_t band = face_rows < BAND ? face_rows : BAND;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t top = strip % down * tiling->tile_rows;
        uint8_t *matrix = matrices + strip / down * tiling->rows * tiling->columns * size;
        for (int64_t row = 0; row < tiling->tile_rows; row += band) {
            const int64_t first = row / face_rows * faces_across * face_rows + row % face_rows;
            for (int64_t face = 0; face < across * faces_across; face++) {
                uint8_t *tile = tiles + (strip * across + face / faces_across) * tile_size;
                uint8_t *in_tile = tile + (first + face % faces_across * face_rows) * run;
                const int64_t x = face * FACE_COLUMNS;
                if (!to_tiles) /* a line or two of each tile: no stream to foresee */
                    for (int64_t line = 0; line < band * run; line += 64) __builtin_prefetch(in_tile + 8 * tile_size + line);
                for (int64_t i = 0; i < band; i++, in_tile += run) {
                    const int64_t y = top + row + i;
                    const int64_t left = y < tiling->rows && x < tiling->columns ? tiling->columns - x : 0;
                    uint8_t *in_matrix = matrix + (y * tiling->columns + x) * size;
                    if (left >= FACE_COLUMNS) {
                        if (to_tiles) memcpy(in_tile, in_matrix, (size_t)run);
                        else memcpy(in_matrix, in_tile, (size_t)run);
                    } else if (to_tiles) {
                        if (left) memcpy(in_tile, in_matrix, (size_t)(left * size));
                        memcpy(in_tile + left * size, padding, (size_t)(run - left * size));
                    } else if (left) {
                        memcpy(in_matrix, in_tile, (size_t)(left * size));
                    }
                }
            }
        }
    }
}

typedef struct {
    uint8_t *matrices, *tiles;
    const Tiling *tiling;
    int size, to_tiles;
    const uint8_t *padding;
} Work;

/* Strips [begin, end): a strip is one row of tiles, counted over all matrices. */
static void run(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const Tiling tiling = *work->tiling;
#define CASE(n, t) \
    if (work->size == n && work->to_tiles == t) convert_strips(work->matrices, work->tiles, begin, end, &tiling, n, t, work->padding)
    CASE(1, 1);
    CASE(2, 1);
    CASE(4, 1);
    CASE(8, 1);
    CASE(1, 0);
    CASE(2, 0);
    CASE(4, 0);
    CASE(8, 0);
#undef CASE
}

/* `padding` is a face row of it. */
void tilize(const Threads *threads, uint8_t *matrices, uint8_t *tiles, int64_t strips, const Tiling *tiling, int size,
            const uint8_t *padding) {
    const Work work = {matrices, tiles, tiling, size, 1, padding};
    share(threads, strips, run, &work);
}

void untilize(const Threads *threads, uint8_t *tiles, uint8_t *matrices, int64_t strips, const Tiling *tiling, int size) {
    const Work work = {matrices, tiles, tiling, size, 0, 0};
    share(threads, strips, run, &work);
}

/* Whether what was compiled works: there, back, the same. */
int check(void) {
    const Threads alone = {0, 1, 1};
    const Tiling tiling = {40, 50, 32, 32, 16};
    static uint8_t matrix[40 * 50], tiles[64 * 64], back[40 * 50];
    const uint8_t padding[FACE_COLUMNS] = {0};
    for (int i = 0; i < 40 * 50; i++) matrix[i] = (uint8_t)(i % 251);
    tilize(&alone, matrix, tiles, 2, &tiling, 1, padding);
    untilize(&alone, tiles, back, 2, &tiling, 1);
    return tiles[16 * 16] == matrix[16] && memcmp(matrix, back, sizeof back) == 0;
}
