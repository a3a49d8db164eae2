// What generated kernels are made of, on a GPU. A group of BLOCKS thread blocks takes TILES tiles of 8 rows through all
// steps; each block has its units (schedule.py) and the rows of the matrices that give them, in registers and shared
// memory. Defined before this text: BLOCKS, TILES, HEADS, THREADS, WORDS; EXCHANGE (0 one block, 1 a cluster, 2 through L2);
// EXACT (products of float32 in three TF32 products); ACCURATE (slower functions, for float32). host.h has the same names.
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#define INLINE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define ONCE _Pragma("unroll 1")
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define WARPS (THREADS / 32)
#define UNSET 0xffffffffu  // two numbers that no kernel makes: NaN is written as 0x7fff
#define MOST_SPINS (1 << 24)

struct Given { u64 word[WORDS]; };
struct Block {
    int rank;      // in its group
    int head;      // of the group, where heads have groups of their own
    long group;    // counted over all launches of a call: the heads of the same rows are neighbours
    long first;    // row
    char *shared;
    u32 base;      // address of shared memory
};

INLINE float float_of_bits(u32 v) { return __uint_as_float(v); }
INLINE u32 bits_of_float(float v) { return __float_as_uint(v); }
INLINE u16 to_bf16(float v) { u32 d; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(0.0f), "f"(v)); return (u16)d; }
INLINE float from_bf16(u16 v) { return __uint_as_float((u32)v << 16); }
INLINE u32 two_bf16(float low, float high) { u32 d; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d; }
INLINE u32 two_f16(float low, float high) { u32 d; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d; }
INLINE u16 to_f16(float v) { u16 d; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(v)); return d; }
INLINE float from_f16(u16 v) { float d; asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(v)); return d; }
// volatile: of EXACT products the parts of a matrix are made where they are used. Made before the first step, they would
// need twice the registers, which no thread has
INLINE u32 tf32(float v) { u32 d; asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(v)); return d; }
INLINE float ex2(float v) { float d; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(v)); return d; }
INLINE float rcp(float v) { float d; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(v)); return d; }

// (functions.cuh stands here)
INLINE u32 address_of(const void *p) {
    u32 a;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
    return a;
}
INLINE uint4 load_shared(u32 a) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
    return v;
}
INLINE void store_shared(u32 a, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE void failed(const char *) { asm volatile("trap;"); }  // a block that never answers: the launch ends with an error

// ---- barriers of a cluster

#if EXCHANGE == 1
INLINE void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
INLINE void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(bar), "r"(bytes) : "memory");
}
INLINE void barrier_wait(u32 bar, u32 parity) {
    u32 done;
    int spins = 0;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        if (++spins > MOST_SPINS) failed("cluster");
    } while (!done);
}
INLINE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
INLINE u32 in_block(u32 address, u32 rank) {
    u32 d;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(address), "r"(rank));
    return d;
}
#endif

// ---- the machine: one thread of one block

template <class T>
struct Machine {
    T thread;
    Block block;
    const Given &given;
    METHOD Machine(const Given &given, char *shared) : given(given) {
        block.rank = blockIdx.x % BLOCKS;
        block.group = blockIdx.x / BLOCKS + (long)given.word[2];
        block.head = (int)(block.group % HEADS);
        block.first = block.group / HEADS * (TILES * 8);
        block.shared = shared;
        block.base = address_of(shared);
    }
    template <class F> METHOD void each(F f) { f(thread, block, (int)threadIdx.x); }
    METHOD void sync() { __syncthreads(); }
    // after the vectors' barriers are made; `bytes` of shared memory from `at` on are set to zero
    METHOD void clear(int at, int bytes) {
        for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16) store_shared(block.base + at + i, make_uint4(0, 0, 0, 0));
    }
    // copies of 16 bytes into shared memory (zeros where not `live`) belong together until `copied`; `arrived` waits until
    // all but the last LATER groups of them are there, for this thread
    METHOD static void copy(const Block &b, int to, const void *from, bool live) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(b.base + to), "l"(from), "r"(live ? 16 : 0) : "memory");
    }
    METHOD void copied() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int LATER> METHOD void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }
    METHOD void ready() {
#if EXCHANGE == 1
        if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncthreads();
        cluster_barrier();
#else
        __syncthreads();
#endif
    }
    METHOD void finish() {
#if EXCHANGE == 1
        cluster_barrier();  // shared memory that others write to stays until all are done
#endif
    }
};

// ---- through L2: memory that is read until it has been written. All reads are under way before the first one is waited
// for, and what is not there yet is read again.

#if EXCHANGE == 2
INLINE bool is_unset(uint4 v) { return v.x == UNSET || v.y == UNSET || v.z == UNSET || v.w == UNSET; }
INLINE bool is_all_unset(uint4 v) { return (v.x & v.y & v.z & v.w) == UNSET; }
INLINE uint4 load_gathered(const char *from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}
INLINE void store_gathered(char *to, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE uint4 load_two(const char *from) {
    u64 low, high;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
    return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
INLINE void store_two(char *to, uint4 v) {
    const u64 low = v.x | (u64)v.y << 32, high = v.z | (u64)v.w << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1,%2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}
// a whole vector into shared memory. PHASED: 64 bits are there when their lowest bit is the phase; else 16 bytes are there
// when none of their words is the mark of memory that nobody has written. `cleared`: SLICE bytes into which the calling
// threads have written marks, 16 bytes each; they are read, so that they are there for others when this returns
template <int WHOLE, int SLICE, bool PHASED>
INLINE void gather(const char *from, u32 to, u32 phase, const char *cleared) {
    constexpr int PIECES = (WHOLE / 16 + THREADS - 1) / THREADS, TOGETHER = PIECES < 8 ? PIECES : 8;
    constexpr int OWN = PHASED ? 1 : (SLICE / 16 + THREADS - 1) / THREADS;
    uint4 own[OWN];
UNROLL
    for (int i = 0; i < OWN; i++) {
        const int o = (i * THREADS + (int)threadIdx.x) * 16;
        own[i] = !PHASED && cleared && o < SLICE ? load_gathered(cleared + o) : make_uint4(UNSET, UNSET, UNSET, UNSET);
    }
UNROLL
    for (int first = 0; first < PIECES; first += TOGETHER) {
        uint4 v[TOGETHER];
        int spins = 0;
        bool missing;
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const int o = ((first + i) * THREADS + (int)threadIdx.x) * 16;
            v[i] = o >= WHOLE ? make_uint4(phase, 0, phase, 0) : PHASED ? load_two(from + o) : load_gathered(from + o);
        }
        do {
            missing = false;
UNROLL
            for (int i = 0; i < TOGETHER; i++)
                if (PHASED ? (v[i].x & 1) != phase || (v[i].z & 1) != phase : is_unset(v[i])) {
                    const char *again = from + ((first + i) * THREADS + (int)threadIdx.x) * 16;
                    v[i] = PHASED ? load_two(again) : load_gathered(again), missing = true;
                }
            if (++spins > MOST_SPINS / 8) failed("L2");
        } while (__any_sync(0xffffffffu, missing));
UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            const int o = ((first + i) * THREADS + (int)threadIdx.x) * 16;
            if (PHASED) v[i].x = without_phase(v[i].x), v[i].z = without_phase(v[i].z);
            if (o < WHOLE) store_shared(to + o, v[i]);
        }
    }
UNROLL
    for (int i = 0; i < OWN; i++)
        if (!is_all_unset(own[i])) failed("mark");
}
#endif

// ---- vectors that all blocks have as a whole
//
// A chunk is 16 bytes of each of 8 rows: 8 elements of 16 bits or 4 of 32. A block's slice is CHUNKS chunks; the whole is
// the slices in the order of the blocks. The rows of a chunk are rotated, so that a warp that reads four chunks of eight
// rows meets every bank of shared memory once.
//
// Through L2, vectors have IN_L2 slots in memory, each for a step. Those of float32 have two, as scattered sums do, and the
// phase of a step in the lowest bit of every second number. In 16 bits each bit counts; what is there is told by a mark that is no
// number. A block sends step s when it has all of s - 1, which each block has sent when it had all of s - 2: it then marks
// its slice of s - 2 as unset, and reads the marks before it sends s + 1. Who has s + 1 finds the marks: step s + 2 may have
// the memory of s - 2, and there are four slots.

enum { F16, BF16, F32 };

template <int TYPE, int CHUNKS, int AT, int ROOM, int STAGED, int BARRIER, int WORD, int IN_L2>
struct Vector {
    static const int PER = TYPE == F32 ? 4 : 8, SLICE = CHUNKS * 128, WHOLE = BLOCKS * SLICE, KIND = TYPE, CHUNK_COUNT = CHUNKS;
    static const int SLOTS = EXCHANGE == 2 ? 1 : 2;
    static const bool PHASED = TYPE == F32;
    METHOD static int whole(int tile, long slot) { return AT + (tile * SLOTS + (SLOTS == 2 ? (int)(slot & 1) : 0)) * ROOM; }
    METHOD static int place(int rank, int index, int row) {
        const int chunk = index / PER, all = rank * CHUNKS + chunk;
        return chunk * 128 + ((row + 2 * (all & 3)) & 7) * 16 + index % PER * (16 / PER);
    }
    METHOD static u32 barrier(const Block &b, int tile, long slot) { return b.base + BARRIER + (tile * 2 + (int)(slot & 1)) * 8; }
    template <class M> METHOD static void begin(M &m) {
        m.clear(AT, TILES * SLOTS * ROOM);  // what no unit stages is 0
        if (EXCHANGE) m.clear(STAGED, TILES * SLICE);
#if EXCHANGE == 1
        if (threadIdx.x == 0)
            for (int i = 0; i < TILES * 2; i++) {
                barrier_init(m.block.base + BARRIER + i * 8, 1);
                barrier_expect(m.block.base + BARRIER + i * 8, WHOLE);
            }
#endif
    }
    // one element of this block's slice
    METHOD static void stage(const Block &b, int tile, long slot, int row, int index, float value) {
        char *to = b.shared + (EXCHANGE ? STAGED + tile * SLICE : whole(tile, slot)) + place(b.rank, index, row);
        if (TYPE == F32) *(u32 *)to = value != value ? 0x7fffffffu : bits_of_float(value);
        else *(u16 *)to = TYPE == BF16 ? to_bf16(value) : to_f16(value);
    }
    METHOD static float at(const Block &b, int tile, long slot, int row, int rank, int index) {
        const char *from = b.shared + whole(tile, slot) + rank * SLICE + place(rank, index, row);
        if (TYPE == F32) return *(const float *)from;
        return TYPE == BF16 ? from_bf16(*(const u16 *)from) : from_f16(*(const u16 *)from);
    }
    // the staged slice to all blocks of the group
    template <class M> METHOD static void send(M &m, int tile, long slot) {
        const Block &b = m.block;
#if EXCHANGE == 1
        constexpr int LANES = SLICE / 16 < 32 ? SLICE / 16 : 32, TARGETS = 32 / LANES;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane < LANES * TARGETS) {
UNROLL
            for (int d = 0; d < BLOCKS; d += WARPS * TARGETS) {
                const int target = d + warp * TARGETS + lane / LANES;
                if (target < BLOCKS) {
                    const u32 rank = (target + b.rank) % BLOCKS;
                    const u32 there = in_block(b.base + whole(tile, slot) + b.rank * SLICE, rank);
                    const u32 bar = in_block(barrier(b, tile, slot), rank);
UNROLL
                    for (int o = 0; o < SLICE; o += LANES * 16) {
                        const int at = o + (lane % LANES) * 16;
                        if (SLICE % (LANES * 16) == 0 || at < SLICE) {
                            const uint4 v = load_shared(b.base + STAGED + tile * SLICE + at);
                            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
                                         ::"r"(there + at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar) : "memory");
                        }
                    }
                }
            }
        }
#elif EXCHANGE == 2
        char *to = global(m, tile, slot) + b.rank * SLICE;
        for (int o = threadIdx.x * 16; o < SLICE; o += THREADS * 16) {
            uint4 v = load_shared(b.base + STAGED + tile * SLICE + o);
            if (PHASED) {
                v.x = with_phase(v.x, phase_of(slot)), v.z = with_phase(v.z, phase_of(slot));
                store_two(to + o, v);
                continue;
            }
            store_gathered(to + o, v);
        }
        char *before = slot < 2 || PHASED ? nullptr : global(m, tile, slot - 2) + b.rank * SLICE;
        for (int o = threadIdx.x * 16; before && o < SLICE; o += THREADS * 16) store_gathered(before + o, make_uint4(UNSET, UNSET, UNSET, UNSET));
#endif
    }
    template <class M> METHOD static char *global(M &m, int tile, long slot) {
        return (char *)m.given.word[WORD] + ((slot % IN_L2 * (long)m.given.word[3] + m.block.group) * TILES + tile) * (long)WHOLE;
    }
    METHOD static u32 phase_of(long slot) { return (u32)(slot / IN_L2 & 1); }
    // until all slices have arrived
    template <class M> METHOD static void wait(M &m, int tile, long slot) {
#if EXCHANGE == 1
        const u32 bar = barrier(m.block, tile, slot);
        barrier_wait(bar, (u32)(slot >> 1) & 1);
        if (threadIdx.x == 0) barrier_expect(bar, WHOLE);
#elif EXCHANGE == 2
        const char *cleared = slot < 2 || PHASED ? nullptr : global(m, tile, slot - 2) + m.block.rank * SLICE;
        gather<WHOLE, SLICE, PHASED>(global(m, tile, slot), m.block.base + whole(tile, slot), phase_of(slot), cleared);
        __syncthreads();
#endif
    }
};

// ---- products of a vector with this block's rows of matrices

INLINE void mma(int type, float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define MMA(shape, types)                                                                                          \
    asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
    if (type == F16) MMA("m16n8k16", "f32.f16.f16.f32");
    else if (type == BF16) MMA("m16n8k16", "f32.bf16.bf16.f32");
    else MMA("m16n8k8", "f32.tf32.tf32.f32");
}

// 16 bytes of a matrix for one row of the result and one chunk of the vector, as bits
template <class W, class V>
static __device__ __noinline__ uint4 any_weights(const Given &given, int head, int rank, int row, int chunk) {
    u32 v[4] = {0, 0, 0, 0};
    const int from = chunk / V::CHUNK_COUNT, index = chunk % V::CHUNK_COUNT * V::PER;
    if (from < BLOCKS && row < W::ROWS)
UNROLL
        for (int i = 0; i < V::PER; i++) {
            const float w = W::element(given, head, rank, row, from, index + i);
            if (V::KIND == F32) v[i] = EXACT ? bits_of_float(w) : tf32(w);
            else v[i / 2] |= (u32)(V::KIND == BF16 ? to_bf16(w) : to_f16(w)) << (16 * (i % 2));
        }
    return make_uint4(v[0], v[1], v[2], v[3]);
}
// the same where its elements are at equal distances, WIDE: one behind the other; without a branch, so that many loads are
// under way at once
template <class W, class V, bool WIDE>
INLINE uint4 weights(const Given &given, int head, int rank, int row, int chunk) {
    if (!W::EVEN) return any_weights<W, V>(given, head, rank, row, chunk);
    const int from = chunk / V::CHUNK_COUNT, index = chunk % V::CHUNK_COUNT * V::PER;
    const bool inside = from < BLOCKS && row < W::ROWS;
    long step;
    const typename W::Number *first = W::first(given, head, rank, inside ? row : 0, inside ? from : 0, index, step);
    const bool live = inside && first;
    uint4 v;
    if (WIDE) {
        v = live ? *(const uint4 *)first : make_uint4(0, 0, 0, 0);
    } else if (V::KIND == F32) {
        const u32 *words = (const u32 *)first;
        v.x = live ? words[0] : 0, v.y = live ? words[step] : 0, v.z = live ? words[2 * step] : 0, v.w = live ? words[3 * step] : 0;
    } else {
        const u16 *halves = (const u16 *)first;
        u32 h[8];
UNROLL
        for (int i = 0; i < 8; i++) h[i] = live ? halves[i * step] : 0;
        v = make_uint4(h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16);
    }
    if (V::KIND == F32 && !EXACT) v = make_uint4(tf32(float_of_bits(v.x)), tf32(float_of_bits(v.y)), tf32(float_of_bits(v.z)), tf32(float_of_bits(v.w)));
    return v;
}

// TILES16 tiles of 16 rows of the result, by WM x WK warps over rows and inner numbers; of each warp's PIECES pieces of
// four chunks KEPT are in registers, the others in shared memory from AT on. Partial sums go to OUT: [WK][8][PITCH].
template <class W, class V, int TILES16, int WM, int WK, int PIECES, int KEPT, int AT, int OUT, int PITCH>
struct Multiply {
    static const int MTW = TILES16 / WM, REST = PIECES - KEPT, HALF = WK * 8 * PITCH * 4;
    u32 a[MTW][KEPT ? KEPT : 1][8];
    template <class M> METHOD void load(M &m) {
        if (W::is_wide(m.given)) load_all<true>(m);
        else load_all<false>(m);
    }
    template <bool WIDE, class M> METHOD void load_all(M &m) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp / WK, wk = warp % WK;
UNROLL
        for (int i = 0; i < MTW; i++)
UNROLL
            for (int k = 0; k < PIECES; k++) {
                const int row = (wm * MTW + i) * 16 + (lane >> 2), chunk = (wk * PIECES + k) * 4 + (lane & 3);
                const uint4 lo = weights<W, V, WIDE>(m.given, m.block.head, m.block.rank, row, chunk), hi = weights<W, V, WIDE>(m.given, m.block.head, m.block.rank, row + 8, chunk);
                if (k < KEPT) {
                    u32(&to)[8] = a[i][k < KEPT ? k : 0];
                    to[0] = lo.x, to[1] = hi.x, to[2] = lo.y, to[3] = hi.y, to[4] = lo.z, to[5] = hi.z, to[6] = lo.w, to[7] = hi.w;
                } else {
                    const u32 to = m.block.base + AT + ((warp * MTW + i) * REST + (k - KEPT)) * 1024 + lane * 16;
                    store_shared(to, make_uint4(lo.x, hi.x, lo.y, hi.y));
                    store_shared(to + 512, make_uint4(lo.z, hi.z, lo.w, hi.w));
                }
            }
    }
    METHOD static void piece(float (&d)[4], float (&e)[4], uint4 p, uint4 q, uint4 v) {
        if (V::KIND == F32 && EXACT) {  // the large parts, and twice large times small
            const u32 a[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w}, b[4] = {v.x, v.y, v.z, v.w};
            u32 al[8], as[8], bl[4], bs[4];
UNROLL
            for (int i = 0; i < 8; i++) al[i] = tf32(float_of_bits(a[i])), as[i] = tf32(float_of_bits(a[i]) - float_of_bits(al[i]));
UNROLL
            for (int i = 0; i < 4; i++) bl[i] = tf32(float_of_bits(b[i])), bs[i] = tf32(float_of_bits(b[i]) - float_of_bits(bl[i]));
            mma(F32, e, as[0], as[1], as[2], as[3], bl[0], bl[1]);
            mma(F32, e, as[4], as[5], as[6], as[7], bl[2], bl[3]);
            mma(F32, e, al[0], al[1], al[2], al[3], bs[0], bs[1]);
            mma(F32, e, al[4], al[5], al[6], al[7], bs[2], bs[3]);
            mma(F32, d, al[0], al[1], al[2], al[3], bl[0], bl[1]);
            mma(F32, d, al[4], al[5], al[6], al[7], bl[2], bl[3]);
            return;
        }
        if (V::KIND == F32) v = make_uint4(tf32(float_of_bits(v.x)), tf32(float_of_bits(v.y)), tf32(float_of_bits(v.z)), tf32(float_of_bits(v.w)));
        mma(V::KIND, d, p.x, p.y, p.z, p.w, v.x, v.y);
        mma(V::KIND, e, q.x, q.y, q.z, q.w, v.z, v.w);
    }
    template <class M> METHOD void run(M &m, int tile, long slot, int half) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp / WK, wk = warp % WK, row = lane >> 2, q = lane & 3;
        float d[MTW][4], e[MTW][4];
UNROLL
        for (int i = 0; i < MTW; i++)
UNROLL
            for (int n = 0; n < 4; n++) d[i][n] = e[i][n] = 0.0f;
        const u32 from = m.block.base + V::whole(tile, slot) + (wk * PIECES * 4 + q) * 128 + ((row + 2 * q) & 7) * 16;
        constexpr int AHEAD = PIECES < 8 ? PIECES : 8;
UNROLL
        for (int first = 0; first < PIECES; first += AHEAD) {
            uint4 v[AHEAD];
UNROLL
            for (int k = 0; k < AHEAD; k++)
                if (first + k < PIECES) v[k] = load_shared(from + (first + k) * 512);
UNROLL
            for (int k = first; k < first + AHEAD; k++)
UNROLL
                for (int i = 0; i < MTW; i++) {
                    if (k >= PIECES) continue;
                    if (k < KEPT) {
                        u32(&x)[8] = a[i][k < KEPT ? k : 0];
                        piece(d[i], e[i], make_uint4(x[0], x[1], x[2], x[3]), make_uint4(x[4], x[5], x[6], x[7]), v[k - first]);
                    } else {
                        const u32 x = m.block.base + AT + ((warp * MTW + i) * REST + (k - KEPT)) * 1024 + lane * 16;
                        piece(d[i], e[i], load_shared(x), load_shared(x + 512), v[k - first]);
                    }
                }
        }
        float *out = (float *)(m.block.shared + OUT + half * HALF) + (wk * 8 + 2 * q) * PITCH + wm * MTW * 16 + row;
UNROLL
        for (int i = 0; i < MTW; i++)
UNROLL
            for (int n = 0; n < 4; n++) out[(n & 1) * PITCH + i * 16 + (n >> 1) * 8] = d[i][n] + e[i][n];
    }
    // one element of the result, for the units of this block
    METHOD static float sum(const Block &b, int half, int row, int at) {
        const float *from = (const float *)(b.shared + OUT + half * HALF) + row * PITCH + at;
        float s = 0.0f;
UNROLL
        for (int w = 0; w < WK; w++) s += from[w * 8 * PITCH];
        return s;
    }
};

// ---- products of this block's slice of a vector, for all units: each unit's block gets the sum over all blocks
//
// Where a vector is longer than the result (a gradient through four gates), partial sums are fewer bytes than the vector.
// A tile of 16 units and 8 rows travels as the warp holds it, in the vector's type: four numbers of each lane, to the same
// lane of the owner. PER_OWNER tiles belong to each block. GROUPS groups of warps add up the sums, each those of a part of
// the blocks. Through L2, the sums of a step are in one of SLOTS slots, in turn; the word BEFORE counts the steps of earlier
// launches. A slot's steps have phase 0 and 1 in turn, which is the lowest bit of every 64; memory begins with phase 1. A
// block writes a slot again when it has the sums of the step before, which each block has sent after it had all of the
// slot: two slots suffice.

template <class W, class V, int PER_OWNER, int PIECES, int KEPT, int AT, int STAGED, int RECEIVED, int BARRIER, int WORD, int BEFORE, int SLOTS, int SUMS, int PITCH, int GROUPS>
struct Scatter {
    static const int ALL = BLOCKS * PER_OWNER, MTW = (ALL + WARPS - 1) / WARPS, REST = PIECES - KEPT;
    static const int LANE = V::KIND == F32 ? 16 : 8, TILE = 32 * LANE, WHOLE = ALL * TILE;
    u32 a[MTW][KEPT ? KEPT : 1][8];
    METHOD static u32 received(const Block &b, int tile, long slot) { return b.base + RECEIVED + (tile * 2 + (int)(slot & 1)) * WHOLE; }
    METHOD static u32 barrier(const Block &b, int tile, long slot) { return b.base + BARRIER + (tile * 2 + (int)(slot & 1)) * 8; }
    template <class M> METHOD static void begin(M &m) {
        m.clear(STAGED, TILES * PIECES * 512);
#if EXCHANGE == 1
        if (threadIdx.x == 0)
            for (int i = 0; i < TILES * 2; i++) {
                barrier_init(m.block.base + BARRIER + i * 8, 1);
                barrier_expect(m.block.base + BARRIER + i * 8, WHOLE);
            }
#endif
    }
    template <class M> METHOD void load(M &m) {
        if (W::is_wide(m.given)) load_all<true>(m);
        else load_all<false>(m);
    }
    template <bool WIDE, class M> METHOD void load_all(M &m) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
UNROLL
        for (int i = 0; i < MTW; i++)
UNROLL
            for (int k = 0; k < PIECES; k++) {
                const int t = warp * MTW + i, owner = t / PER_OWNER, row = t % PER_OWNER * 16 + (lane >> 2), mine = k * 4 + (lane & 3);
                const int chunk = owner < BLOCKS && mine < V::CHUNK_COUNT ? m.block.rank * V::CHUNK_COUNT + mine : BLOCKS * V::CHUNK_COUNT;
                const uint4 lo = weights<W, V, WIDE>(m.given, m.block.head, owner, row, chunk), hi = weights<W, V, WIDE>(m.given, m.block.head, owner, row + 8, chunk);
                if (k < KEPT) {
                    u32(&to)[8] = a[i][k < KEPT ? k : 0];
                    to[0] = lo.x, to[1] = hi.x, to[2] = lo.y, to[3] = hi.y, to[4] = lo.z, to[5] = hi.z, to[6] = lo.w, to[7] = hi.w;
                } else {
                    const u32 to = m.block.base + AT + (t * REST + (k - KEPT)) * 1024 + lane * 16;
                    store_shared(to, make_uint4(lo.x, hi.x, lo.y, hi.y));
                    store_shared(to + 512, make_uint4(lo.z, hi.z, lo.w, hi.w));
                }
            }
    }
    // one element of this block's slice
    METHOD static void stage(const Block &b, int tile, long, int row, int index, float value) {
        char *to = b.shared + STAGED + tile * PIECES * 512 + V::place(0, index, row);
        if (V::KIND == F32) *(u32 *)to = bits_of_float(value);
        else *(u16 *)to = V::KIND == BF16 ? to_bf16(value) : to_f16(value);
    }
    // a few tiles are multiplied and sent before the next ones: stores and products overlap
    template <class M> METHOD void send(M &m, int tile, long slot) {
        constexpr int PARTS = (MTW + 3) / 4, TOGETHER = (MTW + PARTS - 1) / PARTS;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane >> 2, q = lane & 3;
        const u32 from = m.block.base + STAGED + tile * PIECES * 512 + q * 128 + ((row + 2 * q) & 7) * 16;
UNROLL
        for (int first = 0; first < MTW; first += TOGETHER) {
            float d[TOGETHER][4], e[TOGETHER][4];
UNROLL
            for (int j = 0; j < TOGETHER; j++)
UNROLL
                for (int n = 0; n < 4; n++) d[j][n] = e[j][n] = 0.0f;
UNROLL
            for (int k = 0; k < PIECES; k++) {
                const uint4 v = load_shared(from + k * 512);
UNROLL
                for (int j = 0; j < TOGETHER; j++) {
                    const int i = first + j;
                    if (i >= MTW) continue;
                    if (k < KEPT) {
                        u32(&x)[8] = a[i < MTW ? i : 0][k < KEPT ? k : 0];
                        Multiply<W, V, 1, 1, 1, 1, 1, 0, 0, 0>::piece(d[j], e[j], make_uint4(x[0], x[1], x[2], x[3]), make_uint4(x[4], x[5], x[6], x[7]), v);
                    } else {
                        const u32 x = m.block.base + AT + ((warp * MTW + i) * REST + (k - KEPT)) * 1024 + lane * 16;
                        Multiply<W, V, 1, 1, 1, 1, 1, 0, 0, 0>::piece(d[j], e[j], load_shared(x), load_shared(x + 512), v);
                    }
                }
            }
UNROLL
            for (int j = 0; j < TOGETHER; j++) {
                const int t = warp * MTW + first + j;
                if (first + j >= MTW || ALL % WARPS && t >= ALL) continue;
                float s[4];
UNROLL
                for (int n = 0; n < 4; n++) s[n] = d[j][n] + e[j][n];
                send_tile(m, t / PER_OWNER, t % PER_OWNER, tile, slot, s);
            }
        }
    }
    template <class M> METHOD static void send_tile(M &m, int owner, int of_owner, int tile, long slot, const float (&s)[4]) {
        const int offset = (m.block.rank * PER_OWNER + of_owner) * TILE + ((int)threadIdx.x & 31) * LANE;
        uint4 v = make_uint4(bits_of_float(s[0]), bits_of_float(s[1]), bits_of_float(s[2]), bits_of_float(s[3]));
        if (V::KIND != F32) v.x = pair(s[0], s[1]), v.y = pair(s[2], s[3]);
#if EXCHANGE == 1
        const u32 to = in_block(received(m.block, tile, slot), owner) + offset, bar = in_block(barrier(m.block, tile, slot), owner);
        if (V::KIND == F32)
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar) : "memory");
        else
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(to), "r"(v.x), "r"(v.y), "r"(bar) : "memory");
#elif EXCHANGE == 2
        const u32 phase = phase_of(m, slot);
        char *to = global(m, owner, tile, slot) + offset;
        v.x = with_phase(v.x, phase), v.z = with_phase(v.z, phase);
        if (V::KIND == F32) store_two(to, v);
        else asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(v.x | (u64)v.y << 32) : "memory");
#endif
    }
    METHOD static u32 pair(float low, float high) { return V::KIND == BF16 ? two_bf16(low, high) : two_f16(low, high); }
    template <class M> METHOD static char *global(M &m, int owner, int tile, long slot) {
        const long group = m.block.group - (long)m.given.word[2], at = (slot + m.given.word[BEFORE]) % SLOTS;
        return (char *)m.given.word[WORD] + (((group * SLOTS + at) * TILES + tile) * BLOCKS + owner) * (long)WHOLE;
    }
    template <class M> METHOD static u32 phase_of(M &m, long slot) { return (u32)((slot + m.given.word[BEFORE]) / SLOTS & 1); }
    // four numbers of a lane; 16-bit ones are in the first two words
    METHOD static uint4 load_sums(u32 from) {
        if (V::KIND == F32) return load_shared(from);
        uint4 v = make_uint4(0, 0, 0, 0);
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
        return v;
    }
    METHOD static uint4 load_sums(const char *from) {
        u64 low;
        if (V::KIND == F32) return load_two(from);
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(low) : "l"(from) : "memory");
        return make_uint4((u32)low, (u32)(low >> 32), 0, 0);
    }
    METHOD static bool has_phase(uint4 v, u32 phase) { return (v.x & 1) == phase && (V::KIND != F32 || (v.z & 1) == phase); }
    // until the sums of all blocks have arrived, and are added up in the order of the blocks
    template <class M> METHOD void wait(M &m, int tile, long slot, int half) {
        constexpr int EACH = BLOCKS / GROUPS, MOST = V::KIND == F32 ? 8 : 16, PARTS = (EACH + MOST - 1) / MOST, TOGETHER = (EACH + PARTS - 1) / PARTS;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#if EXCHANGE == 1
        const u32 bar = barrier(m.block, tile, slot), from = received(m.block, tile, slot) + lane * LANE;
        barrier_wait(bar, (u32)(slot >> 1) & 1);
        if (threadIdx.x == 0) barrier_expect(bar, WHOLE);
#else
        const char *from = global(m, m.block.rank, tile, slot) + lane * LANE;
        const u32 phase = phase_of(m, slot);
#endif
UNROLL
        for (int part = 0; part < PER_OWNER * GROUPS; part += WARPS) {
            const int own = (part + warp) % PER_OWNER, group = (part + warp) / PER_OWNER;
            if (group >= GROUPS) continue;
            float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
UNROLL
            for (int first = 0; first < EACH; first += TOGETHER) {
                uint4 v[TOGETHER];
UNROLL
                for (int i = 0; i < TOGETHER; i++)
                    if (first + i < EACH) v[i] = load_sums(from + ((group * EACH + first + i) * PER_OWNER + own) * TILE);
#if EXCHANGE == 2
                int spins = 0;
                bool missing;
                do {
                    missing = false;
UNROLL
                    for (int i = 0; i < TOGETHER; i++)
                        if (first + i < EACH && !has_phase(v[i], phase))
                            v[i] = load_sums(from + ((group * EACH + first + i) * PER_OWNER + own) * TILE), missing = true;
                    if (++spins > MOST_SPINS / 8) failed("L2");
                } while (__any_sync(0xffffffffu, missing));
UNROLL
                for (int i = 0; i < TOGETHER; i++)
                    if (first + i < EACH) v[i].x = without_phase(v[i].x), v[i].z = without_phase(v[i].z);
#endif
UNROLL
                for (int i = 0; i < TOGETHER; i++)
                    if (first + i < EACH) {
                        s[0] += V::KIND == F32 ? float_of_bits(v[i].x) : from_16(v[i].x);
                        s[1] += V::KIND == F32 ? float_of_bits(v[i].y) : from_16(v[i].x >> 16);
                        s[2] += V::KIND == F32 ? float_of_bits(v[i].z) : from_16(v[i].y);
                        s[3] += V::KIND == F32 ? float_of_bits(v[i].w) : from_16(v[i].y >> 16);
                    }
            }
            float *to = (float *)(m.block.shared + SUMS) + ((half * GROUPS + group) * 8 + 2 * (lane & 3)) * PITCH + own * 16 + (lane >> 2);
UNROLL
            for (int n = 0; n < 4; n++) to[(n & 1) * PITCH + (n >> 1) * 8] = s[n];
        }
    }
    METHOD static float from_16(u32 v) { return V::KIND == BF16 ? from_bf16((u16)v) : from_f16((u16)v); }
    METHOD static float sum(const Block &b, int half, int row, int at) {
        const float *from = (const float *)(b.shared + SUMS) + (half * GROUPS * 8 + row) * PITCH + at;
        float s = 0.0f;
UNROLL
        for (int group = 0; group < GROUPS; group++) s += from[group * 8 * PITCH];
        return s;
    }
};

// ---- reductions of all units of a row: `from` has OWN floats for each of 8 rows

template <class V, int OPERATION, int OWN, class M>
INLINE void reduce(M &m, int tile, long slot, int from, int index) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int row = warp; row < 8; row += WARPS) {
        const float *values = (const float *)(m.block.shared + from) + row * OWN;
        float s = neutral(OPERATION);
        for (int i = lane; i < OWN; i += 32) s = joined(OPERATION, s, values[i]);
UNROLL
        for (int d = 16; d; d /= 2) s = joined(OPERATION, s, __shfl_xor_sync(0xffffffffu, s, d));
        if (lane == 0) V::stage(m.block, tile, slot, row, index, s);
    }
}
#define KERNEL(sweep)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) run(const __grid_constant__ Given given) { \
        extern __shared__ __align__(128) char shared[];                                                 \
        Machine<Thread> m(given, shared);                                                               \
        sweep(m, given);                                                                                \
    }
