// The machine of sums.cuh, behind device.cuh; host.h has the same names.
#define UNROLL_PARTLY _Pragma("unroll 4")
// values are read once: past the first cache
INLINE void load_sixteen(const char *from, u32 (&bits)[4]) {
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]) : "l"(from));
}
// what other blocks of the same launch have written: the first cache does not see that
INLINE u32 load_partial(const float *from) { return __ldcg((const u32 *)from); }
INLINE void load_partials(const float *from, u32 (&bits)[4]) {
    const uint4 v = __ldcg((const uint4 *)from);
    bits[0] = v.x, bits[1] = v.y, bits[2] = v.z, bits[3] = v.w;
}

struct SumsMachine {
    long block;
    float *shared;
    u32 *arrived;
    float (&sums)[8];
    template <class F> METHOD void each(F f) { f(sums, (int)threadIdx.x); }
    METHOD void sync() { __syncthreads(); }
    // whether all others of `count` blocks have written what they write; the counter is 0 again after the last one
    METHOD bool is_last(u32 *counter, u32 count) {
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 before;  // releases what the threads of the block have written, and acquires what other blocks have
            asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(count - 1) : "memory");
            *arrived = before;
        }
        __syncthreads();
        return *arrived == count - 1;
    }
};
#define KERNEL_OF_SUMS(Body)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) run(const __grid_constant__ Given given) { \
        __shared__ float shared[SHARED_NUMBERS];                                                                  \
        __shared__ u32 arrived;                                                                                   \
        float sums[8];                                                                                            \
        SumsMachine m{(long)blockIdx.x, shared, &arrived, sums};                                                  \
        Body::run(m, given);                                                                                      \
    }
