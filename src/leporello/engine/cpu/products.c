/* Products of rows with an invariant matrix, for one type of numbers.
   REAL, SINGLE (whether that is float), INTEGER (of the same size), WIDE (numbers in a vector), ROWS (rows in a register
   tile) and NAME (names for this type) are defined before this text.

   A matrix is packed into tiles, called panels in the code: a packed tile is PANEL columns of the matrix, contiguous,
   with the whole inner axis. A register tile is some rows of the result by the PANEL columns of one packed tile. */

typedef REAL NAME(vec) __attribute__((vector_size(WIDE * sizeof(REAL)), aligned(sizeof(REAL))));
#undef PANEL
#undef AHEAD
#undef TILE
#undef EACH
#define PANEL (2 * WIDE)

/* A matrix as it is passed to a kernel: in place, with its strides; and as packed tiles, or null.
   storage: of its numbers in place: 0 for REAL; 1 for int8, 2 for bfloat16, which are never packed */
typedef struct {
    const REAL *panels, *raw;
    long along_head, along_inner, along_outer, storage;
} NAME(matrix);

typedef struct {
    long rows, inner, outer, stride, out_stride;
    const REAL *a, *b;
    REAL *out;
    const NAME(matrix) *matrix;
} NAME(job);

/* Unrolled: an array of vectors stays in registers only if all its indices are constants. */
#define EACH(COUNT) _Pragma("GCC unroll 16") for (int i = 0; i < COUNT; i++)

/* A tile of M rows by two vectors stays in registers over the whole inner axis. The packed tile is prefetched AHEAD rows
   in advance, unless M is so small that prefetching would be most of the work. */
#define AHEAD 16
#define TILE(M)                                                                                               \
    static void NAME(tile_##M)(long inner, const REAL *restrict a, long stride, const REAL *restrict b,       \
                               REAL *restrict out, long out_stride) {                                         \
        NAME(vec) left[M], right[M];                                                                          \
        EACH(M) left[i] = right[i] = (NAME(vec)){0};                                                          \
        _Pragma("GCC unroll 2") for (long k = 0; k < inner; k++) {                                            \
            const REAL *at = b + k * PANEL;                                                                   \
            if (M > 3) {                                                                                      \
                __builtin_prefetch(at + AHEAD * PANEL);                                                       \
                __builtin_prefetch(at + AHEAD * PANEL + WIDE);                                                \
            }                                                                                                 \
            NAME(vec) b0 = *(const NAME(vec) *)at, b1 = *(const NAME(vec) *)(at + WIDE);                      \
            EACH(M) {                                                                                         \
                REAL value = a[i * stride + k];                                                               \
                left[i] += value * b0;                                                                        \
                right[i] += value * b1;                                                                       \
            }                                                                                                 \
        }                                                                                                     \
        EACH(M) {                                                                                             \
            *(NAME(vec) *)(out + i * out_stride) = left[i];                                                   \
            *(NAME(vec) *)(out + i * out_stride + WIDE) = right[i];                                           \
        }                                                                                                     \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if ROWS > 6
TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif

/* The columns of some packed tiles: the outer loop is over packed tiles, so that each is read once for all rows. */
static __attribute__((noinline)) void NAME(panels)(const void *given, long first, long last) {
    const NAME(job) *job = given;
    const long rows = job->rows, inner = job->inner, stride = job->stride, out_stride = job->out_stride;
    const long tiles = (rows + ROWS - 1) / ROWS;
    for (long panel = first; panel < last; panel++) {
        const REAL *b = job->b + panel * inner * PANEL;
        for (long tile = 0, row = 0; tile < tiles; tile++) {
            long count = (rows - row + tiles - tile - 1) / (tiles - tile);
            const REAL *from = job->a + row * stride;
            REAL *to = job->out + row * out_stride + panel * PANEL;
            switch (count) {
#define CASE(M) case M: NAME(tile_##M)(inner, from, stride, b, to, out_stride); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS > 6
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
            }
            row += count;
        }
    }
}

static inline REAL NAME(summed)(NAME(vec) value) {
    typedef REAL half __attribute__((vector_size(WIDE / 2 * sizeof(REAL))));
    union {
        NAME(vec) whole;
        half halves[2];
    } parts = {value};
    half sums = parts.halves[0] + parts.halves[1];
    REAL sum = 0;
    for (int i = 0; i < WIDE / 2; i++) sum += sums[i];
    return sum;
}

/* A product with a matrix in place, for so few rows that packing would cost more than it saves. */
static void NAME(unpacked)(const void *given, long first, long last) {
    const NAME(job) *job = given;
    const NAME(matrix) *matrix = job->matrix;
    const REAL *b = job->b;
    const long inner = job->inner, begin = first * PANEL, outer = last * PANEL < job->outer ? last * PANEL : job->outer;
    for (long row = 0; row < job->rows; row++) {
        const REAL *a = job->a + row * job->stride;
        REAL *out = job->out + row * job->out_stride;
        if (matrix->along_outer == 1) { /* rows of the matrix are contiguous: a weighted sum of them */
            long n = begin;
            for (; n + 4 * WIDE <= outer; n += 4 * WIDE) {
                NAME(vec) sum[4] = {{0}};
                for (long k = 0; k < inner; k++)
                    EACH(4)
                        sum[i] += a[k] * *(const NAME(vec) *)(b + k * matrix->along_inner + n + i * WIDE);
                EACH(4) *(NAME(vec) *)(out + n + i * WIDE) = sum[i];
            }
            for (; n < outer; n++) {
                REAL sum = 0;
                for (long k = 0; k < inner; k++) sum += a[k] * b[k * matrix->along_inner + n];
                out[n] = sum;
            }
            continue;
        }
        long n = begin;
        if (matrix->along_inner == 1) /* columns of the matrix are contiguous: four dot products at a time */
            for (; n + 4 <= outer; n += 4) {
                const REAL *column = b + n * matrix->along_outer;
                NAME(vec) part[4] = {{0}};
                long k = 0;
                for (; k + WIDE <= inner; k += WIDE)
                    EACH(4)
                        part[i] += *(const NAME(vec) *)(a + k) * *(const NAME(vec) *)(column + i * matrix->along_outer + k);
                EACH(4) {
                    REAL sum = NAME(summed)(part[i]);
                    for (long rest = k; rest < inner; rest++) sum += a[rest] * column[i * matrix->along_outer + rest];
                    out[n + i] = sum;
                }
            }
        for (; n < outer; n++) {
            REAL sum = 0;
            for (long k = 0; k < inner; k++) sum += a[k] * b[n * matrix->along_outer + k * matrix->along_inner];
            out[n] = sum;
        }
    }
}

#if SINGLE
static void NAME(stored)(const NAME(job) *job, long count); /* by a matrix that is stored narrower: stored_products.c */
#endif

/* rows of `a` times one head of a matrix; the columns are divided among the threads of a team */
void NAME(product)(const void *given, long head, long rows, long inner, long outer, const REAL *a, long stride,
                   REAL *out, long out_stride) {
    const NAME(matrix) *matrix = given;
    const long count = (outer + PANEL - 1) / PANEL;
#if SINGLE
    if (matrix->storage) {
        const char *raw = (const char *)matrix->raw + head * matrix->along_head * (matrix->storage == 1 ? 1 : 2);
        NAME(job) narrow = {rows, inner, outer, stride, out_stride, a, (const REAL *)(const void *)raw, out, matrix};
        NAME(stored)(&narrow, count);
        return;
    }
#endif
    const REAL *b = matrix->panels ? matrix->panels + head * count * inner * PANEL : matrix->raw + head * matrix->along_head;
    NAME(job) job = {rows, inner, outer, stride, out_stride, a, b, out, matrix};
    divided(matrix->panels ? NAME(panels) : NAME(unpacked), &job, count);
}

#if defined(__GNUC__) && !defined(__clang__)
/* Transpose a WIDE by WIDE block in registers: each round swaps off-diagonal blocks of half the size. */
static void NAME(turn)(REAL *restrict to, long to_stride, const REAL *restrict from, long stride) {
    typedef INTEGER lanes __attribute__((vector_size(WIDE * sizeof(REAL))));
    NAME(vec) rows[WIDE];
    lanes number;
    for (int lane = 0; lane < WIDE; lane++) number[lane] = lane;
    EACH(WIDE) rows[i] = *(const NAME(vec) *)(from + i * stride);
    _Pragma("GCC unroll 4") for (int half = WIDE / 2; half; half /= 2) {
        const lanes swapped = ((number & half) != 0) & (WIDE - half);
        const lanes upper = number + swapped, lower = upper + half;
        EACH(WIDE) {
            if (i & half) continue;
            NAME(vec) a = rows[i], b = rows[i + half];
            rows[i] = __builtin_shuffle(a, b, upper);
            rows[i + half] = __builtin_shuffle(a, b, lower);
        }
    }
    EACH(WIDE) *(NAME(vec) *)(to + i * to_stride) = rows[i];
}
#endif

/* Pack a matrix into tiles; the last tile is padded with zeros. */
static __attribute__((noinline)) void NAME(pack_one)(REAL *restrict to, const REAL *restrict from, long inner,
                                                     long outer, long along_inner, long along_outer) {
    for (long column = 0; column < outer; column += PANEL, to += inner * PANEL) {
        const long width = outer - column < PANEL ? outer - column : PANEL;
        const REAL *begin = from + column * along_outer;
        if (width < PANEL) memset(to, 0, inner * PANEL * sizeof(REAL));
        if (along_outer == 1) {
            for (long k = 0; k < inner; k++) memcpy(to + k * PANEL, begin + k * along_inner, width * sizeof(REAL));
            continue;
        }
        long block = 0;
#if defined(__GNUC__) && !defined(__clang__)
        if (along_inner == 1 && width == PANEL)
            for (; block + WIDE <= inner; block += WIDE)
                for (int half = 0; half < 2; half++)
                    NAME(turn)(to + block * PANEL + half * WIDE, PANEL, begin + block + half * WIDE * along_outer,
                               along_outer);
#endif
        for (; block < inner; block += 16) { /* what is read of a column is in one cache line */
            const long end = inner - block < 16 ? inner : block + 16;
            for (long j = 0; j < width; j++)
                for (long k = block; k < end; k++) to[k * PANEL + j] = begin[k * along_inner + j * along_outer];
        }
    }
}

/* Pack all matrices of a kernel into tiles.
   sizes: heads, inner and outer size of each matrix */
void NAME(pack)(const NAME(matrix) *matrices, const long *sizes, long count) {
    for (const NAME(matrix) *own = matrices; own < matrices + count; own++, sizes += 3) {
        REAL *to = (REAL *)own->panels;
        if (own->storage) continue;
        for (long head = 0; head < sizes[0]; head++) {
            NAME(pack_one)(to, own->raw + head * own->along_head, sizes[1], sizes[2], own->along_inner, own->along_outer);
            to += sizes[1] * ((sizes[2] + PANEL - 1) / PANEL * PANEL);
        }
    }
}
