// Functions of numbers, for device.cuh and host.h, which say where they stand. ACCURATE: within a few units in the last
// place of float32; else within 1e-6, which 16 bits do not see.

#if defined(__CUDA_ARCH__) && !ACCURATE
INLINE float exp_f(float x) { return ex2(1.4426950408889634f * x); }
INLINE float sigmoid_f(float x) { return rcp(1.0f + ex2(-1.4426950408889634f * x)); }
INLINE float tanh_f(float x) { return fmaf(-2.0f, rcp(1.0f + ex2(2.8853900817779268f * x)), 1.0f); }
#elif defined(__CUDA_ARCH__)
// 2 ** (x * rate): what rounding of the product has lost is made good, as it counts |x| times as much
INLINE float power_of_two(float x, float rate, float rest) {
    const float near = fminf(fmaxf(x, -100.0f), 100.0f), p = near * rate, lost = fmaf(near, rest, fmaf(near, rate, -p));
    return ex2(x * rate) * fmaf(0.69314718f, lost, 1.0f);
}
INLINE float exp_f(float x) { return expf(x); }
INLINE float sigmoid_f(float x) { return rcp(1.0f + power_of_two(x, -1.44269504f, -1.92596303e-8f)); }
// near zero the series of the function, elsewhere the quotient
INLINE float tanh_f(float x) {
    const float far = fmaf(-2.0f, rcp(1.0f + power_of_two(x, 2.88539008f, 3.85192606e-8f)), 1.0f), y = x * x;
    float s = fmaf(y, -6.2824814e-3f, 2.1077765e-2f);
    s = fmaf(s, y, -5.3853858e-2f);
    s = fmaf(s, y, 1.3332602e-1f);
    s = fmaf(s, y, -3.3333319e-1f);
    return fabsf(x) < 0.55f ? fmaf(s * y, x, x) : far;
}
#else
INLINE float exp_f(float x) { return expf(x); }
INLINE float sigmoid_f(float x) { return 1.0f / (1.0f + expf(-x)); }
INLINE float tanh_f(float x) { return tanhf(x); }
#endif
INLINE float log_f(float x) { return logf(x); }
INLINE float log1p_f(float x) { return log1pf(x); }
INLINE float relu_f(float x) { return x <= 0.0f ? 0.0f : x; }
INLINE float sign_f(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x; }
INLINE float where_f(int64_t chosen, float one, float other) { return chosen ? one : other; }
INLINE bool negative(float x) { return bits_of_float(x) >> 31; }
#define minimum_(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define maximum_(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

// as in Python: the remainder has the sign of the divisor, the quotient is rounded down
INLINE float remainder_f(float a, float b) {
    const float r = fmodf(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
INLINE float floor_divide_f(float a, float b) {
    if (b == 0) return a / b;
    const float r = fmodf(a, b);
    float q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysignf(0.0f, a / b);
    const float whole = floorf(q);
    return q - whole > 0.5f ? whole + 1 : whole;
}

// integers; torch raises for a divisor of zero, here the result is zero
INLINE int64_t quotient_i(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)-(uint64_t)a : a / b; }
INLINE int64_t fmod_i(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t remainder_i(int64_t a, int64_t b) {
    const int64_t r = fmod_i(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
INLINE int64_t floor_divide_i(int64_t a, int64_t b) { return quotient_i(a, b) - (fmod_i(a, b) != 0 && (a < 0) != (b < 0)); }
INLINE int64_t power_i(int64_t base, int64_t exponent) {
    uint64_t found = 1, square = (uint64_t)base;
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    for (; exponent; exponent /= 2, square *= square)
        if (exponent % 2) found *= square;
    return (int64_t)found;
}

// reductions of several numbers: how they begin, and how two are joined
enum { SUM, AMAX, AMIN, PROD, ANY, ALL };
INLINE float joined(int operation, float a, float b) {
    if (operation == SUM) return a + b;
    if (operation == PROD) return a * b;
    if (operation == AMAX) return b > a || b != b ? b : a;
    if (operation == AMIN) return b < a || b != b ? b : a;
    return operation == ANY ? (float)(a != 0 || b != 0) : (float)(a != 0 && b != 0);
}
INLINE float neutral(int operation) {
    return operation == SUM || operation == ANY ? 0.0f : operation == PROD || operation == ALL ? 1.0f : operation == AMAX ? -INFINITE : INFINITE;
}

// scattered sums through L2: the lowest bit of a word is the phase of its step. What else the word holds is rounded to the
// nearest number without this bit, and half way to the one whose last bit is 1: NaN remains NaN, infinity infinity
INLINE u32 with_phase(u32 v, u32 phase) { return (v & ~1u) | (v & 1) << 1 | phase; }
INLINE u32 without_phase(u32 v) { return v & ~1u; }
