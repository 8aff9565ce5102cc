/* Block floats: rounding to the shared-exponent grid, packing to tiles and unpacking. The torch versions in
 * block_float.py and packing.py give the same bits; tests/chip compares them. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#define GROUP 16 /* elements that share an exponent: a row of a face */
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512BW__
#define LANES 16
#else
#define LANES 8 /* wider vectors than the machine's would live in memory */
#endif
#define PARTS (GROUP / LANES)

typedef uint32_t u32v __attribute__((vector_size(LANES * 4)));
typedef int32_t i32v __attribute__((vector_size(LANES * 4)));
typedef float f32v __attribute__((vector_size(LANES * 4)));
typedef uint16_t u16v __attribute__((vector_size(GROUP * 2)));
typedef uint8_t u8v __attribute__((vector_size(GROUP)));

/* The 32-bit patterns of a group. */
typedef struct {
    u32v part[PARTS];
} Words;

#if defined(__AVX512BW__) || defined(__AVX2__) /* what compilers do not find by themselves */
#include <immintrin.h>
#endif
#ifdef __AVX512BW__
INLINE uint32_t largest(Words v) { return _mm512_reduce_max_epu32((__m512i)v.part[0]); }
INLINE u32v at_most(u32v v, uint32_t limit) { return (u32v)_mm512_min_epu32((__m512i)v, _mm512_set1_epi32(limit)); }
INLINE u32v shifted(u32v v, u32v by) { return (u32v)_mm512_srlv_epi32((__m512i)v, (__m512i)by); }
INLINE Words from_bytes(u8v v) { return (Words){{(u32v)_mm512_cvtepu8_epi32((__m128i)v)}}; }
INLINE Words from_halves(u16v v) { return (Words){{(u32v)_mm512_cvtepu16_epi32((__m256i)v)}}; }
INLINE u8v to_bytes(Words v) { return (u8v)_mm512_cvtepi32_epi8((__m512i)v.part[0]); }
INLINE u16v to_halves(Words v) { return (u16v)_mm512_cvtepi32_epi16((__m512i)v.part[0]); }
#elif defined(__AVX2__)
INLINE uint32_t largest(Words v) {
    const __m256i eight = _mm256_max_epu32((__m256i)v.part[0], (__m256i)v.part[1]);
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(most);
}
INLINE u32v at_most(u32v v, uint32_t limit) { return (u32v)_mm256_min_epu32((__m256i)v, _mm256_set1_epi32((int)limit)); }
INLINE u32v shifted(u32v v, u32v by) { return (u32v)_mm256_srlv_epi32((__m256i)v, (__m256i)by); }
INLINE Words from_bytes(u8v v) {
    const __m128i low = (__m128i)v, high = _mm_srli_si128(low, 8);
    return (Words){{(u32v)_mm256_cvtepu8_epi32(low), (u32v)_mm256_cvtepu8_epi32(high)}};
}
INLINE Words from_halves(u16v v) {
    const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
    return (Words){{(u32v)_mm256_cvtepu16_epi32(low), (u32v)_mm256_cvtepu16_epi32(high)}};
}
INLINE u16v to_halves(Words v) {
    const __m256i mixed = _mm256_packus_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
    return (u16v)_mm256_permute4x64_epi64(mixed, 0xd8);
}
INLINE u8v to_bytes(Words v) {
    const __m256i halves = (__m256i)to_halves(v);
    return (u8v)_mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}
#else
INLINE uint32_t largest(Words v) {
    uint32_t most = 0;
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < LANES; i++) most = v.part[p][i] > most ? v.part[p][i] : most;
    return most;
}
INLINE u32v at_most(u32v v, uint32_t limit) {
    const u32v over = (u32v)(v > limit);
    return (v & ~over) | (over & limit);
}
INLINE u32v shifted(u32v v, u32v by) { return v >> at_most(by, 31); } /* 24 bits: 31 clears as well as 200 */
typedef uint16_t u16p __attribute__((vector_size(LANES * 2)));
INLINE Words from_halves(u16v v) {
    Words words;
    u16p part[PARTS];
    memcpy(part, &v, sizeof v);
    for (int p = 0; p < PARTS; p++) words.part[p] = __builtin_convertvector(part[p], u32v);
    return words;
}
INLINE u16v to_halves(Words v) {
    u16v halves;
    u16p part[PARTS];
    for (int p = 0; p < PARTS; p++) part[p] = __builtin_convertvector(v.part[p], u16p);
    memcpy(&halves, part, sizeof halves);
    return halves;
}
INLINE Words from_bytes(u8v v) { return from_halves(__builtin_convertvector(v, u16v)); }
INLINE u8v to_bytes(Words v) { return __builtin_convertvector(to_halves(v), u8v); }
#endif

INLINE Words load(const void *source, int64_t at, int narrow) {
    Words bits;
    if (narrow) {
        u16v half;
        memcpy(&half, (const uint16_t *)source + at, sizeof half);
        bits = from_halves(half);
        for (int p = 0; p < PARTS; p++) bits.part[p] <<= 16;
    } else {
        const uint32_t *from = (const uint32_t *)source + at;
        for (int p = 0; p < PARTS; p++) memcpy(&bits.part[p], from + p * LANES, sizeof bits.part[p]);
    }
    return bits;
}

/* The first `left` elements at `at`, the rest padding. */
static __attribute__((noinline)) void load_partial(uint32_t *bits, const void *source, int64_t at, int64_t left,
                                                int narrow, uint32_t pad) {
    for (int i = 0; i < GROUP; i++) {
        if (i >= left) bits[i] = pad;
        else if (narrow) bits[i] = (uint32_t)((const uint16_t *)source)[at + i] << 16;
        else bits[i] = ((const uint32_t *)source)[at + i];
    }
}

INLINE Words load_row(const void *source, int64_t at, int64_t left, int narrow, uint32_t pad) {
    if (__builtin_expect(left >= GROUP, 1)) return load(source, at, narrow);
    uint32_t part[GROUP];
    load_partial(part, source, at, left, narrow, pad);
    return load(part, 0, 0);
}

static __attribute__((noinline)) void store_partial(uint16_t *target, const uint16_t *lanes, int64_t left) {
    for (int i = 0; i < left; i++) target[i] = lanes[i];
}

INLINE void store_row(uint16_t *target, u16v lanes, int64_t left) {
    if (__builtin_expect(left >= GROUP, 1)) {
        memcpy(target, &lanes, sizeof lanes);
        return;
    }
    uint16_t part[GROUP];
    memcpy(part, &lanes, sizeof part);
    store_partial(target, part, left);
}

/* Mantissas of 16 float32 bit patterns moved to the largest exponent among them; zeros and denormals are 0. */
INLINE Words align(Words bits, int device, uint32_t *shared) {
    Words own, aligned;
    for (int p = 0; p < PARTS; p++) own.part[p] = bits.part[p] & 0x7f800000;
    const uint32_t most = largest(own);
    *shared = most >> 23;
    for (int p = 0; p < PARTS; p++) {
        const u32v normal = (u32v)(own.part[p] != 0);
        /* The chip's packer first truncates to 7 bits, TT-NN's host code keeps all and loses what is shifted out. */
        const u32v mantissa = ((bits.part[p] & (device ? 0x7e0000 : 0x7fffff)) | 0x800000) & normal;
        aligned.part[p] = shifted(mantissa, (most - own.part[p]) >> 23);
    }
    return aligned;
}

/* Aligned mantissas rounded to `width` bits, still in place: a multiple of 2^(24 - width), as a float's bits. */
INLINE u32v rounded(u32v aligned, int width, int device) {
    const int shift = 24 - width;
    if (device) { /* to 7 bits, ties up; bfloat4_b is truncated from that */
        u32v kept = (aligned + 0x10000) & ~((1u << shift) - 1);
        return (u32v)__builtin_convertvector((i32v)kept, f32v);
    }
    /* Added to a float whose last place is 2^shift, so that the machine rounds to nearest even. */
    const float anchor = 1.5f * (float)(1ull << (23 + shift));
    f32v value = (__builtin_convertvector((i32v)aligned, f32v) + anchor) - anchor;
    const union { float value; uint32_t bits; } limit = {(float)(((1u << width) - 1) << shift)};
    return at_most((u32v)value, limit.bits);
}

/* Sign and magnitude, `width` + 1 bits, as the host packs them. */
INLINE Words encode(Words bits, int width, uint32_t *shared) {
    const int shift = 24 - width;
    const union { float value; uint32_t bits; } anchor = {1.5f * (float)(1ull << (23 + shift))};
    Words fields = align(bits, 0, shared);
    for (int p = 0; p < PARTS; p++) {
        const u32v places = (u32v)(__builtin_convertvector((i32v)fields.part[p], f32v) + anchor.value);
        const u32v magnitude = at_most(places - anchor.bits, (1u << width) - 1);
        fields.part[p] = magnitude | (((bits.part[p] >> 31) << width) & (u32v)(magnitude != 0));
    }
    return fields;
}

/* The nearest values on the grid of a block float, as bfloat16 bit patterns. */
INLINE u16v on_grid(Words bits, int width, int device) {
    uint32_t shared;
    Words values = align(bits, device, &shared);
    for (int p = 0; p < PARTS; p++) {
        const u32v own = bits.part[p], sign = own & 0x80000000;
        u32v value = rounded(values.part[p], width, device);
        const u32v nonzero = (u32v)(value != 0);
        value += (shared - 150u) << 23;
        /* The chip keeps the sign of what it rounds to zero. */
        if (device) value = (value & nonzero) | (sign & (u32v)((own & 0x7f800000) != 0));
        else value = (value | sign) & nonzero;
        values.part[p] = value >> 16;
    }
    return to_halves(values);
}

/* bfloat16 bit patterns of signs and magnitudes; a magnitude below the normal numbers has no value and gives 0. */
INLINE u16v decode(Words fields, uint32_t shared, int width) {
    for (int p = 0; p < PARTS; p++) {
        const u32v field = fields.part[p], magnitude = field & ((1u << width) - 1);
        i32v bits = (i32v)__builtin_convertvector((i32v)magnitude, f32v);
        bits += (int32_t)((shared - 127u - (uint32_t)(width - 1)) << 23);
        bits &= (i32v)(magnitude != 0) & (bits >= 0x800000);
        fields.part[p] = ((u32v)bits | (field >> width << 31)) >> 16;
    }
    return to_halves(fields);
}

#ifdef __AVX512BW__
/* Two groups at a time in 16-bit lanes: enough for bfloat16 values, and for float32 ones where the chip's packer truncates
 * them to fewer bits anyway. A bfloat16 mantissa that reaches below these 16 bits is too small to round up. */
typedef struct {
    __m512i own, most, behind, magnitude;
} Pair;

INLINE Pair encode_pair(__m512i bits, int width, int device) {
    const int shift = 16 - width;
    Pair pair;
    pair.own = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f80));
    __m512i most = pair.own; /* the largest of each half, in all of its lanes */
    most = _mm512_max_epu16(most, _mm512_permutex_epi64(most, 0x4e));
    most = _mm512_max_epu16(most, _mm512_shuffle_epi32(most, _MM_PERM_BADC));
    most = _mm512_max_epu16(most, _mm512_shuffle_epi32(most, _MM_PERM_CDAB));
    most = _mm512_max_epu16(most, _mm512_rol_epi32(most, 16));
    pair.most = most;
    pair.behind = _mm512_srli_epi16(_mm512_sub_epi16(most, pair.own), 7);
    const __m512i fraction =
        _mm512_and_si512(_mm512_slli_epi16(bits, 8), _mm512_set1_epi16(device ? 0x7e00 : 0x7f00));
    const __mmask32 normal = _mm512_test_epi16_mask(pair.own, pair.own);
    const __m512i mantissa =
        _mm512_maskz_mov_epi16(normal, _mm512_or_si512(fraction, _mm512_set1_epi16((short)0x8000)));
    __m512i aligned = _mm512_srlv_epi16(mantissa, pair.behind);
    if (device) {
        aligned = _mm512_add_epi16(aligned, _mm512_set1_epi16(0x100));
    } else { /* to nearest even, saturating */
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(aligned, shift), _mm512_set1_epi16(1));
        const short half_less_one = (short)((1 << (shift - 1)) - 1);
        aligned = _mm512_adds_epu16(_mm512_add_epi16(aligned, odd), _mm512_set1_epi16(half_less_one));
    }
    pair.magnitude = _mm512_srli_epi16(aligned, shift);
    return pair;
}

INLINE __m512i pair_on_grid(__m512i bits, int width, int device) {
    const Pair pair = encode_pair(bits, width, device);
    const __m512i back = _mm512_add_epi16(pair.behind, _mm512_set1_epi16(8 - width));
    const __m512i mantissa = _mm512_sllv_epi16(pair.magnitude, back); /* with its leading one, or 256 when it carried */
    const __m512i value = _mm512_add_epi16(pair.own, _mm512_sub_epi16(mantissa, _mm512_set1_epi16(0x80)));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi16((short)0x8000));
    const __mmask32 nonzero = _mm512_test_epi16_mask(pair.magnitude, pair.magnitude);
    if (!device) return _mm512_maskz_mov_epi16(nonzero, _mm512_or_si512(value, sign));
    const __mmask32 normal = _mm512_test_epi16_mask(pair.own, pair.own);
    return _mm512_or_si512(_mm512_maskz_mov_epi16(nonzero, value), _mm512_maskz_mov_epi16(normal, sign));
}

INLINE __m512i load_pair(const void *source, int64_t at, int narrow) {
    if (narrow) return _mm512_loadu_si512((const uint16_t *)source + at);
    const uint32_t *words = (const uint32_t *)source + at;
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(words), 16));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(words + GROUP), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* As many columns of a row as come in pairs; the number done. */
INLINE int64_t quantise_pairs(const void *source, uint16_t *target, int64_t at, int64_t columns, int narrow, int width,
                              int device) {
    if (!narrow && !device) return 0;
    int64_t column = 0;
    for (; column + 2 * GROUP <= columns; column += 2 * GROUP)
        _mm512_storeu_si512(target + at + column, pair_on_grid(load_pair(source, at + column, narrow), width, device));
    return column;
}

/* Two bfloat16 face rows, one under the other: their fields and exponents are adjacent. */
INLINE void pack_pair(const uint16_t *upper, const uint16_t *lower, uint8_t *fields, uint8_t *exponents, int width) {
    const __m256i first = _mm256_loadu_si256((const __m256i *)upper);
    const __m256i second = _mm256_loadu_si256((const __m256i *)lower);
    const __m512i bits = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    const Pair pair = encode_pair(bits, width, 0);
    const __mmask32 nonzero = _mm512_test_epi16_mask(pair.magnitude, pair.magnitude);
    const __m512i sign = _mm512_maskz_slli_epi16(nonzero, _mm512_srli_epi16(bits, 15), (unsigned)width);
    const __m512i field = _mm512_or_si512(pair.magnitude, sign);
    exponents[0] = (uint8_t)(_mm_cvtsi128_si32(_mm512_castsi512_si128(pair.most)) >> 7);
    exponents[1] = (uint8_t)(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(pair.most, 2)) >> 7);
    if (width == 7) {
        _mm256_storeu_si256((__m256i *)fields, _mm512_cvtepi16_epi8(field));
    } else {
        const __m512i nibbles = _mm512_or_si512(field, _mm512_srli_epi32(field, 12));
        _mm_storeu_si128((__m128i *)fields, _mm512_cvtepi32_epi8(nibbles));
    }
}
#endif

INLINE void quantise_rows(const void *source, uint16_t *target, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t columns,
                          int narrow, int width, int device, uint32_t pad) {
    for (ptrdiff_t row = begin; row < end; row++) {
        ptrdiff_t column = 0;
#ifdef __AVX512BW__
        column = quantise_pairs(source, target, row * columns, columns, narrow, width, device);
#endif
        for (; column < columns; column += GROUP) {
            ptrdiff_t at = row * columns + column;
            ptrdiff_t left = columns - column;
            store_row(target + at, on_grid(load_row(source, at, left, narrow, pad), width, device), left);
        }
    }
}

typedef struct {
    const void *source;
    uint16_t *target;
    int64_t columns;
    int narrow, width, device;
    uint32_t pad;
} Rounding;

/* Rows [begin, end); formats and packers as constants so that each gets its own loop. */
static void round_rows(const void *data, int64_t begin, int64_t end) {
    const Rounding *work = data;
#define CASE(n, w, d)                                                      \
    if (work->narrow == n && work->width == w && work->device == d)        \
        quantise_rows(work->source, work->target, begin, end, work->columns, n, w, d, work->pad)
    CASE(0, 7, 0);
    CASE(1, 7, 0);
    CASE(0, 7, 1);
    CASE(1, 7, 1);
    CASE(0, 3, 0);
    CASE(1, 3, 0);
    CASE(0, 3, 1);
    CASE(1, 3, 1);
#undef CASE
}

void quantise(const Threads *threads, const void *source, uint16_t *target, int64_t rows, int64_t columns, int narrow,
              int width, int device, uint32_t pad) {
    const Rounding work = {source, target, columns, narrow, width, device, pad};
    share(threads, rows, round_rows, &work);
}

/* How a matrix is divided into tiles. */
typedef struct {
    int64_t rows, columns;        /* of a matrix, without padding */
    int64_t tile_rows, tile_columns; /* of a tile */
    int64_t face_rows;            /* of a face; its columns are GROUP */
    int64_t exponent_bytes, tile_bytes;
} Tiling;

INLINE void store_fields(uint8_t *target, Words fields, int width) {
    u8v bytes = to_bytes(fields);
    if (width == 7) {
        memcpy(target, &bytes, sizeof bytes);
    } else {
        typedef uint16_t pairs __attribute__((vector_size(GROUP)));
        typedef uint8_t half __attribute__((vector_size(GROUP / 2)));
        pairs two = (pairs)bytes;
        half packed = __builtin_convertvector(two | (two >> 4), half);
        memcpy(target, &packed, sizeof packed);
    }
}

INLINE Words load_fields(const uint8_t *source, int width) {
    if (width == 7) {
        u8v bytes;
        memcpy(&bytes, source, sizeof bytes);
        return from_bytes(bytes);
    }
    typedef uint16_t pairs __attribute__((vector_size(GROUP)));
    typedef uint8_t half __attribute__((vector_size(GROUP / 2)));
    half packed;
    memcpy(&packed, source, sizeof packed);
    pairs two = __builtin_convertvector(packed, pairs);
    two = (two | (two << 4)) & 0x0f0f;
    return from_bytes((u8v)two);
}

/* BAND rows are walked from tile to tile: few enough streams for the prefetcher, enough rows to fill a line of a tile. */
#define BAND 4

INLINE void pack_rows(const void *source, uint8_t *target, int64_t begin, int64_t end, const Tiling *tiling, int narrow,
                      int width, uint32_t pad) {
    const int64_t down = (tiling->rows + tiling->tile_rows - 1) / tiling->tile_rows;
    const int64_t across = (tiling->columns + tiling->tile_columns - 1) / tiling->tile_columns;
    const int64_t faces_across = tiling->tile_columns / GROUP;
    const int64_t face_rows = tiling->face_rows;
    const int64_t field_bytes = width == 7 ? GROUP : GROUP / 2;
    const int64_t band = face_rows < BAND ? face_rows : BAND;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t top = strip % down * tiling->tile_rows;
        const int64_t matrix = strip / down * tiling->rows * tiling->columns;
        uint8_t *tiles = target + strip * across * tiling->tile_bytes;
        for (int64_t at = 0; at < across; at++) memset(tiles + at * tiling->tile_bytes, 0, (size_t)tiling->exponent_bytes);
        for (int64_t row = 0; row < tiling->tile_rows; row += band) {
            const int64_t first = row / face_rows * faces_across * face_rows + row % face_rows;
            for (int64_t face = 0; face < across * faces_across; face++) {
                uint8_t *tile = tiles + face / faces_across * tiling->tile_bytes;
                const int64_t index = first + face % faces_across * face_rows;
                uint8_t *fields = tile + tiling->exponent_bytes + index * field_bytes;
                for (int64_t i = 0; i < band; i++) {
                    const int64_t y = top + row + i, x = face * GROUP;
                    const int64_t left = y < tiling->rows && x < tiling->columns ? tiling->columns - x : 0;
                    const int64_t from = matrix + y * tiling->columns + x;
#ifdef __AVX512BW__
                    if (narrow && i + 1 < band && y + 1 < tiling->rows && left >= GROUP) {
                        const uint16_t *upper = (const uint16_t *)source + from;
                        pack_pair(upper, upper + tiling->columns, fields + i * field_bytes, tile + index + i, width);
                        i++;
                        continue;
                    }
#endif
                    uint32_t shared;
                    const Words packed = encode(load_row(source, from, left, narrow, pad), width, &shared);
                    tile[index + i] = (uint8_t)shared;
                    store_fields(fields + i * field_bytes, packed, width);
                }
            }
        }
    }
}

INLINE void unpack_rows(const uint8_t *source, uint16_t *target, int64_t begin, int64_t end, const Tiling *tiling,
                        int width) {
    const int64_t down = (tiling->rows + tiling->tile_rows - 1) / tiling->tile_rows;
    const int64_t across = (tiling->columns + tiling->tile_columns - 1) / tiling->tile_columns;
    const int64_t faces_across = tiling->tile_columns / GROUP;
    const int64_t face_rows = tiling->face_rows;
    const int64_t field_bytes = width == 7 ? GROUP : GROUP / 2;
    const int64_t band = face_rows < BAND ? face_rows : BAND;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t top = strip % down * tiling->tile_rows;
        const int64_t matrix = strip / down * tiling->rows * tiling->columns;
        const uint8_t *tiles = source + strip * across * tiling->tile_bytes;
        for (int64_t row = 0; row < tiling->tile_rows; row += band) {
            const int64_t first = row / face_rows * faces_across * face_rows + row % face_rows;
            const int64_t height = tiling->rows - top - row < band ? tiling->rows - top - row : band;
            for (int64_t face = 0; face * GROUP < tiling->columns; face++) {
                const uint8_t *tile = tiles + face / faces_across * tiling->tile_bytes;
                const int64_t index = first + face % faces_across * face_rows;
                const uint8_t *fields = tile + tiling->exponent_bytes + index * field_bytes;
                __builtin_prefetch(fields + 8 * tiling->tile_bytes); /* a line of each tile: no stream to foresee */
                for (int64_t i = 0; i < height; i++) {
                    const Words field = load_fields(fields + i * field_bytes, width);
                    u16v lanes = decode(field, tile[index + i], width);
                    const int64_t to = matrix + (top + row + i) * tiling->columns + face * GROUP;
                    store_row(target + to, lanes, tiling->columns - face * GROUP);
                }
            }
        }
    }
}

typedef struct {
    const void *source;
    void *target;
    const Tiling *tiling;
    int narrow, width;
    uint32_t pad;
} Packing;

/* Strips [begin, end): a strip is one row of tiles, counted over all matrices. */
static void pack_strips(const void *data, int64_t begin, int64_t end) {
    const Packing *work = data;
    const Tiling tiling = *work->tiling;
    if (work->narrow && work->width == 7) pack_rows(work->source, work->target, begin, end, &tiling, 1, 7, work->pad);
    else if (work->narrow) pack_rows(work->source, work->target, begin, end, &tiling, 1, 3, work->pad);
    else if (work->width == 7) pack_rows(work->source, work->target, begin, end, &tiling, 0, 7, work->pad);
    else pack_rows(work->source, work->target, begin, end, &tiling, 0, 3, work->pad);
}

static void unpack_strips(const void *data, int64_t begin, int64_t end) {
    const Packing *work = data;
    const Tiling tiling = *work->tiling;
    if (work->width == 7) unpack_rows(work->source, work->target, begin, end, &tiling, 7);
    else unpack_rows(work->source, work->target, begin, end, &tiling, 3);
}

void pack_tiles(const Threads *threads, const void *source, uint8_t *target, int64_t strips, const Tiling *tiling, int narrow,
                int width, uint32_t pad) {
    const Packing work = {source, target, tiling, narrow, width, pad};
    share(threads, strips, pack_strips, &work);
}

void unpack_tiles(const Threads *threads, const uint8_t *source, uint16_t *target, int64_t strips, const Tiling *tiling,
                  int width) {
    const Packing work = {source, target, tiling, 0, width, 0};
    share(threads, strips, unpack_strips, &work);
}

/* Whether what was compiled works: small whole numbers are on every grid, and come back from their tiles. */
int check(void) {
    enum { ROWS = 33, COLUMNS = 50, COUNT = ROWS * COLUMNS };
    const Threads alone = {0, 1, 1};
    const Tiling tiling = {ROWS, COLUMNS, 32, 32, 16, 64, 64 + 1024};
    static float values[COUNT];
    static uint16_t narrow[COUNT], rounded_values[COUNT], back[COUNT];
    static uint8_t tiles[4 * (64 + 1024)];
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;
        values[i] = (float)(i % 13 - 6);
        memcpy(&bits, &values[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    quantise(&alone, values, rounded_values, ROWS, COLUMNS, 0, 7, 0, 0);
    if (memcmp(rounded_values, narrow, sizeof narrow)) return 0;
    quantise(&alone, narrow, rounded_values, ROWS, COLUMNS, 1, 7, 1, 0);
    if (memcmp(rounded_values, narrow, sizeof narrow)) return 0;
    for (int wide = 0; wide < 2; wide++) {
        pack_tiles(&alone, wide ? (const void *)values : narrow, tiles, 2, &tiling, !wide, 7, 0);
        unpack_tiles(&alone, tiles, back, 2, &tiling, 7);
        if (memcmp(back, narrow, sizeof narrow)) return 0;
    }
    return 1;
}
