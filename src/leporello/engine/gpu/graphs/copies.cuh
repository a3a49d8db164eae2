// `run` copies several pieces of memory in one launch: all blocks share each piece, in words of 16 bytes where both of
// its addresses allow that. Pieces do not overlap.
struct Pieces {
    unsigned long long count, to[PIECES], from[PIECES], bytes[PIECES];
};

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Pieces pieces) {
    const unsigned long long thread = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    const unsigned long long threads = (unsigned long long)gridDim.x * THREADS;
    for (unsigned long long piece = 0; piece < pieces.count; piece++) {
        const unsigned long long to = pieces.to[piece], from = pieces.from[piece], bytes = pieces.bytes[piece];
        const unsigned long long words = (to | from) % 16 ? 0 : bytes / 16;
        for (unsigned long long i = thread; i < words; i += threads) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
        for (unsigned long long i = words * 16 + thread; i < bytes; i += threads)
            ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    }
}
