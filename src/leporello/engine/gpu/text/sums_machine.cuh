// The machine of sums.cuh, behind device.cuh; host.h has the same names.
#define UNROLL_PARTLY _Pragma("unroll 4")
INLINE void load_sixteen(const char *from, u32 (&bits)[4]) {
    const uint4 v = __ldg((const uint4 *)from);
    bits[0] = v.x, bits[1] = v.y, bits[2] = v.z, bits[3] = v.w;
}
// what other blocks of the same launch have written: past the first cache, which does not see that
INLINE float load_partial(const float *from) { return __ldcg(from); }
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
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            *arrived = atomicAdd(counter, 1u);
            if (*arrived == count - 1) *counter = 0;
        }
        __syncthreads();
        const bool last = *arrived == count - 1;
        if (last) __threadfence();
        return last;
    }
};
#define KERNEL_OF_SUMS(Body)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) run(const __grid_constant__ Given given) { \
        __shared__ float shared[THREADS * 8];                                                         \
        __shared__ u32 arrived;                                                                       \
        float sums[8];                                                                                \
        SumsMachine m{(long)blockIdx.x, shared, &arrived, sums};                                      \
        Body::run(m, given);                                                                          \
    }
