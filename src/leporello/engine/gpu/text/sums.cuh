// Sums over rows, for sums_machine.cuh on a GPU and host.h without one. SUMMED is the type of the numbers.
//
// A term is out[c] = sum over rows of first[r, c], of first[r, c] * other[r, c], or of
// first[r, c] * (other[r, c] - mean[r]) * rate[r]; rows where past[r] is true are skipped, whatever is there. A block takes
// some columns of a term, its tile, and some of its rows, its split. Where a tile has several splits, their sums are added
// by the block that comes last, in the order of the splits: so the bits do not depend on which one it is.
//
// FORMS has a bit for each form of a term that the launch has: only these are compiled, so that a thread has no more
// registers than they need, and more loads are under way.

#define NUMBER_BYTES (SUMMED == F32 ? 4 : 2)
#define MOST_NUMBERS 8  // of a column lane
enum { PLAIN, PRODUCT, NORMALISED, SCATTERED };
// words of a term; division.py fills them
enum { FIRST, OTHER, MEAN, RATE, PAST, OUT, OUT_AGAIN, WIDE_RESULT, FORM, ROWS_OF, COLUMNS, FOLD, STRIDE, OTHER_STRIDE, INNER, INNER_STEP, ALONG, LANES_OF, FIRST_BLOCK, TILE_COUNT, SPLITS, FIRST_TILE, FIRST_PARTIAL, TERM_WORDS };
enum { PARTIALS, COUNTERS, HEAD_WORDS };
// shared memory, in numbers: those of all threads, fewer of them, and the columns of a row
enum { WHOLE = 0, FEWER = WHOLE + THREADS * MOST_NUMBERS, FOLDED = FEWER + THREADS * 2, SHARED_NUMBERS = FOLDED + THREADS };

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
    if (SUMMED == BF16) return float_of_bits(index % 2 ? bits[index / 2] & 0xffff0000u : bits[index / 2] << 16);
    return from_f16((u16)(bits[index / 2] >> (index % 2 * 16)));
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

// The rows row, row + step, ... of one column lane.
template <int PER, int KIND, bool MASKED> struct Reader {
    static const bool TWO = KIND == PRODUCT || KIND == NORMALISED;
    static const int TOGETHER = KIND == NORMALISED ? 3 : TWO ? 4 : 8;  // rows whose loads are under way at once
    const char *first, *other, *mean, *rate;  // of the column lane
    const uint8_t *past;
    long row, end, step, stride, other_stride, inner_step;
    u32 inner;
    METHOD Reader(const Term &t, long row, long end, long step, long column) : row(row), end(end), step(step) {
        const long along = KIND == SCATTERED ? t.number(ALONG) : 1;
        first = t.address(FIRST) + column * along * NUMBER_BYTES;
        stride = t.number(STRIDE) * NUMBER_BYTES;
        if (TWO) other = t.address(OTHER) + column * NUMBER_BYTES, other_stride = t.number(OTHER_STRIDE) * NUMBER_BYTES;
        if (KIND == NORMALISED) mean = t.address(MEAN), rate = t.address(RATE);
        if (MASKED) past = (const uint8_t *)t.address(PAST);
        if (MASKED || KIND == SCATTERED) inner = (u32)t.number(INNER);
        if (KIND == SCATTERED) inner_step = t.number(INNER_STEP) * NUMBER_BYTES;
    }
    METHOD const char *place(long r) const {
        if (KIND == SCATTERED) return first + ((u32)r / inner * stride + (u32)r % inner * inner_step);
        return first + r * stride;
    }
    METHOD bool left_out(long r) const { return MASKED && past[inner == 1 ? r : (u32)r / inner]; }
    // the next TOGETHER rows. CHECKED: those behind the end, or left out, add 0, and the first of the rows is read for them:
    // without branches, all loads are under way at once
    template <bool CHECKED> METHOD void add(float (&s)[MOST_NUMBERS]) {
        u32 ones[TOGETHER][4], others[TOGETHER][4];
        float means[TOGETHER], rates[TOGETHER];
        bool live[TOGETHER];
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const long r = row + i * step;
            live[i] = !CHECKED || r < end;
            if (CHECKED && MASKED) live[i] &= !left_out(live[i] ? r : row);
        }
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const long r = live[i] ? row + i * step : row;
            load<PER>(place(r), ones[i]);
            if (TWO) load<PER>(other + r * other_stride, others[i]);
            if (KIND == NORMALISED) means[i] = statistic(mean, r), rates[i] = statistic(rate, r);
        }
UNROLL
        for (int i = 0; i < TOGETHER; i++)
UNROLL
            for (int p = 0; p < PER; p++) {
                float one = number_of(ones[i], p);
                if (KIND == PRODUCT) one *= number_of(others[i], p);
                if (KIND == NORMALISED) one *= (number_of(others[i], p) - means[i]) * rates[i];
                s[p] += live[i] ? one : 0.0f;
            }
        row += step * TOGETHER;
    }
    METHOD void add_all(float (&s)[MOST_NUMBERS]) {
ONCE
        while (!MASKED && row + step * (TOGETHER - 1) < end) add<false>(s);
ONCE
        while (row < end) add<true>(s);
    }
};

struct Sums {
    static const int WIDE = 16 / NUMBER_BYTES;  // numbers of a column lane that loads 16 bytes

    template <int WHICH> METHOD static void add_rows(const Term &t, long row, long end, long step, long column, float (&s)[MOST_NUMBERS]) {
        if constexpr ((FORMS >> WHICH & 1) != 0)
            if (t.number(FORM) == WHICH) Reader<(WHICH & 2) != 0 ? WIDE : 1, WHICH / 4, (WHICH & 1) != 0>(t, row, end, step, column).add_all(s);
        if constexpr (WHICH > 0) add_rows<WHICH - 1>(t, row, end, step, column, s);
    }

    // The sums of the threads whose lane is the same, always in the same order: thread p * lanes + lane has number p of a
    // lane as its first one. Threads have `numbers` each; numbers * lanes is at most THREADS.
    template <class M> METHOD static void join(M &m, int lanes, int numbers) {
        const int left = lanes > THREADS / MOST_NUMBERS ? lanes : THREADS / MOST_NUMBERS, pitch = left + lanes;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < MOST_NUMBERS; p++)
                if (p < numbers) m.shared[WHOLE + p * THREADS + thread] = s[p];
        });
        m.sync();
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread >= numbers * left) return;
            const float *from = m.shared + WHOLE + thread / left * THREADS + thread % left;
            s[0] = 0.0f;
UNROLL
            for (int k = 0; k < MOST_NUMBERS; k++)
                if (k * left < THREADS) s[0] += from[k * left];
            if (left > lanes) m.shared[FEWER + thread / left * pitch + thread % left] = s[0];
        });
        if (left == lanes) return;
        m.sync();
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread >= numbers * lanes) return;
            const float *from = m.shared + FEWER + thread / lanes * pitch + thread % lanes;
            s[0] = 0.0f;
            UNROLL_PARTLY
            for (int k = 0; k < left; k += lanes) s[0] += from[k];
        });
    }

    template <class M> METHOD static void run(M &m, const Given &given) {
        int at = 0;
UNROLL
        for (int i = 1; i < TERMS; i++)
            if (m.block >= (long)given.word[HEAD_WORDS + i * TERM_WORDS + FIRST_BLOCK]) at = i;
        const Term t{given.word + HEAD_WORDS + at * TERM_WORDS};
        const int lanes = (int)t.number(LANES_OF), per = t.number(FORM) & 2 ? WIDE : 1, width = lanes * per;
        const u32 block = (u32)(m.block - t.number(FIRST_BLOCK)), tiles = (u32)t.number(TILE_COUNT), splits = (u32)t.number(SPLITS);
        const long tile = block % tiles, split = block / tiles;
        const long rows = t.number(ROWS_OF), columns = t.number(COLUMNS), each = (u32)(rows + splits - 1) / splits;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < MOST_NUMBERS; p++) s[p] = 0.0f;
            const long column = tile * width + thread % lanes * per, begin = split * each + thread / lanes, last = begin - thread / lanes + each;
            if (column < columns) add_rows<15>(t, begin, last < rows ? last : rows, THREADS / lanes, column, s);
        });
        join(m, lanes, per);
        if (splits == 1) return finish(m, t, tile, width, lanes, 1);
        float *partials = (float *)given.word[PARTIALS] + t.number(FIRST_PARTIAL) + tile * splits * width;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread < width) partials[split * width + thread] = s[0];
        });
        if (!m.is_last((u32 *)given.word[COUNTERS] + t.number(FIRST_TILE) + tile, splits)) return;
        const int numbers = width % 4 ? 1 : 4, threads = width / numbers;
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
UNROLL
            for (int p = 0; p < 4; p++) s[p] = 0.0f;
            const float *from = partials + thread % threads * numbers;
            UNROLL_PARTLY
            for (u32 i = thread / threads; i < splits; i += THREADS / threads) {
                u32 bits[4];
                if (numbers == 1) bits[0] = load_partial(from + i * width), bits[1] = bits[2] = bits[3] = 0;
                else load_partials(from + i * width, bits);
UNROLL
                for (int p = 0; p < 4; p++) s[p] += float_of_bits(bits[p]);
            }
        });
        join(m, threads, numbers);
        finish(m, t, tile, width, lanes, numbers);
    }

    // Store the sums of a tile, of which thread p * (width / numbers) + i has number i * numbers + p of the partial sums.
    // Where a row of the tile is `fold` rows of the values, they are added.
    template <class M> METHOD static void finish(M &m, const Term &t, long tile, int width, int lanes, int numbers) {
        const int threads = width / numbers, per = width / lanes, columns = (int)t.number(COLUMNS), fold = (int)t.number(FOLD);
        m.each([&](float(&s)[MOST_NUMBERS], int thread) {
            if (thread >= width) return;
            const int index = thread % threads * numbers + thread / threads, within = index % lanes * per + index / lanes;
            if (fold > 1) m.shared[FOLDED + within] = s[0];
            else if (tile * width + within < columns) store(t, tile * width + within, s[0]);
        });
        if (fold == 1) return;
        m.sync();
        m.each([&](float(&)[MOST_NUMBERS], int thread) {
            if (thread >= columns / fold) return;
            float s = 0.0f;
            for (int i = thread; i < columns; i += columns / fold) s += m.shared[FOLDED + i];
            store(t, thread, s);
        });
    }
};
KERNEL_OF_SUMS(Sums)
