/* The FPU's products, bit for bit; chip/numerics/fpu_reference.py has the rules and the torch version.
 *
 * A group of eight products aligned to its largest exponent and rounded, ties away, is eight fused multiply-adds: the
 * accumulator starts at 1.5 * 2^23, where one unit is the last place, so that adding aligns and rounds to nearest, and a
 * factor of 1 + 2^-14 pushes ties away from zero. Products have 12 bits: it is too small to move anything else. */
#include <stdlib.h>

#include "threads.h"
#include "vectors.h"

#define GROUP 8
#define TILE 32
#define CHUNK 256 /* of K: a panel's share stays in the first cache */
#define ROWS 2    /* rows computed together, so that weights are loaded once for both */

#define NOTHING -1000 /* exponent of what is not there */
#define WIDE_SPAN 50  /* exponents within a group further apart are not kept in the scaled floats */
#define LOOSE_SPAN 37 /* the other side's must lie this close for what was not kept to round to zero */
#define MAGIC 0x4B400000 /* 1.5 * 2^23 */

typedef int32_t i32v __attribute__((vector_size(WIDE * 4)));

INLINE i32v all(int32_t value) { return value - (i32v){0}; }
INLINE i32v pick(i32v mask, i32v a, i32v b) { return (mask & a) | (~mask & b); }

/* C has no vectors' maximum, and compilers do not find it in the masks. */
#if defined(__AVX512F__)
INLINE i32v larger(i32v a, i32v b) { return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE i32v smaller(i32v a, i32v b) { return (i32v)_mm512_min_epi32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
INLINE i32v larger(i32v a, i32v b) { return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INLINE i32v smaller(i32v a, i32v b) { return (i32v)_mm256_min_epi32((__m256i)a, (__m256i)b); }
#else
INLINE i32v larger(i32v a, i32v b) { return pick(a > b, a, b); }
INLINE i32v smaller(i32v a, i32v b) { return pick(a < b, a, b); }
#endif

/* Shifts by any amount from 0 on: what is shifted out is gone. */
#if defined(__AVX512F__)
INLINE i32v shift_right(i32v a, i32v by) { return (i32v)_mm512_srav_epi32((__m512i)a, (__m512i)by); }
INLINE u32v shift_out(u32v a, i32v by) { return (u32v)_mm512_srlv_epi32((__m512i)a, (__m512i)by); }
INLINE i32v size_of(i32v a) { return (i32v)_mm512_abs_epi32((__m512i)a); }
#elif defined(__AVX2__)
INLINE i32v shift_right(i32v a, i32v by) { return (i32v)_mm256_srav_epi32((__m256i)a, (__m256i)by); }
INLINE u32v shift_out(u32v a, i32v by) { return (u32v)_mm256_srlv_epi32((__m256i)a, (__m256i)by); }
INLINE i32v size_of(i32v a) { return (i32v)_mm256_abs_epi32((__m256i)a); }
#else
INLINE i32v shift_right(i32v a, i32v by) { return a >> smaller(by, all(31)); }
INLINE u32v shift_out(u32v a, i32v by) { return a >> (u32v)smaller(by, all(31)); }
INLINE i32v size_of(i32v a) { return larger(a, -a); }
#endif

typedef struct {
    int64_t batches, rows, depth, columns;
    int64_t x_batch, x_row;         /* strides of the activations, in elements */
    int64_t w_batch, w_row;         /* of the weights; columns are neighbours */
    int64_t phases, wide_dest;      /* 1 to 4; destination of 32 bits rather than 16 */
    int64_t minus_one_fault, keep;  /* Wormhole's renormalisation of -1; start from what `out` holds */
} Shape;

/* One operand: [batches, rows or columns, depth] by strides, and the bits of its upper part and of both. The vectors go over
 * the columns of the weights; where there is one only, as in sums of rows, they go over the rows of the activations. */
typedef struct {
    const uint32_t *data;
    int64_t batch, line, k, lines;
    uint32_t upper, whole;
    int lift;
} Operand;

/* One group of eight of one row or of one column, scaled to its largest exponent. */
enum { IS_WIDE = 1, IS_LOOSE = 2 };

typedef struct {
    float *high, *low;       /* [rows, depth]: the two parts of the mantissa, scaled */
    int32_t *exponent;       /* [rows, depth], relative to the base */
    int32_t *base, *flags;   /* [rows, depth / GROUP] */
    int64_t depth;           /* padded to whole tiles */
} Activations;

typedef struct {
    f32v high[CHUNK], low[CHUNK];
    i32v exponent[CHUNK];
    i32v base[CHUNK / GROUP];
    int32_t flags[CHUNK / GROUP];
} Panel;

INLINE int exponent_of(uint32_t bits) { return (int)((bits >> 23) & 0xff); }

/* Flags of eight exponents (0: zero operand), their largest in *base. */
INLINE int classify(const int *exponents, int *base) {
    int most = 0, least = 256, zeros = 0;
    for (int i = 0; i < GROUP; i++) {
        if (!exponents[i]) { zeros = 1; continue; }
        if (exponents[i] > most) most = exponents[i];
        if (exponents[i] < least) least = exponents[i];
    }
    *base = most;
    if (!most) return 0; /* all zero: nothing to scale, nothing to lose */
    return (most - least > WIDE_SPAN ? IS_WIDE : 0) | (zeros || most - least > LOOSE_SPAN ? IS_LOOSE : 0);
}

/* An operand's two parts as floats relative to 2^base: the upper bits by `mask`, the lower ones up to `last`, times 2^lift. */
INLINE void scale(uint32_t bits, int base, uint32_t mask, uint32_t last, int lift, float *high, float *low, int32_t *e) {
    const int own = exponent_of(bits);
    if (!own || own < base - WIDE_SPAN) {
        *high = *low = 0;
        *e = NOTHING;
        return;
    }
    const uint32_t place = (bits & 0x80000000u) | (uint32_t)(own - base + 127) << 23;
    const uint32_t whole = place | (bits & last), upper = place | (bits & mask);
    *high = as_float(upper);
    *low = (as_float(whole) - as_float(upper)) * (float)(1 << lift);
    *e = own - base;
}

typedef struct {
    const Shape *shape;
    Operand single, wide; /* taken line by line, and as vectors of lines */
    uint32_t *out;
    Activations packed;
    int64_t panels, padded_rows;
    int turned; /* the vectors are of activations */
} Work;

static void pack_rows(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const Shape *shape = work->shape;
    const Operand *single = &work->single;
    const Activations *to = &work->packed;
    for (int64_t row = begin; row < end; row++) {
        const int64_t batch = row / work->padded_rows, inside = row % work->padded_rows;
        const uint32_t *from = single->data + batch * single->batch + inside * single->line;
        for (int64_t group = 0; group < to->depth / GROUP; group++) {
            uint32_t bits[GROUP];
            int exponents[GROUP], base;
            for (int i = 0; i < GROUP; i++) {
                const int64_t k = group * GROUP + i;
                bits[i] = inside < single->lines && k < shape->depth ? from[k * single->k] : 0;
                exponents[i] = exponent_of(bits[i]);
            }
            const int64_t at = row * (to->depth / GROUP) + group;
            to->flags[at] = classify(exponents, &base);
            to->base[at] = base;
            for (int i = 0; i < GROUP; i++) {
                const int64_t k = row * to->depth + group * GROUP + i;
                scale(bits[i], base, single->upper, single->whole, single->lift, to->high + k, to->low + k, to->exponent + k);
            }
        }
    }
}

static void pack_panel(const Work *work, const uint32_t *from, int64_t first_k, int64_t depth, int64_t lines, Panel *to) {
    const Operand *wide = &work->wide;
    for (int64_t group = 0; group < depth / GROUP; group++) {
        to->flags[group] = 0;
        to->base[group] = all(0);
        for (int i = 0; i < GROUP; i++) { /* where there is no line */
            to->high[group * GROUP + i] = to->low[group * GROUP + i] = (f32v)all(0);
            to->exponent[group * GROUP + i] = all(NOTHING);
        }
        for (int lane = 0; lane < lines; lane++) {
            uint32_t bits[GROUP];
            int exponents[GROUP], base;
            for (int i = 0; i < GROUP; i++) {
                const int64_t k = first_k + group * GROUP + i;
                bits[i] = k < work->shape->depth ? from[k * wide->k + lane * wide->line] : 0;
                exponents[i] = exponent_of(bits[i]);
            }
            to->flags[group] |= classify(exponents, &base);
            to->base[group][lane] = base;
            for (int i = 0; i < GROUP; i++) {
                float high, low;
                int32_t exponent;
                scale(bits[i], base, wide->upper, wide->whole, wide->lift, &high, &low, &exponent);
                to->high[group * GROUP + i][lane] = high;
                to->low[group * GROUP + i][lane] = low;
                to->exponent[group * GROUP + i][lane] = exponent;
            }
        }
    }
}


/* A group's sums in every phase and its exponent, by fused multiply-adds. */
INLINE void sum_group(const Panel *panel, int64_t at, const float *high, const float *low, const int32_t *exponent,
                      int32_t base, int phases, int turned, i32v *sums, i32v *exponents) {
    const int w_low = turned ? 2 : 1, x_low = turned ? 1 : 2; /* phases: the panel's lower bits, the other side's */
    i32v most = panel->exponent[at] + exponent[0];
    for (int i = 1; i < GROUP; i++) most = larger(most, panel->exponent[at + i] + exponent[i]);
    *exponents = most + panel->base[at / GROUP] + (base - 127);
    const f32v unit = (f32v)(((137 - larger(most, all(-110))) << 23) | 0x200);
    f32v total[4];
    for (int phase = 0; phase < phases; phase++) total[phase] = (f32v)all(MAGIC);
    for (int i = 0; i < GROUP; i++) {
        const f32v w = panel->high[at + i];
        total[0] = fused(w * high[i], unit, total[0]);
        if (phases > w_low) total[w_low] = fused(panel->low[at + i] * high[i], unit, total[w_low]);
        if (phases > x_low) total[x_low] = fused(w * low[i], unit, total[x_low]);
        if (phases > 3) total[3] = fused(panel->low[at + i] * low[i], unit, total[3]);
    }
    for (int phase = 0; phase < phases; phase++) sums[phase] = (i32v)total[phase] - MAGIC;
}

/* The same by integers, for any exponents. */
static void sum_group_exactly(const Work *work, const uint32_t *single, const uint32_t *lines, int64_t depth, int64_t count,
                              int phases, i32v *sums, i32v *exponents) {
    const Operand *wide = &work->wide;
    for (int phase = 0; phase < phases; phase++) sums[phase] = all(0);
    *exponents = all(NOTHING);
    for (int lane = 0; lane < count; lane++, lines += wide->line) {
        int most = NOTHING;
        for (int64_t k = 0; k < depth; k++) {
            const int a = exponent_of(lines[k * wide->k]), b = exponent_of(single[k * work->single.k]);
            if (a && b && a + b - 127 > most) most = a + b - 127;
        }
        (*exponents)[lane] = most;
        for (int64_t k = 0; k < depth; k++) {
            const uint32_t first = lines[k * wide->k], second = single[k * work->single.k];
            const uint32_t a = work->turned ? second : first, b = work->turned ? first : second; /* weight, activation */
            if (!exponent_of(a) || !exponent_of(b)) continue;
            const int shift = most - (exponent_of(a) + exponent_of(b) - 127);
            if (shift > 13) continue;
            const int32_t a_parts[2] = {16 | ((a >> 19) & 15), (a >> 14) & 31};
            const int32_t b_parts[2] = {64 | ((b >> 17) & 63), ((b >> 13) & 15) << 3};
            for (int phase = 0; phase < phases; phase++) {
                const int32_t product = a_parts[phase & 1] * b_parts[phase >> 1];
                const int32_t rounded = (product + ((1 << shift) >> 1)) >> shift;
                sums[phase][lane] += (a ^ b) >> 31 ? -rounded : rounded;
            }
        }
    }
}

/* Two groups' exponents: the larger one and how far each lies below it. */
typedef struct {
    i32v most, first, second;
} Pair;

INLINE Pair pair_of(i32v first, i32v second) {
    const i32v most = larger(first, second);
    return (Pair){most, most - first, most - second};
}

/* Two sums and the destination at their largest exponent, added and rounded: the new destination. A shift that rounds to
 * nearest is one that keeps a bit more, plus one, shifted once more. `calm`: no exponent can leave the normal range. */
INLINE u32v write_dest(i32v first, i32v second, Pair pair, int lower, u32v dest, int fp32_dest, int fault, int calm) {
    const i32v held = (i32v)((dest >> 23) & 0xff);
    i32v most = pair.most - lower;
    if (!calm) { /* of a group whose exponent is 0 or less nothing arrives, however large its sum */
        first &= most > pair.first;
        second &= most > pair.second;
        most = pick(most > 0, most, all(NOTHING));
    }
    const i32v dest_e = calm ? held : held + ((held == 0) & NOTHING);
    const i32v e = larger(most, dest_e), gap = e - most;
    i32v a = (shift_right(first << 14, gap + pair.first) + 1) >> 1;
    i32v b = (shift_right(second << 14, gap + pair.second) + 1) >> 1;
    u32v d = (shift_out(((dest & 0x7fffff) | 0x800000) << 1, e - dest_e) + 1) >> 1;
    const i32v sign = (i32v)dest >> 31;
    i32v total;
    u32v bits;
    i32v shift; /* of the exponent, from the integer's to the result's */
    if (fp32_dest) {
        total = a + b + (((i32v)d ^ sign) - sign);
        if (fault) total = pick(total == -1, all(-(1 << 27)), total);
        const i32v magnitude = size_of(total);
        /* Above 24 bits the conversion rounds to even: one bit more below makes ties go away. */
        const i32v doubled = magnitude + magnitude - (magnitude > 0xffffff);
        bits = (u32v)__builtin_convertvector(doubled, f32v);
        shift = e - 151;
    } else {
        a = (a + 4096) >> 13;
        b = (b + 4096) >> 13;
        d = (d + 4096) >> 13;
        total = a + b + (((i32v)d ^ sign) - sign);
        bits = ((u32v)__builtin_convertvector(size_of(total), f32v) + 0x8000) & 0xffff0000;
        shift = e - 137;
    }
    const u32v minus = (u32v)total & 0x80000000;
    const u32v number = (bits + (u32v)(shift << 23)) | minus;
    if (calm) return number & ~(u32v)(total == 0);
    const i32v result_e = (i32v)(bits >> 23) + shift;
    const u32v infinite = 0x7f800000 | minus;
    const i32v result = pick(result_e > 254, (i32v)infinite, (i32v)number);
    return (u32v)(result & (result_e > 0) & (total != 0));
}

/* Whether a tile's eight writes at most stay among the normal numbers, whatever cancels: a write adds two bits at most. */
INLINE int is_calm(Pair first, Pair second, u32v dest, int phases) {
    const i32v held = (i32v)((dest >> 23) & 0xff), least = smaller(first.most, second.most);
    const i32v most = larger(larger(first.most, second.most), held);
    const i32v beyond = (least < (phases > 2 ? 50 : 43)) | (most > 220);
    int32_t any = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    any = _mm256_movemask_epi8((__m256i)beyond);
#else
    for (int i = 0; i < WIDE; i++) any |= beyond[i];
#endif
    return !any;
}

/* The writes of a tile of K: every phase, per phase two steps. */
INLINE u32v write_tile(i32v sums[TILE / GROUP][4], Pair left, Pair right, u32v dest, int phases, int fp32_dest, int fault,
                       int calm) {
    for (int phase = 0; phase < phases; phase++) {
        const int lower = (phase & 1 ? 5 : 0) + (phase & 2 ? 7 : 0);
        dest = write_dest(sums[0][phase], sums[1][phase], left, lower, dest, fp32_dest, fault, calm);
        dest = write_dest(sums[2][phase], sums[3][phase], right, lower, dest, fp32_dest, fault, calm);
    }
    return dest;
}

/* All of one chunk of K for ROWS rows and a panel. */
INLINE void multiply_rows(const Work *work, const Panel *panel, int64_t row, const uint32_t *const *x, const uint32_t *w,
                          int64_t first_k, int64_t depth, int64_t columns, int phases, int fp32_dest, int fault, int turned,
                          u32v *dest) {
    const Activations *from = &work->packed;
    for (int64_t k = 0; k < depth; k += TILE) {
        for (int r = 0; r < (turned ? 1 : ROWS); r++) {
            i32v sums[TILE / GROUP][4], exponents[TILE / GROUP];
            for (int g = 0; g < TILE / GROUP; g++) {
                const int64_t at = k + g * GROUP, whole = (row + r) * from->depth + first_k + at;
                const int64_t group = whole / GROUP;
                const int x_flags = from->flags[group], w_flags = panel->flags[at / GROUP];
                if (!HAS_FMA || (x_flags & IS_WIDE && w_flags & IS_LOOSE) || (w_flags & IS_WIDE && x_flags & IS_LOOSE)) {
                    const int64_t rest = work->shape->depth - first_k - at, count = rest < GROUP ? rest : GROUP;
                    sum_group_exactly(work, x[r] + (first_k + at) * work->single.k, w + (first_k + at) * work->wide.k,
                                      x[r] ? count : 0, columns, phases, sums[g], &exponents[g]);
                } else {
                    sum_group(panel, at, from->high + whole, from->low + whole, from->exponent + whole,
                              from->base[group], phases, turned, sums[g], &exponents[g]);
                }
            }
            const Pair left = pair_of(exponents[0], exponents[1]), right = pair_of(exponents[2], exponents[3]);
            if (is_calm(left, right, dest[r], phases)) dest[r] = write_tile(sums, left, right, dest[r], phases, fp32_dest, fault, 1);
            else dest[r] = write_tile(sums, left, right, dest[r], phases, fp32_dest, fault, 0);
        }
    }
}

/* One panel of one batch: every line of the other side, chunk by chunk of K. `turned`: that is the one column. */
INLINE void multiply_panel(const Work *work, int64_t item, Panel *panel, int phases, int fp32_dest, int fault, int turned) {
    const Shape *shape = work->shape;
    const Operand *single = &work->single, *wide = &work->wide;
    const int64_t batch = item / work->panels, first = item % work->panels * WIDE;
    const int64_t rest = wide->lines - first, count = rest < WIDE ? rest : WIDE;
    const uint32_t *lines = wide->data + batch * wide->batch + first * wide->line;
    const uint32_t *from = single->data + batch * single->batch;
    uint32_t *out = work->out + batch * shape->rows * shape->columns + first;
    for (int64_t k = 0; k < work->packed.depth; k += CHUNK) {
        const int64_t left = work->packed.depth - k, depth = left < CHUNK ? left : CHUNK;
        pack_panel(work, lines, k, depth, count, panel);
        for (int64_t row = 0; row < single->lines; row += ROWS) {
            u32v dest[ROWS];
            const uint32_t *rows[ROWS];
            for (int r = 0; r < ROWS; r++) {
                const int there = row + r < single->lines;
                rows[r] = there ? from + (row + r) * single->line : 0;
                dest[r] = (u32v)all(0);
                if (there && (k || shape->keep)) memcpy(&dest[r], out + (row + r) * wide->lines, (size_t)count * 4);
            }
            multiply_rows(work, panel, batch * work->padded_rows + row, rows, lines, k, depth, count, phases, fp32_dest, fault,
                          turned, dest);
            for (int r = 0; r < ROWS && row + r < single->lines; r++)
                memcpy(out + (row + r) * wide->lines, &dest[r], (size_t)count * 4);
        }
    }
}

INLINE void multiply_item(const Work *work, int64_t item, Panel *panel, int phases, int turned) {
    if (!work->shape->wide_dest) multiply_panel(work, item, panel, phases, 0, 0, turned);
    else if (work->shape->minus_one_fault) multiply_panel(work, item, panel, phases, 1, 1, turned);
    else multiply_panel(work, item, panel, phases, 1, 0, turned);
}

static void multiply_panels(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    Panel panel;
    for (int64_t item = begin; item < end; item++) {
#define CASE(p)                                                          \
    if (work->shape->phases == p) {                                      \
        if (work->turned) multiply_item(work, item, &panel, p, 1);       \
        else multiply_item(work, item, &panel, p, 0);                    \
    }
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
#undef CASE
    }
}

/* Float32 patterns x [batches, rows, depth] times w [batches, depth, columns]; out is contiguous. 0 without memory. */
int fpu_matmul(const Threads *threads, const uint32_t *x, const uint32_t *w, uint32_t *out, const Shape *shape) {
    const int64_t depth = (shape->depth + TILE - 1) / TILE * TILE;
    const Operand left = {x, shape->x_batch, shape->x_row, 1, shape->rows, 0x007E0000u, 0x007FE000u, 7};
    const Operand right = {w, shape->w_batch, 1, shape->w_row, shape->columns, 0x00780000u, 0x007FC000u, 5};
    const int turned = shape->columns == 1 && shape->rows > 1;
    const Operand single = turned ? right : left, wide = turned ? left : right;
    const int64_t padded_rows = (single.lines + ROWS - 1) / ROWS * ROWS, rows = shape->batches * padded_rows;
    const int64_t elements = rows * depth, groups = elements / GROUP;
    char *memory = malloc((size_t)(elements * 12 + groups * 8));
    if (!memory) return 0;
    Work work = {shape, single, wide, out, {0}, (wide.lines + WIDE - 1) / WIDE, padded_rows, turned};
    work.packed.high = (float *)memory;
    work.packed.low = work.packed.high + elements;
    work.packed.exponent = (int32_t *)(work.packed.low + elements);
    work.packed.base = work.packed.exponent + elements;
    work.packed.flags = work.packed.base + groups;
    work.packed.depth = depth;
    Threads by_rows = *threads;
    by_rows.step = rows / (threads->count * 4) + 1;
    share(&by_rows, rows, pack_rows, &work);
    share(threads, shape->batches * work.panels, multiply_panels, &work);
    free(memory);
    return 1;
}

/* A block's sums packed to bfloat16 (ties away) and added, to nearest even, to what L1 holds: the packer's accumulation. */
typedef struct {
    float *held;
    const float *block;
    int first;
} Sums;

static void add_elements(const void *data, int64_t begin, int64_t end) {
    const Sums *sums = data;
    for (int64_t i = begin; i < end; i++) {
        uint32_t bits, total, before;
        memcpy(&bits, sums->block + i, 4);
        uint32_t magnitude = bits & 0x7fffffff;
        uint32_t packed = magnitude + 0x8000;
        packed = (magnitude > 0x7f7f7fff ? 0x7f800000 : packed & 0x7fff0000) | (bits & 0x80000000);
        packed = magnitude < 0x800000 ? 0 : packed;
        float term = as_float(packed);
        if (!sums->first) {
            memcpy(&before, sums->held + i, 4);
            term += sums->held[i];
            memcpy(&total, &term, 4);
            magnitude = total & 0x7fffffff;
            uint32_t even = (total + 0x7fff + ((total >> 16) & 1)) & 0xffff0000;
            even = magnitude > 0x7f800000 ? 0x7fc00000 : even;
            even = magnitude < 0x800000 ? total & 0x80000000 : even;
            /* What L1 holds of a NaN counts as a huge number. */
            const uint32_t huge = (packed & 0x7fffffff) == 0x7f800000 ? packed : (before & 0x80000000) | 0x7f800000;
            even = (before & 0x7fffffff) > 0x7f800000 ? huge : even;
            term = as_float(even);
        }
        sums->held[i] = term;
    }
}

int accumulate_block(const Threads *threads, float *held, const float *block, int64_t count, int first) {
    const Sums sums = {held, block, first};
    share(threads, count, add_elements, &sums);
    return 1;
}

/* Whether what was compiled works: 1.5 * 3 over all of K, with a row and columns that do not fill a vector. */
int check(void) {
    const Threads alone = {0, 1, 1};
    static uint32_t x[40], w[40 * 3], out[3];
    const Shape shape = {1, 1, 40, 3, 0, 40, 0, 3, 2, 1, 0, 0};
    for (int i = 0; i < 40; i++) x[i] = 0x3fc00000;
    for (int i = 0; i < 120; i++) w[i] = 0x40400000;
    return fpu_matmul(&alone, x, w, out, &shape) && out[0] == 0x43340000 && out[2] == out[0];
}
