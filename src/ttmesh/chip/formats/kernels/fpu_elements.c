/* The FPU's addition of elements, bit for bit; chip/numerics/fpu_elementwise.py has the torch version. */
#include <stdint.h>
#include <string.h>

#include "threads.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const void *a, *b;
    void *out;
    uint32_t flip; /* the sign bit of b inverted: a subtraction */
} Work;

/* The smaller operand is aligned to the larger at 11 bits, ties away; the sum is rounded to 24 bits or 8, ties away. */
INLINE uint32_t add(uint32_t a, uint32_t b, int narrow) {
    const int32_t a_e = (a >> 23) & 0xff, b_e = (b >> 23) & 0xff, e = a_e > b_e ? a_e : b_e;
    const int32_t a_far = e - a_e, b_far = e - b_e, a_by = a_far > 12 ? 12 : a_far, b_by = b_far > 12 ? 12 : b_far;
    const int32_t a_bits = a_e ? (int32_t)(0x400 | ((a >> 13) & 0x3ff)) : 0;
    const int32_t b_bits = b_e ? (int32_t)(0x400 | ((b >> 13) & 0x3ff)) : 0;
    const int32_t a_term = (a_bits + ((1 << a_by) >> 1)) >> a_by, b_term = (b_bits + ((1 << b_by) >> 1)) >> b_by;
    const int32_t a_sign = (int32_t)a >> 31, b_sign = (int32_t)b >> 31;
    const int32_t total = ((a_term ^ a_sign) - a_sign) + ((b_term ^ b_sign) - b_sign);
    const uint32_t minus = (uint32_t)total & 0x80000000u;
    const float magnitude = (float)(total < 0 ? -total : total);
    uint32_t bits;
    memcpy(&bits, &magnitude, 4);
    if (narrow) bits = (bits + 0x8000) & 0xffff0000u;
    const int32_t result_e = (int32_t)(bits >> 23) + e - 137;
    const uint32_t number = bits + ((uint32_t)(e - 137) << 23);
    const uint32_t result = (result_e > 254 ? 0x7f800000u : number) | minus;
    return total != 0 && result_e > 0 ? result : 0;
}

static void add_half(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const uint16_t *a = work->a, *b = work->b;
    uint16_t *out = work->out;
    const uint32_t flip = work->flip;
    for (int64_t i = begin; i < end; i++)
        out[i] = (uint16_t)(add((uint32_t)a[i] << 16, ((uint32_t)b[i] << 16) ^ flip, 1) >> 16);
}

static void add_whole(const void *data, int64_t begin, int64_t end) {
    const Work *work = data;
    const uint32_t *a = work->a, *b = work->b;
    uint32_t *out = work->out;
    const uint32_t flip = work->flip;
    for (int64_t i = begin; i < end; i++) out[i] = add(a[i], b[i] ^ flip, 0);
}

/* `half`: bfloat16 with a 16-bit destination; else float32 patterns with a 32-bit one. */
void add_elements(const Threads *threads, const void *a, const void *b, void *out, int64_t count, int negate, int half) {
    const Work work = {a, b, out, negate ? 0x80000000u : 0};
    share(threads, count, half ? add_half : add_whole, &work);
}

/* Whether what was compiled works: 1 + 3 * 2^-8 is a tie in 8 bits and goes up. */
int check(void) {
    const Threads alone = {0, 1, 1};
    const uint16_t a[3] = {0x3f80, 0x3f80, 0}, b[3] = {0x3c40, 0x3f80, 0};
    uint16_t sum[3], difference[3];
    add_elements(&alone, a, b, sum, 3, 0, 1);
    add_elements(&alone, a, b, difference, 3, 1, 1);
    return sum[0] == 0x3f82 && sum[1] == 0x4000 && sum[2] == 0 && difference[1] == 0;
}
