/* Vectors of float32 as wide as the machine's, and their fused multiply-add. */
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define WIDE 16
#else
#define WIDE 8
#endif

typedef float f32v __attribute__((vector_size(WIDE * 4)));
typedef uint32_t u32v __attribute__((vector_size(WIDE * 4)));

#if defined(__AVX512F__)
#define HAS_FMA 1
INLINE f32v fused(f32v a, f32v b, f32v c) { return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__FMA__)
#define HAS_FMA 1
INLINE f32v fused(f32v a, f32v b, f32v c) { return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
#define HAS_FMA 1
INLINE f32v fused(f32v a, f32v b, f32v c) {
    float32x4_t x[2], y[2], z[2];
    memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(z, &c, sizeof c);
    for (int i = 0; i < 2; i++) z[i] = vfmaq_f32(z[i], x[i], y[i]);
    memcpy(&c, z, sizeof c);
    return c;
}
#else
#define HAS_FMA 0
INLINE f32v fused(f32v a, f32v b, f32v c) { return a * b + c; } /* rounded twice: not for exact sums */
#endif

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#ifdef __AVX512F__
/* Sixteen rows of sixteen words as columns. */
INLINE void transpose_vectors(__m512 r[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) /* pairs, then fours of rows inside the quarters of a register */
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m512d low = (__m512d)t[i + j], high = (__m512d)t[i + 2 + j];
            r[i + 2 * j] = (__m512)_mm512_unpacklo_pd(low, high), r[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(low, high);
        }
    }
    for (int i = 0; i < 4; i++) { /* then the quarters themselves */
        t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88), t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 8; i++)
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88), r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
}
#endif
