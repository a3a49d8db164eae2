// Levels as kernels of their own, behind device.cuh; host.h has the same names. A kernel takes the address of a table of
// words, its step within the part of the sequence that the table is about, and the batch: of it each thread knows whether
// it has a row without waiting for the table. Nobody writes while a kernel runs what it
// takes by READ: the compiler may load that before it stores something else.
#define READ(element) __ldg(&(element))

// a thread for each row and unit
struct Units {
    long batch;
    template <int SPACE, class F> METHOD void each(F f) {
        const long e = (long)blockIdx.x * THREADS + threadIdx.x;
        if (e < batch * SPACE) f(e / SPACE, (int)(e % SPACE));
    }
};

// a block for each row, which has totals
struct Rows {
    METHOD long row() const { return blockIdx.x; }
    template <int SPACE, class F> METHOD void each(F f) {
        for (int unit = threadIdx.x; unit < SPACE; unit += ROW_THREADS) f((long)blockIdx.x, unit);
    }
    template <int OPERATION> METHOD void total(float part, float *to) {
        __shared__ float parts[ROW_THREADS / 32];
UNROLL
        for (int d = 16; d; d /= 2) part = joined(OPERATION, part, __shfl_xor_sync(0xffffffffu, part, d));
        __syncthreads();  // the total before may still be read
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
        __syncthreads();
        if (threadIdx.x == 0) {
            float s = parts[0];
            for (int warp = 1; warp < ROW_THREADS / 32; warp++) s = joined(OPERATION, s, parts[warp]);
            *to = s;
        }
    }
};
#define KERNEL_OF_UNITS(name, Level)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const Given *__restrict__ table, long at, long batch) { \
        const Given given = *table;                                                                                    \
        Units m{batch};                                                                                                \
        Level::run(m, given, at);                                                                                      \
    }
#define KERNEL_OF_ROWS(name, Level)                                                                                  \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) name(const Given *__restrict__ table, long at, long) { \
        const Given given = *table;                                                                                  \
        Rows m;                                                                                                      \
        Level::run(m, given, at);                                                                                    \
    }
#define KERNEL_THAT_FILLS(name)                                                               \
    extern "C" __global__ void name(const __grid_constant__ Given given, Given *table) {      \
        for (int i = threadIdx.x; i < WORDS; i += blockDim.x) table->word[i] = given.word[i]; \
    }
