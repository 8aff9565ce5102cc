/* Matrices to tile order and back, for elements of 1, 2, 4 or 8 bytes; tilize.py has the torch version. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FACE_COLUMNS 16
#define BAND 4 /* rows walked together from tile to tile: few streams for the prefetcher, whole lines of a tile */
#define INLINE static inline __attribute__((always_inline))

/* How a matrix is cut into tiles. */
typedef struct {
    int64_t rows, columns;           /* of a matrix, without padding */
    int64_t tile_rows, tile_columns; /* of a tile */
    int64_t face_rows;               /* of a face */
} Cut;

/* `run` is a face row in bytes: a constant in each of the four copies, so that memcpy becomes a move. */
INLINE void walk(uint8_t *matrices, uint8_t *tiles, int64_t begin, int64_t end, const Cut *cut, int64_t size,
                 int to_tiles, const uint8_t *padding) {
    const int64_t run = FACE_COLUMNS * size;
    const int64_t down = (cut->rows + cut->tile_rows - 1) / cut->tile_rows;
    const int64_t across = (cut->columns + cut->tile_columns - 1) / cut->tile_columns;
    const int64_t faces_across = cut->tile_columns / FACE_COLUMNS;
    const int64_t face_rows = cut->face_rows;
    const int64_t tile_size = cut->tile_rows * cut->tile_columns * size;
    const int64_t band = face_rows < BAND ? face_rows : BAND;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t top = strip % down * cut->tile_rows;
        uint8_t *matrix = matrices + strip / down * cut->rows * cut->columns * size;
        for (int64_t row = 0; row < cut->tile_rows; row += band) {
            const int64_t first = row / face_rows * faces_across * face_rows + row % face_rows;
            for (int64_t face = 0; face < across * faces_across; face++) {
                uint8_t *tile = tiles + (strip * across + face / faces_across) * tile_size;
                uint8_t *in_tile = tile + (first + face % faces_across * face_rows) * run;
                const int64_t x = face * FACE_COLUMNS;
                if (!to_tiles) /* a line or two of each tile: no stream to foresee */
                    for (int64_t line = 0; line < band * run; line += 64) __builtin_prefetch(in_tile + 8 * tile_size + line);
                for (int64_t i = 0; i < band; i++, in_tile += run) {
                    const int64_t y = top + row + i;
                    const int64_t left = y < cut->rows && x < cut->columns ? cut->columns - x : 0;
                    uint8_t *in_matrix = matrix + (y * cut->columns + x) * size;
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

/* Strips [begin, end): a strip is one row of tiles, counted over all matrices. `padding` is a face row of it. */
void tilize(uint8_t *matrices, uint8_t *tiles, int64_t begin, int64_t end, const Cut *cut, int size,
            const uint8_t *padding) {
    const Cut whole = *cut;
    if (size == 1) walk(matrices, tiles, begin, end, &whole, 1, 1, padding);
    else if (size == 2) walk(matrices, tiles, begin, end, &whole, 2, 1, padding);
    else if (size == 4) walk(matrices, tiles, begin, end, &whole, 4, 1, padding);
    else if (size == 8) walk(matrices, tiles, begin, end, &whole, 8, 1, padding);
}

void untilize(uint8_t *tiles, uint8_t *matrices, int64_t begin, int64_t end, const Cut *cut, int size) {
    const Cut whole = *cut;
    if (size == 1) walk(matrices, tiles, begin, end, &whole, 1, 0, 0);
    else if (size == 2) walk(matrices, tiles, begin, end, &whole, 2, 0, 0);
    else if (size == 4) walk(matrices, tiles, begin, end, &whole, 4, 0, 0);
    else if (size == 8) walk(matrices, tiles, begin, end, &whole, 8, 0, 0);
}
