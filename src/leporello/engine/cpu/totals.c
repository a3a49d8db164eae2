/* Sums over all rows: of products of two values (gradients of matrices), and of a value alone (gradients of biases).
   For one type of numbers; included after products.c.

   Threads divide the columns of the first value, and the rows too where there are few columns. Each processes its rows a
   strip at a time; the strip stays in the cache for all sums that read it. Rows may be skipped: then the others are
   copied, a strip of them at a time. */

#define STRIP 128  /* rows of a strip */
#define COLUMNS 64 /* the fewest columns of a thread; with fewer, rows are divided instead */
#define THIN 3     /* up to so many columns of the second value, nothing is packed */
#if ROWS == 12
#define SMALLEST 4 /* rows of the smallest register tile; the others have twice and three times as many */
#else
#define SMALLEST 2
#endif

/* out[m, n] = sum over rows of a[row, m] b[row, n]; out[m] = sum of a[row, m] where b is null.
   A row may have `inner` elements a[row, k, m] and b[row, k, n] that are summed too (no rows are skipped then). */
typedef struct {
    const REAL *a, *b;
    REAL *out;
    long m, n, a_stride, b_stride;
    long inner, a_inner, b_inner; /* and the distances from one of them to the next */
    long a_along, b_along;        /* from column to column; 1 if there are no such elements */
} NAME(total);

/* One thread's part of a sum, and its accumulator: `high` rows of `wide` numbers; vectors run along a row. */
typedef struct {
    long columns, rows; /* the number of parts into which these are divided */
    long from, to;      /* columns of the first value in this part */
    long high, wide, padded;
    int thin, turned; /* nothing is packed; a row of the accumulator runs along the first value's columns */
    int straight;     /* the result itself is the accumulator */
} NAME(share_of_total);

typedef INTEGER NAME(lanes) __attribute__((vector_size(WIDE * sizeof(REAL)), aligned(sizeof(REAL))));

static inline long NAME(whole)(long count, long unit) { return (count + unit - 1) / unit * unit; }

static NAME(share_of_total) NAME(share_of)(const NAME(total) *own, long share, long shares) {
    NAME(share_of_total) found = {.columns = shares};
    while (found.columns > 1 && (shares % found.columns || own->m < found.columns * COLUMNS)) found.columns--;
    const long place = share % found.columns, m = (own->m + found.columns - 1) / found.columns, n = own->b ? own->n : 1;
    found.rows = shares / found.columns;
    found.from = own->m * place / found.columns;
    found.to = own->m * (place + 1) / found.columns;
    found.thin = n <= THIN;
    const long across = NAME(whole)(m, WIDE) * NAME(whole)(n, SMALLEST);
    const long down = NAME(whole)(n, WIDE) * NAME(whole)(m, SMALLEST);
    found.turned = found.thin || across < down; /* the orientation with less padding */
    found.high = found.turned ? n : m; /* equal for all threads, so that each can find the others' accumulators */
    found.wide = found.turned ? m : n;
    found.padded = NAME(whole)(found.wide, WIDE);
    found.straight = !found.turned && found.rows == 1 && n == found.padded && (found.to - found.from) % SMALLEST == 0;
    return found;
}

/* numbers in the accumulator; equal for all shares, though some may need fewer */
static inline long NAME(numbers)(const NAME(share_of_total) *part) {
    return NAME(whole)(part->high, ROWS) * part->padded;
}

/* numbers in a packed strip of the value along which vectors run, and in a register tile's strip of the other */
static inline long NAME(packed)(const NAME(share_of_total) *part) {
    return STRIP * (NAME(whole)(part->padded, PANEL) + ROWS);
}

/* A register tile of M rows by one or two vectors; `first`: the accumulator is not initialised yet. */
#define SUMMING(M, TWO)                                                                                          \
    static void NAME(summing_##M##_##TWO)(int first, long depth, const REAL *restrict a, long stride,            \
                                          const REAL *restrict b, REAL *restrict out, long out_stride) {         \
        NAME(vec) left[M], right[M];                                                                             \
        if (first) EACH(M) left[i] = right[i] = (NAME(vec)){0};                                                  \
        else EACH(M) {                                                                                           \
            left[i] = *(NAME(vec) *)(out + i * out_stride);                                                      \
            if (TWO) right[i] = *(NAME(vec) *)(out + i * out_stride + WIDE);                                     \
        }                                                                                                        \
        _Pragma("GCC unroll 2") for (long k = 0; k < depth; k++) {                                               \
            NAME(vec) b0 = *(const NAME(vec) *)(b + k * PANEL), b1 = b0;                                         \
            if (TWO) b1 = *(const NAME(vec) *)(b + k * PANEL + WIDE);                                            \
            EACH(M) {                                                                                            \
                REAL value = a[k * stride + i];                                                                  \
                left[i] += value * b0;                                                                           \
                if (TWO) right[i] += value * b1;                                                                 \
            }                                                                                                    \
        }                                                                                                        \
        EACH(M) {                                                                                                \
            *(NAME(vec) *)(out + i * out_stride) = left[i];                                                      \
            if (TWO) *(NAME(vec) *)(out + i * out_stride + WIDE) = right[i];                                     \
        }                                                                                                        \
    }
#if ROWS == 12
#define TILES(DO) DO(12) DO(8) DO(4)
#else
#define TILES(DO) DO(6) DO(4) DO(2)
#endif
#define BOTH_WIDTHS(M) SUMMING(M, 0) SUMMING(M, 1)
TILES(BOTH_WIDTHS)

/* Pack `count` columns of a strip contiguously, padded with zeros to `unit` columns. */
static inline void NAME(strip)(REAL *restrict to, const REAL *restrict from, long stride, long depth, long count, long unit) {
    long k = 0;
    if (count == PANEL && unit == PANEL)
        for (; k < depth; k++) memcpy(to + k * PANEL, from + k * stride, PANEL * sizeof(REAL));
    else {
        if (unit == PANEL) { /* whole vectors, as long as they end before the last column that is wanted */
            NAME(lanes) number, left, right;
            for (int j = 0; j < WIDE; j++) number[j] = j;
            left = number < (INTEGER)count, right = number + WIDE < (INTEGER)count;
            for (; k * stride + PANEL <= (depth - 1) * stride + count; k++) {
                const REAL *row = from + k * stride;
                *(NAME(vec) *)(to + k * PANEL) = (NAME(vec))(left & (NAME(lanes))*(const NAME(vec) *)row);
                *(NAME(vec) *)(to + k * PANEL + WIDE) = (NAME(vec))(right & (NAME(lanes))*(const NAME(vec) *)(row + WIDE));
            }
        }
        for (; k < depth; k++)
            for (long j = 0; j < unit; j++) to[k * unit + j] = j < count ? from[k * stride + j] : 0;
    }
}

/* Sums of V vectors of the first value, read in place, with U independent accumulators each. */
#define THINNING(V, U)                                                                                             \
    static void NAME(thinning_##V)(int first, long depth, const REAL *restrict a, long stride, const REAL *b,      \
                                   long b_stride, REAL *restrict out) {                                            \
        NAME(vec) sum[V * U];                                                                                      \
        EACH(V * U) sum[i] = (NAME(vec)){0};                                                                       \
        long k = 0;                                                                                                \
        for (; k + U <= depth; k += U)                                                                             \
            EACH(V * U) {                                                                                          \
                const long row = k + i / V;                                                                        \
                sum[i] += (b ? b[row * b_stride] : 1) * *(const NAME(vec) *)(a + row * stride + i % V * WIDE);     \
            }                                                                                                      \
        for (; k < depth; k++)                                                                                     \
            EACH(V) sum[i] += (b ? b[k * b_stride] : 1) * *(const NAME(vec) *)(a + k * stride + i * WIDE);         \
        EACH(V) {                                                                                                  \
            for (int u = 1; u < U; u++) sum[i] += sum[i + u * V];                                                  \
            *(NAME(vec) *)(out + i * WIDE) = first ? sum[i] : sum[i] + *(NAME(vec) *)(out + i * WIDE);             \
        }                                                                                                          \
    }
THINNING(4, 1) THINNING(1, 4)

/* A strip of a sum with few columns of the second value, or without a second value. */
static void NAME(thin_strip)(const NAME(total) *own, const NAME(share_of_total) *part, int first, long row, long depth,
                             REAL *out) {
    const long count = part->to - part->from, stride = own->a_stride;
    const REAL *a = own->a + row * stride + part->from;
    for (long n = 0; n < part->high; n++, out += part->padded) {
        const REAL *b = own->b ? own->b + row * own->b_stride + n : 0;
        long m = 0;
        for (; m + 4 * WIDE <= count; m += 4 * WIDE)
            NAME(thinning_4)(first, depth, a + m, stride, b, own->b_stride, out + m);
        for (; m + WIDE <= count; m += WIDE) NAME(thinning_1)(first, depth, a + m, stride, b, own->b_stride, out + m);
        for (; m < count; m++) {
            REAL sum[4] = {0};
            for (long k = 0; k < depth; k++) sum[k % 4] += (b ? b[k * own->b_stride] : 1) * a[k * stride + m];
            out[m] = (first ? 0 : out[m]) + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
        }
    }
}

/* A strip of one sum; `packed` has room for the strip of one value, and for a register tile of the other. */
static void NAME(one_strip)(const NAME(total) *own, const NAME(share_of_total) *part, int first, long row, long depth,
                            REAL *out, REAL *packed) {
    const REAL *a = own->a + row * own->a_stride + part->from, *b = own->b + row * own->b_stride;
    const REAL *down = part->turned ? b : a, *across = part->turned ? a : b;
    const long stride = part->turned ? own->b_stride : own->a_stride;
    const long across_stride = part->turned ? own->a_stride : own->b_stride;
    const long count = part->to - part->from, high = part->turned ? own->n : count, wide = part->turned ? count : own->n;
    const long panels = (part->padded + PANEL - 1) / PANEL;
    REAL *tile = packed + panels * STRIP * PANEL;
    for (long p = 0; p < panels; p++) {
        const long left = wide - p * PANEL;
        NAME(strip)(packed + p * STRIP * PANEL, across + p * PANEL, across_stride, depth, left < PANEL ? left : PANEL, PANEL);
    }
    for (long m = 0, tall; m < high; m += tall) {
        const long left = high - m;
        tall = left >= ROWS ? ROWS : NAME(whole)(left, SMALLEST);
        const REAL *here = down + m;
        if (left < tall) NAME(strip)(tile, here, stride, depth, left, tall), here = tile;
        for (long p = 0; p < panels; p++) {
            REAL *to = out + m * part->padded + p * PANEL;
            const REAL *from = packed + p * STRIP * PANEL;
            const int two = (p + 1) * PANEL <= part->padded;
            const long apart = here == tile ? tall : stride;
            switch (tall) {
#define CASE(M)                                                                                                   \
    case M:                                                                                                       \
        (two ? NAME(summing_##M##_1) : NAME(summing_##M##_0))(first, depth, here, apart, from, to, part->padded); \
        break;
                TILES(CASE)
#undef CASE
            }
        }
    }
}

/* List the next rows before `to` that are not skipped, at most a strip of them; returns where the search ended. */
static __attribute__((noinline)) long NAME(next_rows)(long *list, long *depth, const unsigned char *left_out, long from,
                                                      long to) {
    for (*depth = 0; from < to && *depth < STRIP; from++) {
        list[*depth] = from;
        *depth += !left_out[from];
    }
    return from;
}

/* Where a part of the rows begins, if all parts have equally many rows that are not skipped. */
static __attribute__((noinline)) long NAME(border)(const unsigned char *left_out, long begin, long end, long part,
                                                   long parts) {
    if (!left_out || part == parts) return begin + (end - begin) * part / parts;
    long all = 0;
    for (long row = begin; row < end; row++) all += !left_out[row];
    for (long before = all * part / parts; before; begin++) before -= !left_out[begin];
    return begin;
}

/* The sum over listed rows only, which are copied contiguously; of the first value only this part's columns. */
static __attribute__((noinline)) NAME(total) NAME(copied)(const NAME(total) *own, const NAME(share_of_total) *part,
                                                          const long *list, long depth, REAL *to) {
    NAME(total) found = *own;
    const long columns = part->to - part->from, others = own->b ? own->n : 0;
    REAL *b = to + depth * columns;
    for (long k = 0; k < depth; k++) {
        memcpy(to + k * columns, own->a + list[k] * own->a_stride + part->from, columns * sizeof(REAL));
        if (own->b) memcpy(b + k * others, own->b + list[k] * own->b_stride, others * sizeof(REAL));
    }
    found.a = to - part->from, found.a_stride = columns;
    if (own->b) found.b = b, found.b_stride = others;
    return found;
}

/* `inner` elements of a row, each copied to a row of its own. */
static void NAME(spread)(REAL *restrict to, const REAL *restrict from, long inner, long columns, long along_inner,
                         long along) {
    long k = 0;
    if (along == 1) {
        for (; k < inner; k++) memcpy(to + k * columns, from + k * along_inner, columns * sizeof(REAL));
        return;
    }
#if defined(__GNUC__) && !defined(__clang__)
    if (along_inner == 1)
        for (; k + WIDE <= inner; k += WIDE) {
            long j = 0;
            for (; j + WIDE <= columns; j += WIDE) NAME(turn)(to + k * columns + j, columns, from + j * along + k, along);
            if (j && j < columns) { /* the last vector overlaps */
                j = columns - WIDE;
                NAME(turn)(to + k * columns + j, columns, from + j * along + k, along);
            } else for (; j < columns; j++)
                for (long i = k; i < k + WIDE; i++) to[i * columns + j] = from[j * along + i];
        }
#endif
    for (; k < inner; k++)
        for (long j = 0; j < columns; j++) to[k * columns + j] = from[j * along + k * along_inner];
}

/* Prefetch a row, which is about to be copied in another order than it is in memory. */
static inline void NAME(fetch)(const REAL *row, long count) {
    for (long at = 0; at < count; at += 64 / (long)sizeof(REAL)) __builtin_prefetch(row + at);
}

/* The sum over `depth` rows from `row` on with a row for each of their elements; these are copied where they must be. */
static __attribute__((noinline)) NAME(total) NAME(flattened)(const NAME(total) *own, const NAME(share_of_total) *part,
                                                             long row, long depth, REAL *to) {
    NAME(total) found = *own;
    const long inner = own->inner, columns = part->to - part->from, others = own->b ? own->n : 0;
    found.a += row * own->a_stride, found.a_stride = own->a_inner;
    if (own->b) found.b += row * own->b_stride, found.b_stride = own->b_inner;
    if (own->a_along != 1 || own->a_inner * inner != own->a_stride) {
        for (long i = 0; i < depth; i++) {
            const REAL *from = own->a + (row + i) * own->a_stride;
            NAME(fetch)(from + own->a_stride, own->a_stride);
            NAME(spread)(to + i * inner * columns, from + part->from * own->a_along, inner, columns, own->a_inner, own->a_along);
        }
        found.a = to - part->from, found.a_stride = columns, to += depth * inner * columns;
    }
    if (own->b && (own->b_along != 1 || own->b_inner * inner != own->b_stride)) {
        for (long i = 0; i < depth; i++) {
            const REAL *from = own->b + (row + i) * own->b_stride;
            NAME(fetch)(from + own->b_stride, own->b_stride);
            NAME(spread)(to + i * inner * others, from, inner, others, own->b_inner, own->b_along);
        }
        found.b = to, found.b_stride = others;
    }
    return found;
}

/* Add up the accumulators of the threads that had the same columns and other rows, and store the result. */
static void NAME(put)(const NAME(total) *own, const NAME(share_of_total) *part, REAL **parts, long begin, long end) {
    const long n = own->b ? own->n : 1;
    for (long m = begin; m < end; m++)
        for (long j = 0; j < n; j++) {
            const long at = part->turned ? j * part->padded + m : m * part->padded + j;
            REAL sum = parts[0][at];
            for (long other = 1; other < part->rows; other++) sum += parts[other][at];
            own->out[(part->from + m) * n + j] = sum;
        }
}

static inline REAL *NAME(memory_of)(char *scratch, long each, long share) {
    return (REAL *)(((uintptr_t)scratch + share * each + 63) & ~(uintptr_t)63);
}

/* All sums of a call, in two phases: every share adds up its rows, then the results of shares are added and stored.
   given: the sums, their number, bytes of scratch for each share, the mask of skipped rows (null if none is), a row, and
   the sums with other addresses of values, by which rows from that row on are read (null: all by the same ones). */
void NAME(totals)(void **given, long begin, long end, long phase, long batch, char *scratch, long share, long shares) {
    (void)batch;
    const NAME(total) *all = given[0];
    const long count = (long)given[1], each = (long)given[2];
    const unsigned char *left_out = given[3];
    const long border = (long)given[4];
    const NAME(total) *later = given[5];
    long list[STRIP];
    NAME(share_of_total) parts[count];
    long offsets[count + 1];
    REAL *memory = NAME(memory_of)(scratch, each, share);
    offsets[0] = 0;
    for (long i = 0; i < count; i++) {
        parts[i] = NAME(share_of)(all + i, share, shares);
        offsets[i + 1] = offsets[i] + NAME(numbers)(parts + i);
    }
    for (long i = 0, together; !phase && i < count; i += together) { /* sums that divide their rows in the same way */
        const long others = parts[i].rows, place = share / parts[i].columns;
        for (together = 1; i + together < count && parts[i + together].rows == others;) together++;
        const long from = NAME(border)(left_out, begin, end, place, others);
        const long to = NAME(border)(left_out, begin, end, place + 1, others);
        for (long row = from, next, first = 1; row < to || first; row = next, first = 0) { /* no rows: zeros */
            const NAME(total) *values = later && row >= border ? later : all;
            const long until = later && row < border && border < to ? border : to;
            long depth = until - row < STRIP ? until - row : STRIP, at = row;
            next = row + depth;
            if (left_out) next = NAME(next_rows)(list, &depth, left_out, row, until), at = depth ? list[0] : from;
            const int whole = !depth || !left_out || list[depth - 1] - at == depth - 1;
            for (long j = i; j < i + together; j++) {
                REAL *packed = memory + offsets[count];
                REAL *out = parts[j].straight ? all[j].out + parts[j].from * all[j].n : memory + offsets[j];
                NAME(total) own = values[j];
                const int spread = own.inner > 1 || own.a_along != 1 || own.b_along != 1;
                for (long k = 0, few = STRIP / own.inner; spread && (k < depth || !k); k += few) {
                    const long some = depth - k < few ? depth - k : few;
                    own = NAME(flattened)(values + j, parts + j, at + k, some, packed + NAME(packed)(parts + j));
                    if (parts[j].thin) NAME(thin_strip)(&own, parts + j, first && !k, 0, some * own.inner, out);
                    else NAME(one_strip)(&own, parts + j, first && !k, 0, some * own.inner, out, packed);
                }
                if (spread) continue;
                if (!whole) own = NAME(copied)(values + j, parts + j, list, depth, packed + NAME(packed)(parts + j));
                if (parts[j].thin) NAME(thin_strip)(&own, parts + j, first, whole ? at : 0, depth, out);
                else NAME(one_strip)(&own, parts + j, first, whole ? at : 0, depth, out, packed);
            }
        }
    }
    for (long i = 0; phase && i < count; i++) {
        const NAME(share_of_total) *part = parts + i;
        if (part->straight) continue;
        REAL *sums[part->rows];
        const long place = share / part->columns, columns = part->to - part->from;
        for (long other = 0; other < part->rows; other++)
            sums[other] = NAME(memory_of)(scratch, each, other * part->columns + share % part->columns) + offsets[i];
        NAME(put)(all + i, part, sums, columns * place / part->rows, columns * (place + 1) / part->rows);
    }
}

/* Bytes of scratch for each thread for these sums, with at most `threads` threads. */
long NAME(totals_scratch)(const NAME(total) *all, long count, long threads) {
    long most = 0;
    for (long shares = 1; shares <= threads; shares++) {
        long numbers = 0, packed = 0;
        for (long i = 0; i < count; i++) {
            const NAME(share_of_total) part = NAME(share_of)(all + i, 0, shares);
            const long strip = NAME(packed)(&part) + STRIP * (part.high + part.wide); /* and copied rows */
            numbers += NAME(numbers)(&part);
            packed = strip > packed ? strip : packed;
        }
        most = numbers + packed > most ? numbers + packed : most;
    }
    return (most * sizeof(REAL) + 127) / 64 * 64;
}
#undef STRIP
#undef COLUMNS
#undef THIN
#undef SMALLEST
#undef SUMMING
#undef THINNING
#undef TILES
#undef BOTH_WIDTHS
