// The names of device.cuh for the host, so that the same kernels run without a GPU: every phase is a loop over all blocks
// and threads, an exchange is a copy, a product is a sum. Shared memory begins with NaN, so that what nobody has written
// is seen.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint64_t u64;
#define INLINE static inline
#define METHOD inline
#define UNROLL
#define ONCE
#define INFINITE __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")
#define WARPS (THREADS / 32)

struct Given { u64 word[WORDS]; };
struct Block {
    int rank, head;
    long group, first;
    char *shared;
};

INLINE float float_of_bits(u32 v) { float f; memcpy(&f, &v, 4); return f; }
INLINE u32 bits_of_float(float v) { u32 u; memcpy(&u, &v, 4); return u; }
INLINE float from_bf16(u16 v) { return float_of_bits((u32)v << 16); }
INLINE u16 to_bf16(float v) {
    const u32 u = bits_of_float(v);
    return v != v ? 0x7fff : (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE float from_f16(u16 v) { _Float16 h; memcpy(&h, &v, 2); return (float)h; }
INLINE u16 to_f16(float v) {
    _Float16 h = (_Float16)v;
    u16 u;
    memcpy(&u, &h, 2);
    return v != v ? 0x7fff : u;
}
INLINE float tf32(float v) { return float_of_bits((bits_of_float(v) + 0x1000) & ~0x1fffu); }
INLINE float rsqrtf(float v) { return 1.0f / sqrtf(v); }

// (functions.cuh stands here)
template <class T>
struct Machine {
    std::vector<T> threads;
    std::vector<Block> blocks;
    std::vector<char> memory;
    const Given &given;
    Machine(const Given &given, long groups, long bytes) : threads(groups * BLOCKS * THREADS), memory(groups * BLOCKS * bytes, (char)0xff), given(given) {
        for (long i = 0; i < groups * BLOCKS; i++) {
            const long group = i / BLOCKS + (long)given.word[2];
            blocks.push_back({(int)(i % BLOCKS), (int)(group % HEADS), group, group / HEADS * TILES * 8, memory.data() + i * bytes});
        }
    }
    template <class F> void each(F f) {
        for (size_t i = 0; i < blocks.size(); i++)
            for (int thread = 0; thread < THREADS; thread++) f(threads[i * THREADS + thread], blocks[i], thread);
    }
    void sync() {}
    static void copy(const Block &b, int to, const void *from, bool live) {
        if (live) memcpy(b.shared + to, from, 16);
        else memset(b.shared + to, 0, 16);
    }
    void copied() {}
    template <int LATER> void arrived() {}
    void ready() {}
    void finish() {}
};

enum { F16, BF16, F32 };

// A copy in which every second word, which has the phase of a step, is changed. Where it has the phase of another step, which
// a GPU would wait for, it becomes NaN.
template <class F> void changed(char *to, const char *from, int bytes, F change) {
    for (int at = 0; at < bytes; at += 8) {
        u32 words[2];
        memcpy(words, from + at, 8);
        words[0] = change(words[0]);
        memcpy(to + at, words, 8);
    }
}
INLINE u32 checked(u32 v, u32 phase) { return (v & 1) == phase ? without_phase(v) : 0x7fffffff; }

template <int TYPE, int CHUNKS, int AT, int ROOM, int STAGED, int BARRIER, int WORD, int IN_L2>
struct Vector {
    static const int PER = TYPE == F32 ? 4 : 8, SLICE = CHUNKS * 128, WHOLE = BLOCKS * SLICE, KIND = TYPE, CHUNK_COUNT = CHUNKS;
    static const int SLOTS = EXCHANGE == 2 ? 1 : 2;
    static const bool PHASED = EXCHANGE == 2 && TYPE == F32;
    static int whole(int tile, long slot) { return AT + (tile * SLOTS + (SLOTS == 2 ? (int)(slot & 1) : 0)) * ROOM; }
    static int place(int rank, int index, int row) {
        const int chunk = index / PER, all = rank * CHUNKS + chunk;
        return chunk * 128 + ((row + 2 * (all & 3)) & 7) * 16 + index % PER * (16 / PER);
    }
    template <class M> static void begin(M &m) {
        for (Block &b : m.blocks) {
            memset(b.shared + AT, 0, TILES * SLOTS * ROOM);
            if (EXCHANGE) memset(b.shared + STAGED, 0, TILES * SLICE);
        }
    }
    static void stage(const Block &b, int tile, long slot, int row, int index, float value) {
        char *to = b.shared + (EXCHANGE ? STAGED + tile * SLICE : whole(tile, slot)) + place(b.rank, index, row);
        const u32 bits = TYPE == F32 ? bits_of_float(value) : TYPE == BF16 ? to_bf16(value) : to_f16(value);
        memcpy(to, &bits, 16 / PER);
    }
    static float at(const Block &b, int tile, long slot, int row, int rank, int index) {
        const char *from = b.shared + whole(tile, slot) + rank * SLICE + place(rank, index, row);
        u32 bits = 0;
        memcpy(&bits, from, 16 / PER);
        return TYPE == F32 ? float_of_bits(bits) : TYPE == BF16 ? from_bf16((u16)bits) : from_f16((u16)bits);
    }
    template <class M> static void send(M &m, int tile, long slot) {
        if (!EXCHANGE) return;
        for (Block &from : m.blocks) {
            const char *staged = from.shared + STAGED + tile * SLICE;
            if (EXCHANGE == 2) {
                char *to = memory(m, from, tile, slot) + from.rank * SLICE;
                if (PHASED) changed(to, staged, SLICE, [&](u32 v) { return with_phase(v, phase_of(slot)); });
                else memcpy(to, staged, SLICE);
                if (!PHASED && slot >= 2) memset(memory(m, from, tile, slot - 2) + from.rank * SLICE, 0xff, SLICE);
            } else
                for (Block &to : m.blocks)
                    if (from.group == to.group) memcpy(to.shared + whole(tile, slot) + from.rank * SLICE, staged, SLICE);
        }
    }
    // what a GPU would wait for, as it is not there yet, becomes NaN
    template <class M> static void wait(M &m, int tile, long slot) {
        for (Block &b : m.blocks) {
            if (EXCHANGE != 2) continue;
            char *to = b.shared + whole(tile, slot);
            const char *from = memory(m, b, tile, slot);
            if (PHASED) changed(to, from, WHOLE, [&](u32 v) { return checked(v, phase_of(slot)); });
            else memcpy(to, from, WHOLE);  // the mark is NaN in both types
        }
    }
    template <class M> static char *memory(M &m, const Block &b, int tile, long slot) {
        return (char *)m.given.word[WORD] + ((slot % IN_L2 * (long)m.given.word[3] + b.group) * TILES + tile) * (long)WHOLE;
    }
    static u32 phase_of(long slot) { return (u32)(slot / IN_L2 & 1); }
};

// An element of a matrix; NaN where `first` and `step`, by which a GPU reads it, say something else.
template <class W, class V> float weight(const Given &given, int head, int rank, int row, int from, int index) {
    const float found = W::element(given, head, rank, row, from, index);
    if (!W::EVEN) return found;
    long step;
    const typename W::Number *first = W::first(given, head, rank, row, from, index / V::PER * V::PER, step);
    u32 bits = 0;
    if (first) memcpy(&bits, first + index % V::PER * step, 16 / V::PER);
    const float other = V::KIND == F32 ? float_of_bits(bits) : V::KIND == BF16 ? from_bf16((u16)bits) : from_f16((u16)bits);
    const bool aligned = !W::is_wide(given) || !first || (step == 1 && (u64)first % 16 == 0);
    return aligned && (found == other || (found != found && other != other)) ? found : NOT_A_NUMBER;
}

template <class W, class V, int TILES16, int WM, int WK, int PIECES, int KEPT, int AT, int OUT, int PITCH>
struct Multiply {
    static const int HALF = WK * 8 * PITCH * 4, INNER = BLOCKS * V::CHUNK_COUNT * V::PER;
    std::vector<float> values;
    template <class M> void load(M &m) {
        for (int at = 0; at < HEADS * BLOCKS; at++)
            for (int row = 0; row < W::ROWS; row++)
                for (int k = 0; k < INNER; k++) {
                    const int chunk = k / V::PER;
                    const float w = weight<W, V>(m.given, at / BLOCKS, at % BLOCKS, row, chunk / V::CHUNK_COUNT, k % (V::CHUNK_COUNT * V::PER));
                    values.push_back(V::KIND == F32 ? (EXACT ? w : tf32(w)) : V::KIND == BF16 ? from_bf16(to_bf16(w)) : from_f16(to_f16(w)));
                }
    }
    template <class M> void run(M &m, int tile, long slot, int half) {
        std::vector<float> vector(INNER);
        for (Block &b : m.blocks)
            for (int row = 0; row < 8; row++) {
                for (int k = 0; k < INNER; k++) {
                    const float v = V::at(b, tile, slot, row, k / (V::CHUNK_COUNT * V::PER), k % (V::CHUNK_COUNT * V::PER));
                    vector[k] = V::KIND == F32 && !EXACT ? tf32(v) : v;
                }
                for (int at = 0; at < W::ROWS; at++) {
                    const float *w = values.data() + ((long)(b.head * BLOCKS + b.rank) * W::ROWS + at) * INNER;
                    float *out = (float *)(b.shared + OUT + half * HALF) + row * PITCH + at, s = 0.0f;
                    for (int k = 0; k < INNER; k++) s += w[k] * vector[k];
                    for (int part = 1; part < WK; part++) out[part * 8 * PITCH] = 0.0f;
                    out[0] = s;
                }
            }
    }
    static float sum(const Block &b, int half, int row, int at) {
        const float *from = (const float *)(b.shared + OUT + half * HALF) + row * PITCH + at;
        float s = 0.0f;
        for (int w = 0; w < WK; w++) s += from[w * 8 * PITCH];
        return s;
    }
};

template <class W, class V, int PER_OWNER, int PIECES, int KEPT, int AT, int STAGED, int RECEIVED, int BARRIER, int WORD, int BEFORE, int SLOTS, int SUMS, int PITCH, int GROUPS>
struct Scatter {
    static const int LONG = V::CHUNK_COUNT * V::PER, UNITS = PER_OWNER * 16, SIZE = 16 / V::PER, SENT = UNITS * 8 * SIZE, WHOLE = BLOCKS * SENT;
    template <class M> static void begin(M &m) {
        for (Block &b : m.blocks) memset(b.shared + STAGED, 0, TILES * PIECES * 512);
    }
    std::vector<float> values;  // [head][to][row][from][index]
    template <class M> void load(M &m) {
        for (int to = 0; to < HEADS * BLOCKS; to++)
            for (int row = 0; row < UNITS; row++)
                for (int k = 0; k < BLOCKS * LONG; k++) {
                    const float w = row < W::ROWS ? weight<W, V>(m.given, to / BLOCKS, to % BLOCKS, row, k / LONG, k % LONG) : 0.0f;
                    values.push_back(V::KIND == F32 ? (EXACT ? w : tf32(w)) : V::KIND == BF16 ? from_bf16(to_bf16(w)) : from_f16(to_f16(w)));
                }
    }
    static void stage(const Block &b, int tile, long, int row, int index, float value) {
        char *to = b.shared + STAGED + tile * PIECES * 512 + V::place(0, index, row);
        const u32 bits = V::KIND == F32 ? bits_of_float(value) : V::KIND == BF16 ? to_bf16(value) : to_f16(value);
        memcpy(to, &bits, 16 / V::PER);
    }
    // where a number is in what a block sends to another one: four numbers of each lane of a warp
    static int place(int unit, int row) {
        const int lane = unit % 8 * 4 + row / 2, number = row % 2 + unit % 16 / 8 * 2;
        return ((unit / 16 * 32 + lane) * 4 + number) * SIZE;
    }
    template <class M> static char *received(M &m, const Block &to, int tile, long slot) {
        if (EXCHANGE != 2) return to.shared + RECEIVED + (tile * 2 + (int)(slot & 1)) * WHOLE;
        const long group = to.group - (long)m.given.word[2], at = (slot + m.given.word[BEFORE]) % SLOTS;
        return (char *)m.given.word[WORD] + (((group * SLOTS + at) * TILES + tile) * BLOCKS + to.rank) * (long)WHOLE;
    }
    template <class M> static u32 phase_of(M &m, long slot) { return (u32)((slot + m.given.word[BEFORE]) / SLOTS & 1); }
    template <class M> void send(M &m, int tile, long slot) {
        std::vector<float> v(8 * LONG);
        char sums[SENT];
        for (Block &b : m.blocks) {
            for (int row = 0; row < 8; row++)
                for (int k = 0; k < LONG; k++) {
                    u32 bits = 0;
                    memcpy(&bits, b.shared + STAGED + tile * PIECES * 512 + V::place(0, k, row), SIZE);
                    v[row * LONG + k] = V::KIND == F32 ? (EXACT ? float_of_bits(bits) : tf32(float_of_bits(bits))) : V::KIND == BF16 ? from_bf16((u16)bits) : from_f16((u16)bits);
                }
            for (Block &to : m.blocks) {
                if (to.group != b.group) continue;
                for (int row = 0; row < 8; row++)
                    for (int unit = 0; unit < UNITS; unit++) {
                        const float *w = values.data() + (((long)(to.head * BLOCKS + to.rank) * UNITS + unit) * BLOCKS + b.rank) * LONG;
                        float s = 0.0f;
                        for (int k = 0; k < LONG; k++) s += w[k] * v[row * LONG + k];
                        const u32 bits = V::KIND == F32 ? bits_of_float(s) : V::KIND == BF16 ? to_bf16(s) : to_f16(s);
                        memcpy(sums + place(unit, row), &bits, SIZE);
                    }
                char *there = received(m, to, tile, slot) + b.rank * SENT;
                if (EXCHANGE == 2) changed(there, sums, SENT, [&](u32 v) { return with_phase(v, phase_of(m, slot)); });
                else memcpy(there, sums, SENT);
            }
        }
    }
    template <class M> void wait(M &m, int tile, long slot, int half) {
        std::vector<char> sums(WHOLE);
        for (Block &b : m.blocks) {
            if (EXCHANGE == 2) changed(sums.data(), received(m, b, tile, slot), WHOLE, [&](u32 v) { return checked(v, phase_of(m, slot)); });
            else memcpy(sums.data(), received(m, b, tile, slot), WHOLE);
            for (int unit = 0; unit < UNITS; unit++)
                for (int row = 0; row < 8; row++) {
                    float s = 0.0f;
                    for (int source = 0; source < BLOCKS; source++) {
                        u32 bits = 0;
                        memcpy(&bits, &sums[source * SENT + place(unit, row)], SIZE);
                        s += V::KIND == F32 ? float_of_bits(bits) : V::KIND == BF16 ? from_bf16((u16)bits) : from_f16((u16)bits);
                    }
                    ((float *)(b.shared + SUMS))[(half * GROUPS * 8 + row) * PITCH + unit] = s;
                    for (int group = 1; group < GROUPS; group++) ((float *)(b.shared + SUMS))[((half * GROUPS + group) * 8 + row) * PITCH + unit] = 0.0f;
                }
        }
    }
    static float sum(const Block &b, int half, int row, int at) {
        const float *from = (const float *)(b.shared + SUMS) + (half * GROUPS * 8 + row) * PITCH + at;
        float s = 0.0f;
        for (int group = 0; group < GROUPS; group++) s += from[group * 8 * PITCH];
        return s;
    }
};

template <class V, int OPERATION, int OWN, class M>
INLINE void reduce(M &m, int tile, long slot, int from, int index) {
    for (Block &b : m.blocks)
        for (int row = 0; row < 8; row++) {
            float s = neutral(OPERATION);
            for (int i = 0; i < OWN; i++) s = joined(OPERATION, s, ((const float *)(b.shared + from))[row * OWN + i]);
            V::stage(b, tile, slot, row, index, s);
        }
}
#define KERNEL(sweep)                                           \
    extern "C" void run(const Given *given, long groups) {      \
        Machine<Thread> m(*given, groups, SHARED);              \
        sweep(m, *given);                                       \
    }

// ---- levels as kernels of their own: see levels.cuh. Threads run one after the other, at odd steps the last one first, so
// that a value shows which a thread reads before, or after, another thread of the same kernel has written it.

#define READ(element) (element)
INLINE long in_order(long i, long count, long at) { return at & 1 ? count - 1 - i : i; }
struct Units {
    long batch, e;
    template <int SPACE, class F> void each(F f) {
        if (e < batch * SPACE) f(e / SPACE, (int)(e % SPACE));
    }
};
struct Rows {
    long n, at;
    long row() const { return n; }
    template <int SPACE, class F> void each(F f) {
        for (int unit = 0; unit < SPACE; unit++) f(n, (int)in_order(unit, SPACE, at));
    }
    template <int OPERATION> void total(float part, float *to) { *to = part; }
};
#define KERNEL_OF_UNITS(name, Level)                                              \
    extern "C" void name(const Given *table, long at, long batch, long threads) { \
        for (long i = 0; i < threads; i++) {                                      \
            Units m{batch, in_order(i, threads, at)};                             \
            Level::run(m, *table, at);                                            \
        }                                                                         \
    }
#define KERNEL_OF_ROWS(name, Level)                                         \
    extern "C" void name(const Given *table, long at, long batch, long) {   \
        for (long n = 0; n < batch; n++) {                                  \
            Rows m{in_order(n, batch, at), at};                             \
            Level::run(m, *table, at);                                      \
        }                                                                   \
    }
#define KERNEL_THAT_FILLS(name) \
    extern "C" void name(const Given *given, Given *table) { *table = *given; }

// ---- sums over rows: see sums.cuh. Blocks run one after the other, in either order.

#define UNROLL_PARTLY
INLINE void load_sixteen(const char *from, u32 (&bits)[4]) { memcpy(bits, from, 16); }
INLINE u32 load_partial(const float *from) { return bits_of_float(*from); }
INLINE void load_partials(const float *from, u32 (&bits)[4]) { memcpy(bits, from, 16); }
struct SumsMachine {
    struct Thread { float sums[8]; };
    long block;
    float *shared;
    std::vector<Thread> &threads;
    template <class F> void each(F f) {
        for (int thread = 0; thread < THREADS; thread++) f(threads[thread].sums, thread);
    }
    void sync() {}
    bool is_last(u32 *counter, u32 count) {
        if (++*counter < count) return false;
        *counter = 0;
        return true;
    }
};
#define KERNEL_OF_SUMS(Body)                                                  \
    extern "C" void run(const Given *given, long blocks, int backwards) {     \
        for (long i = 0; i < blocks; i++) {                                   \
            std::vector<float> shared(SHARED_NUMBERS, NOT_A_NUMBER);          \
            std::vector<SumsMachine::Thread> threads(THREADS);                \
            const long block = backwards ? blocks - 1 - i : i;                \
            SumsMachine m{block, shared.data(), threads};                     \
            Body::run(m, *given);                                             \
        }                                                                     \
    }
