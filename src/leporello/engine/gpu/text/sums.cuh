// Sums over rows, for sums_machine.cuh on a GPU and host.h without one. SUMMED is the type of the numbers.
//
// A term is out[c] = sum over rows of first[r, c], of first[r, c] * other[r, c], or of
// first[r, c] * (other[r, c] - mean[r]) * rate[r]; rows where past[r] is true are skipped, whatever is there. A block takes
// some columns of a term, its tile, and some of its rows, its split. Partial sums of the splits of a tile are added by
// the block that comes last, in the order of the splits: so the bits do not depend on which one it is.

#define NUMBER_BYTES (SUMMED == F32 ? 4 : 2)
#define MOST_NUMBERS 8  // of a column lane
enum { PLAIN, PRODUCT, NORMALISED, SCATTERED };
// words of a term; division.py fills them
enum { FIRST, OTHER, MEAN, RATE, PAST, OUT, OUT_AGAIN, WIDE_RESULT, KIND_OF, PER_LANE, ROWS_OF, COLUMNS, STRIDE, OTHER_STRIDE, INNER, INNER_STEP, ALONG, LANES_OF, FIRST_BLOCK, SPLITS, FIRST_TILE, FIRST_PARTIAL, TERM_WORDS };
enum { PARTIALS, COUNTERS, TERM_COUNT, HEAD_WORDS };

struct Term {
    const u64 *word;
    METHOD long number(int which) const { return (long)word[which]; }
    METHOD const char *address(int which) const { return (const char *)word[which]; }
};

// PER numbers as they are in memory, and one of them
template <int PER> INLINE void load(const char *from, u32 (&bits)[4]) {
    if (PER > 1) load_sixteen(from, bits);
    else bits[0] = NUMBER_BYTES == 4 ? *(const u32 *)from : *(const u16 *)from;
}
INLINE float number_of(const u32 (&bits)[4], int index) {
    if (SUMMED == F32) return float_of_bits(bits[index]);
    const u16 half = (u16)(bits[index / 2] >> (index % 2 * 16));
    return SUMMED == BF16 ? from_bf16(half) : from_f16(half);
}
INLINE void store(const Term &t, long column, float value) {
    for (int to = OUT; to <= OUT_AGAIN; to++) {
        if (!t.word[to]) continue;
        if (SUMMED == F32 || t.number(WIDE_RESULT)) ((float *)t.word[to])[column] = value;
        else ((u16 *)t.word[to])[column] = SUMMED == BF16 ? to_bf16(value) : to_f16(value);
    }
}
INLINE float statistic(const char *from, long row) {
#if WIDE_STATISTICS
    return ((const float *)from)[row];
#else
    u32 bits[4];
    load<1>(from + row * NUMBER_BYTES, bits);
    return number_of(bits, 0);
#endif
}

// add every `step`-th row from `row` on to the sums of one column lane
template <int PER, int KIND> INLINE void add_rows(const Term &t, long row, long end, long step, long column, float (&s)[MOST_NUMBERS]) {
    constexpr int TOGETHER = KIND == PLAIN ? 8 : KIND == NORMALISED ? 2 : 4;  // rows whose loads are under way at once
    const long stride = t.number(STRIDE), other_stride = t.number(OTHER_STRIDE);
    const u32 inner = (u32)t.number(INNER);
    const long inner_step = t.number(INNER_STEP), along = t.number(ALONG);
    const char *first = t.address(FIRST), *other = t.address(OTHER), *mean = t.address(MEAN), *rate = t.address(RATE);
    const uint8_t *past = (const uint8_t *)t.address(PAST);
ONCE
    for (; row < end; row += step * TOGETHER) {
        u32 ones[TOGETHER][4], others[TOGETHER][4];
        float means[TOGETHER], rates[TOGETHER];
        bool live[TOGETHER];
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const long r = row + i * step;
            live[i] = r < end && !(past && past[inner == 1 ? r : (u32)r / inner]);
        }
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const long r = row + i * step;
            if (!live[i]) continue;
            if (KIND == SCATTERED) load<PER>(first + ((u32)r / inner * stride + (u32)r % inner * inner_step + column * along) * NUMBER_BYTES, ones[i]);
            else load<PER>(first + (r * stride + column) * NUMBER_BYTES, ones[i]);
            if (KIND == PRODUCT || KIND == NORMALISED) load<PER>(other + (r * other_stride + column) * NUMBER_BYTES, others[i]);
            if (KIND == NORMALISED) means[i] = statistic(mean, r), rates[i] = statistic(rate, r);
        }
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            if (!live[i]) continue;
UNROLL
            for (int p = 0; p < PER; p++) {
                const float one = number_of(ones[i], p);
                if (KIND == PLAIN || KIND == SCATTERED) s[p] += one;
                else if (KIND == PRODUCT) s[p] += one * number_of(others[i], p);
                else s[p] += one * ((number_of(others[i], p) - means[i]) * rates[i]);
            }
        }
    }
}

struct Sums {
    static const int WIDE = 16 / NUMBER_BYTES;  // numbers of a column lane that loads 16 bytes

    // the sums of all groups of `threads` threads into those of the first group, always in the same order
    template <class M> METHOD static void join(M &m, int threads, int numbers) {
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < MOST_NUMBERS; p++)
                if (p < numbers) m.shared[p * THREADS + thread] = s[p];
        });
ONCE
        for (int half = THREADS / 2; half >= threads; half /= 2) {
            m.sync();
            m.each([&](float(&s)[MOST_NUMBERS], int thread) {
                if (thread >= half) return;
UNROLL
                for (int p = 0; p < MOST_NUMBERS; p++)
                    if (p < numbers) {
                        s[p] += m.shared[p * THREADS + thread + half];
                        m.shared[p * THREADS + thread] = s[p];
                    }
            });
        }
        m.sync();
    }

    template <class M> METHOD static void run(M &m, const Given &given) {
        int at = 0;
        for (int i = 1; i < (int)given.word[TERM_COUNT]; i++)
            if (m.block >= (long)given.word[HEAD_WORDS + i * TERM_WORDS + FIRST_BLOCK]) at = i;
        const Term t{given.word + HEAD_WORDS + at * TERM_WORDS};
        const int lanes = (int)t.number(LANES_OF), per = (int)t.number(PER_LANE), kind = (int)t.number(KIND_OF);
        const long block = m.block - t.number(FIRST_BLOCK), splits = t.number(SPLITS), tile = block / splits, split = block % splits;
        const long rows = t.number(ROWS_OF), columns = t.number(COLUMNS), each = (rows + splits - 1) / splits;
        const int width = lanes * per;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < MOST_NUMBERS; p++) s[p] = 0.0f;
            const long column = tile * width + thread % lanes * per, begin = split * each + thread / lanes, step = THREADS / lanes;
            const long last = (split + 1) * each, end = column < columns ? (last < rows ? last : rows) : 0;
            if (kind == SCATTERED) add_rows<1, SCATTERED>(t, begin, end, step, column, s);
            else if (kind == PLAIN && per == 1) add_rows<1, PLAIN>(t, begin, end, step, column, s);
            else if (kind == PLAIN) add_rows<WIDE, PLAIN>(t, begin, end, step, column, s);
            else if (kind == PRODUCT && per == 1) add_rows<1, PRODUCT>(t, begin, end, step, column, s);
            else if (kind == PRODUCT) add_rows<WIDE, PRODUCT>(t, begin, end, step, column, s);
            else if (per == 1) add_rows<1, NORMALISED>(t, begin, end, step, column, s);
            else add_rows<WIDE, NORMALISED>(t, begin, end, step, column, s);
        });
        join(m, lanes, per);
        float *partials = (float *)given.word[PARTIALS] + t.number(FIRST_PARTIAL) + tile * splits * width;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread >= lanes) return;
UNROLL
            for (int p = 0; p < MOST_NUMBERS; p++) {
                const long index = thread * per + p, column = tile * width + index;
                if (p >= per) continue;
                if (splits > 1) partials[split * width + index] = s[p];
                else if (column < columns) store(t, column, s[p]);
            }
        });
        if (splits == 1 || !m.is_last((u32 *)given.word[COUNTERS] + t.number(FIRST_TILE) + tile, (u32)splits)) return;
        const int numbers = width % 4 ? 1 : 4, threads = width / numbers;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < 4; p++) s[p] = 0.0f;
            const float *from = partials + thread % threads * numbers;
            UNROLL_PARTLY
            for (long i = thread / threads; i < splits; i += THREADS / threads) {
                if (numbers == 1) {
                    s[0] += load_partial(from + i * width);
                } else {
                    u32 bits[4];
                    load_partials(from + i * width, bits);
UNROLL
                    for (int p = 0; p < 4; p++) s[p] += float_of_bits(bits[p]);
                }
            }
        });
        join(m, threads, numbers);
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread >= threads) return;
UNROLL
            for (int p = 0; p < 4; p++) {
                const long column = tile * width + thread * numbers + p;
                if (p < numbers && column < columns) store(t, column, s[p]);
            }
        });
    }
};
KERNEL_OF_SUMS(Sums)
