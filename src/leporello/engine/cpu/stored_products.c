/* Products of rows with a matrix that is stored in int8 or bfloat16; included after products.c, for float alone.

   Half or a quarter of the memory is read. A row times int8 is a product of integers where the matrix is contiguous along
   its inner axis: the row is rounded to 16 bits, with its largest number as MOST_ROUNDED, and sums of integers are exact.
   Other numbers become float as they are read. Compilers widen vectors of bytes one number at a time, so that is said
   in the processor's own words. */

#if SINGLE
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
static inline NAME(vec) NAME(read_int8)(const int8_t *at) {
#if defined(__AVX512F__) && WIDE == 16
    return (NAME(vec))_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif defined(__AVX2__) && WIDE == 8
    return (NAME(vec))_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
    NAME(vec) found;
    for (int i = 0; i < WIDE; i++) found[i] = at[i];
    return found;
#endif
}
static inline REAL NAME(one_int8)(const int8_t *at) { return (REAL)*at; }
static inline NAME(vec) NAME(read_bfloat16)(const uint16_t *at) { /* the upper half of a float */
#if defined(__AVX512F__) && WIDE == 16
    return (NAME(vec))_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16);
#elif defined(__AVX2__) && WIDE == 8
    return (NAME(vec))_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16);
#else
    typedef uint32_t bits __attribute__((vector_size(WIDE * sizeof(REAL))));
    bits found;
    for (int i = 0; i < WIDE; i++) found[i] = (uint32_t)at[i] << 16;
    return (NAME(vec))found;
#endif
}
static inline REAL NAME(one_bfloat16)(const uint16_t *at) {
    const uint32_t bits = (uint32_t)*at << 16;
    float value;
    memcpy(&value, &bits, 4);
    return (REAL)value;
}

#undef ROWS_BY_FOUR
#undef STORED
/* M rows times four columns that are contiguous: each number is widened once for all rows. */
#define ROWS_BY_FOUR(KIND, TYPE, M)                                                                                 \
    static void NAME(KIND##_##M)(const REAL *restrict a, long stride, const TYPE *restrict b, long along, long inner, \
                                 REAL *restrict out, long out_stride) {                                             \
        NAME(vec) part[M][4] = {{{0}}};                                                                             \
        long k = 0;                                                                                                 \
        for (; k + WIDE <= inner; k += WIDE) {                                                                      \
            NAME(vec) wide[4];                                                                                      \
            EACH(4) wide[i] = NAME(read_##KIND)(b + i * along + k);                                                 \
            _Pragma("GCC unroll 4") for (int row = 0; row < M; row++) {                                             \
                const NAME(vec) value = *(const NAME(vec) *)(a + row * stride + k);                                 \
                EACH(4) part[row][i] += value * wide[i];                                                            \
            }                                                                                                       \
        }                                                                                                           \
        _Pragma("GCC unroll 4") for (int row = 0; row < M; row++) EACH(4) {                                         \
            REAL sum = NAME(summed)(part[row][i]);                                                                  \
            for (long rest = k; rest < inner; rest++)                                                               \
                sum += a[row * stride + rest] * NAME(one_##KIND)(b + i * along + rest);                             \
            out[row * out_stride + i] = sum;                                                                        \
        }                                                                                                           \
    }
#define STORED(KIND, TYPE)                                                                                          \
    ROWS_BY_FOUR(KIND, TYPE, 1) ROWS_BY_FOUR(KIND, TYPE, 4)                                                         \
    static void NAME(stored_##KIND)(const void *given, long first, long last) {                                     \
        const NAME(job) *job = given;                                                                               \
        const NAME(matrix) *matrix = job->matrix;                                                                   \
        const TYPE *b = (const TYPE *)(const void *)job->b;                                                         \
        const long along_inner = matrix->along_inner, along_outer = matrix->along_outer, inner = job->inner;        \
        const long outer = last * PANEL < job->outer ? last * PANEL : job->outer;                                   \
        long n = first * PANEL;                                                                                     \
        if (along_inner == 1)                                                                                       \
            for (; n + 4 <= outer; n += 4) {                                                                        \
                const TYPE *column = b + n * along_outer;                                                           \
                long row = 0;                                                                                       \
                for (; row + 4 <= job->rows; row += 4)                                                              \
                    NAME(KIND##_4)(job->a + row * job->stride, job->stride, column, along_outer, inner,             \
                                   job->out + row * job->out_stride + n, job->out_stride);                          \
                for (; row < job->rows; row++)                                                                      \
                    NAME(KIND##_1)(job->a + row * job->stride, job->stride, column, along_outer, inner,             \
                                   job->out + row * job->out_stride + n, job->out_stride);                          \
            }                                                                                                       \
        else if (along_outer == 1) /* rows of the matrix are contiguous: a weighted sum of them */                  \
            for (; n + 4 * WIDE <= outer; n += 4 * WIDE)                                                            \
                for (long row = 0; row < job->rows; row++) {                                                        \
                    NAME(vec) sum[4] = {{0}};                                                                       \
                    for (long k = 0; k < inner; k++)                                                                \
                        EACH(4) sum[i] += job->a[row * job->stride + k] *                                           \
                                          NAME(read_##KIND)(b + k * along_inner + n + i * WIDE);                    \
                    EACH(4) *(NAME(vec) *)(job->out + row * job->out_stride + n + i * WIDE) = sum[i];               \
                }                                                                                                   \
        for (; n < outer; n++)                                                                                      \
            for (long row = 0; row < job->rows; row++) {                                                            \
                REAL sum = 0;                                                                                       \
                for (long k = 0; k < inner; k++)                                                                    \
                    sum += job->a[row * job->stride + k] * NAME(one_##KIND)(b + n * along_outer + k * along_inner); \
                job->out[row * job->out_stride + n] = sum;                                                          \
            }                                                                                                       \
    }
STORED(int8, int8_t)
STORED(bfloat16, uint16_t)

/* ---- int8 times rows of 16 bits */

#define MOST_ROUNDED 32767
#define EXACT 512                 /* products of 15 and 7 bits whose sum fits into 32 bits */
#define LEAST_INNER 64            /* shorter rows gain nothing */
#define MOST_INNER (EXACT * WIDE) /* for a vector of sums */
#define ROUNDED_ROOM (1 << 14)    /* numbers of rounded rows on the stack: at least one row of MOST_INNER */
#define MOST_ROUNDED_ROWS 64

/* Round a row to 16 bits. Returns the factor by which its numbers are to be multiplied; NaN where such a row would
   have no meaning: it has numbers that are not finite, or none large enough. */
static REAL NAME(round_row)(const REAL *restrict a, long inner, int16_t *restrict to) {
    int most = 0;
    for (long k = 0; k < inner; k++) {
        int bits;
        memcpy(&bits, a + k, sizeof bits);
        bits &= 0x7fffffff; /* of the absolute value: ordered as the numbers are, with NaN above infinity */
        most = bits > most ? bits : most;
    }
    REAL largest;
    memcpy(&largest, &most, sizeof largest);
    if (!(largest >= 1e-30f && largest <= __FLT_MAX__)) {
        memset(to, 0, inner * sizeof *to);
        return most ? __builtin_nanf("") : 0;
    }
    const REAL by = MOST_ROUNDED / largest;
    for (long k = 0; k < inner; k++) {
        const REAL shifted = a[k] * by + 12582912.0f; /* 1.5 * 2^23: the last bits are those of the nearest integer */
        int bits;
        memcpy(&bits, &shifted, sizeof bits);
        to[k] = (int16_t)bits;
    }
    return largest / MOST_ROUNDED;
}

/* a rounded row times a column that is contiguous */
static REAL NAME(rounded_dot)(const int16_t *restrict a, const int8_t *restrict b, long inner) {
    REAL total = 0;
    for (long k = 0; k < inner;) {
        const long end = inner - k < EXACT ? inner : k + EXACT;
        int sum = 0;
        for (; k < end; k++) sum += a[k] * b[k];
        total += sum;
    }
    return total;
}

#if defined(__AVX512BW__) && WIDE == 16 || defined(__AVX2__) && WIDE == 8
typedef int16_t NAME(factors) __attribute__((vector_size(2 * WIDE * sizeof(int16_t)), aligned(sizeof(int16_t))));
typedef int NAME(sums) __attribute__((vector_size(WIDE * sizeof(int))));
typedef REAL NAME(four) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL))));

static inline NAME(factors) NAME(factors_of)(const int8_t *at) {
#if WIDE == 16
    return (NAME(factors))_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)at));
#else
    return (NAME(factors))_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
#endif
}

/* WIDE sums, to each of which two products are added */
static inline NAME(sums) NAME(add_products)(NAME(sums) sum, NAME(factors) a, NAME(factors) b) {
#if defined(__AVX512VNNI__) && WIDE == 16
    return (NAME(sums))_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif WIDE == 16
    return sum + (NAME(sums))_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (NAME(sums))_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
    return sum + (NAME(sums))_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

/* the totals of four vectors of sums */
static inline NAME(four) NAME(totals_of)(const NAME(sums) *sums) {
    NAME(vec) wide[4];
    EACH(4) for (int lane = 0; lane < WIDE; lane++) wide[i][lane] = (REAL)sums[i][lane];
    union {
        NAME(vec) whole;
        NAME(four) parts[WIDE / 4]; /* each with a part of the four totals */
    } all;
#if WIDE == 16
    const __m512 a = (__m512)wide[0], b = (__m512)wide[1], c = (__m512)wide[2], d = (__m512)wide[3];
    const __m512d one = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
    const __m512d two = (__m512d)(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
    all.whole = (NAME(vec))_mm512_unpacklo_pd(one, two) + (NAME(vec))_mm512_unpackhi_pd(one, two);
#else
    const __m256 a = (__m256)wide[0], b = (__m256)wide[1], c = (__m256)wide[2], d = (__m256)wide[3];
    all.whole = (NAME(vec))_mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
#endif
    NAME(four) total = all.parts[0];
    for (int part = 1; part < WIDE / 4; part++) total += all.parts[part];
    return total;
}

/* M rounded rows times four columns that are contiguous. The next four are prefetched if there is a single row, which
   waits for memory. */
#define ROUNDED_BY_FOUR(M)                                                                                          \
    static inline void NAME(rounded_##M)(const int16_t *restrict a, long stride, const int8_t *restrict b,          \
                                         long along, long inner, const REAL *scale, REAL *restrict out,             \
                                         long out_stride) {                                                         \
        NAME(sums) part[M][4] = {{{0}}};                                                                            \
        long k = 0;                                                                                                 \
        for (; k + 2 * WIDE <= inner; k += 2 * WIDE) {                                                              \
            NAME(factors) wide[4];                                                                                  \
            EACH(4) {                                                                                               \
                if (M == 1) __builtin_prefetch(b + (4 + i) * along + k);                                            \
                wide[i] = NAME(factors_of)(b + i * along + k);                                                      \
            }                                                                                                       \
            _Pragma("GCC unroll 4") for (int row = 0; row < M; row++) {                                             \
                const NAME(factors) value = *(const NAME(factors) *)(a + row * stride + k);                         \
                EACH(4) part[row][i] = NAME(add_products)(part[row][i], value, wide[i]);                            \
            }                                                                                                       \
        }                                                                                                           \
        _Pragma("GCC unroll 4") for (int row = 0; row < M; row++) {                                                 \
            NAME(four) total = NAME(totals_of)(part[row]);                                                          \
            for (long rest = k; rest < inner; rest++)                                                               \
                EACH(4) total[i] += a[row * stride + rest] * b[i * along + rest];                                   \
            *(NAME(four) *)(out + row * out_stride) = total * scale[row];                                           \
        }                                                                                                           \
    }
#else
#define ROUNDED_BY_FOUR(M)                                                                                          \
    static inline void NAME(rounded_##M)(const int16_t *restrict a, long stride, const int8_t *restrict b,          \
                                         long along, long inner, const REAL *scale, REAL *restrict out,             \
                                         long out_stride) {                                                         \
        for (int row = 0; row < M; row++)                                                                           \
            EACH(4) out[row * out_stride + i] = NAME(rounded_dot)(a + row * stride, b + i * along, inner) * scale[row]; \
    }
#endif
ROUNDED_BY_FOUR(1) ROUNDED_BY_FOUR(2) ROUNDED_BY_FOUR(4)
#define ROUNDED_ROWS (ROWS > 6 ? 4 : 2) /* of a tile: as many as its sums find registers for */

static void NAME(rounded_int8)(const void *given, long first, long last) {
    const NAME(job) *job = given;
    const long inner = job->inner, along = job->matrix->along_outer, stride = (inner + 31) / 32 * 32;
    const long outer = last * PANEL < job->outer ? last * PANEL : job->outer;
    const long room = ROUNDED_ROOM / stride, most = room < MOST_ROUNDED_ROWS ? room : MOST_ROUNDED_ROWS;
    int16_t rounded[ROUNDED_ROOM] __attribute__((aligned(64)));
    REAL scale[MOST_ROUNDED_ROWS];
    for (long begin = 0; begin < job->rows; begin += most) {
        const long rows = job->rows - begin < most ? job->rows - begin : most;
        const REAL *a = job->a + begin * job->stride;
        REAL *out = job->out + begin * job->out_stride;
        for (long row = 0; row < rows; row++)
            scale[row] = NAME(round_row)(a + row * job->stride, inner, rounded + row * stride);
        long n = first * PANEL;
        for (; n + 4 <= outer; n += 4) {
            const int8_t *column = (const int8_t *)(const void *)job->b + n * along;
            long row = 0;
            for (; row + ROUNDED_ROWS <= rows; row += ROUNDED_ROWS)
                (ROUNDED_ROWS == 4 ? NAME(rounded_4) : NAME(rounded_2))(
                    rounded + row * stride, stride, column, along, inner, scale + row, out + row * job->out_stride + n,
                    job->out_stride);
            for (; row < rows; row++)
                NAME(rounded_1)(rounded + row * stride, stride, column, along, inner, scale + row,
                                  out + row * job->out_stride + n, job->out_stride);
        }
        for (; n < outer; n++)
            for (long row = 0; row < rows; row++)
                out[row * job->out_stride + n] = scale[row] * NAME(rounded_dot)(
                    rounded + row * stride, (const int8_t *)(const void *)job->b + n * along, inner);
        for (long row = 0; row < rows; row++) {
            if (scale[row] == scale[row]) continue;
            NAME(job) exact = *job;
            exact.rows = 1, exact.a = a + row * job->stride, exact.out = out + row * job->out_stride;
            NAME(stored_int8)(&exact, first, last);
        }
    }
}

static void NAME(stored)(const NAME(job) *job, long count) {
    const int rounds = job->matrix->along_inner == 1 && job->inner >= LEAST_INNER && job->inner <= MOST_INNER;
    divided(job->matrix->storage == 2 ? NAME(stored_bfloat16) : rounds ? NAME(rounded_int8) : NAME(stored_int8), job, count);
}
#endif
