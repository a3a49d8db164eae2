/* The beginning of every kernel: functions that the compiler can vectorise. REAL is defined before this text. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
typedef void (*products)(const void *, long, long, long, long, const REAL *, long, REAL *, long);

/* Accurate within 4 units in the last place; infinities and NaN are preserved. */

INLINE float power_of_two_f(int32_t n) { /* 2^n for -126 <= n <= 127 */
    int32_t bits = (int32_t)((uint32_t)(n + 127) << 23);
    float found;
    memcpy(&found, &bits, 4);
    return found;
}
INLINE double power_of_two_d(int64_t n) {
    int64_t bits = (int64_t)((uint64_t)(n + 1023) << 52);
    double found;
    memcpy(&found, &bits, 8);
    return found;
}

INLINE float series_f(float r) { /* exp(r) - 1 for |r| <= log(2) / 2: the minimax polynomial of its degree */
    float s = 0.001394647357f;
    s = s * r + 0.008366598032f;
    s = s * r + 0.04166628184f;
    s = s * r + 0.1666654292f;
    s = s * r + 0.5000000062f;
    return s * (r * r) + r;
}
INLINE double series_d(double r) {
    double s = 1.0 / 6227020800.0;
    s = s * r + 1.0 / 479001600.0;
    s = s * r + 1.0 / 39916800.0;
    s = s * r + 1.0 / 3628800.0;
    s = s * r + 1.0 / 362880.0;
    s = s * r + 1.0 / 40320.0;
    s = s * r + 1.0 / 5040.0;
    s = s * r + 1.0 / 720.0;
    s = s * r + 1.0 / 120.0;
    s = s * r + 1.0 / 24.0;
    s = s * r + 1.0 / 6.0;
    s = s * r + 0.5;
    return s * r * r + r;
}

/* Range reduction for exp: n = x / log(2) rounded to an integer, and rest = x - n log(2). Adding a number so large that
   its last bit counts ones does the rounding and leaves n in the low bits. Returns n; NaN gives a rest of NaN. */
#define ONES_F 0x4b400000 /* bits of 1.5 * 2^23 */
#define ONES_D 0x4338000000000000LL
INLINE int32_t halvings_f(float x, float *rest) {
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    int32_t bits;
    *rest = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    memcpy(&bits, &shifted, 4);
    return (int32_t)((uint32_t)bits - ONES_F);
}
INLINE int64_t halvings_d(double x, double *rest) {
    double shifted = x * 1.4426950408889634 + 6755399441055744.0, n = shifted - 6755399441055744.0;
    int64_t bits;
    *rest = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    memcpy(&bits, &shifted, 8);
    return (int64_t)((uint64_t)bits - ONES_D);
}

INLINE float exp_f(float x) {
    float y = 89.0f < x ? 89.0f : x, r;
    y = -104.5f > y ? -104.5f : y;
    int32_t whole = halvings_f(y, &r), half = whole >> 1;
    return (series_f(r) + 1.0f) * power_of_two_f(half) * power_of_two_f(whole - half);
}
INLINE double exp_d(double x) {
    double y = 710.0 < x ? 710.0 : x, r;
    y = -746.0 > y ? -746.0 : y;
    int64_t whole = halvings_d(y, &r), half = whole >> 1;
    return (series_d(r) + 1.0) * power_of_two_d(half) * power_of_two_d(whole - half);
}

INLINE float expm1_f(float x) { /* for 0 <= x <= 44 */
    float r, scale = power_of_two_f(halvings_f(x, &r));
    return series_f(r) * scale + (scale - 1.0f);
}
INLINE double expm1_d(double x) {
    double r, scale = power_of_two_d(halvings_d(x, &r));
    return series_d(r) * scale + (scale - 1.0);
}

INLINE float tanh_f(float x) {
    float size = __builtin_fabsf(x), e = expm1_f(2.0f * (10.0f < size ? 10.0f : size));
    return __builtin_copysignf(e / (e + 2.0f), x);
}
INLINE double tanh_d(double x) {
    double size = __builtin_fabs(x), e = expm1_d(2.0 * (20.0 < size ? 20.0 : size));
    return __builtin_copysign(e / (e + 2.0), x);
}

/* by z = exp(-|x|), scaled by a power of two so that it is never subnormal */
INLINE float sigmoid_f(float x) {
    float y = -__builtin_fabsf(x), r;
    float scale = power_of_two_f(halvings_f(-104.5f > y ? -104.5f : y, &r) + 64);
    float z = series_f(r) * scale + scale, s = 1.0f / (z * 0x1p-64f + 1.0f);
    return x >= 0.0f ? s : z * s * 0x1p-64f;
}
INLINE double sigmoid_d(double x) {
    double y = -__builtin_fabs(x), r;
    double scale = power_of_two_d(halvings_d(-746.0 > y ? -746.0 : y, &r) + 512);
    double z = series_d(r) * scale + scale, s = 1.0 / (z * 0x1p-512 + 1.0);
    return x >= 0.0 ? s : z * s * 0x1p-512;
}

/* a select without a branch, so that compilers can vectorise it */
INLINE float where_f(int32_t chosen, float one, float other) {
    int32_t a, b, mask = -(int32_t)(chosen != 0);
    memcpy(&a, &one, 4);
    memcpy(&b, &other, 4);
    a = (a & mask) | (b & ~mask);
    memcpy(&one, &a, 4);
    return one;
}
INLINE double where_d(int64_t chosen, double one, double other) {
    int64_t a, b, mask = -(int64_t)(chosen != 0);
    memcpy(&a, &one, 8);
    memcpy(&b, &other, 8);
    a = (a & mask) | (b & ~mask);
    memcpy(&one, &a, 8);
    return one;
}

INLINE double log_d(double x) {
    const int64_t small = x < 2.2250738585072014e-308;
    double y = where_d(small, x * 18014398509481984.0, x);
    int64_t bits;
    memcpy(&bits, &y, 8);
    int64_t whole = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
    bits -= (int64_t)((uint64_t)whole << 52);
    double m;
    memcpy(&m, &bits, 8);
    double f = m - 1.0, s = f / (2.0 + f), z = s * s;
    double r = z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01 + z * (2.857142874366239149e-01 +
               z * (2.222219843214978396e-01 + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01 +
               z * 1.479819860511658591e-01))))));
    double n = (double)(whole - 54 * small), h = 0.5 * f * f;
    double found = n * 6.93147180369123816490e-01 - ((h - (s * (h + r) + n * 1.90821492927058770002e-10)) - f);
    found = where_d(x == 0.0, -__builtin_inf(), where_d(x < 0.0, __builtin_nan(""), found));
    return where_d(x < __builtin_inf(), found, x);
}
INLINE float log_f(float x) {
    const int32_t small = x < 1.17549435e-38f;
    float y = where_f(small, x * 33554432.0f, x);
    int32_t bits;
    memcpy(&bits, &y, 4);
    int32_t whole = (bits - 0x3f3504f3) >> 23;
    bits -= (int32_t)((uint32_t)whole << 23);
    float m;
    memcpy(&m, &bits, 4);
    float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
    float r = z * (0.66666662693f + z * (0.40000972152f + z * (0.28498786688f + z * 0.24279078841f)));
    float n = (float)(whole - 25 * small), h = 0.5f * f * f;
    float found = n * 6.9313812256e-01f - ((h - (s * (h + r) + n * 9.0580006145e-06f)) - f);
    found = where_f(x == 0.0f, -__builtin_inff(), where_f(x < 0.0f, __builtin_nanf(""), found));
    return where_f(x < __builtin_inff(), found, x);
}

INLINE float log1p_f(float x) {
    float u = 1.0f + x, lost = x - (u - 1.0f);
    float whole = log_f(u), found = where_f(__builtin_fabsf(x) < 1e-7f, x, whole + lost / u);
    return where_f((u > 0.0f) & (u < __builtin_inff()), found, whole);
}
INLINE double log1p_d(double x) {
    double u = 1.0 + x, lost = x - (u - 1.0);
    double whole = log_d(u), found = where_d(__builtin_fabs(x) < 1e-16, x, whole + lost / u);
    return where_d((u > 0.0) & (u < __builtin_inf()), found, whole);
}

#define BOTH(name, f, d)                     \
    INLINE float name##_f(float x) { f }     \
    INLINE double name##_d(double x) { d }
BOTH(relu, return x <= 0 ? 0 : x;, return x <= 0 ? 0 : x;)
BOTH(sign, return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;, return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;)
#define minimum_(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define maximum_(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* as in Python: the remainder has the sign of the divisor, the quotient is rounded down */
#define DIVISIONS(real, s, m)                                                                   \
    INLINE real remainder_##s(real a, real b) {                                                 \
        real r = fmod##m(a, b);                                                                 \
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                        \
    }                                                                                           \
    INLINE real floor_divide_##s(real a, real b) {                                              \
        if (b == 0) return a / b;                                                               \
        real r = fmod##m(a, b), q = (a - r) / b;                                                \
        if (r != 0 && (r < 0) != (b < 0)) q -= 1;                                               \
        if (q == 0) return __builtin_copysign##m(0, a / b);                                     \
        real whole = __builtin_floor##m(q);                                                     \
        return q - whole > (real)0.5 ? whole + 1 : whole;                                       \
    }
DIVISIONS(float, f, f)
DIVISIONS(double, d, )

/* integers; torch raises for a divisor of zero, here the result is zero */
INLINE int64_t quotient_i(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)-(uint64_t)a : a / b; }
INLINE int64_t fmod_i(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t remainder_i(int64_t a, int64_t b) {
    int64_t r = fmod_i(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
INLINE int64_t floor_divide_i(int64_t a, int64_t b) {
    return quotient_i(a, b) - (fmod_i(a, b) != 0 && (a < 0) != (b < 0));
}
INLINE int64_t power_i(int64_t base, int64_t exponent) {
    uint64_t found = 1, square = (uint64_t)base;
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    for (; exponent; exponent /= 2, square *= square)
        if (exponent % 2) found *= square;
    return (int64_t)found;
}
