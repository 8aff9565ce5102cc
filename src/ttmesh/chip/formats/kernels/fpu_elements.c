/* The FPU's addition of elements, bit for bit; chip/numerics/fpu_elementwise.py has the torch version. */
#include "threads.h"
#include "vectors.h"

typedef int32_t s32v __attribute__((vector_size(WIDE * 4)));
typedef uint16_t u16v __attribute__((vector_size(WIDE * 2)));

typedef struct {
    const void *a, *b;
    void *out;
    int64_t count;
    uint32_t flip; /* the sign bit of b inverted: a subtraction */
} Work;

INLINE u32v choose(s32v condition, u32v yes, u32v no) { return ((u32v)condition & yes) | (~(u32v)condition & no); }

/* An operand's 11 bits at the exponent `e`, ties away, with its sign. */
INLINE s32v align(u32v bits, s32v own_e, s32v e) {
    const s32v far = e - own_e, by = (s32v)choose(far > 12, (u32v)(far - far + 12), (u32v)far), sign = (s32v)bits >> 31;
    const s32v there = (s32v)((0x400 | ((bits >> 13) & 0x3ff)) & (u32v)(own_e != 0));
    const s32v term = (there + ((1 << by) >> 1)) >> by;
    return (term ^ sign) - sign;
}

/* The smaller operand is aligned to the larger at 11 bits, ties away; the sum is rounded to 24 bits or 8, ties away. */
INLINE u32v add(u32v a, u32v b, int narrow) {
    const s32v a_e = (s32v)((a >> 23) & 0xff), b_e = (s32v)((b >> 23) & 0xff);
    const s32v e = (s32v)choose(a_e > b_e, (u32v)a_e, (u32v)b_e);
    const s32v total = align(a, a_e, e) + align(b, b_e, e), minus = total >> 31;
    u32v bits = (u32v)__builtin_convertvector((total ^ minus) - minus, f32v);
    if (narrow) bits = (bits + 0x8000) & 0xffff0000u;
    const s32v result_e = (s32v)(bits >> 23) + e - 137;
    const u32v number = bits + ((u32v)(e - 137) << 23);
    const u32v result = choose(result_e > 254, number - number + 0x7f800000u, number) | ((u32v)minus & 0x80000000u);
    return result & (u32v)(total != 0) & (u32v)(result_e > 0);
}

INLINE u32v load(const void *from, int64_t at, size_t length, int half) {
    u32v bits = {0};
    if (half) {
        u16v halves = {0};
        if (length == WIDE) memcpy(&halves, (const uint16_t *)from + at, sizeof halves);
        else memcpy(&halves, (const uint16_t *)from + at, length * 2);
        return __builtin_convertvector(halves, u32v) << 16;
    }
    if (length == WIDE) memcpy(&bits, (const uint32_t *)from + at, sizeof bits);
    else memcpy(&bits, (const uint32_t *)from + at, length * 4);
    return bits;
}

INLINE void store(u32v bits, void *to, int64_t at, size_t length, int half) {
    if (half) {
        const u16v halves = __builtin_convertvector(bits >> 16, u16v);
        if (length == WIDE) memcpy((uint16_t *)to + at, &halves, sizeof halves);
        else memcpy((uint16_t *)to + at, &halves, length * 2);
    } else if (length == WIDE) {
        memcpy((uint32_t *)to + at, &bits, sizeof bits);
    } else {
        memcpy((uint32_t *)to + at, &bits, length * 4);
    }
}

/* Pieces of WIDE elements; the last may be shorter. */
INLINE void add_pieces(const Work *work, int64_t begin, int64_t end, int half, int narrow) {
    for (int64_t at = begin * WIDE; at < end * WIDE; at += WIDE) {
        const int64_t rest = work->count - at;
        const size_t length = rest < WIDE ? (size_t)rest : WIDE;
        const u32v a = load(work->a, at, length, half), b = load(work->b, at, length, half) ^ work->flip;
        store(add(a, b, narrow), work->out, at, length, half);
    }
}

static void add_half(const void *data, int64_t begin, int64_t end) { add_pieces(data, begin, end, 1, 1); }

static void add_narrow(const void *data, int64_t begin, int64_t end) { add_pieces(data, begin, end, 0, 1); }

static void add_wide(const void *data, int64_t begin, int64_t end) { add_pieces(data, begin, end, 0, 0); }

/* `half`: bfloat16 rather than patterns of float32; `narrow`: a 16-bit destination, which bfloat16 always has. */
void add_elements(const Threads *threads, const void *a, const void *b, void *out, int64_t count, int negate, int half,
                  int narrow) {
    const Work work = {a, b, out, count, negate ? 0x80000000u : 0};
    Threads by_pieces = *threads;
    by_pieces.step = (threads->step + WIDE - 1) / WIDE;
    share(&by_pieces, (count + WIDE - 1) / WIDE, half ? add_half : narrow ? add_narrow : add_wide, &work);
}

/* Whether what was compiled works: 1 + 3 * 2^-8 is a tie in 8 bits and goes up. */
int check(void) {
    const Threads alone = {0, 1, 1};
    const uint16_t a[3] = {0x3f80, 0x3f80, 0}, b[3] = {0x3c40, 0x3f80, 0};
    uint16_t sum[3], difference[3];
    add_elements(&alone, a, b, sum, 3, 0, 1, 1);
    add_elements(&alone, a, b, difference, 3, 1, 1, 1);
    return sum[0] == 0x3f82 && sum[1] == 0x4000 && sum[2] == 0 && difference[1] == 0;
}
